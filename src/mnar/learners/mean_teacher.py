"""Mean Teacher (Tarvainen & Valpola, NeurIPS 2017).

Pull the prediction for one draw of an unlabelled image towards the one that the average of the model's past weights,
the teacher, makes for another draw.

    paper               here         meaning
    theta'              teacher      moving average of the weights, with decay alpha = train.ema        Eq. 1
    f(x, theta', eta')  probs        its prediction for the second draw
                        rectified    the same after the guidance: the target
    J                   unlabeled    squared distance of the student's prediction for the first draw from the target

Where the paper and published codes differ, docs/methods/mean_teacher.md says which is followed and why.
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


class MeanTeacher(Learner):
    paper = "Tarvainen & Valpola, NeurIPS 2017"
    views = ("weak", "weak2")
    hooks = Learner.hooks | {"supervised", "pool_logits"}
    unlabeled_ratio = 1
    uses_teacher = True

    def __init__(self, task: Task, guidance: Guidance, *, unlabeled_weight: float = 50.0, ramp: float = 0.4) -> None:
        super().__init__(task, guidance)
        check_weights(unlabeled_weight=unlabeled_weight)
        check_ramp(ramp)
        self.unlabeled_weight, self.ramp = unlabeled_weight, ramp

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        if self.teacher is None:
            raise ValueError("mean_teacher has no teacher; call learner.set_teacher(average) before the first step")
        first, second = batch.u["weak"], batch.u["weak2"]
        logits_x, logits_first = model(torch.cat([batch.x, first])).float().split([len(batch.x), len(first)])
        labeled = self.guidance.supervised(logits_x, batch.y, logits_first)

        # In training mode, like the student. What it adds to its running statistics does not last: each step ends with
        # the student's copied over them.
        with torch.no_grad():
            probs = self.teacher(second).float().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        target = rectified.argmax(1)
        self.note_pseudo_labels(target, torch.ones_like(target, dtype=torch.bool))

        # The mean is over samples and classes: summed over classes, the weight would grow with their number.
        unlabeled = F.mse_loss(self.guidance.pool_logits(logits_first).softmax(1), rectified)  # J
        loss = labeled + self.unlabeled_weight * linear_ramp(self.progress, self.ramp) * unlabeled
        return Step(loss, {"loss/labeled": labeled.detach(), "loss/unlabeled": unlabeled.detach()})
