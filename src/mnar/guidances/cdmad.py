"""CDMAD: Class-Distribution-Mismatch-Aware Debiasing (Lee & Kim, CVPR 2024).

The bias of a network is the logits that it predicts for a blank image. CDMAD subtracts this bias from the logits that
pseudo-labels are made of, and from the logits of the trained network.

    paper       here           meaning
    I           blank_image    an image of one colour that belongs to no class
    g(I)        bias           logits of the blank image in training mode, in a forward pass of its own
    g(u)        log probs      logits of the weak view, up to a constant that the softmax removes
    softmax g*  forward()      softmax(g(u) - g(I)) after the warm-up, softmax(g(u)) before
    g*(x)       test_bias()    g(x) - g(I) for the trained network; test_bias() returns its g(I)

docs/methods/cdmad.md says where this implementation departs from the paper and its released code, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.models.batch_norm import statistics_kept
from mnar.option_values import Share, checked_options
from mnar.types import Rows, Samples, Task

LEVELS = {"white": 255, "grey": 128, "black": 0}
SMALLEST_PROB = torch.finfo(torch.float32).tiny  # a class 87 logits below the best one: its logarithm stays finite


class CDMAD(Guidance):
    """Subtract the logits of a blank image from those of the pseudo-labels and of the trained network.

    Before training, call `guidance.prepare(samples, view)` and then `network = guidance.watch(network)`. Call
    `q = guidance(probs, index)` once per step, with the probabilities that the watched network predicts. In your own
    loop, also write the share of the training that is done to `guidance.progress`, or choose warmup=0.

    colour    colour of the blank image: "ones" is an input of the network that is 1 everywhere, as in the released
              code; "white", "grey" and "black" are pixel values. The blank image should belong to no class
    blank     "alone": the blank image is a batch of its own, as in the released code, and running statistics of batch
              norm do not change; "joint": the blank image is one more row of the batch
    warmup    share of the training during which the bias is not subtracted from pseudo-labels
    """

    paper = "Lee & Kim, CVPR 2024"
    needs = frozenset({"watch"})
    aligns = True
    learner_options: ClassVar[Mapping[str, Any]] = {"targets": "soft", "strong_views": 2, "threshold": 0.0}

    blank_image: Tensor | None
    bias: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        colour: Literal["ones", "white", "grey", "black"] = "ones",
        blank: Literal["alone", "joint"] = "alone",
        warmup: Share = 0.2,
    ) -> None:
        super().__init__(task)
        self.colour, self.is_joint, self.warmup = colour, blank == "joint", warmup
        self.register_buffer("blank_image", None, persistent=False)
        self.register_buffer("bias", torch.zeros(task.num_classes))

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Return softmax(g(u) - g(I)), with g(I) of the last forward pass of the watched network.

        During the warm-up, return `probs`.
        """
        self.check(probs, index)
        probs = probs.detach().float()
        logits = probs.clamp(min=SMALLEST_PROB).log()
        return torch.where(self.progress >= self.warmup, (logits - self.bias).softmax(1), probs)

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        """Make the blank image, with the shape of the samples and normalised by `view`."""
        if samples.dtype != torch.uint8 or samples.ndim != 4:
            raise ValueError(
                f"samples are {samples.dtype} {list(samples.shape)}, but CDMAD can make a blank image only for uint8 "
                "images of shape [n, channels, height, width]; choose another guidance, e.g. --guidance prg"
            )
        blank = view(samples.new_full((1, *samples.shape[1:]), LEVELS.get(self.colour, 0))).float()
        if self.colour == "ones":
            blank = torch.ones_like(blank)
        # With the blank in channels-last format, torch.cat keeps the memory format of the batch, whichever that is.
        self.blank_image = blank.contiguous(memory_format=torch.channels_last)

    def watch(self, network: nn.Module) -> nn.Module:
        """Return a network that also processes the blank image in every forward pass and notes its logits."""
        if self.blank_image is None:
            raise ValueError("CDMAD has no blank image yet; call guidance.prepare(samples, view) before watch(network)")
        return Watched(network, self)

    def note_bias(self, logits: Tensor) -> None:
        """Store the logits of the blank image, [1, k], as the bias for the pseudo-labels of the same step."""
        bias = distributed.mean(logits.float().squeeze(0))
        self.bias.copy_(bias.nan_to_num(0.0, 0.0, 0.0))  # an overflow measures no bias

    @torch.no_grad()
    def test_bias(self, network: nn.Module) -> Tensor | None:
        """Return the logits of the blank image for a trained network, [k], or None before `prepare`."""
        if self.blank_image is None:
            return None
        logits: Tensor = network(self.blank_image)
        return logits.squeeze(0).float()

    def logs(self) -> dict[str, Tensor]:
        return {"bias_range": self.bias.max() - self.bias.min()}


class Watched(nn.Module):
    """A network that processes the blank image with every batch, in a forward pass of its own or in that of the batch.

    The pass of its own has no gradient and leaves the running statistics of batch norm as they are. Batch norm then
    normalises the blank image by the statistics of this one image. In a joint pass, batch norm uses the same statistics
    for the blank image and the batch.
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
        """Return the features of `x`, and note the logits of the blank image."""
        (guidance,) = self._guidance
        blank = cast(Tensor, guidance.blank_image)
        if guidance.is_joint:
            joint = Rows(x.trained, torch.cat([x.observed, blank])) if isinstance(x, Rows) else torch.cat([x, blank])
            features: Tensor = self.network.features(joint)
            features, of_blank = features[:-1], features[-1:]
        else:
            features = self.network.features(x)
            of_blank = self._features_alone(blank)
        with torch.no_grad():
            guidance.note_bias(self.network.head(of_blank))
        return features

    @torch.no_grad()
    def _features_alone(self, blank: Tensor) -> Tensor:
        try:
            with statistics_kept(self.network):
                features: Tensor = self.network.features(blank)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                "guidance.blank is 'alone', but a batch norm of this network has only one value per channel for a "
                "single image, so it cannot compute a variance; choose --set guidance.blank=joint"
            ) from error
        return features
