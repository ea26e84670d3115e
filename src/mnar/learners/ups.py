"""UPS, uncertainty-aware pseudo-label selection (Rizve et al., ICLR 2021).

UPS trains several networks, one after another (generations). After each generation the network predicts every
unlabelled sample several times with dropout. If these predictions agree, the sample gets a positive label (the class
that it belongs to) or negative labels (classes that it does not belong to). The next generation trains a fresh network
on these labels and the given labels.

    paper    here                  meaning
             generations           number of networks that are trained, one after another
             passes                number of forward passes with dropout for each unlabelled sample
    p        probs                 prediction of each pass; the mean over the passes goes through the guidance
             rectified             mean prediction after the guidance; its arg-max is the class of the sample
    u(p)     uncertainty           standard deviation of the prediction over the passes
    tau_p    positive_threshold    a positive label needs at least this confidence
    kappa_p  positive_uncertainty  a positive label needs an uncertainty below this value
    tau_n    negative_threshold    a negative label needs a probability of the class below this value
    kappa_n  negative_uncertainty  a negative label needs an uncertainty below this value
             negative              the negative labels: the classes that each unlabelled sample does not belong to
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.learners.learner import Learner
from mnar.models.classifier import Classifier
from mnar.option_values import NumGenerations, PositiveFactor, Range, Share, checked_options
from mnar.types import Batch, Predict, Selection, Step, Task

# The smallest probability of not belonging to a class: it keeps the logarithm finite.
SMALLEST_PROB = 1e-7


class UPS(Learner):
    """Train in generations. Pseudo-labels are made between generations, so a step does not call the guidance.

    The docstring of this module explains the other options.

    negative_temperature    temperature of the softmax from which negative labels are selected; above 1 it makes the
                            predictions softer
    balanced_generations    the first so many generations train on balanced positive labels: each class keeps as many
                            positive labels as the rarest class has. The first generation has no positive labels, so
                            0 and 1 both switch the balancing off.
    balance_minimum         number of positive labels that balancing always leaves to a class, if the class has them
    """

    paper = "Rizve et al., ICLR 2021"
    views = ("strong",)
    labeled_view = "strong"
    unlabeled_ratio = 1
    labels_batches = False
    hooks = frozenset[str]()
    forgets = False  # A guidance needs the history of all generations, since it sees one pass per generation.
    # In the first pass there is no history, so every row of C is empty. PRG would then make one-hot pseudo-labels, and
    # these pass any threshold; "identity" avoids that. The window has to hold a pass over the unlabelled set: 1024
    # batches of 64 are 65,536 samples.
    guidance_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **{name: {"empty_row": "identity", "window": 1024} for name in ("prg", "prg_last")},
        **{name: {"window": 1024} for name in ("prg_smooth", "tracking")},  # no row is empty, or none is used
    }

    negative: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        guidance: Guidance,
        *,
        generations: NumGenerations = 20,
        passes: Annotated[int, Range(2, 1000)] = 10,
        positive_threshold: Share = 0.7,
        positive_uncertainty: PositiveFactor = 0.05,
        negative_threshold: Share = 0.05,
        negative_uncertainty: PositiveFactor = 0.005,
        negative_temperature: PositiveFactor = 2.0,
        balanced_generations: Annotated[int, Range(0, 1000)] = 7,
        balance_minimum: Annotated[int, Range(0, 10**9)] = 25,
    ) -> None:
        super().__init__(task, guidance)
        self.generations, self.passes = generations, passes
        self.positive_threshold, self.positive_uncertainty = positive_threshold, positive_uncertainty
        self.negative_threshold, self.negative_uncertainty = negative_threshold, negative_uncertainty
        self.negative_temperature = negative_temperature
        self.balanced_generations, self.balance_minimum = balanced_generations, balance_minimum
        self.register_buffer("negative", torch.zeros(task.num_unlabeled, task.num_classes, dtype=torch.bool))

    def prepare(self, model: Classifier) -> None:
        if not any(isinstance(module, nn.Dropout) for module in model.modules()):
            raise ValueError(
                "ups measures uncertainty with dropout, but the model has none; use --set model.dropout=0.3"
            )

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        strong = batch.u["strong"]
        logits = model(torch.cat([batch.x, strong])).float()
        logits_x, logits_u = logits.split([len(batch.x), len(strong)])
        # After the first generation, x also holds the samples that got a positive label.
        labeled = F.cross_entropy(logits_x, batch.y)  # L_CE

        negative = self.negative[batch.u_index]
        has_negative = negative.any(1)
        log_not = (1 - logits_u.softmax(1)).clamp(min=SMALLEST_PROB).log()
        per_sample = -(negative * log_not).sum(1) / negative.sum(1).clamp(min=1)  # L_NCE
        # The mean over all samples with negative labels, however many of them each process has.
        num_labeled = distributed.total(has_negative.sum()).clamp(min=1)
        unlabeled = distributed.num_parts() * per_sample.sum() / num_labeled

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
    """Select the samples that get a positive label.

    rectified    [n, k] mean predictions after the guidance
    uncertainty  [n, k] standard deviation of each class probability over the passes
    threshold    lowest confidence of a positive label
    limit        a positive label needs an uncertainty below this value

    Return [n] the class of each sample, [n] the uncertainty of that class, [n] whether the sample is selected.
    """
    confidence, target = rectified.max(1)
    uncertainty = uncertainty.gather(1, target.unsqueeze(1)).squeeze(1)
    return target, uncertainty, (confidence >= threshold) & (uncertainty < limit)


def select_negatives(probs: Tensor, uncertainty: Tensor, target: Tensor, threshold: float, limit: float) -> Tensor:
    """Return the classes that each sample does not belong to, as booleans [n, k].

    A class is selected if its probability in `probs` [n, k] is below `threshold` and its `uncertainty` [n, k] is below
    `limit`. The class of the sample itself, `target` [n], is never selected.
    """
    negative = (probs < threshold) & (uncertainty < limit)
    return negative.scatter(1, target.unsqueeze(1), False)


def balance(target: Tensor, uncertainty: Tensor, positive: Tensor, num_classes: int, minimum: int) -> Tensor:
    """Keep the same number of positive samples in each class, as booleans [n].

    Each class keeps its samples with the lowest uncertainty: as many as the rarest class has, but at least `minimum`.
    """
    counts = torch.bincount(target[positive], minlength=num_classes)
    quota = max(minimum, int(counts.min()))
    kept = torch.zeros_like(positive)
    for label in range(num_classes):
        members = (positive & (target == label)).nonzero().squeeze(1)
        surest = uncertainty[members].argsort(stable=True)[:quota]
        kept[members[surest]] = True
    return kept
