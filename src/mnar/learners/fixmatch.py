"""FixMatch (Sohn et al., NeurIPS 2020).

The model predicts the class of an unlabelled image from its weak view. If that prediction is confident enough, the
predicted class becomes the label of the strong view of the same image.

    paper     here              meaning
    q_b       probs             prediction for the weak view
              rectified         `probs` after the guidance; mask and label are computed from it
    tau       threshold         lowest confidence of a pseudo-label that is used
    lambda_u  unlabeled_weight  weight of the unlabelled loss
              weak_gradient     whether the backward pass includes the weak views, which influence the other images
                                through batch norm
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from mnar.guidances.guidance import Guidance
from mnar.learners.checks import check_shares, check_weights, checked_weak_gradient
from mnar.learners.learner import Learner
from mnar.types import Batch, Step, Task


class FixMatch(Learner):
    paper = "Sohn et al., NeurIPS 2020"
    views = ("weak", "strong")
    hooks = Learner.hooks | {"supervised", "threshold", "pool_logits"}

    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: float = 0.95,
        unlabeled_weight: float = 1.0,
        weak_gradient: bool = True,
    ) -> None:
        super().__init__(task, guidance)
        self.weak_gradient = checked_weak_gradient(weak_gradient, guidance)
        check_shares(threshold=threshold)
        check_weights(unlabeled_weight=unlabeled_weight)
        self.threshold, self.unlabeled_weight = threshold, unlabeled_weight

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        weak, strong = batch.u["weak"], batch.u["strong"]
        images = batch.x, weak, strong
        logits = model(self.together(*images)).float()
        logits_x, logits_weak, logits_strong = self.apart(logits, *images)
        labeled = self.guidance.supervised(logits_x, batch.y, logits_weak)  # Eq. 3

        probs = logits_weak.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        confidence, target = rectified.max(1)
        mask = confidence >= self.guidance.threshold(rectified, self.threshold)
        self.note_pseudo_labels(target, mask)

        # The mean is over the whole batch, so that few confident samples give a small loss and not a noisy one.
        logits_strong = self.guidance.pool_logits(logits_strong)
        unlabeled = (mask * F.cross_entropy(logits_strong, target, reduction="none")).mean()  # Eq. 4
        loss = labeled + self.unlabeled_weight * unlabeled
        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "mask_rate": mask.float().mean(),
        }
        return Step(loss, logs)
