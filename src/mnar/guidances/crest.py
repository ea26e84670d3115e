"""CReST and CReST+: class-rebalancing self-training (Wei et al., CVPR 2021).

Train in generations, each a fresh network: between two of them label the unlabelled set, and let the surest samples
join the labelled set, all of them in the class with the fewest labels, few in those with many.

    paper    here                meaning
    N_l      counts              labels of a class, the l-th by their number of the L that have any
    mu_l     sampling_rates()    (N_{L+1-l} / N_1)^alpha: the share of the samples predicted as l that join
    g, G     generation, generations
    t_g      tempering           1 - g/(G-1) (1 - t_min): how much of the labels' imbalance CReST+ keeps
    p_data   labeled_shares      the class shares of the labelled set
             target              Normalize(p_data^t_g): what CReST+ aligns predictions with

Where the paper and its published code differ, docs/methods/crest.md says which is followed and why.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mnar.guidances.distribution_alignment import DistributionAlignment
from mnar.guidances.guidance import Guidance
from mnar.types import Predict, Selection, Task

ROUNDING = 1e-6  # a whole number stays one: 13 * (1728 / 2197) ** (1 / 3) is 11.999999999999998


class CReST(Guidance):
    """q = CReST(task)(probs, index), once a step; relabel(predict, generation) between generations.

    generations    how many networks are trained, one after another
    alpha          0: all samples join; the larger, the fewer in classes with many labels
    align          CReST+: whether predictions are aligned, in each generation with a flatter target
    t_min          the tempering of the last generation; 1: the labelled shares, 0: uniform
    window         how many batches the alignment's running prediction looks back
    """

    paper = "Wei et al., CVPR 2021"
    needs = frozenset({"relabel"})

    generation: Tensor
    labeled_shares: Tensor

    def __init__(
        self,
        task: Task,
        *,
        generations: int = 6,
        alpha: float = 1 / 3,
        align: bool = False,
        t_min: float = 0.5,
        window: int = 128,
    ) -> None:
        super().__init__(task)
        if generations < 1:
            raise ValueError(f"generations is {generations}; at least 1 network is trained (the published code: 6)")
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha is {alpha}; the exponent of the sampling rates must be finite and not negative")
        if not 0 <= t_min <= 1:
            raise ValueError(f"t_min is {t_min}; the last generation's tempering lies in [0, 1] (the paper uses 0.5)")
        if window < 1:
            raise ValueError(
                f"window is {window}; the alignment needs at least 1 batch of history (the paper uses 128)"
            )
        self.labeled_counts = task.labeled_counts
        self.generations, self.alpha, self.t_min = generations, alpha, t_min

        self.register_buffer("generation", torch.zeros((), dtype=torch.int64))
        self.alignment = DistributionAlignment(task, target="labeled", window=window) if align else None
        if self.alignment is not None:
            self.register_buffer("labeled_shares", self.alignment.target.clone(), persistent=False)

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        if self.alignment is None:
            self.check(probs, index)
            return probs.detach().float()
        self.alignment.target.copy_(self.target)  # each time: a checkpoint brings back the generation alone
        aligned: Tensor = self.alignment(probs, index)
        return aligned

    @property
    def tempering(self) -> Tensor:
        """t_g: 1 in the first generation, `t_min` in the last."""
        return 1 - self.generation / max(self.generations - 1, 1) * (1 - self.t_min)

    @property
    def target(self) -> Tensor:
        """The class shares that this generation's predictions are aligned with, [k]; there is one with `align` only."""
        tempered = self.labeled_shares**self.tempering
        return tempered / tempered.sum()

    @torch.no_grad()
    def relabel(self, predict: Predict, generation: int) -> Selection:
        # In float64: in float32 all of the surest are 1, and which of them are surer is lost.
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
    """[k] labels of each class, in any order -> mu, [k] float64.

    Of equal counts, the lower class number ranks as the more frequent. A class without labels takes no part in the
    ranking: its rate is 1.
    """
    ranked = counts.argsort(descending=True, stable=True)
    ranked = ranked[counts[ranked] > 0]
    by_frequency = counts[ranked].double()
    rates = torch.ones(len(counts), dtype=torch.float64, device=counts.device)
    rates[ranked] = (by_frequency.flip(0) / by_frequency.max()) ** alpha
    return rates


def select_surest(confidence: Tensor, label: Tensor, rates: Tensor) -> Tensor:
    """[n], [n], [k] -> positions of the surest of each class, as many as its rate says; of equals the earlier."""
    selected = []
    for class_number, rate in enumerate(rates.tolist()):
        members = (label == class_number).nonzero().squeeze(1)
        quota = int(len(members) * rate + ROUNDING)
        selected.append(members[confidence[members].argsort(descending=True, stable=True)[:quota]])
    return torch.cat(selected)
