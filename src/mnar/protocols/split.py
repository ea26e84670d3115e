"""The random draw: it turns class counts into rows of the training set, labelled and unlabelled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mnar.datasets.labels import class_labels
from mnar.types import Counts, ExactCounts, LabelBudget, Split


def split(
    targets: npt.ArrayLike | Tensor,
    counts: Counts | LabelBudget | None,
    *,
    seed: int,
    include_labeled: bool = True,
) -> Split:
    """Draw the labelled rows of each class, and then the unlabelled rows from the remaining rows of the class.

    targets          class of each row; -1 means that the label is missing, -2 that the row is not used at all
    counts           class counts to draw; unlabelled counts are reduced to the remaining rows of a class, and for
                     ExactCounts too few rows are an error; a LabelBudget keeps so many of the labels that exist, and
                     None keeps all of them
    seed             seed of the draw
    include_labeled  whether the labelled rows are also part of the unlabelled data, as in the published code
    """
    if isinstance(targets, Tensor):
        targets = targets.cpu().numpy()
    if counts is None or isinstance(counts, LabelBudget):
        return _as_labeled(np.asarray(targets), counts, seed=seed, include_labeled=include_labeled)
    num_classes = len(counts.labeled)
    if np.any(np.asarray(targets) == -1):
        raise ValueError(
            "some samples have no label already, so a protocol cannot draw the labels; choose --protocol as_labeled"
        )
    if counts.unlabeled is not None and len(counts.unlabeled) != num_classes:
        raise ValueError(
            f"the counts name {num_classes} labelled and {len(counts.unlabeled)} unlabelled classes; "
            "give one number per class in both"
        )
    labels = class_labels(targets, "targets", num_classes)

    held = np.bincount(labels, minlength=num_classes)
    for c, asked in enumerate(counts.labeled):
        if not 0 <= asked <= held[c]:
            raise ValueError(
                f"class {c} was asked for {asked} labelled samples and holds {held[c]}; "
                "choose fewer labels: protocol.n1 (own, darp, pool_shape), protocol.gamma (cadr) or "
                "protocol.num_labels (own, balanced)"
            )

    if isinstance(counts, ExactCounts) and counts.unlabeled is not None:
        _check_pool(counts.labeled, counts.unlabeled, held)

    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(held)[:-1])
    # All labelled rows are drawn first, so that they do not depend on the unlabelled counts.
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


def _check_pool(labeled: tuple[int, ...], unlabeled: tuple[int, ...], held: npt.NDArray[np.intp]) -> None:
    """Refuse unlabelled counts that exceed the remaining samples of a class."""
    remaining = held - labeled
    missing = unlabeled - remaining
    c = int(missing.argmax())
    if missing[c] > 0:
        raise ValueError(
            f"class {c} was asked for {unlabeled[c]} unlabelled samples, but {remaining[c]} remain: the class holds "
            f"{held[c]} samples, of which {labeled[c]} are labelled. With fewer samples the pool would have another "
            "shape; request a smaller pool with --set protocol.m1, or fewer labels with --set protocol.n1"
        )


def _as_labeled(
    targets: npt.NDArray[np.int64], thinned: LabelBudget | None, *, seed: int, include_labeled: bool
) -> Split:
    """Split by the labels that exist. `thinned` limits their number."""
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
    """Draw `num_labels` of the labelled rows at random.

    Every row has the same chance, except that one random row of each class is kept first, so that no class loses all
    of its labels.
    """
    if num_labels > len(rows):
        raise ValueError(f"num_labels is {num_labels}, and {len(rows)} samples have a label; ask for as many or fewer")
    drawn = np.random.default_rng(seed).permutation(len(rows))
    _, first_of_class = np.unique(labels[drawn], return_index=True)
    turn = np.arange(len(rows))
    turn[first_of_class] = -1
    return np.sort(rows[drawn[np.argsort(turn, kind="stable")[:num_labels]]])


def hold_out(rows: Split, share: float, *, seed: int) -> tuple[Split, npt.NDArray[np.int64]]:
    """Hold out a share of the labels, at least one, from training.

    Return the split without these labels, and the rows of the held-out labels. If these rows are part of the unlabelled
    data, they stay part of it.
    """
    num_labeled = len(rows.labeled_index)
    num_kept = min(int((1 - share) * num_labeled), num_labeled - 1)
    if num_kept < 1:
        raise ValueError(
            f"train.validation is {share}, and of {num_labeled} labels none would be left to train on; "
            "choose a smaller share, or 0 to train on all labels"
        )
    shuffled = np.random.default_rng([seed, num_labeled]).permutation(rows.labeled_index)
    return rows._replace(labeled_index=np.sort(shuffled[:num_kept])), np.sort(shuffled[num_kept:])


def _sorted_rows(per_class: list[npt.NDArray[np.intp]]) -> npt.NDArray[np.int64]:
    return np.sort(np.concatenate(per_class)).astype(np.int64)
