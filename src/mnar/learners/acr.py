"""ACR, adaptive consistency regularisation (Wei & Gan, CVPR 2023).

ACR is FixMatch with two classifiers on the same features. The plain head learns the labels as they are, so it learns
their class imbalance too. The balanced head learns them with adjusted logits, as if every class had equally many
labels. Both heads are trained with the pseudo-labels of the plain head, from whose logits the imbalance of the labels
is subtracted. The balanced head is `model.head`, which is evaluated and exported.

    paper       here                 meaning
    f           heads["plain"]       plain head
    f~          head                 balanced head; its logits are g(x) on the page of the method
    pi          label_shares         class shares of the labels
    tau         strength             the adjustment is A = strength * log pi
                adjustment           A
    p'          probs                prediction of the plain head for the weak view, minus A
                rectified            `probs` after the guidance
    p, r        plain_confidence,    largest probability that the plain and the balanced head predict for the weak view
                balanced_confidence
                threshold            lowest confidence of a prediction whose pseudo-label is used
                anchors              whether the strength of the plain head's pseudo-labels depends on the pool
    pi^         pool_counts          running class counts of the confident predictions for the pool; the estimated
                                     class shares of the pool are their ratios
                momentum             decay of these counts: the share of them that remains after each batch
    P_con, ...  anchor_shares        the three anchors: shares of the labels, uniform shares, reversed shares
    tau(t)      _plain_strength()    strength of the plain head's pseudo-labels with anchors
                unlabeled_weight     weight of the unlabelled loss
                weak_gradient        whether the backward pass includes the weak views, as in FixMatch

The code differs from the published code in places. docs/methods/acr.md says where, and why.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.checks import checked_weak_gradient
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier, with_heads
from mnar.models.head import Head
from mnar.option_values import Factor, Share, ShareBelowOne, checked_options
from mnar.types import Batch, Step, Task

SMALLEST_COUNT = 1e-6  # of a class in the estimate, so that the logarithm of its share is finite


class ACR(Learner):
    paper = "Wei & Gan, CVPR 2023"
    views = ("weak", "strong", "strong2")
    unlabeled_ratio = 1
    # There is no "supervised" and no "pool_logits": ACR adjusts the logits of both losses itself. There is no "watch",
    # because a guidance would observe the balanced head, while the pseudo-labels come from the plain head. There is no
    # "relabel", because the adjustment belongs to the given labels and not to labels that are added later.
    hooks = frozenset({"refresh", "threshold"})

    adjustment: Tensor
    label_shares: Tensor
    anchor_shares: Tensor
    pool_counts: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: Share = 0.95,
        strength: Factor = 2.0,
        anchors: bool = True,
        momentum: ShareBelowOne = 0.99,
        unlabeled_weight: Factor = 1.0,
        weak_gradient: bool = True,
    ) -> None:
        super().__init__(task, guidance)
        self.weak_gradient = checked_weak_gradient(weak_gradient, guidance)
        self.threshold, self.strength, self.anchors = threshold, strength, anchors
        self.momentum, self.unlabeled_weight = momentum, unlabeled_weight

        label_shares = task.labeled_shares(needed_by="ACR")
        uniform = torch.full_like(label_shares, 1 / task.num_classes)
        anchor_shares = torch.stack([label_shares, uniform, _reversed(label_shares)])
        self.register_buffer("label_shares", label_shares, persistent=False)
        self.register_buffer("adjustment", strength * label_shares.log(), persistent=False)
        self.register_buffer("anchor_shares", anchor_shares, persistent=False)
        self.register_buffer("pool_counts", task.batch_unlabeled * uniform)

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        return {"plain": Head(model.num_features, self.task.num_classes)}

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        model = with_heads(model, "plain")
        images = batch.x, *(batch.u[view] for view in self.views)
        features = model.features(self.together(*images)).float()
        plain_x, plain_weak, *plain_strong = self.apart(model.heads["plain"](features), *images)
        balanced_x, balanced_weak, *balanced_strong = self.apart(model.head(features), *images)
        labeled = F.cross_entropy(plain_x, batch.y) + F.cross_entropy(balanced_x + self.adjustment, batch.y)  # L_x

        plain_weak, balanced_weak = plain_weak.detach(), balanced_weak.detach()
        probs = (plain_weak - self.adjustment).softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        threshold = self.guidance.threshold(rectified, self.threshold)
        confidence, target = rectified.max(1)
        plain_confidence = plain_weak.softmax(1).amax(1)
        balanced_confidence, balanced_class = balanced_weak.softmax(1).max(1)
        is_balanced_sure = balanced_confidence >= threshold

        logs = {}
        plain_target, adjusted_confidence = target, confidence
        if self.anchors:
            self._count(balanced_class, is_balanced_sure)
            logs["plain_strength"] = strength = self._plain_strength()
            adjusted_confidence, plain_target = self._with_strength(rectified, strength).max(1)
        plain_mask = torch.maximum(plain_confidence, adjusted_confidence) >= threshold
        mask = is_balanced_sure | (confidence >= threshold)
        self.note_pseudo_labels(target, mask)

        # One cross-entropy for both heads: a GPU needs 9 kernels less.
        strong = torch.cat([*plain_strong, *balanced_strong])
        targets = torch.cat([plain_target, plain_target, target, target])
        masks = torch.cat([plain_mask, plain_mask, mask, mask])
        losses = masks * F.cross_entropy(strong, targets, reduction="none")
        unlabeled = losses.sum() / (2 * len(target))  # L_u: the sum over the heads, the mean over views and samples
        weighted = unlabeled if self.unlabeled_weight == 1 else self.unlabeled_weight * unlabeled
        logs |= {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "mask_rate": mask.float().mean(),
        }
        return Step(labeled + weighted, logs)

    @torch.no_grad()
    def _count(self, label: Tensor, is_sure: Tensor) -> None:
        """Add the confident predictions of this batch to the running class counts."""
        label, is_sure = distributed.gather(label, sent_as=torch.int32), distributed.gather(is_sure)
        self.pool_counts.mul_(self.momentum)
        self.pool_counts.index_add_(0, label, is_sure.to(self.pool_counts.dtype), alpha=1 - self.momentum)

    def _plain_strength(self) -> Tensor:
        """Return strength * e^d_con / (e^d_con + e^d_uni + e^d_rev).

        d is the mean of the two KL divergences between the estimated class shares of the pool and an anchor.
        """
        counts = self.pool_counts.clamp(min=SMALLEST_COUNT)
        shares = counts / counts.sum()
        distances = ((shares - self.anchor_shares) * (shares.log() - self.anchor_shares.log())).sum(1) / 2
        return self.strength * distances.softmax(0)[0]

    def _with_strength(self, rectified: Tensor, strength: Tensor) -> Tensor:
        """Return the pseudo-labels for another strength: softmax(f - s log pi) = normalise(p' * pi^(strength - s))."""
        adjusted = rectified * self.label_shares ** (self.strength - strength)
        return adjusted / adjusted.sum(1, keepdim=True)


def _reversed(shares: Tensor) -> Tensor:
    """Return the shares in reversed order of size: the most frequent class has the share of the rarest one."""
    descending, order = shares.sort(descending=True, stable=True)
    return torch.empty_like(shares).scatter_(0, order, descending.flip(0))
