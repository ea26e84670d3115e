"""DARP: Distribution Aligning Refinery of Pseudo-label (Kim et al., NeurIPS 2020).

DARP stores the latest prediction for every unlabelled sample. Every few steps it changes all stored predictions
together, the uncertain ones most, until the classes have given counts, and uses the result as pseudo-labels.

    paper    here         meaning
    P        store        the latest prediction of the model for each unlabelled sample
    M        target       how many samples each class should have
    X        refined      the pseudo-labels: P without noise, changed to the counts M     mnar.guidances.refinery
    T        iterations   how often the solver adjusts rows and columns in turn
    delta    delta        how many samples a class keeps as candidates, as a multiple of its target

docs/methods/darp.md says where this implementation departs from the published code, and why.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.guidances.refinery import refine, remove_noise
from mnar.option_values import ClassSize, NumSteps, PositiveFactor, Range, Share, checked_options, shown
from mnar.types import Task

ROUNDING = 1e-3  # tolerance for the sum of given shares; given counts may differ from the pool by half a sample
FEWEST_LABELS = 2  # of a class: the model memorises a single label, which then shows no confusion
CONFUSION_DECAY = 0.99  # per batch that has a label of the class; covers about 100 such batches
MIX_ITERATIONS = 100
SMALLEST_SHARE = 1e-12


class DARP(Guidance):
    """Change the pseudo-labels of the whole pool so that the classes have given counts.

    Call `q = guidance(probs, index)` once per step, where `guidance = DARP(task)`, and `guidance.refresh()` every
    `guidance.refresh_every` steps.

    target        class counts of the pool. "labeled": in the class distribution of the labelled set; "estimate":
                  estimated from the predictions and the confusions of the model; "oracle": the true counts, which
                  a run fills in if the labels of the pool are known; or one number per class, counts or shares
    warmup        share of the training after which refreshes begin
    every         steps between two refreshes
    iterations    how often the solver adjusts rows and columns in turn
    delta         noise removal: how many samples a class keeps as candidates, as a multiple of its target
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

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        target: Literal["labeled", "estimate", "oracle"] | tuple[ClassSize, ...] = "labeled",
        warmup: Share = 0.4,
        every: NumSteps = 10,
        iterations: Annotated[int, Range(1, 10**4)] = 10,
        delta: PositiveFactor = 2.0,
    ) -> None:
        super().__init__(task)
        self.refresh_from, self.refresh_every = warmup, every
        self.iterations, self.delta = iterations, delta

        k, num_samples = task.num_classes, task.num_unlabeled
        self.target_used = _possible(target, task)  # "labeled" if an estimate is impossible
        self.register_buffer("target", _counts(self.target_used, task), persistent=self.target_used == "estimate")
        # One row more than there are samples: if a sample occurs several times in a batch, all but its last occurrence
        # write to this extra row.
        self.register_buffer("store", torch.full((num_samples + 1, k), 1 / k))
        self.register_buffer("refined", torch.full((num_samples, k), 1 / k))
        self.register_buffer("active", torch.zeros((), dtype=torch.bool))  # whether a refresh has taken place
        self.register_buffer("column_error", torch.zeros(()))
        if self.target_used == "estimate":
            self.needs = DARP.needs | {"supervised"}  # type: ignore[misc]
            # Row y: a decaying sum of the predictions for labelled samples of class y. Only its shares are read.
            self.register_buffer("confusion", SMALLEST_SHARE * torch.eye(k))

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Store the predictions, and return the refined rows, or the predictions before the first refresh."""
        self.check(probs, index)
        probs = probs.detach().float()
        self._remember(probs, index)
        # As in the published code, a row is that of the last refresh, even if the prediction has changed since.
        return torch.where(self.active, self.refined[index], probs)

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        """Return plain cross-entropy. With target "estimate", also track how the model confuses the classes."""
        if self.target_used == "estimate":
            self._track_confusion(logits.detach().float().softmax(1), y)
        return super().supervised(logits, y, logits_weak)

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the pseudo-labels of the whole pool again from the stored predictions."""
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
        """Return `column_error`, the share of the pool that the solver left in a wrong class."""
        return {"column_error": self.column_error}

    def _remember(self, probs: Tensor, index: Tensor) -> None:
        probs, index = distributed.gather(probs), distributed.gather(index, sent_as=torch.int32)
        index, order = index.sort(stable=True)
        is_final = ~F.pad(index[1:] == index[:-1], (0, 1)).unsqueeze(1)  # is it the last occurrence of its sample?
        latest = probs[order]
        is_number = latest.isfinite().all(1, keepdim=True)  # an overflow upstream leaves the stored row unchanged
        latest = torch.where(is_number, latest, self.store[index])
        row = torch.where(is_final.squeeze(1), index, self.task.num_unlabeled)
        self.store[row] = torch.where(is_final, latest, 1 / self.task.num_classes)

    def _track_confusion(self, probs: Tensor, y: Tensor) -> None:
        probs, y = distributed.gather(probs.nan_to_num()), distributed.gather(y, sent_as=torch.int32)
        member = F.one_hot(y, self.task.num_classes).float()
        size = member.sum(0).unsqueeze(1)
        mean = member.T @ probs / size.clamp(min=1)
        self.confusion.copy_(torch.where(size > 0, CONFUSION_DECAY * self.confusion + mean, self.confusion))


def class_mix(confusion: Tensor, mean: Tensor) -> Tensor:
    """Estimate the class shares q of the pool from the confusions and the mean prediction: [k, k], [k] -> [k].

    Column y of A is the mean prediction for samples of class y, so q solves A q = mean. The solution is the one of
    maximum likelihood, found by expectation maximisation: each round divides the mean prediction among the classes that
    it may have come from. The shares are never negative, and they are defined even if A is singular.
    """
    prediction_of_class = confusion / confusion.sum(1, keepdim=True)  # A, transposed
    mix = mean = mean / mean.sum()
    for _ in range(MIX_ITERATIONS):
        mix = mix * (prediction_of_class @ (mean / (mix @ prediction_of_class).clamp(min=SMALLEST_SHARE)))
    return mix / mix.sum()


def _possible(target: str | tuple[float, ...], task: Task) -> str | tuple[float, ...]:
    """Return the target, or "labeled" if a class has too few labels for an estimate."""
    if target != "estimate" or task.labeled_targets is None:
        return target
    labels = Counter(task.labeled_targets.tolist())
    rare = [c for c in range(task.num_classes) if labels[c] < FEWEST_LABELS]
    if not rare:
        return target
    warnings.warn(
        f"target='estimate' needs at least {FEWEST_LABELS} labels in each class, but classes {rare} have fewer; "
        "DARP uses target='labeled', the class distribution of the labelled set, instead for all classes",
        stacklevel=4,
    )
    return "labeled"


def _counts(target: str | tuple[float, ...], task: Task) -> Tensor:
    """Return the class counts of the pool that `target` describes, [k]; an estimate starts as those of "labeled"."""
    k, num_samples = task.num_classes, task.num_unlabeled
    if target in ("labeled", "estimate"):
        counts = task.labeled_counts.double()
    elif target == "oracle":
        raise ValueError(
            "target is 'oracle', but a Task does not contain the labels of unlabelled samples; "
            f"give the true class counts instead: {k} numbers with the sum {num_samples}"
        )
    else:
        assert not isinstance(target, str)  # the constructor allows no other text
        if len(target) != k:
            raise ValueError(
                f"target has {len(target)} numbers, {shown(target)}; "
                f"expected {k} numbers, a count or a share for each class"
            )
        total = sum(target)
        if abs(total - 1) > ROUNDING and abs(total - num_samples) > 0.5:
            raise ValueError(
                f"target has the sum {total:g}; expected {num_samples}, the size of the unlabelled set, for counts, "
                "or 1 for shares"
            )
        counts = torch.tensor(target, dtype=torch.float64)
    return num_samples * counts / counts.sum()
