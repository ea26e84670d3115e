"""MixMatch (Berthelot et al., NeurIPS 2019).

MixMatch averages the predictions for two weak views of an unlabelled image and sharpens the average. The result is the
guessed label of the image. The model is trained on mixtures of two images, labelled or not, and of their labels.

    paper     here              meaning
    q_bar     probs             average of the predictions for the K = 2 weak views
              rectified         `probs` after the guidance; the guess is computed from it
    q         guess             `rectified`, sharpened with temperature T
    T         temperature       temperature of the sharpening; 1 means no sharpening
    W         pool, targets     all images of the step and their labels, given or guessed
    alpha     alpha             parameter of Beta(alpha, alpha), from which the mixing weights are drawn
    lambda'   weight            weight of a row in its mixture, at least 1/2; the other row has 1 - weight
    lambda_U  unlabeled_weight  largest weight of the unlabelled loss
              ramp              share of training during which that weight grows linearly from 0
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.learner import Learner
from mnar.learners.mixing import draw_mixing, mix, sharpen
from mnar.learners.ramp import linear_ramp
from mnar.models.batch_norm import statistics_kept
from mnar.option_values import Factor, PositiveFactor, PositiveShare, checked_options
from mnar.types import Batch, Step, Task


class MixMatch(Learner):
    paper = "Berthelot et al., NeurIPS 2019"
    views = ("weak", "weak2")
    unlabeled_ratio = 1

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        temperature: PositiveFactor = 0.5,
        alpha: PositiveFactor = 0.75,
        unlabeled_weight: Factor = 75.0,
        ramp: PositiveShare = 1 / 64,
    ) -> None:
        super().__init__(task, guidance)
        self.temperature, self.alpha = temperature, alpha
        self.unlabeled_weight, self.ramp = unlabeled_weight, ramp

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        weak = [batch.u[view] for view in self.views]
        with torch.no_grad(), statistics_kept(model):
            probs_of_views = model(torch.cat(weak)).float().softmax(1).chunk(2)
        probs = (probs_of_views[0] + probs_of_views[1]) / 2  # Eq. 6
        rectified = self.guidance(probs, batch.u_index)
        guess = sharpen(rectified, self.temperature)  # Eq. 7
        label = guess.argmax(1)
        self.note_pseudo_labels(label, torch.ones_like(label, dtype=torch.bool))

        sizes = [len(batch.x), 2 * len(guess)]
        onehot = F.one_hot(batch.y, self.task.num_classes).float()
        weight, order = draw_mixing(distributed.world_size() * sum(sizes), self.alpha, guess.device)  # Eq. 8, 9
        pool, targets = mix([batch.x, *weak], weight, order), mix([onehot, guess, guess], weight, order)  # Eq. 10, 11

        # One forward pass for all mixtures, so that batch-norm sees the whole step.
        logits_x, logits_u = model(pool).float().split(sizes)
        targets_x, targets_u = targets.split(sizes)
        labeled = F.cross_entropy(logits_x, targets_x)  # Eq. 3
        unlabeled = F.mse_loss(logits_u.softmax(1), targets_u)  # Eq. 4
        loss = labeled + self.unlabeled_weight * linear_ramp(self.progress, self.ramp) * unlabeled  # Eq. 5
        return Step(loss, {"loss/labeled": labeled.detach(), "loss/unlabeled": unlabeled.detach()})
