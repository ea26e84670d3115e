"""SimPro: a simple probabilistic framework (Du et al., ICML 2024).

Let the network say how likely a sample is in each class, keep the class shares of labels and pool apart from that,
and find the pool's by expectation maximisation while training.

    paper      here              meaning
    f          logits            log p(x|y), up to a constant for each x: the same for labels, pool and test
    pi_l       labeled_prior     class shares of the labelled set
    pi_u       pool_prior        class shares of the unlabelled set, as far as is known
    P(y|x)     forward()         normalise(pi_u exp f): the Bayes classifier of the pool           E-step
               pool_prior        <- running mean of P(y|x)                                         M-step, closed form
    L_l, L_u   supervised(), pool_logits()    cross-entropy of f + log pi_l, f + log pi_u          M-step, by gradient

With the uniform prior of a test, the classifier is arg-max f: there is nothing to correct then.
What goes by memory of the paper, and what was chosen here, is in docs/methods/simpro.md.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.types import Task

SMALLEST_SHARE = 1e-6  # of a class in either prior: keeps its logarithm finite, and a share of 0 could never grow again


class SimPro(Guidance):
    """q = SimPro(task)(probs, index), once a step.

    momentum    how much of the pool's prior a batch leaves as it is
    start       the pool's prior before the first batch: "uniform", or "labeled", the labelled set's
    """

    paper = "Du et al., ICML 2024"
    needs = frozenset({"supervised", "pool_logits"})
    aligns = True

    labeled_prior: Tensor
    pool_prior: Tensor

    def __init__(self, task: Task, *, momentum: float = 0.99, start: Literal["uniform", "labeled"] = "uniform") -> None:
        super().__init__(task)
        if not 0 <= momentum < 1:
            raise ValueError(
                f"momentum is {momentum}; what a batch leaves of the pool's prior lies in [0, 1), e.g. 0.99"
            )
        if start not in ("uniform", "labeled"):
            raise ValueError(f"unknown start {start!r}; choose from ['uniform', 'labeled']")
        self.momentum = momentum

        labeled_prior = (task.labeled_counts / task.labeled_counts.sum()).clamp(min=SMALLEST_SHARE)
        labeled_prior /= labeled_prior.sum()
        pool_prior = labeled_prior if start == "labeled" else torch.ones_like(labeled_prior) / task.num_classes
        self.register_buffer("labeled_prior", labeled_prior, persistent=False)
        self.register_buffer("pool_prior", pool_prior.clone())

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        return F.cross_entropy(logits + self.labeled_prior.log(), y)  # L_l

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        posterior = probs.detach().float() * self.pool_prior
        posterior /= posterior.sum(1, keepdim=True)  # E-step
        self._update(posterior)
        return posterior

    def pool_logits(self, logits: Tensor) -> Tensor:
        return logits + self.pool_prior.log()  # L_u; after `forward`, with the prior that its M-step left

    def estimates(self) -> dict[str, Tensor]:
        return {"pool_share": self.pool_prior}

    def logs(self) -> dict[str, Tensor]:
        moved = (self.pool_prior - self.labeled_prior).abs().sum() / 2
        return {"largest_pool_share": self.pool_prior.max(), "distance_from_labels": moved}

    def _update(self, posterior: Tensor) -> None:
        """M-step: the mean posterior of this batch and those before; of all samples, or hard classes would shrink."""
        mean = distributed.gather(posterior.nan_to_num().mean(0, keepdim=True)).mean(0)
        mean += (1 - mean.sum()) * self.pool_prior  # of a sample that is not a number, no more is known than the prior
        self.pool_prior.lerp_(mean, 1 - self.momentum)
        self.pool_prior.clamp_(min=SMALLEST_SHARE)
        self.pool_prior.div_(self.pool_prior.sum())
