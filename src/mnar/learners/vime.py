"""VIME, the semi-supervised stage (Yoon et al., NeurIPS 2020).

On top of an encoder that `vime_self.py` has trained and that is now frozen, train a classifier whose predictions
for several corrupted copies of an unlabelled row agree.

    paper    here          meaning
    e        model.encoder frozen
    f_e      model         the classifier on the encoder
    K        copies        corrupted copies of each unlabelled row
    p_m      mask_rate     share of the cells that are overwritten in a copy
    x~_k     corrupt()     columns turned within the batch where the mask says so                  Eq. 3
    beta     unlabeled_weight
             probs         prediction for the row as it is
             rectified     the same after the guidance; the target that copies are trained on

Where the paper and its published code differ, docs/methods/vime.md says which is followed and why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from mnar.guidances.guidance import Guidance
from mnar.guidances.none import NoGuidance
from mnar.learners.checks import check_weights
from mnar.learners.learner import Learner
from mnar.learners.vime_self import check_bounds, check_pretext
from mnar.models.classifier import Classifier
from mnar.models.encoder_mlp import with_encoder
from mnar.types import Batch, Step, Task


class Vime(Learner):
    """consistency      of the copies: "var", the variance of their logits (published code); "mse", squared
                     difference to the row's own prediction (paper); "ce", cross entropy with it, which a guidance
                     needs. "auto" is "var" without a guidance and "ce" with one.
    encoder          a run of the first stage to take the encoder from; None: train one first
    pretraining_epochs, feature_weight, bounded    of that first stage; bounded: features lie in 0..1
    """

    paper = "Yoon et al., NeurIPS 2020"
    views = ("id",)
    labeled_view = "id"
    suits = ("tables",)
    # No "relabel": a fresh network would be without its encoder.
    hooks = frozenset({"refresh", "supervised", "pool_logits"})
    unlabeled_ratio = 1
    pretrained_by = "vime_self"

    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        mask_rate: float = 0.3,
        copies: int = 3,
        consistency: Literal["auto", "var", "mse", "ce"] = "auto",
        unlabeled_weight: float = 1.0,
        encoder: Path | None = None,
        pretraining_epochs: float = 10,
        feature_weight: float = 2.0,
        bounded: bool = False,
    ) -> None:
        super().__init__(task, guidance)
        check_pretext(mask_rate, feature_weight)
        has_guidance = not isinstance(guidance, NoGuidance)
        if consistency == "auto":
            consistency = "ce" if has_guidance else "var"
        if consistency not in ("var", "mse", "ce"):
            raise ValueError(f"unknown consistency {consistency!r}; choose from ['auto', 'var', 'mse', 'ce']")
        if has_guidance and consistency != "ce":
            raise ValueError(
                f"consistency is {consistency!r}, which has no pseudo-label to guide; "
                "choose consistency=ce, or --guidance none"
            )
        fewest = 2 if consistency == "var" else 1
        if copies < fewest:
            raise ValueError(f"copies is {copies}; consistency {consistency!r} needs at least {fewest}")
        check_weights(unlabeled_weight=unlabeled_weight)
        if not 0 < pretraining_epochs < math.inf:
            raise ValueError(f"pretraining_epochs is {pretraining_epochs}; the encoder needs more than 0 to be trained")
        if task.batch_unlabeled < 2:
            raise ValueError(
                f"the unlabelled batch has {task.batch_unlabeled} row and columns are permuted within it; "
                "choose --set train.batch_unlabeled=2 or more"
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
        corrupted = corrupt(u, self.copies, self.mask_rate)
        # Nothing below the classifier wants a gradient, so of the encoder this is the forward product alone.
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
        """Of copies, [copies, n, k], with one another or with their target, [n, k]."""
        if self.consistency == "var":
            return logits.var(0, correction=0).mean()
        if self.consistency == "mse":
            return (logits.softmax(2) - target).square().mean()  # Eq. 10
        return -(target * self.guidance.pool_logits(logits).log_softmax(2)).sum(2).mean()


def corrupt(table: Tensor, copies: int, mask_rate: float) -> Tensor:
    """[n, d] -> [copies, n, d]: cells overwritten by others of their column, each with the chance mask_rate.

    A copy's column is the batch's turned by a random number of rows of its own: like a random permutation, it gives
    each cell a donor that is uniform over the rows and independent of the donors in other columns, without a sort
    for each column.
    """
    num_rows, num_columns = table.shape
    masked = torch.rand(copies, *table.shape, device=table.device) < mask_rate
    shift = torch.randint(num_rows, (copies, num_columns), device=table.device)
    column = torch.arange(num_columns, device=table.device)
    turned_by = torch.cat([table, table]).T.unfold(1, num_rows, 1)  # [d, n + 1, n]: every turn of every column, a view
    turned = turned_by[column, shift].transpose(1, 2)
    return torch.where(masked, turned, table)  # Eq. 3
