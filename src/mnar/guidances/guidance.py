"""What a guidance is: the one place where a pseudo-label can be rectified before it is used."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mnar.types import Task


class Guidance(nn.Module):
    """Rectifies pseudo-labels.

    A guidance has no parameters. Its state is registered buffers, changed in place: that gives `.to(device)`,
    `state_dict()`, exact resume and fixed addresses for CUDA graphs, so no method writes save or load code.
    It never sees a label of an unlabelled sample.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        if task.num_classes < 2:
            raise ValueError(f"num_classes is {task.num_classes}; a guidance needs at least 2 classes")
        if task.num_unlabeled < 1:
            raise ValueError(f"num_unlabeled is {task.num_unlabeled}; a guidance needs unlabelled samples")
        self.task = task

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """[n, k] class probabilities, [n] rows in the unlabelled set -> [n, k] rectified pseudo-labels."""
        raise NotImplementedError

    def logs(self) -> dict[str, Tensor]:
        """0-d device tensors about the last batch, for the training log."""
        return {}

    def matrices(self) -> dict[str, Tensor]:
        """State worth drawing in a report, by name."""
        return {}

    def check(self, probs: Tensor, index: Tensor) -> None:
        """Fail on input that cannot be right, without a host sync on a GPU."""
        k, largest = self.task.num_classes, self.task.batch_unlabeled
        if probs.ndim != 2 or probs.shape[1] != k:
            raise ValueError(f"probs has shape {tuple(probs.shape)}; expected [n, {k}], one row per sample")
        if not 1 <= len(probs) <= largest:
            raise ValueError(f"probs has {len(probs)} rows; expected 1 to {largest}, Task.batch_unlabeled")
        if index.shape != probs.shape[:1] or index.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"index has shape {tuple(index.shape)} and type {index.dtype}; "
                f"expected {len(probs)} integers, the rows of the samples in the unlabelled set"
            )
        inside = ((index >= 0) & (index < self.task.num_unlabeled)).all()
        remedy = (
            f"index must lie in [0, {self.task.num_unlabeled}), the rows of the unlabelled set (Task.num_unlabeled)"
        )
        try:
            torch._assert_async(inside, remedy)  # on a GPU a device-side assertion: no sync
        except RuntimeError as error:
            raise IndexError(f"{remedy}; got {index.min().item()} to {index.max().item()}") from error
