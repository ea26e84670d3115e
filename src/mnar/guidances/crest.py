"""CReST and CReST+: class-rebalancing self-training (Wei et al., CVPR 2021).

CReST trains in generations, each of them with a fresh network. Between two generations the model labels the unlabelled
set, and the most confident samples join the labelled set: many in classes with few labels, few in classes with many.

    paper    here                meaning
    N_l      counts              number of labels of the class with the l-th most labels, of L classes with labels
    mu_l     sampling_rates()    (N_{L+1-l} / N_1)^alpha: the share of the samples predicted as that class that join
    g, G     generation, generations
    t_g      tempering           1 - g/(G-1) (1 - t_min): how much of the labels' imbalance CReST+ keeps
    p_data   labeled_shares      the class distribution of the labelled set
             target              Normalize(p_data^t_g): the distribution that CReST+ aligns predictions with

The paper and its published code differ. docs/methods/crest.md says which of them this implementation follows, and why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mnar.guidances.distribution_alignment import DistributionAlignment
from mnar.guidances.guidance import Guidance
from mnar.option_values import Factor, NumGenerations, Share, Window, checked_options
from mnar.types import Predict, Selection, Task

ROUNDING = 1e-6  # added before rounding down: 13 * (1728 / 2197) ** (1 / 3) gives 11.999999999999998, not 12


class CReST(Guidance):
    """Train in generations, and move confident samples of classes with few labels to the labelled set in between.

    Call `q = guidance(probs, index)` once per step, where `guidance = CReST(task)`, and
    `guidance.relabel(predict, generation)` between two generations.

    generations    number of networks that are trained one after another
    alpha          exponent of the sampling rates. 0: all samples join; the larger, the fewer samples join in classes
                   with many labels
    align          True: CReST+, which also aligns predictions, in each generation with a flatter target
    t_min          tempering of the last generation. 1: the target stays the class distribution of the labels; 0: the
                   last target is uniform
    window         number of recent batches that the running prediction of the alignment averages
    """

    paper = "Wei et al., CVPR 2021"
    needs = frozenset({"relabel"})

    generation: Tensor
    labeled_shares: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        generations: NumGenerations = 6,
        alpha: Factor = 1 / 3,
        align: bool = False,
        t_min: Share = 0.5,
        window: Window = 128,
    ) -> None:
        super().__init__(task)
        self.labeled_counts = task.labeled_counts
        self.generations, self.alpha, self.t_min = generations, alpha, t_min

        self.register_buffer("generation", torch.zeros((), dtype=torch.int64))
        self.alignment = DistributionAlignment(task, target="labeled", window=window) if align else None
        if self.alignment is not None:
            self.register_buffer("labeled_shares", self.alignment.target.clone(), persistent=False)

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Return the predictions, which CReST+ aligns with the target of this generation."""
        if self.alignment is None:
            self.check(probs, index)
            return probs.detach().float()
        self.alignment.target.copy_(self.target)  # in every call, because a checkpoint restores only the generation
        aligned: Tensor = self.alignment(probs, index)
        return aligned

    @property
    def tempering(self) -> Tensor:
        """t_g: 1 in the first generation, `t_min` in the last."""
        return 1 - self.generation / max(self.generations - 1, 1) * (1 - self.t_min)

    @property
    def target(self) -> Tensor:
        """The class distribution that this generation's predictions are aligned with, [k]; exists only with `align`."""
        tempered = self.labeled_shares**self.tempering
        return tempered / tempered.sum()

    @torch.no_grad()
    def relabel(self, predict: Predict, generation: int) -> Selection:
        """Select the most confident unlabelled samples of each predicted class, as many as its sampling rate says."""
        # In float64, because in float32 the largest confidences are all 1 and cannot be ranked.
        chunks = [(rows, *logits[0].double().softmax(1).max(1)) for rows, logits in predict(labeled=False)]
        rows, confidence, label = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        is_number = confidence.isfinite()
        rows, confidence, label = rows[is_number], confidence[is_number], label[is_number]

        joining = select_surest(confidence, label, sampling_rates(self.labeled_counts, self.alpha))
        self.generation.fill_(generation + 1)
        return Selection(rows[joining], label[joining])

    def logs(self) -> dict[str, Tensor]:
        return {} if self.alignment is None else self.alignment.logs()


def sampling_rates(counts: Tensor, alpha: float) -> Tensor:
    """Return the sampling rate mu of each class, given the number of labels of each class: [k] -> [k] float64.

    The classes may be in any order. Of classes with equal counts, the class with the lower number ranks as the more
    frequent one. A class without labels is not ranked, and its rate is 1.
    """
    ranked = counts.argsort(descending=True, stable=True)
    ranked = ranked[counts[ranked] > 0]
    by_frequency = counts[ranked].double()
    rates = torch.ones(len(counts), dtype=torch.float64, device=counts.device)
    rates[ranked] = (by_frequency.flip(0) / by_frequency.max()) ** alpha
    return rates


def select_surest(confidence: Tensor, label: Tensor, rates: Tensor) -> Tensor:
    """Return the positions of the most confident samples of each class: [n], [n], [k] -> [m].

    `rates` gives the share of the samples of each class to select. Of equal confidences, the earlier comes first.
    """
    selected = []
    for class_number, rate in enumerate(rates.tolist()):
        members = (label == class_number).nonzero().squeeze(1)
        quota = int(len(members) * rate + ROUNDING)
        selected.append(members[confidence[members].argsort(descending=True, stable=True)[:quota]])
    return torch.cat(selected)
