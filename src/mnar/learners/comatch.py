"""CoMatch (Li et al., ICCV 2021).

CoMatch is FixMatch with soft pseudo-labels and a contrastive loss. A memory of recent batches smooths each pseudo-label
with the pseudo-labels of similar images. The contrastive loss pulls the embeddings of two strong views together if the
pseudo-labels of their images are similar.

    paper       here                meaning
    z           z_x, z_weak, ...    embedding: the projection of an image onto the unit sphere
    p^w         probs               prediction for the weak view
                rectified           `probs` after the guidance; the memory stores it, and `smoothed` is made from it
    q           smoothed            `rectified` mixed with the pseudo-labels of similar images
    MB          memory_embeddings,  embeddings and labels of the last `memory_batches` batches; the labels of
                memory_labels       labelled images are one-hot
                memory_batches      number of batches that the memory holds
    W^q         _graph()            similarity of two images by pseudo-label
    W^z         logits_graph        similarity of two images by embedding; W^z is the softmax of `logits_graph`
    alpha       alpha               weight of an image's own prediction in its pseudo-label
    t           temperature         temperature of both softmaxes over similarities
    tau         threshold           lowest confidence of a pseudo-label that is used
    T           graph_threshold     lowest similarity of two pseudo-labels that counts; lower values become 0
    lambda_cls  unlabeled_weight    weight of the unlabelled loss
    lambda_ctr  contrastive_weight  weight of the contrastive loss
                dim                 length of an embedding
                weak_gradient       whether the backward pass includes the weak views, as in FixMatch

The paper and its published code differ in places. docs/methods/comatch.md says which one this code follows, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.checks import checked_weak_gradient
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier, with_heads
from mnar.models.projection import Projection, similarity
from mnar.option_values import Factor, LayerWidth, PositiveFactor, Range, Share, checked_options
from mnar.types import Batch, Step, Task


class CoMatch(Learner):
    paper = "Li et al., ICCV 2021"
    views = ("weak", "strong", "strong2")
    hooks = Learner.hooks | {"supervised", "threshold", "pool_logits"}
    default_guidance: ClassVar[Mapping[str, Any]] = {
        "name": "distribution_alignment",
        "target": "uniform",
        "window": 32,
        "update": "before",
    }

    memory_embeddings: Tensor
    memory_labels: Tensor
    remembered: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: Share = 0.95,
        graph_threshold: Share = 0.8,
        alpha: Share = 0.9,
        temperature: PositiveFactor = 0.2,
        unlabeled_weight: Factor = 1.0,
        contrastive_weight: Factor = 1.0,
        dim: LayerWidth = 64,
        memory_batches: Annotated[int, Range(1, 1000)] = 5,
        weak_gradient: bool = True,
    ) -> None:
        super().__init__(task, guidance)
        self.weak_gradient = checked_weak_gradient(weak_gradient, guidance)
        if task.batch_unlabeled < 2:
            raise ValueError(
                f"batch_unlabeled is {task.batch_unlabeled}; CoMatch compares the unlabelled images of a batch with "
                "each other, so take at least 2: --set train.batch_unlabeled=2"
            )
        self.threshold, self.graph_threshold = threshold, graph_threshold
        self.alpha, self.temperature, self.dim = alpha, temperature, dim
        self.unlabeled_weight, self.contrastive_weight = unlabeled_weight, contrastive_weight

        size = memory_batches * (task.batch_labeled + task.batch_unlabeled)
        self.register_buffer("memory_embeddings", torch.zeros(size, dim))
        self.register_buffer("memory_labels", torch.zeros(size, task.num_classes))
        # The number of images written so far, including the images that were overwritten since.
        self.register_buffer("remembered", torch.zeros(1, dtype=torch.int64))

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        return {"projection": Projection(model.num_features, self.dim, nn.LeakyReLU(0.1))}

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        model = with_heads(model, "projection")
        images = batch.x, *(batch.u[view] for view in self.views)
        features = model.features(self.together(*images)).float()
        logits_x, logits_weak, logits_strong, _ = self.apart(model.head(features), *images)
        z_x, z_weak, z_strong, z_strong2 = self.apart(model.heads["projection"](features), *images)
        labeled = self.guidance.supervised(logits_x, batch.y, logits_weak)  # L_x

        probs = logits_weak.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        smoothed = self._smooth(rectified, z_weak)
        # The memory is written after it was read, so that no image is smoothed with its own pseudo-label.
        self._remember(z_x, batch.y, z_weak, rectified)
        confidence, target = smoothed.max(1)
        mask = confidence >= self.guidance.threshold(smoothed, self.threshold)
        self.note_pseudo_labels(target, mask)
        logits_strong = self.guidance.pool_logits(logits_strong)
        unlabeled = (mask * F.cross_entropy(logits_strong, smoothed, reduction="none")).mean()  # L_u^cls

        # The softmax of these logits is W^z. The gradient flows through both strong views, as in the published code for
        # CIFAR.
        logits_graph = z_strong / self.temperature @ distributed.gather_with_gradient(z_strong2).T
        graph = distributed.own_rows(self._graph(distributed.gather(smoothed)))
        contrastive = F.cross_entropy(logits_graph, graph)  # L_u^ctr
        loss = labeled + self.unlabeled_weight * unlabeled + self.contrastive_weight * contrastive
        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "loss/contrastive": contrastive.detach(),
            "mask_rate": mask.float().mean(),
        }
        return Step(loss, logs)

    @torch.no_grad()
    def _smooth(self, rectified: Tensor, z_weak: Tensor) -> Tensor:
        """Return q = alpha * rectified + (1 - alpha) * sum_j a_j p_j, with a = softmax(z_weak . z_j / t).

        The sum is over the images j in the memory, with embeddings z_j and labels p_j.
        """
        filled = torch.arange(len(self.memory_labels), device=z_weak.device) < self.remembered
        affinity = similarity(z_weak, self.memory_embeddings, filled, self.temperature).softmax(1)
        # As long as the memory is empty, the pseudo-label is the image's own prediction alone.
        alpha = torch.where(self.remembered > 0, self.alpha, 1.0)
        return alpha * rectified + (1 - alpha) * (affinity @ self.memory_labels)

    @torch.no_grad()
    def _remember(self, z_x: Tensor, y: Tensor, z_weak: Tensor, rectified: Tensor) -> None:
        """Write this batch to the memory, labelled images first, in place of the oldest entries."""
        embeddings = torch.cat([distributed.gather(z_x), distributed.gather(z_weak)])
        onehot = F.one_hot(distributed.gather(y), self.task.num_classes)
        labels = torch.cat([onehot, distributed.gather(rectified)])

        place = self.remembered + torch.arange(len(labels), device=labels.device)
        place = place.remainder(len(self.memory_labels))
        self.memory_embeddings[place] = embeddings
        self.memory_labels[place] = labels
        self.remembered += len(labels)

    @torch.no_grad()
    def _graph(self, smoothed: Tensor) -> Tensor:
        """Return W^q [n, n]: how similar two images of the batch are by pseudo-label. Every row has the sum 1."""
        graph = (smoothed @ smoothed.T).fill_diagonal_(1)
        graph *= graph >= self.graph_threshold
        return graph / graph.sum(1, keepdim=True)
