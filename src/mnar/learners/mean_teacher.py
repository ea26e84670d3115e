"""Mean Teacher (Tarvainen & Valpola, NeurIPS 2017).

The teacher is the moving average (EMA) of the weights of the model, the student. The loss pulls the student's
prediction for one random augmentation of an unlabelled image towards the teacher's prediction for another.

    paper               here              meaning
    theta'              teacher           moving average of the weights, with decay alpha = train.ema     Eq. 1
    f(x, theta', eta')  probs             the teacher's prediction for the second augmentation
                        rectified         `probs` after the guidance: the target of the student
    J                   unlabeled         mean squared difference between the student's prediction for the
                                          first augmentation and the target
                        unlabeled_weight  largest weight of J
                        ramp              share of training during which that weight grows linearly from 0

The paper and published implementations differ in places. docs/methods/mean_teacher.md says which one this code
follows, and why.
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


class MeanTeacher(Learner):
    paper = "Tarvainen & Valpola, NeurIPS 2017"
    views = ("weak", "weak2")
    hooks = Learner.hooks | {"supervised", "pool_logits"}
    unlabeled_ratio = 1
    uses_teacher = True

    @checked_options
    def __init__(
        self, task: Task, guidance: Guidance, *, unlabeled_weight: Factor = 50.0, ramp: PositiveShare = 0.4
    ) -> None:
        super().__init__(task, guidance)
        self.unlabeled_weight, self.ramp = unlabeled_weight, ramp

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        if self.teacher is None:
            raise ValueError("mean_teacher has no teacher; call learner.set_teacher(average) before the first step")
        first, second = batch.u["weak"], batch.u["weak2"]
        logits_x, logits_first = model(torch.cat([batch.x, first])).float().split([len(batch.x), len(first)])
        labeled = self.guidance.supervised(logits_x, batch.y, logits_first)

        # The teacher predicts in training mode, like the student. This forward pass changes the teacher's batch-norm
        # running statistics, but every step ends with a copy of the student's statistics to the teacher.
        with torch.no_grad():
            probs = self.teacher(second).float().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        target = rectified.argmax(1)
        self.note_pseudo_labels(target, torch.ones_like(target, dtype=torch.bool))

        # The mean is over samples and classes. With a sum over classes, the weight would grow with their number.
        unlabeled = F.mse_loss(self.guidance.pool_logits(logits_first).softmax(1), rectified)  # J
        loss = labeled + self.unlabeled_weight * linear_ramp(self.progress, self.ramp) * unlabeled
        return Step(loss, {"loss/labeled": labeled.detach(), "loss/unlabeled": unlabeled.detach()})
