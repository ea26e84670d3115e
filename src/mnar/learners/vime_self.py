"""VIME, the self-supervised stage (Yoon et al., NeurIPS 2020).

Put strangers' values into some cells of a row, and train an encoder from which one can tell which cells they are and
what stood there.

    paper    here         meaning
    m        masked       cells to overwrite, Bernoulli(mask_rate)
    x_bar    "marginal"   a value from the same column of another row, for each cell
    x~       corrupted    m * x_bar + (1 - m) * x                                             Eq. 3
    m'       changed      cells that are in fact other: a value may meet its equal
    e        model.encoder
    s_m, s_r model.heads  "mask": was the cell changed? "feature": what stood there?
    alpha    feature_weight

The second stage is `vime.py`. Neither labels nor pseudo-labels take part in this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.guidances.guidance import Guidance
from mnar.learners.checks import check_weights
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier
from mnar.models.encoder_mlp import EncoderMLP, with_encoder
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

    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        mask_rate: float = 0.3,
        feature_weight: float = 2.0,
        bounded: bool = False,
    ) -> None:
        super().__init__(task, guidance)
        check_pretext(mask_rate, feature_weight)
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
        model = cast(EncoderMLP, model)  # or the engine's network, which offers the same
        x = batch.u["id"]
        masked = torch.rand_like(x) < self.mask_rate
        corrupted = torch.where(masked, batch.u["marginal"], x)  # Eq. 3
        changed = (corrupted != x).float()

        encoded = model.encoder(corrupted)
        mask = F.binary_cross_entropy_with_logits(model.heads["mask"](encoded).float(), changed)  # Eq. 5
        guess = model.heads["feature"](encoded).float()
        feature = F.mse_loss(guess.sigmoid() if self.bounded else guess, x)  # Eq. 6
        loss = mask + self.feature_weight * feature  # Eq. 4
        return Step(loss, {"loss/mask": mask.detach(), "loss/feature": feature.detach()})


def check_bounds(rows: Tensor, bounded: bool) -> None:
    lowest, highest = rows.min().item(), rows.max().item()
    if bounded and not 0 <= lowest <= highest <= 1:
        raise ValueError(
            f"features range from {lowest:.3g} to {highest:.3g} once standardised, and learner.bounded says 0 to 1; "
            "choose --set learner.bounded=false"
        )


def check_pretext(mask_rate: float, feature_weight: float) -> None:
    if not 0 < mask_rate <= 1:
        raise ValueError(f"mask_rate is {mask_rate}; a share of the cells lies in (0, 1] (the paper uses 0.3)")
    check_weights(feature_weight=feature_weight)
