"""CDMAD: Class-Distribution-Mismatch-Aware Debiasing (Lee & Kim, CVPR 2024).

What a network says of an image with nothing on it is its bias; take that off the logits that pseudo-labels are made
of, and off those of the trained network.

    paper       here           meaning
    I           blank          an image of one colour, that belongs to no class
    g(I)        bias           its logits, measured in the same forward as the batch
    g(u)        log probs      logits of the weak view, up to a constant that the softmax takes off
    softmax g*  forward()      softmax(g(u) - g(I))
    g*(x)       test_bias()    g(x) - g(I) for the network that is used: this is its g(I)

What was taken from memory of the paper, and what was chosen here, is in docs/methods/cdmad.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.types import Task

LEVELS = {"white": 255, "grey": 128, "black": 0}
SMALLEST_PROB = torch.finfo(torch.float32).tiny  # of a class 87 logits below the best: keeps its logarithm finite


class CDMAD(Guidance):
    """network = guidance.watch(network), after guidance.prepare(samples, view); then q = guidance(probs, index).

    colour    of the blank image: "white", "grey" or "black"
    """

    paper = "Lee & Kim, CVPR 2024"
    needs = frozenset({"watch"})
    aligns = True

    blank: Tensor | None
    bias: Tensor

    def __init__(self, task: Task, *, colour: Literal["white", "grey", "black"] = "white") -> None:
        super().__init__(task)
        if colour not in LEVELS:
            raise ValueError(f"unknown colour {colour!r}; choose from {list(LEVELS)}")
        self.level = LEVELS[colour]
        self.register_buffer("blank", None, persistent=False)
        self.register_buffer("bias", torch.zeros(task.num_classes))

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        logits = probs.detach().float().clamp(min=SMALLEST_PROB).log()
        return (logits - self.bias).softmax(1)

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        if samples.dtype != torch.uint8 or samples.ndim != 4:
            raise ValueError(
                f"samples are {samples.dtype} {list(samples.shape)}, and CDMAD can make a blank of uint8 images "
                "[n, channels, height, width] only; choose another guidance, e.g. --guidance prg"
            )
        solid = samples.new_full((1, *samples.shape[1:]), self.level)
        # Joined to a batch that is channels last, it leaves it so; joined to another, it follows.
        self.blank = view(solid).float().contiguous(memory_format=torch.channels_last)

    def watch(self, network: nn.Module) -> nn.Module:
        if self.blank is None:
            raise ValueError("CDMAD has no blank image yet; call guidance.prepare(samples, view) before watch(network)")
        return Watched(network, self)

    def note_bias(self, logits: Tensor) -> None:
        """Remember the logits of the blank, [1, k], for the pseudo-labels made beside it."""
        bias = distributed.gather(logits.float()).mean(0)
        self.bias.copy_(bias.nan_to_num(0.0, 0.0, 0.0))  # an overflow measures nothing

    @torch.no_grad()
    def test_bias(self, network: nn.Module) -> Tensor | None:
        if self.blank is None:
            return None
        logits: Tensor = network(self.blank)
        return logits.squeeze(0).float()

    def logs(self) -> dict[str, Tensor]:
        return {"bias_range": self.bias.max() - self.bias.min()}


class Watched(nn.Module):
    """A network that is shown the blank with every batch: both are seen with the same batch-norm statistics."""

    def __init__(self, network: nn.Module, guidance: CDMAD) -> None:
        super().__init__()
        self.network: Any = network  # with features, head and heads
        self._guidance = (guidance,)  # in a tuple, so that its state is no part of the network's
        self.training = network.training

    def __getattr__(self, name: str) -> Any:
        """Heads, encoder and whatever else the network has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("network"), name)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        (guidance,) = self._guidance
        features: Tensor = self.network.features(torch.cat([x, cast(Tensor, guidance.blank)]))
        with torch.no_grad():
            guidance.note_bias(self.network.head(features[-1:]))
        return features[:-1]
