"""SimMatch (Zheng et al., CVPR 2022).

FixMatch with soft pseudo-labels of two kinds, the class of an image and the labelled images it is similar to: each
corrects the other, and the strong view is trained on both.

    paper      here                  meaning
    z          z_x, z_weak, ...      embedding: projection of an image onto the unit sphere
    Q_l        bank                  an embedding of every labelled image, averaged over its visits
    p^w        probs                 prediction for the weak view
               rectified             the same after the guidance; everything downstream reads it
    q^w        similar               softmax of the weak view's similarity to the labelled images
    q^         unfolded              `similar`, each labelled image scaled by the share its class has in `rectified`
    p^         smoothed              `rectified` mixed with `similar` added up by class
    alpha      alpha                 weight of `rectified` in that mixture
    t          temperature           of the softmaxes over similarities
    m          bank_momentum         what an embedding in the bank keeps of itself at a visit
    tau        threshold             least confidence of a pseudo-label that is used
    lambda_u   unlabeled_weight
    lambda_in  instance_weight

Where the paper and the published codes differ, docs/methods/simmatch.md says which is followed and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.checks import check_positive, check_shares, check_weights
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier, with_heads
from mnar.models.projection import Projection, similarity
from mnar.types import Batch, Step, Task

SMALLEST_MASS = torch.finfo(torch.float32).tiny  # keeps 0 / mass finite where a class has no image in the bank yet


class SimMatch(Learner):
    paper = "Zheng et al., CVPR 2022"
    views = ("weak", "strong")
    # No "relabel": the bank has a place for each label that is given, and for no other.
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

    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: float = 0.95,
        alpha: float = 0.9,
        temperature: float = 0.1,
        unlabeled_weight: float = 1.0,
        instance_weight: float = 1.0,
        dim: int = 128,
        bank_momentum: float = 0.7,
    ) -> None:
        super().__init__(task, guidance)
        check_shares(threshold=threshold, alpha=alpha)
        check_positive(temperature=temperature)
        check_weights(unlabeled_weight=unlabeled_weight, instance_weight=instance_weight)
        if dim < 1:
            raise ValueError(f"dim is {dim}; an embedding has at least 1 number (the paper uses 128)")
        if not 0 <= bank_momentum < 1:
            raise ValueError(f"bank_momentum is {bank_momentum}; it lies in [0, 1) (the paper uses 0.7)")
        self.threshold, self.alpha, self.temperature = threshold, alpha, temperature
        self.unlabeled_weight, self.instance_weight = unlabeled_weight, instance_weight
        self.dim, self.bank_momentum = dim, bank_momentum

        membership = _membership(task)
        self.register_buffer("membership", membership, persistent=False)  # [labelled images, k], one-hot
        self.register_buffer("bank", torch.zeros(len(membership), dim))
        self.register_buffer("filled", torch.zeros(len(membership), dtype=torch.bool))

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        return {"projection": Projection(model.num_features, self.dim, nn.ReLU())}

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        model = with_heads(model, "projection")
        weak, strong = batch.u["weak"], batch.u["strong"]
        sizes = [len(batch.x), len(weak), len(strong)]
        # One forward for all: the batch-norm statistics are those of the whole step, as in FixMatch.
        features = model.features(torch.cat([batch.x, weak, strong])).float()
        logits_x, logits_weak, logits_strong = model.head(features).split(sizes)
        z_x, z_weak, z_strong = model.heads["projection"](features).split(sizes)
        labeled = self.guidance.supervised(logits_x, batch.y, logits_weak)  # L_s

        probs = logits_weak.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        self._remember(z_x, batch.x_index)  # before it is read: the bank is never empty then, not even at first
        smoothed, unfolded = self._propagate(rectified, z_weak)
        confidence, target = smoothed.max(1)
        mask = confidence >= self.guidance.threshold(smoothed, self.threshold)
        self.note_pseudo_labels(target, mask)
        logits_strong = self.guidance.pool_logits(logits_strong)
        unlabeled = (mask * F.cross_entropy(logits_strong, smoothed, reduction="none")).mean()  # L_u

        similarity_strong = similarity(z_strong, self.bank, self.filled, self.temperature)
        instance = F.cross_entropy(similarity_strong, unfolded)  # L_in, over all images: no threshold here
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
        """Average the labelled images of this batch into the bank; an image's first visit sets its embedding."""
        z_x, x_index = distributed.gather(z_x), distributed.gather(x_index)
        # With few labels, an image stands in the batch more than once: the mean of its embeddings counts as one visit.
        # All its rows then write the bits of the first of them, so it does not matter which is last.
        same = (x_index.unsqueeze(1) == x_index).to(z_x.dtype)
        mean = (same @ z_x / same.sum(1, keepdim=True))[same.argmax(1)]
        kept = self.bank_momentum * self.filled[x_index].unsqueeze(1)
        self.bank[x_index] = F.normalize(kept * self.bank[x_index] + (1 - kept) * mean, dim=1)
        self.filled.index_fill_(0, x_index, True)

    @torch.no_grad()
    def _propagate(self, rectified: Tensor, z_weak: Tensor) -> tuple[Tensor, Tensor]:
        """The pseudo-labels of both kinds, [n, k] and [n, labelled images], each corrected by the other as it was."""
        similar = similarity(z_weak, self.bank, self.filled, self.temperature).softmax(1)
        smoothed = self.alpha * rectified + (1 - self.alpha) * (similar @ self.membership)
        unfolded = similar * (rectified @ self.membership.T)
        unfolded /= unfolded.sum(1, keepdim=True).clamp(min=SMALLEST_MASS)
        return smoothed, unfolded


def _membership(task: Task) -> Tensor:
    """The class of each labelled image, one-hot: matrix products with it sum by class and spread by class."""
    if task.labeled_targets is None:
        raise ValueError(
            "SimMatch compares images with all labelled ones, but the task has no labels (Task.labeled_targets); "
            "give them, or choose fixmatch"
        )
    membership = F.one_hot(task.labeled_targets.cpu(), task.num_classes).float()
    lacking = membership.sum(0) == 0
    try:
        torch._assert_async(~lacking.any())  # also where there are shapes but no values
    except RuntimeError as error:
        raise ValueError(
            f"no labelled image of class {lacking.nonzero().flatten().tolist()}; SimMatch compares images with "
            "labelled ones of every class: label at least one of each (train.validation holds some out), or choose "
            "fixmatch or comatch"
        ) from error
    return membership
