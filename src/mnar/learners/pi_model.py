"""Pi-Model (Laine & Aila, ICLR 2017).

The model should make the same prediction for two random augmentations of an unlabelled image. The loss pulls the
prediction for the first augmentation towards the prediction for the second.

    paper    here              meaning
    z        probs_first       prediction for the first augmentation; the gradient flows through it
    z~       probs             prediction for the second augmentation
             rectified         `probs` after the guidance: the target of `probs_first`
    w(t)                       unlabeled_weight * linear_ramp(progress, ramp)
             unlabeled_weight  largest weight of the unlabelled loss
             ramp              share of training during which that weight grows linearly from 0

The paper and published implementations differ in places. docs/methods/pi_model.md says which one this code follows,
and why.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mnar.guidances.guidance import Guidance
from mnar.learners.learner import Learner
from mnar.learners.ramp import linear_ramp
from mnar.option_values import Factor, PositiveShare, checked_options
from mnar.types import Batch, Step, Task


class PiModel(Learner):
    paper = "Laine & Aila, ICLR 2017"
    views = ("weak", "weak2")
    hooks = Learner.hooks | {"supervised", "pool_logits"}
    unlabeled_ratio = 1

    @checked_options
    def __init__(
        self, task: Task, guidance: Guidance, *, unlabeled_weight: Factor = 10.0, ramp: PositiveShare = 0.4
    ) -> None:
        super().__init__(task, guidance)
        self.unlabeled_weight, self.ramp = unlabeled_weight, ramp

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        first, second = batch.u["weak"], batch.u["weak2"]
        # One forward pass for all images, so that batch-norm sees the whole step.
        logits = model(torch.cat([batch.x, first, second])).float()
        logits_x, logits_first, logits_second = logits.split([len(batch.x), len(first), len(second)])
        labeled = self.guidance.supervised(logits_x, batch.y, logits_second)

        probs = logits_second.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        target = rectified.argmax(1)
        self.note_pseudo_labels(target, torch.ones_like(target, dtype=torch.bool))

        # The mean is over samples and classes. With a sum over classes, the weight would grow with their number.
        probs_first = self.guidance.pool_logits(logits_first).softmax(1)
        unlabeled = F.mse_loss(probs_first, rectified)  # Algorithm 1
        loss = labeled + self.unlabeled_weight * linear_ramp(self.progress, self.ramp) * unlabeled
        return Step(loss, {"loss/labeled": labeled.detach(), "loss/unlabeled": unlabeled.detach()})
