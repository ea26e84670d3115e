"""SimMatch (Zheng et al., CVPR 2022).

SimMatch is FixMatch with two kinds of soft pseudo-labels. The first kind is a distribution over classes. The second
kind is a distribution over the labelled images, by similarity. Each kind corrects the other, and the strong view is
trained on both.

    paper      here              meaning
    z          z_x, z_weak, ...  embedding: the projection of an image onto the unit sphere
    Q_l        bank              one embedding per labelled image, averaged over its visits
    p^w        probs             prediction for the weak view
               rectified         `probs` after the guidance; both pseudo-labels are computed from it
    q^w        similar           softmax of the similarities between the weak view and the labelled images
    q^         unfolded          `similar`, where each labelled image is multiplied by the probability of its class in
                                 `rectified`; then normalised
    p^         smoothed          `rectified` mixed with `similar`, which is summed by class
    alpha      alpha             weight of `rectified` in that mixture
    t          temperature       temperature of the softmaxes over similarities
    m          bank_momentum     weight of the old embedding in the bank when its image is visited again
    tau        threshold         lowest confidence of a pseudo-label that is used
    lambda_u   unlabeled_weight  weight of the unlabelled loss
    lambda_in  instance_weight   weight of the instance loss, which compares `unfolded` with the strong view
               dim               length of an embedding
               weak_gradient     whether the backward pass includes the weak views, as in FixMatch

The paper and published implementations differ in places. docs/methods/simmatch.md says which one this code follows,
and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.checks import checked_weak_gradient
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier, with_heads
from mnar.models.projection import Projection, similarity
from mnar.option_values import Factor, LayerWidth, PositiveFactor, Share, ShareBelowOne, checked_options
from mnar.types import Batch, Step, Task

# The smallest divisor: it keeps 0 / mass finite as long as a class has no image in the bank.
SMALLEST_MASS = torch.finfo(torch.float32).tiny


class SimMatch(Learner):
    paper = "Zheng et al., CVPR 2022"
    views = ("weak", "strong")
    # There is no "relabel" here: the bank has one row per given label, and no rows for labels that are added later.
    hooks = frozenset({"watch", "refresh", "supervised", "threshold", "pool_logits"})
    default_guidance: ClassVar[Mapping[str, Any]] = {
        "name": "distribution_alignment",
        "target": "uniform",
        "window": 32,
        "update": "before",
    }

    bank: Tensor
    filled: Tensor
    membership: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: Share = 0.95,
        alpha: Share = 0.9,
        temperature: PositiveFactor = 0.1,
        unlabeled_weight: Factor = 1.0,
        instance_weight: Factor = 1.0,
        dim: LayerWidth = 128,
        bank_momentum: ShareBelowOne = 0.7,
        weak_gradient: bool = True,
    ) -> None:
        super().__init__(task, guidance)
        self.weak_gradient = checked_weak_gradient(weak_gradient, guidance)
        self.threshold, self.alpha, self.temperature = threshold, alpha, temperature
        self.unlabeled_weight, self.instance_weight = unlabeled_weight, instance_weight
        self.dim, self.bank_momentum = dim, bank_momentum

        membership = _membership(task)
        # The class of each labelled image, one-hot: [labelled images, k].
        self.register_buffer("membership", membership, persistent=False)
        self.register_buffer("bank", torch.zeros(len(membership), dim))
        self.register_buffer("filled", torch.zeros(len(membership), dtype=torch.bool))

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        return {"projection": Projection(model.num_features, self.dim, nn.ReLU())}

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        model = with_heads(model, "projection")
        weak, strong = batch.u["weak"], batch.u["strong"]
        images = batch.x, weak, strong
        features = model.features(self.together(*images)).float()
        logits_x, logits_weak, logits_strong = self.apart(model.head(features), *images)
        z_x, z_weak, z_strong = self.apart(model.heads["projection"](features), *images)
        labeled = self.guidance.supervised(logits_x, batch.y, logits_weak)  # L_s

        probs = logits_weak.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        # The bank is written before it is read, so that it is not empty even at the first step.
        self._remember(z_x, batch.x_index)
        smoothed, unfolded = self._propagate(rectified, z_weak)
        confidence, target = smoothed.max(1)
        mask = confidence >= self.guidance.threshold(smoothed, self.threshold)
        self.note_pseudo_labels(target, mask)
        logits_strong = self.guidance.pool_logits(logits_strong)
        unlabeled = (mask * F.cross_entropy(logits_strong, smoothed, reduction="none")).mean()  # L_u

        similarity_strong = similarity(z_strong, self.bank, self.filled, self.temperature)
        # The instance loss has no threshold: it uses every image of the batch.
        instance = F.cross_entropy(similarity_strong, unfolded)  # L_in
        loss = labeled + self.unlabeled_weight * unlabeled + self.instance_weight * instance
        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "loss/instance": instance.detach(),
            "mask_rate": mask.float().mean(),
        }
        return Step(loss, logs)

    @torch.no_grad()
    def _remember(self, z_x: Tensor, x_index: Tensor) -> None:
        """Update the bank with the labelled images of this batch. The first visit of an image sets its embedding."""
        z_x, x_index = distributed.gather(z_x), distributed.gather(x_index, sent_as=torch.int32)
        # With few labels, an image is in the batch more than once. The mean of its embeddings then counts as one visit.
        # All rows of the image write the same bits (those of its first row), so the order of the writes has no effect.
        same = (x_index.unsqueeze(1) == x_index).to(z_x.dtype)
        mean = (same @ z_x / same.sum(1, keepdim=True))[same.argmax(1)]
        kept = self.bank_momentum * self.filled[x_index].unsqueeze(1)
        self.bank[x_index] = F.normalize(kept * self.bank[x_index] + (1 - kept) * mean, dim=1)
        self.filled.index_fill_(0, x_index, True)

    @torch.no_grad()
    def _propagate(self, rectified: Tensor, z_weak: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pseudo-labels of both kinds, [n, k] and [n, labelled images].

        Each kind is corrected with the other kind as it was before its own correction.
        """
        similar = similarity(z_weak, self.bank, self.filled, self.temperature).softmax(1)
        smoothed = self.alpha * rectified + (1 - self.alpha) * (similar @ self.membership)
        unfolded = similar * (rectified @ self.membership.T)
        unfolded /= unfolded.sum(1, keepdim=True).clamp(min=SMALLEST_MASS)
        return smoothed, unfolded


def _membership(task: Task) -> Tensor:
    """Return the class of each labelled image, one-hot: [labelled images, k].

    A product with this matrix sums over the images of a class. A product with its transpose gives every image the
    value of its class.
    """
    if task.labeled_targets is None:
        raise ValueError(
            "SimMatch compares images with all labelled images, but the task has no labels (Task.labeled_targets); "
            "give the labels, or choose fixmatch"
        )
    membership = F.one_hot(task.labeled_targets.cpu(), task.num_classes).float()
    lacking = membership.sum(0) == 0
    try:
        torch._assert_async(~lacking.any())  # This check also works on fake tensors, which have no values.
    except RuntimeError as error:
        raise ValueError(
            f"no labelled image of class {lacking.nonzero().flatten().tolist()}; SimMatch compares images with "
            "labelled images of every class, so label at least one of each class (train.validation holds out some "
            "labels), or choose fixmatch or comatch"
        ) from error
    return membership
