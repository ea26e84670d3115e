"""ReMixMatch (Berthelot et al., ICLR 2020).

The label of an unlabelled image is guessed from the prediction for its weak view (the anchor). The prediction is
aligned with the class distribution of the labelled set and sharpened. The strong views of the image get the same label.
The model is trained on mixtures, as in MixMatch. A second head predicts by which angle an image was rotated.

    paper        here              meaning
    q_b          probs             prediction for the weak view, the anchor
    q~_b         rectified         `probs` after the guidance, which is distribution alignment by default; the guess is
                                   computed from it
    q            guess             `rectified`, sharpened with temperature T
    T            temperature       temperature of the sharpening; 1 means no sharpening
    K            strong_views      number of strong views of an image
    alpha        alpha             parameter of Beta(alpha, alpha), from which the mixing weights are drawn
    lambda_U     unlabeled_weight  weight of the loss of mixtures whose larger part is an unlabelled image
    lambda_U^_1  strong_weight     weight of the loss of the first strong view, not mixed
                 ramp              share of training during which lambda_U and lambda_U^_1 grow linearly from 0
    lambda_r     rotation_weight   weight of the loss of the rotation head
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.learner import Learner
from mnar.learners.mixing import draw_mixing, mix, sharpen
from mnar.learners.ramp import linear_ramp
from mnar.models.batch_norm import statistics_kept
from mnar.models.classifier import Classifier, with_heads
from mnar.option_values import Factor, NumViews, PositiveFactor, PositiveShare, checked_options
from mnar.types import Batch, Step, Task

NUM_TURNS = 4  # Images are rotated by 0, 90, 180 and 270 degrees.


class ReMixMatch(Learner):
    paper = "Berthelot et al., ICLR 2020"
    views: tuple[str, ...] = ("weak", "strong", "strong2")
    unlabeled_ratio = 1
    default_guidance: ClassVar[Mapping[str, Any]] = {
        "name": "distribution_alignment",
        "target": "labeled",
        "window": 128,
        "update": "after",
    }

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        strong_views: NumViews = 2,
        temperature: PositiveFactor = 0.5,
        alpha: PositiveFactor = 0.75,
        unlabeled_weight: Factor = 1.5,
        strong_weight: Factor = 0.5,
        rotation_weight: Factor = 0.5,
        ramp: PositiveShare = 1 / 64,
    ) -> None:
        super().__init__(task, guidance)
        if task.batch_unlabeled < NUM_TURNS:
            raise ValueError(
                f"batch_unlabeled is {task.batch_unlabeled}; ReMixMatch rotates each quarter of the unlabelled batch "
                f"by a different angle, so take at least {NUM_TURNS}"
            )
        self.views = ("weak", "strong", *(f"strong{number}" for number in range(2, strong_views + 1)))
        self.temperature, self.alpha, self.ramp = temperature, alpha, ramp
        self.unlabeled_weight, self.strong_weight = unlabeled_weight, strong_weight
        self.rotation_weight = rotation_weight

    @property
    def forward_size(self) -> int:
        # The first strong view goes through the model two more times, once not mixed and once rotated.
        return super().forward_size + 2 * self.task.batch_unlabeled

    def check_sample(self, views: Mapping[str, Tensor]) -> None:
        height, width = views["strong"].shape[-2:]
        if height != width:
            raise ValueError(
                f"images are {height}x{width}; ReMixMatch rotates them by 90 degrees, so they must be square. "
                "Make the images square, or choose another learner, e.g. --learner fixmatch"
            )

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        return {"rotation": nn.Linear(model.num_features, NUM_TURNS)}

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        model = with_heads(model, "rotation")
        weak, strong = batch.u["weak"], [batch.u[view] for view in self.views[1:]]
        with torch.no_grad(), statistics_kept(model):
            probs = model(weak).float().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        guess = sharpen(rectified, self.temperature)
        label = guess.argmax(1)
        self.note_pseudo_labels(label, torch.ones_like(label, dtype=torch.bool))

        sizes = [len(batch.x), len(self.views) * len(weak)]
        onehot = F.one_hot(batch.y, self.task.num_classes).float()
        weight, order = draw_mixing(distributed.world_size() * sum(sizes), self.alpha, guess.device)
        pool = mix([batch.x, weak, *strong], weight, order)
        targets = mix([onehot, *[guess] * len(self.views)], weight, order)
        turned, turns = turn_by_quarters(strong[0])

        # One forward pass for all images that are trained on, so that batch-norm sees the whole step.
        features = model.features(torch.cat([pool, strong[0], turned])).float()
        features, features_turned = features.split([len(pool) + len(weak), len(weak)])
        logits_x, logits_u, logits_strong = model.head(features).split([*sizes, len(weak)])
        targets_x, targets_u = targets.split(sizes)
        labeled = F.cross_entropy(logits_x, targets_x)
        unlabeled = F.cross_entropy(logits_u, targets_u)
        strong_alone = F.cross_entropy(logits_strong, guess)
        rotation = F.cross_entropy(model.heads["rotation"](features_turned), turns)

        ramp = linear_ramp(self.progress, self.ramp)
        guessed = self.unlabeled_weight * unlabeled + self.strong_weight * strong_alone
        loss = labeled + ramp * guessed + self.rotation_weight * rotation
        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "loss/strong": strong_alone.detach(),
            "loss/rotation": rotation.detach(),
        }
        return Step(loss, logs)


def turn_by_quarters(images: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate the four quarters of the batch of all processes by 0, 90, 180 and 270 degrees.

    Return the images of this process, and the number of quarter turns of each image.
    """
    size, rest = divmod(distributed.world_size() * len(images), NUM_TURNS)
    first = distributed.rank() * len(images)
    # The ends of the first three quarters of the whole batch. The first `rest` quarters have one more image.
    ends = (number * size + min(number, rest) for number in range(1, NUM_TURNS))
    quarters = images.tensor_split([min(max(end - first, 0), len(images)) for end in ends])
    turned = torch.cat([quarter.rot90(number, (-2, -1)) for number, quarter in enumerate(quarters)])
    turns = torch.cat(
        [torch.full((len(quarter),), number, device=images.device) for number, quarter in enumerate(quarters)]
    )
    # A rotation swaps the strides of rows and columns. The copy restores the memory format of the input.
    return torch.empty_like(images).copy_(turned), turns
