"""FixMatch (Sohn et al., NeurIPS 2020).

The model predicts the class of an unlabelled image from its weak view. If that prediction is confident enough, the
predicted class becomes the label of the strong view of the same image.

    paper     here              meaning
    q_b       probs             prediction for the weak view
              rectified         `probs` after the guidance; mask and label are computed from it
    tau       threshold         lowest confidence of a pseudo-label that is used
    lambda_u  unlabeled_weight  weight of the unlabelled loss
              targets           "hard": the predicted class is the label of the strong view; "soft": all of `rectified`
              strong_views      number of strong views of each unlabelled image
              labeled_strong    whether the labelled loss also trains a strong view of each labelled image
              weak_gradient     whether the backward pass includes the weak views, which influence the other images
                                through batch norm
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from mnar.guidances.guidance import Guidance
from mnar.learners.checks import checked_weak_gradient
from mnar.learners.learner import Learner
from mnar.option_values import Factor, NumViews, Share, checked_options
from mnar.types import Batch, Step, Task


class FixMatch(Learner):
    paper = "Sohn et al., NeurIPS 2020"
    views: tuple[str, ...] = ("weak", "strong")  # with one strong view
    hooks = Learner.hooks | {"supervised", "threshold", "pool_logits", "extra_loss"}

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: Share = 0.95,
        unlabeled_weight: Factor = 1.0,
        targets: Literal["hard", "soft"] = "hard",
        strong_views: NumViews = 1,
        labeled_strong: bool = False,
        weak_gradient: bool = True,
    ) -> None:
        super().__init__(task, guidance)
        self.weak_gradient = checked_weak_gradient(weak_gradient, guidance)
        self.threshold, self.unlabeled_weight, self.has_soft_targets = threshold, unlabeled_weight, targets == "soft"
        self.labeled_view = "both" if labeled_strong else "weak"
        self.views = ("weak", "strong", *(f"strong{number}" for number in range(2, strong_views + 1)))

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        images = batch.x, *(batch.u[view] for view in self.views)
        logits = model(self.together(*images)).float()
        logits_x, logits_weak, *logits_strong = self.apart(logits, *images)
        labeled = self.guidance.supervised(logits_x, batch.y, logits_weak)  # Eq. 3

        probs = logits_weak.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        confidence, target = rectified.max(1)
        mask = confidence >= self.guidance.threshold(rectified, self.threshold)
        self.note_pseudo_labels(target, mask)

        # The mean is over the whole batch, so that few confident samples give a small loss and not a noisy one.
        target = rectified if self.has_soft_targets else target
        logits_strong = [self.guidance.pool_logits(logits) for logits in logits_strong]
        of_views = [(mask * F.cross_entropy(logits, target, reduction="none")).mean() for logits in logits_strong]
        unlabeled = of_views[0] if len(of_views) == 1 else torch.stack(of_views).mean()  # Eq. 4
        weighted = unlabeled if self.unlabeled_weight == 1 else self.unlabeled_weight * unlabeled  # 2 kernels less
        loss = labeled + weighted
        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "mask_rate": mask.float().mean(),
        }
        extra = self.guidance.extra_loss(logits_strong, probs, mask)
        if extra is not None:
            loss = loss + extra
            logs["loss/extra"] = extra.detach()
        return Step(loss, logs)
