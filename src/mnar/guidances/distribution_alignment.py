"""Distribution alignment (Berthelot et al., ReMixMatch, ICLR 2020).

Scale every prediction by how much more of each class there should be than the model has predicted of late.

    paper     here                 meaning
    p(y)      target               the share of each class that the pseudo-labels are to have
    p~(y)     running_prediction   mean of the latest predictions, before they were aligned
    q~        forward()            normalise(q * p(y) / p~(y))

Where the methods that use it differ, docs/methods/distribution_alignment.md says which is followed and why.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.types import Task

SMALLEST_SHARE = 1e-6  # added to both shares: a class without labels, or that nobody predicts, keeps the ratio finite


class DistributionAlignment(Guidance):
    """q = DistributionAlignment(task)(probs, index), once a step.

    target    "labeled": the class shares of the labelled set; "uniform"; or one positive number for each class
    window    how many batches the running prediction looks back
    ema       decay of an exponential average to use instead of the window, e.g. 0.999
    update    whether the current batch joins the running prediction "before" or "after" it is aligned
    """

    paper = "Berthelot et al., ICLR 2020"
    aligns = True

    target: Tensor
    history: Tensor
    batches: Tensor

    def __init__(
        self,
        task: Task,
        *,
        target: Literal["labeled", "uniform"] | tuple[float, ...] = "labeled",
        window: int = 128,
        ema: float | None = None,
        update: Literal["before", "after"] = "after",
    ) -> None:
        super().__init__(task)
        if window < 1:
            raise ValueError(f"window is {window}; the alignment needs at least 1 batch of history (ReMixMatch: 128)")
        if ema is not None and not 0 <= ema < 1:
            raise ValueError(f"ema is {ema}; the decay of an average lies in [0, 1), e.g. 0.999; None: use the window")
        if update not in ("before", "after"):
            raise ValueError(f"unknown update {update!r}; choose from ['before', 'after']")
        self.decay, self.update_before = ema or 0.0, update == "before"

        # An average over a window keeps one row for each batch; an exponential one is a single row that fades.
        num_rows = window if ema is None else 1
        self.register_buffer("target", _shares(target, task), persistent=False)
        self.register_buffer("history", torch.zeros(num_rows, task.num_classes))
        self.register_buffer("batches", torch.zeros(1, dtype=torch.int64))  # tracked so far

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
        """p~: the share of the latest predictions that each class got, [k]; uniform before the first batch."""
        total = self.history.sum(0)  # rows that are not filled yet are zero, so the shares are those of the others
        mass = total.sum()
        return torch.where(mass > 0, total / mass, 1 / self.task.num_classes)

    @property
    def ratio(self) -> Tensor:
        """p(y) / p~(y): what every prediction is multiplied by, [k]."""
        return (self.target + SMALLEST_SHARE) / (self.running_prediction + SMALLEST_SHARE)

    def logs(self) -> dict[str, Tensor]:
        return {"largest_ratio": self.ratio.max()}

    def _track(self, probs: Tensor) -> None:
        mean = distributed.gather(probs.mean(0, keepdim=True)).mean(0)
        mean = mean.nan_to_num()  # one overflow upstream must not blind the whole history
        slot = self.batches.remainder(len(self.history))
        self.history[slot] = self.decay * self.history[slot] + mean  # only its shares are read
        self.batches += 1


def _shares(target: str | tuple[float, ...], task: Task) -> Tensor:
    """The class shares that a target names, [k]."""
    k = task.num_classes
    if target == "uniform":
        shares = torch.ones(k)
    elif target == "labeled":
        shares = task.labeled_counts
    elif isinstance(target, str):
        raise ValueError(f"unknown target {target!r}; choose from ['labeled', 'uniform'] or give {k} numbers")
    else:
        if len(target) != k or not all(0 < share < math.inf for share in target):
            raise ValueError(
                f"target has {len(target)} numbers, {target}; expected {k} positive ones, the share of each class"
            )
        shares = torch.tensor(target, dtype=torch.float32)
    return shares / shares.sum()
