"""Self-training of any scikit-learn classifier, with a guidance that rectifies the pseudo-labels.

In each round the classifier predicts the pool, the guidance rectifies the predictions, and the classifier is fitted
again to the labels and to the pseudo-labels that are confident enough. A guidance works on probabilities, so it does
not matter which classifier they come from. The pool passes through the guidance in batches, as in the training of a
network, so that moving averages and windows have their usual meaning.

A guidance that changes the labelled loss of a network (the hook `supervised` of CADR and SimPro) removes the class
distribution of the labels from the predictions. Here the division of the probabilities by the class counts has this
effect (`balanced`). All other guidances expect the predictions of a classifier that was trained in the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.user_files import UNLABELED
from mnar.guidances import CADR, DARP, PRG, DistributionAlignment, Guidance, NoGuidance, SimPro, Tracking
from mnar.own_data.portfolio.member import Floats, Integers, balanced
from mnar.types import Task

BATCH = 448  # rows that pass through the guidance together
MIN_BATCHES = 32  # a small pool is divided into so many batches
MakeGuidance = Callable[[Task], Guidance]
# The options suit a few rounds, each with a fitted classifier, instead of thousands of steps of a network:
# - PRG: in the first round no sample has moved yet, so every row of C is empty. With empty_row="onehot" all
#   pseudo-labels of this round would pass the threshold.
# - CADR, SimPro: a round has about 32 batches. A momentum of 0.99 would keep 72 % of the uniform prior at the start,
#   0.9 keeps 3 %.
BY_NAME: dict[str, MakeGuidance] = {
    "none": NoGuidance,
    "tracking": Tracking,
    "distribution_alignment": DistributionAlignment,
    "darp": DARP,
    "cadr": partial(CADR, momentum=0.9),
    "prg": partial(PRG, empty_row="identity"),
    "prg_last": partial(PRG, last=True, alpha=3.0, empty_row="identity"),
    "prg_smooth": partial(PRG, smoothing=1.0, empty_row="identity"),
    "simpro": partial(SimPro, tau=1.0, momentum=0.9, update_every=1, confidence=0.0),
}
# Without a labelled loss, "prg_balanced" would be "prg_smooth" with `balance=True`.
NEED_A_NETWORK = ("adello", "cdmad", "crest", "crest_plus", "prg_balanced")
# Hooks of a guidance that train several networks in turn, observe a network, or add a loss to its training.
NETWORK_HOOKS = {"relabel", "watch", "extra_loss"}


class Rounds(NamedTuple):
    """The result of self-training."""

    model: Any  # the classifier, fitted to the labels and the last pseudo-labels
    pseudo_labels: Integers  # [N] the last pseudo-labels of the pool; UNLABELED: not confident enough
    train_counts: Integers  # [k] rows of each class that the classifier was fitted to
    num_rounds: int
    guidance: Guidance


def make_guidance(guidance: str | MakeGuidance, task: Task) -> Guidance:
    """Build a guidance from its name or from a function of the task."""
    if isinstance(guidance, Guidance):
        name = type(guidance).__name__
        raise TypeError(f"guidance is an object of class {name}; give the class, or another function of the task")
    if isinstance(guidance, str):
        if guidance not in BY_NAME:
            problem = "needs a network" if guidance in NEED_A_NETWORK else "is unknown"
            raise ValueError(f"guidance {guidance!r} {problem}; choose from {sorted(BY_NAME)} for self-training")
        return BY_NAME[guidance](task)
    made = guidance(task)
    if made.needs & NETWORK_HOOKS:
        name = type(made).__name__
        raise ValueError(f"guidance {name!r} needs a network; choose from {sorted(BY_NAME)} for self-training")
    return made


def self_train(
    fit: Callable[[Any, npt.NDArray[Any]], Any],
    x: Any,
    y: Integers,
    *,
    classes: npt.NDArray[Any],
    guidance: str | MakeGuidance = "prg",
    rounds: int = 5,
    threshold: float = 0.8,
    balance: bool | None = None,
    seed: int = 0,
) -> Rounds:
    """Fit, predict the pool, rectify, and fit again.

    fit          fits a classifier with `classes_` and `predict_proba` to rows and their classes
    x            all rows: an array, a sparse matrix in CSR form, a DataFrame or a list
    y            [n] the position of each row's class in `classes`; UNLABELED for a row of the pool
    classes      [k] the classes, sorted
    guidance     the name of a guidance, or a function that makes one for a task
    rounds       the largest number of rounds; self-training ends earlier when no pseudo-label changes
    threshold    the lowest confidence of a pseudo-label that is used; some guidances lower it for rare classes
    balance      whether the guidance gets balanced probabilities; None: if the guidance changes the labelled loss of
                 a network
    """
    from sklearn.utils import _safe_indexing  # imported here because the import takes a second

    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; self-training needs at least 1 round")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}; a confidence must be in [0, 1]. Choose e.g. 0.8")
    labeled, pool = np.flatnonzero(y != UNLABELED), np.flatnonzero(y == UNLABELED)
    labels, x_pool = y[labeled], _safe_indexing(x, pool)
    task = Task(len(classes), len(pool), torch.from_numpy(labels), batch_unlabeled=min(BATCH, max(1, len(pool))))
    guide = make_guidance(guidance, task)
    balance = "supervised" in guide.needs if balance is None else balance
    order = torch.Generator().manual_seed(seed)

    model = fit(_safe_indexing(x, labeled), classes[labels])
    train_counts = np.bincount(labels, minlength=len(classes))
    pseudo_labels, num_rounds = np.full(len(pool), UNLABELED), 0
    while num_rounds < rounds:
        num_rounds += 1
        probs = np.zeros((len(pool), len(classes)))
        probs[:, np.searchsorted(classes, model.classes_)] = model.predict_proba(x_pool)
        rectified, needed = rectify(guide, balanced(probs, train_counts) if balance else probs, threshold, order)
        before, pseudo_labels = pseudo_labels, np.where(rectified.max(1) >= needed, rectified.argmax(1), UNLABELED)
        if (pseudo_labels == before).all():
            break
        is_used = pseudo_labels != UNLABELED
        all_labels = np.concatenate([labels, pseudo_labels[is_used]])
        model = fit(_safe_indexing(x, np.concatenate([labeled, pool[is_used]])), classes[all_labels])
        train_counts = np.bincount(all_labels, minlength=len(classes))
    return Rounds(model, pseudo_labels, train_counts, num_rounds, guide)


@torch.no_grad()
def rectify(guide: Guidance, probs: Floats, threshold: float, order: torch.Generator) -> tuple[Floats, Floats]:
    """Pass all rows through the guidance in random batches; return the pseudo-labels and the threshold of each row."""
    values, num_rows = torch.from_numpy(probs).float(), len(probs)
    rectified, needed = torch.empty_like(values), torch.empty(num_rows)
    size = max(1, min(guide.task.batch_unlabeled, num_rows // MIN_BATCHES))

    def pass_all() -> None:
        for rows in torch.randperm(num_rows, generator=order).split(size):
            rectified[rows] = guide(values[rows], rows).float()
            needed[rows] = torch.as_tensor(guide.threshold(rectified[rows], threshold), dtype=torch.float32)

    pass_all()
    if (
        guide.refresh_every
    ):  # e.g. DARP: the first pass stores the predictions, the second returns the solution for them
        guide.refresh()
        pass_all()
    return rectified.double().numpy(), needed.double().numpy()
