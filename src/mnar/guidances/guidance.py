"""Base class of all guidances. A guidance rectifies a pseudo-label before the learner uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.types import Predict, Selection, Task

MOST_SAMPLES = torch.iinfo(torch.int32).max


class Guidance(nn.Module):
    """Base class of a guidance, which rectifies pseudo-labels.

    A guidance has no parameters. Its state consists of registered buffers that are changed in place. Therefore PyTorch
    moves, saves and restores the state, and CUDA graphs find the state at fixed addresses. A guidance needs no code
    that saves or loads its state. A guidance never sees a label of an unlabelled sample.

    Most guidances act through `forward` alone. A guidance that acts elsewhere overrides one or more of the hooks below.
    By default `supervised` is plain cross-entropy, and the other hooks change nothing. The attribute `needs` names the
    hooks that the learner must call for the guidance to work (see `Learner.hooks`).
    """

    paper: ClassVar[str]  # e.g. "Duan et al., ICCV 2023"
    needs: ClassVar[frozenset[str]] = frozenset()  # names of the hooks that the learner must call
    # True if the guidance estimates or corrects class shares itself. It then replaces a learner's own alignment.
    aligns: ClassVar[bool] = False
    # True if `supervised` needs the gradient of the weak logits. The weak views must then be in the backward pass.
    trains_weak_views: bool = False
    generations: int = 1  # number of networks trained one after another; `relabel` is called between them
    refresh_every: int = 0  # steps between two calls of `refresh`; 0: never called
    refresh_from: float = 0.0  # share of each generation after which these calls begin (a warm-up)
    num_steps: int = 2**20  # training steps, over all generations; run/assemble.py sets the number of the run
    # Options of the learner in the released code of the method, e.g. {"targets": "soft"}. A run on a benchmark data set
    # has these options if the learner offers all of them, unless the recipe or the user chooses others.
    learner_options: ClassVar[Mapping[str, Any]] = {}

    progress: Tensor

    def __init__(self, task: Task) -> None:
        super().__init__()
        if task.num_classes < 2:
            raise ValueError(f"num_classes is {task.num_classes}; a guidance needs at least 2 classes")
        if task.num_unlabeled < 1:
            raise ValueError(f"num_unlabeled is {task.num_unlabeled}; a guidance needs at least 1 unlabelled sample")
        if task.num_unlabeled > MOST_SAMPLES:
            raise ValueError(
                f"num_unlabeled is {task.num_unlabeled}; processes exchange the rows of samples as 32-bit integers, so "
                f"at most {MOST_SAMPLES} samples are possible. Train on a part of the unlabelled set"
            )
        self.task = task
        # The share of the current generation that is done. The learner shares its own tensor with the guidance.
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Rectify a batch: [n, k] class probabilities and [n] rows in the unlabelled set -> [n, k] pseudo-labels."""
        raise NotImplementedError

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        """Prepare for training. run/assemble.py calls this once, before the first step.

        `samples` are some raw training samples, and `view` turns raw samples into input of the network.
        """

    def watch(self, network: nn.Module) -> nn.Module:
        """Return the network that the learner calls; a guidance may wrap `network` to observe its outputs."""
        return network

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        """Return the labelled loss. It may use the weak logits of the unlabelled batch, which have a gradient.

        The learner calls `supervised` before `forward`.
        """
        return F.cross_entropy(logits, y)

    def threshold(self, q: Tensor, tau: float | Tensor) -> float | Tensor:
        """Return the confidence threshold of the pseudo-labels `q`, one number or [n]; the learner's own is `tau`."""
        return tau

    def pool_logits(self, logits: Tensor) -> Tensor:
        """Return the logits that the unlabelled loss compares with the pseudo-labels."""
        return logits

    def extra_loss(self, logits: Sequence[Tensor], probs: Tensor, mask: Tensor) -> Tensor | None:
        """Return a further loss on the unlabelled batch, or None.

        logits    [n, k] for each strong view, after `pool_logits`
        probs     [n, k] the prediction for the weak view, not rectified
        mask      [n] whether the pseudo-label of a sample is used in the learner's own loss
        """
        return None

    def refresh(self) -> None:
        """Work on the whole unlabelled set between two steps, without a host sync: the call may become a CUDA graph."""

    def relabel(self, predict: Predict, generation: int) -> Selection | None:
        """Select the unlabelled samples that join the labelled set in the next generation; None leaves it unchanged.

        The training loop calls this after a generation. Before the call, the loop resets the state of the
        guidance, unless `Learner.forgets` is False.
        """
        return None

    def test_bias(self, network: nn.Module) -> Tensor | None:
        """Return the bias of a trained network's logits, [k], or None; it is subtracted for evaluation and export."""
        return None

    def estimates(self) -> dict[str, Tensor]:
        """Return estimates for each class, [k] by name. Every evaluation writes them to the metrics."""
        return {}

    def logs(self) -> dict[str, Tensor]:
        """Return 0-d device tensors about the last batch, by name, for the training log."""
        return {}

    def matrices(self) -> dict[str, Tensor]:
        """Return the matrices that a report draws, by name."""
        return {}

    def check(self, probs: Tensor, index: Tensor) -> None:
        """Raise an error if the input is invalid, without a host sync on a GPU."""
        k, largest = self.task.num_classes, self.task.batch_unlabeled
        if probs.ndim != 2 or probs.shape[1] != k:
            raise ValueError(f"probs has shape {tuple(probs.shape)}; expected [n, {k}], one row per sample")
        if not 1 <= len(probs) <= largest:
            raise ValueError(f"probs has {len(probs)} rows; expected 1 to {largest} (Task.batch_unlabeled)")
        if index.shape != probs.shape[:1] or index.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"index has shape {tuple(index.shape)} and type {index.dtype}; "
                f"expected {len(probs)} integers, the rows of the samples in the unlabelled set"
            )
        inside = (index.clamp(0, self.task.num_unlabeled - 1) == index).all()
        remedy = (
            f"index must lie in [0, {self.task.num_unlabeled}), the rows of the unlabelled set (Task.num_unlabeled)"
        )
        try:
            torch._assert_async(inside, remedy)  # a device-side assertion on a GPU, so no host sync
        except RuntimeError as error:
            raise IndexError(f"{remedy}; got {index.min().item()} to {index.max().item()}") from error
