"""Pseudo-Label (Lee, ICML 2013 workshop).

If the prediction for an unlabelled sample is confident enough, the predicted class becomes the label of the sample.

    paper     here              meaning
    f'        logits_u          prediction for the unlabelled sample; the gradient flows through it
              rectified         softmax of `logits_u` after the guidance; mask and label are computed from it
    y'        target            arg-max of `rectified`                                                  Eq. 14
              threshold         lowest confidence of a pseudo-label that is used
    alpha(t)                    unlabeled_weight * linear_ramp(progress, ramp)
              unlabeled_weight  largest weight of the unlabelled loss
              ramp              share of training during which that weight grows linearly from 0

The paper and published implementations differ in places. docs/methods/pseudo_label.md says which one this code
follows, and why.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mnar.guidances.guidance import Guidance
from mnar.learners.learner import Learner
from mnar.learners.ramp import linear_ramp
from mnar.option_values import Factor, PositiveShare, Share, checked_options
from mnar.types import Batch, Step, Task


class PseudoLabel(Learner):
    paper = "Lee, ICML 2013 workshop"
    views = ("weak",)
    suits = ("images", "tables")
    hooks = Learner.hooks | {"supervised", "threshold", "pool_logits"}
    unlabeled_ratio = 1

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: Share = 0.95,
        unlabeled_weight: Factor = 1.0,
        ramp: PositiveShare = 0.4,
    ) -> None:
        super().__init__(task, guidance)
        self.threshold, self.unlabeled_weight, self.ramp = threshold, unlabeled_weight, ramp

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        weak = batch.u["weak"]
        # One forward pass for all samples, so that batch-norm sees the whole step.
        logits_x, logits_u = model(torch.cat([batch.x, weak])).float().split([len(batch.x), len(weak)])
        labeled = self.guidance.supervised(logits_x, batch.y, logits_u)

        probs = logits_u.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        confidence, target = rectified.max(1)  # Eq. 14
        mask = confidence >= self.guidance.threshold(rectified, self.threshold)
        self.note_pseudo_labels(target, mask)

        # The mean is over the whole batch, so that few confident samples give a small loss and not a noisy one.
        unlabeled = (mask * F.cross_entropy(self.guidance.pool_logits(logits_u), target, reduction="none")).mean()
        loss = labeled + self.unlabeled_weight * linear_ramp(self.progress, self.ramp) * unlabeled  # Eq. 15
        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "mask_rate": mask.float().mean(),
        }
        return Step(loss, logs)
