"""Pi-Model (Laine & Aila, ICLR 2017).

Two draws of an unlabelled image should get the same prediction: pull the one for the first towards the one for the
second.

    paper    here         meaning
    z        probs_first  prediction for the first draw; the gradient goes through it
    z~       probs        prediction for the second draw
             rectified    the same after the guidance: the target
    w(t)     unlabeled_weight * linear_ramp(progress, ramp)

Where the paper and published codes differ, docs/methods/pi_model.md says which is followed and why.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mnar.guidances.guidance import Guidance
from mnar.learners.checks import check_ramp, check_weights
from mnar.learners.learner import Learner
from mnar.learners.ramp import linear_ramp
from mnar.types import Batch, Step, Task


class PiModel(Learner):
    paper = "Laine & Aila, ICLR 2017"
    views = ("weak", "weak2")
    hooks = Learner.hooks | {"supervised", "pool_logits"}
    unlabeled_ratio = 1

    def __init__(self, task: Task, guidance: Guidance, *, unlabeled_weight: float = 10.0, ramp: float = 0.4) -> None:
        super().__init__(task, guidance)
        check_weights(unlabeled_weight=unlabeled_weight)
        check_ramp(ramp)
        self.unlabeled_weight, self.ramp = unlabeled_weight, ramp

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        first, second = batch.u["weak"], batch.u["weak2"]
        # One forward for all: the batch-norm statistics are those of the whole step.
        logits = model(torch.cat([batch.x, first, second])).float()
        logits_x, logits_first, logits_second = logits.split([len(batch.x), len(first), len(second)])
        labeled = self.guidance.supervised(logits_x, batch.y, logits_second)

        probs = logits_second.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        target = rectified.argmax(1)
        self.note_pseudo_labels(target, torch.ones_like(target, dtype=torch.bool))

        # The mean is over samples and classes: summed over classes, the weight would grow with their number.
        probs_first = self.guidance.pool_logits(logits_first).softmax(1)
        unlabeled = F.mse_loss(probs_first, rectified)  # Algorithm 1
        loss = labeled + self.unlabeled_weight * linear_ramp(self.progress, self.ramp) * unlabeled
        return Step(loss, {"loss/labeled": labeled.detach(), "loss/unlabeled": unlabeled.detach()})
