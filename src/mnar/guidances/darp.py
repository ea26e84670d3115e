"""DARP: Distribution Aligning Refinery of Pseudo-label (Kim et al., NeurIPS 2020).

Remember the latest prediction for every unlabelled sample; every few steps, move all of them together, the uncertain
ones most, until the classes have the counts they should have.

    paper    here         meaning
    P        store        the latest prediction for each unlabelled sample, as the model made it
    M        target       how many samples each class is to have
    X        refined      the pseudo-labels: P, freed from noise, moved to the counts M     mnar.guidances.refinery
    T        iterations   turns of the solver
    delta    delta        samples that may be of a class, as a multiple of its target

Where the paper and its published code differ, docs/methods/darp.md says which is followed and why.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.guidances.refinery import refine, remove_noise
from mnar.types import Task

ROUNDING = 1e-3  # by how much given shares may miss 1; counts may miss the pool by half a sample
FEWEST_LABELS = 2  # of a class: one alone is known by heart, and says nothing of how the class is confused
CONFUSION_DECAY = 0.99  # per batch that has a label of the class: looks back 100 of them
MIX_ITERATIONS = 100
SMALLEST_SHARE = 1e-12


class DARP(Guidance):
    """q = DARP(task)(probs, index), once a step, and `refresh()` every `refresh_every` steps.

    target        class counts of the pool: "labeled": the class shares of the labelled set; "estimate": from the
                  model's predictions and its confusions; "oracle": the true ones; or one number for each class,
                  counts or shares
    warmup        share of the training after which pseudo-labels are refined
    every         steps between two refreshes
    iterations    turns of rows and columns in the solver
    delta         noise removal: how many samples, as a multiple of its target, a class keeps as candidates
    """

    paper = "Kim et al., NeurIPS 2020"
    needs = frozenset({"refresh"})
    aligns = True

    target: Tensor
    store: Tensor
    refined: Tensor
    active: Tensor
    column_error: Tensor
    confusion: Tensor

    def __init__(
        self,
        task: Task,
        *,
        target: Literal["labeled", "estimate", "oracle"] | tuple[float, ...] = "labeled",
        warmup: float = 0.4,
        every: int = 10,
        iterations: int = 10,
        delta: float = 2.0,
    ) -> None:
        super().__init__(task)
        if not 0 <= warmup <= 1:
            raise ValueError(f"warmup is {warmup}; it is a share of the training, between 0 and 1 (the paper: 0.4)")
        if every < 1:
            raise ValueError(f"every is {every}; there must be at least 1 step between two refreshes (the paper: 10)")
        if iterations < 1:
            raise ValueError(f"iterations is {iterations}; the solver needs at least 1 (the paper: 10)")
        if not 0 < delta < math.inf:
            raise ValueError(f"delta is {delta}; it must be positive and finite (the paper: 2)")
        self.refresh_from, self.refresh_every = warmup, every
        self.iterations, self.delta = iterations, delta

        k, num_samples = task.num_classes, task.num_unlabeled
        self.target_used = _possible(target, task)  # what an estimate that is impossible was replaced by
        self.register_buffer("target", _counts(self.target_used, task), persistent=self.target_used == "estimate")
        # One row more than there are samples: where several rows of a batch are the same sample, all but the last
        # occurrence write there.
        self.register_buffer("store", torch.full((num_samples + 1, k), 1 / k))
        self.register_buffer("refined", torch.full((num_samples, k), 1 / k))
        self.register_buffer("active", torch.zeros((), dtype=torch.bool))  # whether there was a refresh
        self.register_buffer("column_error", torch.zeros(()))
        if self.target_used == "estimate":
            self.needs = DARP.needs | {"supervised"}  # type: ignore[misc]
            # Row y: a fading sum of the predictions for labelled samples of class y. Only its shares are read.
            self.register_buffer("confusion", SMALLEST_SHARE * torch.eye(k))

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        probs = probs.detach().float()
        self._remember(probs, index)
        # Stale on purpose: a row is what the last refresh made of it, even where the prediction has changed since.
        return torch.where(self.active, self.refined[index], probs)

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        if self.target_used == "estimate":
            self._track_confusion(logits.detach().float().softmax(1), y)
        return super().supervised(logits, y, logits_weak)

    @torch.no_grad()
    def refresh(self) -> None:
        pool = self.store[:-1]
        if self.target_used == "estimate":
            self.target.copy_(len(pool) * class_mix(self.confusion, pool.mean(0)))
        candidates = remove_noise(pool, self.target, self.delta)
        self.refined.copy_(refine(candidates, self.target, iterations=self.iterations))
        self.column_error.copy_((self.refined.sum(0) - self.target).abs().sum() / (2 * len(pool)))
        self.active.fill_(True)

    def estimates(self) -> dict[str, Tensor]:
        return {"pool_share": self.target / self.target.sum()} if self.target_used == "estimate" else {}

    def logs(self) -> dict[str, Tensor]:
        """The share of the pool that the solver left in a wrong class."""
        return {"column_error": self.column_error}

    def _remember(self, probs: Tensor, index: Tensor) -> None:
        probs, index = distributed.gather(probs), distributed.gather(index)
        index, order = index.sort(stable=True)
        is_final = ~F.pad(index[1:] == index[:-1], (0, 1)).unsqueeze(1)  # the last occurrence of its sample
        latest = probs[order]
        is_number = latest.isfinite().all(1, keepdim=True)  # an overflow upstream leaves the row as it was
        latest = torch.where(is_number, latest, self.store[index])
        row = torch.where(is_final.squeeze(1), index, self.task.num_unlabeled)
        self.store[row] = torch.where(is_final, latest, 1 / self.task.num_classes)

    def _track_confusion(self, probs: Tensor, y: Tensor) -> None:
        probs, y = distributed.gather(probs.nan_to_num()), distributed.gather(y)
        member = F.one_hot(y, self.task.num_classes).float()
        size = member.sum(0).unsqueeze(1)
        mean = member.T @ probs / size.clamp(min=1)
        self.confusion.copy_(torch.where(size > 0, CONFUSION_DECAY * self.confusion + mean, self.confusion))


def class_mix(confusion: Tensor, mean: Tensor) -> Tensor:
    """The class shares q for which samples that are confused like this have this mean prediction, [k, k], [k] -> [k].

    Solves A q = mean, column y of A being the mean prediction for class y, in the sense of the likelihood: each round
    divides the mean among the classes it may have come from. Never negative, and defined for a singular A.
    """
    prediction_of_class = confusion / confusion.sum(1, keepdim=True)  # A, transposed
    mix = mean = mean / mean.sum()
    for _ in range(MIX_ITERATIONS):
        mix = mix * (prediction_of_class @ (mean / (mix @ prediction_of_class).clamp(min=SMALLEST_SHARE)))
    return mix / mix.sum()


def _possible(target: str | tuple[float, ...], task: Task) -> str | tuple[float, ...]:
    """The target, or the labelled shares where there are too few labels for an estimate."""
    if target != "estimate" or task.labeled_targets is None:
        return target
    labels = Counter(task.labeled_targets.tolist())
    rare = [c for c in range(task.num_classes) if labels[c] < FEWEST_LABELS]
    if not rare:
        return target
    warnings.warn(
        f"target='estimate' needs at least {FEWEST_LABELS} labels in each class, and classes {rare} have fewer; "
        "target='labeled', the class shares of the labelled set, is used instead for all classes",
        stacklevel=3,
    )
    return "labeled"


def _counts(target: str | tuple[float, ...], task: Task) -> Tensor:
    """How many samples of the pool a target gives each class, [k]. An estimate begins with the labelled shares."""
    k, num_samples = task.num_classes, task.num_unlabeled
    if target in ("labeled", "estimate"):
        counts = task.labeled_counts.double()
    elif target == "oracle":
        raise ValueError(
            "target is 'oracle', but a task has no labels of unlabelled samples; "
            f"give the true class counts instead: {k} numbers with the sum {num_samples}"
        )
    elif isinstance(target, str):
        choices = ["labeled", "estimate", "oracle"]
        raise ValueError(f"unknown target {target!r}; choose from {choices} or give {k} numbers")
    else:
        if len(target) != k or not all(0 <= count < math.inf for count in target):
            raise ValueError(
                f"target has {len(target)} numbers, {target}; "
                f"expected {k}, a count or a share for each class, none of them negative"
            )
        total = sum(target)
        if abs(total - 1) > ROUNDING and abs(total - num_samples) > 0.5:
            raise ValueError(
                f"target has the sum {total:g}; expected {num_samples}, the size of the unlabelled set, for counts, "
                "or 1 for shares"
            )
        counts = torch.tensor(target, dtype=torch.float64)
    return num_samples * counts / counts.sum()
