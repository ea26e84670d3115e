"""SimPro: a simple probabilistic framework (Du et al., ICML 2024).

The network only learns p(x|y), the likelihood of a sample x under each class y. The class priors of the labels and of
the pool are kept apart from the network, and the prior of the pool is estimated by expectation maximisation during
training.

    paper      here              meaning
    f          logits            log p(x|y), up to a constant for each x: the same for labels, pool and test set
    pi_l       labeled_prior     class distribution of the labelled set
    pi_u       pool_prior        current estimate of the class distribution of the unlabelled set
    P(y|x)     forward()         normalise(pi_u exp f): the Bayes classifier for the pool          E-step
               pool_prior        <- running mean of P(y|x)                                         M-step, closed form
    L_l, L_u   supervised(), pool_logits()    cross-entropy of f + log pi_l, f + log pi_u          M-step, by gradient

The test set is assumed to have a uniform prior. There the classifier is arg-max f, so nothing is corrected.
docs/methods/simpro.md says where this implementation departs from the paper and its released code, and why.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.types import Task

SMALLEST_SHARE = 1e-6  # of a class in a prior: its logarithm stays finite, and a share of 0 could never grow again


class SimPro(Guidance):
    """Rectify pseudo-labels with the estimated class prior of the pool.

    Call `q = guidance(probs, index)` once per step, where `guidance = SimPro(task)`. The learner must also call
    `supervised` and `pool_logits`.

    momentum    decay of the moving average of the pool's prior: the share of it that a batch leaves unchanged
    start       the pool's prior before the first batch: "uniform", or "labeled" for the prior of the labelled set
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
                f"momentum is {momentum}; the decay of the pool's class prior must be in [0, 1). Choose e.g. 0.99"
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
        """Return the cross-entropy under the prior of the labels."""
        return F.cross_entropy(logits + self.labeled_prior.log(), y)  # L_l

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Return the posterior under the pool's prior (E-step), then update this prior (M-step)."""
        self.check(probs, index)
        posterior = probs.detach().float() * self.pool_prior
        posterior /= posterior.sum(1, keepdim=True)  # E-step
        self._update(posterior)
        return posterior

    def pool_logits(self, logits: Tensor) -> Tensor:
        """Add the logarithm of the pool's prior; called after `forward`, so the prior includes the current batch."""
        return logits + self.pool_prior.log()  # L_u

    def estimates(self) -> dict[str, Tensor]:
        return {"pool_share": self.pool_prior}

    def logs(self) -> dict[str, Tensor]:
        moved = (self.pool_prior - self.labeled_prior).abs().sum() / 2
        return {"largest_pool_share": self.pool_prior.max(), "distance_from_labels": moved}

    def _update(self, posterior: Tensor) -> None:
        """M-step: update the moving average of the mean posterior.

        All samples count, not only the confident ones, because the shares of hard classes would shrink otherwise.
        """
        mean = distributed.gather(posterior.nan_to_num().mean(0, keepdim=True)).mean(0)
        mean += (1 - mean.sum()) * self.pool_prior  # a sample whose posterior is NaN counts as the prior
        self.pool_prior.lerp_(mean, 1 - self.momentum)
        self.pool_prior.clamp_(min=SMALLEST_SHARE)
        self.pool_prior.div_(self.pool_prior.sum())
