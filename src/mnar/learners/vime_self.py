"""VIME, the self-supervised stage (Yoon et al., NeurIPS 2020).

This stage overwrites some cells of a row with values from other rows. It trains an encoder together with two heads. One
head predicts which cells were changed. The other head predicts the original values.

    paper    here                   meaning
    p_m      mask_rate              share of the cells that are overwritten
    m        masked                 the cells to overwrite, drawn from Bernoulli(mask_rate)
    x_bar    "marginal"             for each cell, a value of the same column from a random row
    x~       corrupted              the corrupted row m * x_bar + (1 - m) * x                            Eq. 3
    m'       changed                the cells whose value really changed; the new value may equal the old one
    e        model.encoder          the encoder that is trained
    s_m      model.heads["mask"]    predicts m'
    s_r      model.heads["feature"] predicts the original row x
    alpha    feature_weight         weight of the reconstruction loss
             bounded                whether all features lie between 0 and 1; the reconstruction then ends in a sigmoid

The second stage is `vime.py`. This stage uses neither labels nor pseudo-labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier
from mnar.models.encoder_mlp import EncoderMLP, with_encoder
from mnar.option_values import Factor, PositiveShare, checked_options
from mnar.types import Batch, Step, Task


class VimeSelf(Learner):
    paper = "Yoon et al., NeurIPS 2020"
    views = ("id", "marginal")
    suits = ("tables",)
    hooks = frozenset[str]()
    unlabeled_ratio = 1
    is_guided = False
    labels_batches = False
    uses_labels = False
    pretraining_options: ClassVar[Mapping[str, Any]] = {"optimizer": "rmsprop"}

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        mask_rate: PositiveShare = 0.3,
        feature_weight: Factor = 2.0,
        bounded: bool = False,
    ) -> None:
        super().__init__(task, guidance)
        self.mask_rate, self.feature_weight, self.bounded = mask_rate, feature_weight, bounded

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        model = with_encoder(model)
        return {
            "mask": nn.Linear(model.encoder_width, model.input_width),
            "feature": nn.Linear(model.encoder_width, model.input_width),
        }

    def prepare(self, model: Classifier) -> None:
        with_encoder(model)

    def check_sample(self, views: Mapping[str, Tensor]) -> None:
        check_bounds(views["id"], self.bounded)

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        # The model may also be the engine's network, which has the same attributes as an EncoderMLP.
        model = cast(EncoderMLP, model)
        x = batch.u["id"]
        uniforms = torch.rand(distributed.num_parts() * len(x), *x.shape[1:], dtype=x.dtype, device=x.device)
        masked = distributed.own_rows(uniforms) < self.mask_rate
        corrupted = torch.where(masked, batch.u["marginal"], x)  # Eq. 3
        changed = (corrupted != x).float()

        encoded = model.encoder(corrupted)
        mask = F.binary_cross_entropy_with_logits(model.heads["mask"](encoded).float(), changed)  # Eq. 5
        guess = model.heads["feature"](encoded).float()
        feature = F.mse_loss(guess.sigmoid() if self.bounded else guess, x)  # Eq. 6
        loss = mask + self.feature_weight * feature  # Eq. 4
        return Step(loss, {"loss/mask": mask.detach(), "loss/feature": feature.detach()})


def check_bounds(rows: Tensor, bounded: bool) -> None:
    """Refuse `bounded` if a standardised feature lies outside 0 to 1, since a sigmoid could not reconstruct it."""
    lowest, highest = rows.min().item(), rows.max().item()
    if bounded and not 0 <= lowest <= highest <= 1:
        raise ValueError(
            f"features range from {lowest:.3g} to {highest:.3g} after standardisation, but learner.bounded=true needs "
            "values from 0 to 1; choose --set learner.bounded=false"
        )
