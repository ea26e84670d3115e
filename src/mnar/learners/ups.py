"""UPS, uncertainty-aware pseudo-label selection (Rizve et al., ICLR 2021).

Train a network, label the samples on which its predictions agree whatever dropout leaves out, either as the class that
they belong to or with classes that they do not, and begin anew with a fresh network that learns from both.

    paper    here                    meaning
    p        probs                   prediction, the mean of `passes` forwards with dropout
             rectified               the same after the guidance; the class of a sample is its arg-max
    u(p)     uncertainty             standard deviation over the passes
    tau_p    positive_threshold      least confidence in the class of a sample labelled with it
    kappa_p  positive_uncertainty    its uncertainty is below
    tau_n    negative_threshold      the probability of a class that a sample is said not to be is below
    kappa_n  negative_uncertainty    its uncertainty is below
             negative                the classes that each unlabelled sample is said not to be
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.guidances.guidance import Guidance
from mnar.learners.checks import check_positive, check_shares
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier
from mnar.types import Batch, Predict, Selection, Step, Task

SMALLEST_PROB = 1e-7  # of not being a class: keeps its logarithm finite


class UPS(Learner):
    """Labels between generations, so a step makes no pseudo-label and calls no guidance.

    negative_temperature    softens the predictions that negative labels are read from
    balanced_generations    as many, from the first, train on the same number of positive labels per class,
    balance_minimum         but on no fewer than this where a class has them
    """

    paper = "Rizve et al., ICLR 2021"
    views = ("strong",)
    labeled_view = "strong"
    unlabeled_ratio = 1
    labels_batches = False
    hooks = frozenset[str]()
    forgets = False  # the history that a guidance needs is that of all generations
    # Before there is a history no row of C has a transition, and a one-hot pseudo-label would pass any threshold; and
    # the window is to hold a pass over the unlabelled set: 65,536 samples in batches of 64.
    guidance_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"empty_row": "identity", "window": 1024} for name in ("prg", "prg_last")
    }

    negative: Tensor

    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        generations: int = 20,
        passes: int = 10,
        positive_threshold: float = 0.7,
        positive_uncertainty: float = 0.05,
        negative_threshold: float = 0.05,
        negative_uncertainty: float = 0.005,
        negative_temperature: float = 2.0,
        balanced_generations: int = 7,
        balance_minimum: int = 25,
    ) -> None:
        super().__init__(task, guidance)
        if generations < 1:
            raise ValueError(f"generations is {generations}; at least 1 network is trained (the paper's code: 20)")
        if passes < 2:
            raise ValueError(f"passes is {passes}; a standard deviation needs at least 2 (the paper uses 10)")
        check_shares(positive_threshold=positive_threshold, negative_threshold=negative_threshold)
        check_positive(
            positive_uncertainty=positive_uncertainty,
            negative_uncertainty=negative_uncertainty,
            negative_temperature=negative_temperature,
        )
        for name, count in (("balanced_generations", balanced_generations), ("balance_minimum", balance_minimum)):
            if count < 0:
                raise ValueError(f"{name} is {count}; it cannot be negative (0 switches it off)")
        self.generations, self.passes = generations, passes
        self.positive_threshold, self.positive_uncertainty = positive_threshold, positive_uncertainty
        self.negative_threshold, self.negative_uncertainty = negative_threshold, negative_uncertainty
        self.negative_temperature = negative_temperature
        self.balanced_generations, self.balance_minimum = balanced_generations, balance_minimum
        self.register_buffer("negative", torch.zeros(task.num_unlabeled, task.num_classes, dtype=torch.bool))

    def prepare(self, model: Classifier) -> None:
        if not any(isinstance(module, nn.Dropout) for module in model.modules()):
            raise ValueError("ups measures uncertainty by dropout, and the model has none; use --set model.dropout=0.3")

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        strong = batch.u["strong"]
        logits = model(torch.cat([batch.x, strong])).float()
        logits_x, logits_u = logits.split([len(batch.x), len(strong)])
        labeled = F.cross_entropy(logits_x, batch.y)  # L_CE: samples labelled by the last generation are among x

        negative = self.negative[batch.u_index]
        has_negative = negative.any(1)
        log_not = (1 - logits_u.softmax(1)).clamp(min=SMALLEST_PROB).log()
        per_sample = -(negative * log_not).sum(1) / negative.sum(1).clamp(min=1)  # L_NCE
        unlabeled = per_sample.sum() / has_negative.sum().clamp(min=1)

        logs = {
            "loss/labeled": labeled.detach(),
            "loss/unlabeled": unlabeled.detach(),
            "negative_rate": has_negative.float().mean(),
        }
        return Step(labeled + unlabeled, logs)

    @torch.no_grad()
    def relabel(self, predict: Predict, generation: int) -> Selection:
        chunks: list[tuple[Tensor, ...]] = []
        for rows, logits in predict(passes=self.passes, dropout=True):
            logits = logits.float()
            probs = logits.softmax(2)
            rectified = self.guidance(probs.mean(0), rows)
            target, uncertainty, positive = select_positives(
                rectified, probs.std(0), self.positive_threshold, self.positive_uncertainty
            )
            soft = (logits / self.negative_temperature).softmax(2)
            self.negative[rows] = select_negatives(
                soft.mean(0), soft.std(0), target, self.negative_threshold, self.negative_uncertainty
            )
            chunks.append((rows, target, uncertainty, positive))

        rows, target, uncertainty, positive = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        if generation + 1 < self.balanced_generations:
            positive = balance(target, uncertainty, positive, self.task.num_classes, self.balance_minimum)
        self.negative[rows[positive]] = False
        pool = self.negative.any(1).nonzero().squeeze(1)
        return Selection(rows[positive], target[positive], pool, self.negative.clone())


def select_positives(
    rectified: Tensor, uncertainty: Tensor, threshold: float, limit: float
) -> tuple[Tensor, Tensor, Tensor]:
    """[n, k], [n, k] -> each sample's class, its uncertainty, and whether the sample is labelled with it: [n] each."""
    confidence, target = rectified.max(1)
    uncertainty = uncertainty.gather(1, target.unsqueeze(1)).squeeze(1)
    return target, uncertainty, (confidence >= threshold) & (uncertainty < limit)


def select_negatives(probs: Tensor, uncertainty: Tensor, target: Tensor, threshold: float, limit: float) -> Tensor:
    """[n, k], [n, k], [n] -> which classes each sample is said not to be, [n, k]; never its own class."""
    negative = (probs < threshold) & (uncertainty < limit)
    return negative.scatter(1, target.unsqueeze(1), False)


def balance(target: Tensor, uncertainty: Tensor, positive: Tensor, num_classes: int, minimum: int) -> Tensor:
    """Of the positive ones, per class the surest, as many as the rarest class has but at least `minimum`: [n] bool."""
    counts = torch.bincount(target[positive], minlength=num_classes)
    quota = max(minimum, int(counts.min()))
    kept = torch.zeros_like(positive)
    for label in range(num_classes):
        members = (positive & (target == label)).nonzero().squeeze(1)
        surest = uncertainty[members].argsort(stable=True)[:quota]
        kept[members[surest]] = True
    return kept
