"""VIME, the semi-supervised stage (Yoon et al., NeurIPS 2020).

The encoder comes from the first stage (`vime_self.py`) and is frozen. This stage trains a classifier on top of the
encoder. The unlabelled loss makes the predictions for several corrupted copies of an unlabelled row agree.

    paper    here              meaning
    e        model.encoder     the frozen encoder
    f_e      model             the classifier on the encoder
    K        copies            number of corrupted copies of each unlabelled row
    p_m      mask_rate         share of the cells that are overwritten in a copy
    x~_k     corrupt()         a copy: masked cells get a value of the same column from another row         Eq. 3
    beta     unlabeled_weight  weight of the unlabelled loss
             probs             prediction for the uncorrupted row
             rectified         `probs` after the guidance: the target of the copies

The paper and its published code differ in places. docs/methods/vime.md says which one this code follows, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.guidances.none import NoGuidance
from mnar.guidances.tracking import Tracking
from mnar.learners.learner import Learner
from mnar.learners.vime_self import check_bounds
from mnar.models.classifier import Classifier
from mnar.models.encoder_mlp import with_encoder
from mnar.option_values import Factor, NumViews, PositiveFactor, PositiveShare, checked_options
from mnar.types import Batch, Step, Task


class Vime(Learner):
    """Train a classifier on a frozen encoder. The docstring of this module explains the other options.

    consistency         the unlabelled loss: "var" is the variance of the copies' logits (published code), "mse" the
                        squared difference between the copies' predictions and the prediction for the uncorrupted row
                        (paper), "ce" the cross-entropy with that prediction, which a guidance needs. "auto" means "var"
                        without a guidance and "ce" with one.
    encoder             run folder of the first stage to load the encoder from; None trains an encoder first
    pretraining_epochs  option of the first stage: number of passes over the unlabelled set
    feature_weight      option of the first stage: weight of the reconstruction loss
    bounded             option of the first stage: whether all features lie between 0 and 1
    """

    paper = "Yoon et al., NeurIPS 2020"
    views = ("id",)
    labeled_view = "id"
    suits = ("tables",)
    # There is no "relabel" here: the fresh network of a new generation would not have the trained encoder.
    hooks = frozenset({"refresh", "supervised", "pool_logits"})
    unlabeled_ratio = 1
    pretrained_by = "vime_self"

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        mask_rate: PositiveShare = 0.3,
        copies: NumViews = 3,
        consistency: Literal["auto", "var", "mse", "ce"] = "auto",
        unlabeled_weight: Factor = 1.0,
        encoder: Path | None = None,
        pretraining_epochs: PositiveFactor = 10,
        feature_weight: Factor = 2.0,
        bounded: bool = False,
    ) -> None:
        super().__init__(task, guidance)
        has_guidance = not isinstance(guidance, NoGuidance | Tracking)
        if consistency == "auto":
            consistency = "ce" if has_guidance else "var"
        if has_guidance and consistency != "ce":
            raise ValueError(
                f"consistency is {consistency!r}, but a guidance needs the cross-entropy loss; "
                "choose consistency=ce, or --guidance none"
            )
        fewest = 2 if consistency == "var" else 1
        if copies < fewest:
            raise ValueError(f"copies is {copies}; set copies to {fewest} or more for consistency {consistency!r}")
        if task.batch_unlabeled < 2:
            raise ValueError(
                f"the unlabelled batch has {task.batch_unlabeled} row, but VIME overwrites cells with values from "
                "other rows of the batch; choose --set train.batch_unlabeled=2 or more"
            )
        self.mask_rate, self.copies, self.consistency = mask_rate, copies, consistency
        self.unlabeled_weight = unlabeled_weight
        self.encoder, self.pretraining_epochs, self.feature_weight = encoder, pretraining_epochs, feature_weight
        self.bounded = bounded

    def check_sample(self, views: Mapping[str, Tensor]) -> None:
        if self.encoder is None:
            check_bounds(views["id"], self.bounded)

    def prepare(self, model: Classifier) -> None:
        with_encoder(model).encoder.requires_grad_(False)

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        u = batch.u["id"]
        # Cells get values from the rows of all processes, as in one process.
        corrupted = distributed.own_rows(corrupt(distributed.gather(u), self.copies, self.mask_rate).transpose(0, 1))
        corrupted = corrupted.transpose(0, 1)
        # The encoder is frozen, so PyTorch computes no gradient below the classifier.
        logits = model(torch.cat([batch.x, u, corrupted.flatten(0, 1)])).float()
        logits_x, logits_u, logits_copies = logits.split([len(batch.x), len(u), self.copies * len(u)])
        labeled = self.guidance.supervised(logits_x, batch.y, logits_u)

        probs = logits_u.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        target = rectified.argmax(1)
        self.note_pseudo_labels(target, torch.ones_like(target, dtype=torch.bool))

        unlabeled = self._inconsistency(logits_copies.unflatten(0, (self.copies, len(u))), rectified)
        loss = labeled + self.unlabeled_weight * unlabeled
        return Step(loss, {"loss/labeled": labeled.detach(), "loss/unlabeled": unlabeled.detach()})

    def _inconsistency(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the unlabelled loss: how much the copies' predictions differ from each other or from the target.

        logits  [copies, n, k] predictions for the copies
        target  [n, k] pseudo-labels
        """
        if self.consistency == "var":
            return logits.var(0, correction=0).mean()
        if self.consistency == "mse":
            return (logits.softmax(2) - target).square().mean()  # Eq. 10
        return -(target * self.guidance.pool_logits(logits).log_softmax(2)).sum(2).mean()


def corrupt(table: Tensor, copies: int, mask_rate: float) -> Tensor:
    """Return corrupted copies [copies, n, d] of the rows of `table` [n, d].

    Each cell is overwritten with probability `mask_rate`. The new value comes from the same column of another row. To
    find that row, every column of every copy is shifted cyclically by its own random number of rows. As with a random
    permutation of the column, the row is uniform over the batch and independent of the other columns, but no sort is
    needed.
    """
    num_rows, num_columns = table.shape
    masked = torch.rand(copies, *table.shape, device=table.device) < mask_rate
    shift = torch.randint(num_rows, (copies, num_columns), device=table.device)
    column = torch.arange(num_columns, device=table.device)
    # [d, n + 1, n]: all cyclic shifts of all columns, as a view without a copy.
    turned_by = torch.cat([table, table]).T.unfold(1, num_rows, 1)
    turned = turned_by[column, shift].transpose(1, 2)
    return torch.where(masked, turned, table)  # Eq. 3
