"""What a guidance is: the one place where a pseudo-label can be rectified before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.types import Predict, Selection, Task


class Guidance(nn.Module):
    """Rectifies pseudo-labels.

    A guidance has no parameters. Its state is registered buffers, changed in place: that gives `.to(device)`,
    `state_dict()`, exact resume and fixed addresses for CUDA graphs, so no method writes save or load code.
    It never sees a label of an unlabelled sample.

    Most act through `forward` alone. One that acts elsewhere overrides a hook below, each of which does nothing by
    default, and says in `needs` which ones its learner must call for it to be itself (`Learner.hooks`).
    """

    paper: ClassVar[str]  # e.g. "Duan et al., ICCV 2023"
    needs: ClassVar[frozenset[str]] = frozenset()
    # Whether it reads or sets the class shares itself: then a learner's own alignment before it is left out.
    aligns: ClassVar[bool] = False
    generations: int = 1  # how often training begins anew, on what `relabel` selected
    refresh_every: int = 0  # steps between two calls of `refresh`; 0: there is none
    refresh_from: float = 0.0  # the share of the training after which they begin

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

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        """Called once before training, with some raw samples and what makes a network's input of them."""

    def watch(self, network: nn.Module) -> nn.Module:
        """The network as the learner is to call it."""
        return network

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        """The labelled loss; may look at the unlabelled batch, with gradient. Called before `forward`."""
        return F.cross_entropy(logits, y)

    def threshold(self, q: Tensor, tau: float | Tensor) -> float | Tensor:
        """The least confidence of the pseudo-labels `q` that is used, where the learner's own is `tau`: one, or [n]."""
        return tau

    def pool_logits(self, logits: Tensor) -> Tensor:
        """The logits that are compared with the pseudo-labels."""
        return logits

    def refresh(self) -> None:
        """Work on the whole unlabelled set, between two steps. No host sync: it may become a CUDA graph."""

    def relabel(self, predict: Predict, generation: int) -> Selection | None:
        """After a generation: who joins the labelled set in the next one. By then all other state is as at first."""
        return None

    def test_bias(self, network: nn.Module) -> Tensor | None:
        """[k] by how much the logits of a trained network are too high, to be taken off when it is used."""
        return None

    def estimates(self) -> dict[str, Tensor]:
        """What it has found out about each class, [k] by name, for the metrics."""
        return {}

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
