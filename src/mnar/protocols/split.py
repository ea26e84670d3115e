"""From counts to rows: which samples of a training set keep their label, and which are unlabelled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mnar.datasets.labels import class_labels
from mnar.types import Counts, Split, Thinned


def split(
    targets: npt.ArrayLike | Tensor,
    counts: Counts | Thinned | None,
    *,
    seed: int,
    include_labeled: bool = True,
) -> Split:
    """Draw the labelled rows of each class, then the unlabelled ones from what is left of it.

    With `include_labeled` the labelled rows are unlabelled data too, as in the published code. Without counts those are
    labelled that have a label, or are drawn from them if there are to be fewer; a target of -1 is none, and what is
    below takes no part.
    """
    if isinstance(targets, Tensor):
        targets = targets.cpu().numpy()
    if counts is None or isinstance(counts, Thinned):
        return _as_found(np.asarray(targets), counts, seed=seed, include_labeled=include_labeled)
    num_classes = len(counts.labeled)
    if np.any(np.asarray(targets) == -1):
        raise ValueError("some samples have no label already, so there is nothing to draw; choose --protocol found")
    if counts.unlabeled is not None and len(counts.unlabeled) != num_classes:
        raise ValueError(
            f"counts name {num_classes} labelled and {len(counts.unlabeled)} unlabelled classes; "
            "give one number per class in both"
        )
    labels = class_labels(targets, "targets", num_classes)

    held = np.bincount(labels, minlength=num_classes)
    for c, asked in enumerate(counts.labeled):
        if not 0 <= asked <= held[c]:
            raise ValueError(
                f"class {c} was asked for {asked} labelled samples and holds {held[c]}; "
                "ask for fewer labels, or for as many classes as the data has"
            )

    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(held)[:-1])
    # all labelled draws come first, so they do not depend on what is asked of the unlabelled part
    labeled = [rng.choice(rows, asked, replace=False) for rows, asked in zip(members, counts.labeled, strict=True)]
    unlabeled = [np.setdiff1d(rows, drawn) for rows, drawn in zip(members, labeled, strict=True)]
    if counts.unlabeled is not None:
        unlabeled = [
            rng.choice(left, min(asked, len(left)), replace=False)
            for left, asked in zip(unlabeled, counts.unlabeled, strict=True)
        ]
    if include_labeled:
        unlabeled = unlabeled + labeled
    return Split(_sorted_rows(labeled), _sorted_rows(unlabeled))


def _as_found(targets: npt.NDArray[np.int64], thinned: Thinned | None, *, seed: int, include_labeled: bool) -> Split:
    labeled, pool = np.flatnonzero(targets >= 0), np.flatnonzero(targets >= -1)
    if not len(labeled):
        raise ValueError("no sample has a label; give some of each class")
    if thinned is not None:
        labeled = _thinned(labeled, targets[labeled], thinned.num_labels, seed)
    if not include_labeled:
        pool = np.setdiff1d(pool, labeled)
    return Split(labeled.astype(np.int64), pool.astype(np.int64))


def _thinned(
    rows: npt.NDArray[np.intp], labels: npt.NDArray[np.int64], num_labels: int, seed: int
) -> npt.NDArray[np.intp]:
    """So many rows, each as likely as any other, except that a class comes first that would have none."""
    if num_labels > len(rows):
        raise ValueError(f"num_labels is {num_labels}, and {len(rows)} samples have a label; ask for as many or fewer")
    drawn = np.random.default_rng(seed).permutation(len(rows))
    _, first_of_class = np.unique(labels[drawn], return_index=True)
    turn = np.arange(len(rows))
    turn[first_of_class] = -1
    return np.sort(rows[drawn[np.argsort(turn, kind="stable")[:num_labels]]])


def hold_out(rows: Split, share: float, *, seed: int) -> tuple[Split, npt.NDArray[np.int64]]:
    """Keep a share of the labels, at least one, from training; their rows stay unlabelled data if they were."""
    num_labeled = len(rows.labeled_index)
    num_kept = min(int((1 - share) * num_labeled), num_labeled - 1)
    if num_kept < 1:
        raise ValueError(
            f"train.validation is {share}, and of {num_labeled} labels none would be left to train on; "
            "choose a smaller share, or 0 to train on all"
        )
    shuffled = np.random.default_rng([seed, num_labeled]).permutation(rows.labeled_index)
    return rows._replace(labeled_index=np.sort(shuffled[:num_kept])), np.sort(shuffled[num_kept:])


def _sorted_rows(per_class: list[npt.NDArray[np.intp]]) -> npt.NDArray[np.int64]:
    return np.sort(np.concatenate(per_class)).astype(np.int64)
