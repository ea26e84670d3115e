"""CDMAD: Class-Distribution-Mismatch-Aware Debiasing (Lee & Kim, CVPR 2024).

The bias of a network is the logits that it predicts for a blank image. CDMAD subtracts this bias from the logits that
pseudo-labels are made of, and from the logits of the trained network.

    paper       here           meaning
    I           blank          an image of one colour that belongs to no class
    g(I)        bias           logits of the blank image, measured in the same forward pass as the batch
    g(u)        log probs      logits of the weak view, up to a constant that the softmax removes
    softmax g*  forward()      softmax(g(u) - g(I))
    g*(x)       test_bias()    g(x) - g(I) for the trained network; test_bias() returns its g(I)

docs/methods/cdmad.md says where this implementation departs from the paper and its released code, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.types import Rows, Samples, Task

LEVELS = {"white": 255, "grey": 128, "black": 0}
SMALLEST_PROB = torch.finfo(torch.float32).tiny  # a class 87 logits below the best one: its logarithm stays finite


class CDMAD(Guidance):
    """Subtract the logits of a blank image from those of the pseudo-labels and of the trained network.

    Before training, call `guidance.prepare(samples, view)` and then `network = guidance.watch(network)`. Call
    `q = guidance(probs, index)` once per step, with the probabilities that the watched network predicts.

    colour    colour of the blank image: "white", "grey" or "black". The blank image should belong to no class
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
        """Return softmax(g(u) - g(I)), with g(I) of the last forward pass of the watched network."""
        self.check(probs, index)
        logits = probs.detach().float().clamp(min=SMALLEST_PROB).log()
        return (logits - self.bias).softmax(1)

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        """Make the blank image, with the shape of the samples and normalised by `view`."""
        if samples.dtype != torch.uint8 or samples.ndim != 4:
            raise ValueError(
                f"samples are {samples.dtype} {list(samples.shape)}, but CDMAD can make a blank image only for uint8 "
                "images of shape [n, channels, height, width]; choose another guidance, e.g. --guidance prg"
            )
        solid = samples.new_full((1, *samples.shape[1:]), self.level)
        # With the blank in channels-last format, torch.cat keeps the memory format of the batch, whichever that is.
        self.blank = view(solid).float().contiguous(memory_format=torch.channels_last)

    def watch(self, network: nn.Module) -> nn.Module:
        """Return a network that also processes the blank image in every forward pass and notes its logits."""
        if self.blank is None:
            raise ValueError("CDMAD has no blank image yet; call guidance.prepare(samples, view) before watch(network)")
        return Watched(network, self)

    def note_bias(self, logits: Tensor) -> None:
        """Store the logits of the blank image, [1, k], as the bias for the pseudo-labels of the same forward pass."""
        bias = distributed.gather(logits.float()).mean(0)
        self.bias.copy_(bias.nan_to_num(0.0, 0.0, 0.0))  # an overflow measures no bias

    @torch.no_grad()
    def test_bias(self, network: nn.Module) -> Tensor | None:
        """Return the logits of the blank image for a trained network, [k], or None before `prepare`."""
        if self.blank is None:
            return None
        logits: Tensor = network(self.blank)
        return logits.squeeze(0).float()

    def logs(self) -> dict[str, Tensor]:
        return {"bias_range": self.bias.max() - self.bias.min()}


class Watched(nn.Module):
    """A network that processes the blank image with every batch.

    Blank image and batch share one forward pass, so that batch norm uses the same statistics for both.
    """

    def __init__(self, network: nn.Module, guidance: CDMAD) -> None:
        super().__init__()
        self.network: Any = network  # has features, head and heads
        self._guidance = (guidance,)  # in a tuple, so that the state of the guidance is not part of the network's state
        self.training = network.training

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped network, such as its heads or its encoder."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("network"), name)

    def forward(self, x: Samples) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def features(self, x: Samples) -> Tensor:
        """Return the features of `x`, and note the logits of the blank image that went along with `x`."""
        (guidance,) = self._guidance
        blank = cast(Tensor, guidance.blank)
        with_blank = Rows(x.trained, torch.cat([x.observed, blank])) if isinstance(x, Rows) else torch.cat([x, blank])
        features: Tensor = self.network.features(with_blank)
        with torch.no_grad():
            guidance.note_bias(self.network.head(features[-1:]))
        return features[:-1]
