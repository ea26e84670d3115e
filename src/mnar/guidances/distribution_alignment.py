"""Distribution alignment (Berthelot et al., ReMixMatch, ICLR 2020).

Multiply every prediction by the class distribution that the pseudo-labels should have, divided by the class
distribution that the model has recently predicted.

    paper     here                 meaning
    p(y)      target               the class distribution that the pseudo-labels should have
    p~(y)     running_prediction   mean of the recent predictions before alignment
    q~        forward()            normalise(q * p(y) / p~(y))

The methods that use distribution alignment differ in details. docs/methods/distribution_alignment.md says which of them
this implementation follows, and why.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.option_values import ClassSize, ShareBelowOne, Window, checked_options, shown
from mnar.types import Task

SMALLEST_SHARE = 1e-6  # added to both shares: the ratio stays finite for a class without labels or predictions


class DistributionAlignment(Guidance):
    """Align the class distribution of the pseudo-labels with a target.

    Call `q = guidance(probs, index)` once per step, where `guidance = DistributionAlignment(task)`.

    target    "labeled": the class distribution of the labelled set; "uniform"; or one positive number per class
    window    number of recent batches that the running prediction averages
    ema       decay of an exponential moving average, e.g. 0.999; if given, it replaces the window
    update    whether the running prediction takes in the current batch "before" or "after" the batch is aligned
    """

    paper = "Berthelot et al., ICLR 2020"
    aligns = True

    target: Tensor
    history: Tensor
    batches: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        target: Literal["labeled", "uniform"] | tuple[ClassSize, ...] = "labeled",
        window: Window = 128,
        ema: ShareBelowOne | None = None,
        update: Literal["before", "after"] = "after",
    ) -> None:
        super().__init__(task)
        self.decay, self.update_before = ema or 0.0, update == "before"

        # The average over a window needs one row per batch. The exponential moving average is a single row that decays.
        num_rows = window if ema is None else 1
        self.register_buffer("target", target_shares(target, task), persistent=False)
        self.register_buffer("history", torch.zeros(num_rows, task.num_classes))
        self.register_buffer("batches", torch.zeros(1, dtype=torch.int64))  # number of batches tracked so far

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        probs = probs.detach().float()
        if self.update_before:
            self._track(probs)
        aligned = probs * self.ratio
        aligned /= aligned.sum(1, keepdim=True)
        if not self.update_before:
            self._track(probs)
        return aligned

    @property
    def running_prediction(self) -> Tensor:
        """p~: the class distribution of the recent predictions, [k]; uniform before the first batch."""
        total = self.history.sum(0)  # rows that are not filled yet are zero and do not change the shares
        mass = total.sum()
        return torch.where(mass > 0, total / mass, 1 / self.task.num_classes)

    @property
    def ratio(self) -> Tensor:
        """p(y) / p~(y): the factor that multiplies the probability of each class, [k]."""
        return (self.target + SMALLEST_SHARE) / (self.running_prediction + SMALLEST_SHARE)

    def logs(self) -> dict[str, Tensor]:
        return {"largest_ratio": self.ratio.max()}

    def _track(self, probs: Tensor) -> None:
        mean = distributed.mean(probs.mean(0))
        mean = mean.nan_to_num()  # one overflow upstream must not destroy the whole history
        slot = self.batches.remainder(len(self.history))
        self.history[slot] = self.decay * self.history[slot] + mean  # not normalised: only its shares are read
        self.batches += 1


def target_shares(target: str | tuple[float, ...], task: Task, *, option: str = "target") -> Tensor:
    """Return the class distribution that the option `target` describes, [k]. Error messages call it `option`."""
    k = task.num_classes
    if target == "uniform":
        shares = torch.ones(k)
    elif target == "labeled":
        shares = task.labeled_counts
    else:
        assert not isinstance(target, str)  # the constructors allow no other text
        if len(target) != k or not all(share > 0 for share in target):
            raise ValueError(
                f"{option} has {len(target)} numbers, {shown(target)}; expected {k} positive numbers, one per class"
            )
        shares = torch.tensor(target, dtype=torch.float64)  # float32 would round very small numbers to zero
    return (shares / shares.sum()).float()
