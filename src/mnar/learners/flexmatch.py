"""FlexMatch (Zhang et al., NeurIPS 2021).

FlexMatch is FixMatch with a separate confidence threshold for each class. The fewer samples have got a class as a
confident pseudo-label, the lower is the threshold of that class.

    paper     here               meaning
    u^n       selected           last confident pseudo-label of each unlabelled sample; -1 if there was none yet
    sigma_t   counts             number of samples per entry of `selected`; counts[0] has no class yet    Eq. 5
    beta_t    learning_effect    sigma divided by its largest entry, see `warmup`                         Eq. 6, 11
    T_t       class_thresholds   tau * M(beta), M(b) = b / (2 - b)                                        Eq. 7, 12
    tau       threshold          threshold of the class with the most samples: the lowest confidence of a
                                 pseudo-label that is used
    lambda    unlabeled_weight   weight of the unlabelled loss
              warmup             whether beta is divided by the number of samples without a class, as long as
                                 that number is larger than every class                                   Eq. 11
              count_from         whether `selected` gets the pseudo-label after the guidance ("rectified") or the
                                 prediction before the guidance ("raw")
              weak_gradient      whether the backward pass includes the weak views, as in FixMatch
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.bank import empty_bank
from mnar.guidances.guidance import Guidance
from mnar.learners.checks import checked_weak_gradient
from mnar.learners.learner import Learner
from mnar.option_values import Factor, Share, checked_options
from mnar.types import Batch, Step, Task


class FlexMatch(Learner):
    paper = "Zhang et al., NeurIPS 2021"
    views = ("weak", "strong")
    hooks = Learner.hooks | {"supervised", "threshold", "pool_logits"}

    selected: Tensor
    counts: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        threshold: Share = 0.95,
        unlabeled_weight: Factor = 1.0,
        warmup: bool = True,
        count_from: Literal["rectified", "raw"] = "rectified",
        weak_gradient: bool = True,
    ) -> None:
        super().__init__(task, guidance)
        self.weak_gradient = checked_weak_gradient(weak_gradient, guidance)
        self.threshold, self.unlabeled_weight, self.warmup = threshold, unlabeled_weight, warmup
        self.count_from = count_from

        # The last row of the bank belongs to no sample. Rows of a batch that select nothing write to that row.
        self.register_buffer("selected", empty_bank(task.num_unlabeled, task.num_classes))
        counts = torch.zeros(task.num_classes + 1, dtype=torch.int64)
        counts[0] = task.num_unlabeled
        self.register_buffer("counts", counts)

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        weak, strong = batch.u["weak"], batch.u["strong"]
        images = batch.x, weak, strong
        logits = model(self.together(*images)).float()
        logits_x, logits_weak, logits_strong = self.apart(logits, *images)
        labeled = self.guidance.supervised(logits_x, batch.y, logits_weak)

        probs = logits_weak.detach().softmax(1)
        rectified = self.guidance(probs, batch.u_index)
        confidence, target = rectified.max(1)
        mask = confidence >= self.guidance.threshold(rectified, self.class_thresholds[target])
        self.note_pseudo_labels(target, mask)
        # The counts change after the mask is made, and they use the fixed threshold. Otherwise a class would count the
        # samples that its own low threshold let in.
        surest, counted = (confidence, target) if self.count_from == "rectified" else probs.max(1)
        self._select(counted, surest >= self.threshold, batch.u_index)

        logits_strong = self.guidance.pool_logits(logits_strong)
        unlabeled = (mask * F.cross_entropy(logits_strong, target, reduction="none")).mean()  # Eq. 8
        loss = labeled + self.unlabeled_weight * unlabeled  # Eq. 9
        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "mask_rate": mask.float().mean(),
            "selected_share": 1 - self.counts[0] / self.task.num_unlabeled,
        }
        return Step(loss, logs)

    @property
    def learning_effect(self) -> Tensor:
        """beta [k], from 0 to 1: how well each class is learnt, relative to the class with the most samples."""
        per_class = self.counts[1:]
        most = self.counts.max() if self.warmup else per_class.max()
        return per_class / most.clamp(min=1)  # Eq. 11; without the warm-up Eq. 6

    @property
    def class_thresholds(self) -> Tensor:
        """T [k]: the lowest confidence of a pseudo-label of each class that is used."""
        effect = self.learning_effect
        return self.threshold * effect / (2 - effect)  # Eq. 12

    def _select(self, counted: Tensor, confident: Tensor, index: Tensor) -> None:
        """Store the confident classes of this batch in `selected`, and update `counts`.  Eq. 5"""
        label = distributed.gather(torch.where(confident, counted, -1).to(torch.int32))
        index = distributed.gather(index, sent_as=torch.int32)

        # A sample may be in the batch more than once. Then its last confident row decides, as in a sequential loop.
        # The sort puts the rows of a sample together and its confident rows last, so that the last row decides.
        order = (2 * index + (label >= 0)).argsort(stable=True)
        label, index = label[order], index[order]
        final = ~F.pad(index[1:] == index[:-1], (0, 1))
        chosen = final & (label >= 0)

        before = self.selected[index]
        moved = chosen.to(self.counts.dtype)
        self.counts.scatter_add_(0, before.long() + 1, -moved).scatter_add_(0, label.long() + 1, moved)
        stored = torch.where(chosen, label, -1).to(self.selected.dtype)
        self.selected[torch.where(chosen, index, self.task.num_unlabeled)] = stored
