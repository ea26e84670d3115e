"""Meters sum up the log values of the steps on the device until the loop reads them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mnar import distributed
from mnar.training.evaluation import add_pairs


class Diverged(RuntimeError):
    """The loss or a parameter is not a finite number."""


class Meters:
    """Adding a value needs no host sync. The loop reads and resets the meters between steps.

    knows_all    whether the true class of every unlabelled sample is known
    """

    def __init__(self, num_classes: int, device: torch.device, *, knows_all: bool = True) -> None:
        self.num_classes, self.knows_all = num_classes, knows_all
        self.names: list[str] = []
        self.sums = torch.zeros(0, dtype=torch.float64, device=device)
        self.num_steps = torch.zeros((), dtype=torch.int64, device=device)
        # [true class, pseudo-label], of the rows of this process. The last column counts rejected pseudo-labels, an
        # extra row unknown true classes.
        num_rows = num_classes if knows_all else num_classes + 1
        self._confusion = torch.zeros(num_rows, num_classes + 1, dtype=torch.int64, device=device)

    def add(self, logs: dict[str, Tensor]) -> None:
        if not self.names:
            self.names = list(logs)
            self.sums = self.sums.new_zeros(len(logs))
        self.sums += distributed.mean(torch.stack(list(logs.values())))
        self.num_steps += 1

    def add_pseudo_labels(self, pseudo_labels: Tensor, targets: Tensor) -> None:
        """Count the pseudo-labels of a batch by their true class.

        pseudo_labels    [n] classes; -1: rejected
        targets          [n] true classes; below 0: unknown, which needs `knows_all=False`
        """
        column = pseudo_labels.remainder(self.num_classes + 1)  # -1 becomes the last column
        row = targets if self.knows_all else torch.where(targets < 0, self.num_classes, targets)
        add_pairs(self._confusion, row, column)

    @property
    def pseudo_confusion(self) -> Tensor:
        """The number of pseudo-labels per true class and pseudo-label, over all processes."""
        return distributed.total(self._confusion)

    def means(self) -> dict[str, float]:
        """The mean of each log value since the last reset. Raises Diverged if the loss is not finite."""
        means = (self.sums / self.num_steps.clamp(min=1)).tolist()
        named = dict(zip(self.names, means, strict=True))
        if not math.isfinite(named["loss"]):
            raise Diverged("the loss is not a finite number")
        return named

    def pseudo_label_share(self) -> list[float]:
        per_class = self.pseudo_confusion[:, :-1].sum(0)
        share: list[float] = (per_class / per_class.sum().clamp(min=1)).tolist()
        return share

    def reset(self) -> None:
        for tensor in (self.sums, self.num_steps, self._confusion):
            tensor.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "sums": self.sums,
            "num_steps": self.num_steps,
            "pseudo_confusion": self.pseudo_confusion,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names = list(state["names"])
        self.sums = state["sums"].to(self.sums.device)
        self.num_steps.copy_(state["num_steps"])
        self._confusion.copy_(state["pseudo_confusion"])
        if distributed.rank() > 0:  # the saved counts are those of all processes
            self._confusion.zero_()
