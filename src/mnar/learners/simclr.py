"""SimCLR (Chen et al., ICML 2020).

SimCLR trains the network without labels: the embeddings of two contrastive views of an image should be closer to each
other than to the embeddings of all other images of the batch. The classifier is trained on the features with the
labelled loss, but its gradient does not reach the network.

Another learner can start from the trained network (`train.start`).

    paper    here                          meaning
    h        features                      output of the network
    g        model.heads["projection"]     two layers, and normalisation to length 1
    z        embeddings                    g(h) of the first views, then of the second views
    tau      temperature                   temperature of the softmax over similarities
             dim                           length of an embedding
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier, with_heads
from mnar.models.projection import LOWEST, Projection
from mnar.option_values import LayerWidth, PositiveFactor, checked_options
from mnar.types import Batch, Step, Task


class SimCLR(Learner):
    paper = "Chen et al., ICML 2020"
    views = ("contrast", "contrast2")
    hooks = frozenset[str]()
    is_guided = False
    labels_batches = False

    @checked_options
    def __init__(
        self, task: Task, guidance: Guidance, *, temperature: PositiveFactor = 0.5, dim: LayerWidth = 128
    ) -> None:
        super().__init__(task, guidance)
        if task.batch_unlabeled < 2:
            raise ValueError(
                f"batch_unlabeled is {task.batch_unlabeled}; SimCLR compares the unlabelled images of a batch with "
                "each other, so take at least 2: --set train.batch_unlabeled=2"
            )
        self.temperature, self.dim = temperature, dim

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        return {"projection": Projection(model.num_features, self.dim, nn.ReLU())}

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        model = with_heads(model, "projection")
        first, second = batch.u["contrast"], batch.u["contrast2"]
        features = model.features(torch.cat([batch.x, first, second])).float()
        features_x, *features_u = features.split([len(batch.x), len(first), len(second)])
        # The classifier learns from the labels, the network does not.
        labeled = F.cross_entropy(model.head(features_x.detach()).float(), batch.y)
        contrastive = self._contrastive(*(model.heads["projection"](h) for h in features_u))
        loss = labeled + contrastive
        return Step(loss, {"loss/labeled": labeled.detach(), "loss/contrastive": contrastive.detach()})

    def _contrastive(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the cross-entropy of finding the other view of an image among all other views of the batch."""
        embeddings = torch.cat([first, second])
        all_embeddings = torch.cat([distributed.gather_with_gradient(z) for z in (first, second)])
        num_images = len(all_embeddings) // 2
        image = distributed.own_rows(torch.arange(num_images, device=first.device))
        same, partner = torch.cat([image, image + num_images]), torch.cat([image + num_images, image])
        similarity = embeddings @ all_embeddings.T / self.temperature
        similarity = similarity.scatter(1, same[:, None], LOWEST)  # an embedding is not compared with itself
        return F.cross_entropy(similarity, partner)  # Eq. 1
