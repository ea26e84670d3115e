"""SimPro: a simple probabilistic framework (Du et al., ICML 2024), as in its released code.

The network only learns p(x|y), the likelihood of a sample x under each class y. The class priors are kept apart from
the network: their logarithms are added to the logits. The priors are estimated during training and change only every
500 steps.

    released code    here              meaning
    f                logits            log p(x|y), up to a constant for each x: the same for labels, pool and test set
    pi_u             pool_prior        estimate of the class distribution of the pool
    phi              trained_prior     class distribution of what was trained on: the labels and the confident samples
    A_u, A           log_prior()       log(pi_u^tau + 1e-12) and log(phi^tau + 1e-12)
    q                forward()         softmax(f + A_u) of the weak view: the pseudo-label
    N_l, D           collected         labels of each class and sum of the confident q, since the last update
    L_x, L_u         supervised(), pool_logits()    cross-entropy of f + A, in both losses

    every 500 steps    pi_u <- 0.9 pi_u + 0.1 D / (sum D + 1),    phi <- 0.9 phi + 0.1 (N_l + D) / sum(N_l + D)

The test set is assumed to have a uniform prior. There the classifier is arg-max f, so nothing is corrected.
docs/methods/simpro.md says where this implementation departs from the released code, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.option_values import Factor, NumSteps, Share, ShareBelowOne, checked_options
from mnar.types import Task

EPSILON = 1e-12  # added to a prior before its logarithm, which stays finite


class SimPro(Guidance):
    """Rectify pseudo-labels with the estimated class prior of the pool.

    Call `q = guidance(probs, index)` once per step, where `guidance = SimPro(task)`. The learner must also call
    `supervised` before and `pool_logits` after this call.

    tau             strength of the priors: the factor of their logarithms (released code: 1 for CIFAR-100)
    momentum        share of a prior that an update leaves unchanged
    update_every    number of steps between two updates of the priors; choose fewer for a training of a few thousand
                    steps
    confidence      lowest confidence of a pseudo-label that the estimates count, as the threshold of the learner; 0
                    counts all samples
    loss_prior      "trained": both losses use the class distribution of what was trained on; "separate": the labelled
                    loss uses that of the labels and the unlabelled loss that of the pool, as the paper derives them
    start           the pool's prior before the first update: "uniform", or "labeled" for the prior of the labelled set
    labeled_weight  weight of the labelled loss; "published": the number of labelled batches in the labelled set,
                    divided by the number of unlabelled batches in the pool
    """

    paper = "Du et al., ICML 2024"
    needs = frozenset({"supervised", "pool_logits"})
    aligns = True
    learner_options: ClassVar[Mapping[str, Any]] = {"targets": "soft", "strong_views": 2, "labeled_strong": True}

    labeled_prior: Tensor
    pool_prior: Tensor
    trained_prior: Tensor
    collected: Tensor
    step: Tensor
    labels_of_step: Tensor
    bias_of_step: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        tau: Factor = 2.0,
        momentum: ShareBelowOne = 0.9,
        update_every: NumSteps = 500,
        confidence: Share = 0.95,
        loss_prior: Literal["trained", "separate"] = "trained",
        start: Literal["uniform", "labeled"] = "uniform",
        labeled_weight: Factor | Literal["published"] = 1.0,
    ) -> None:
        super().__init__(task)
        self.tau, self.momentum, self.update_every, self.confidence = tau, momentum, update_every, confidence
        self.has_separate_priors = loss_prior == "separate"
        self.labeled_weight = _labeled_weight(labeled_weight, task)

        labeled_prior = task.labeled_counts / task.labeled_counts.sum()
        uniform = torch.full_like(labeled_prior, 1 / task.num_classes)
        self.register_buffer("labeled_prior", labeled_prior, persistent=False)
        self.register_buffer("pool_prior", labeled_prior.clone() if start == "labeled" else uniform)
        self.register_buffer("trained_prior", labeled_prior.clone())
        self.register_buffer("collected", torch.zeros(2, task.num_classes))  # N_l and D
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        # Both are written in every step before they are read, so a checkpoint does not need them.
        self.register_buffer("labels_of_step", torch.zeros(task.num_classes), persistent=False)
        prior = self.pool_prior if self.has_separate_priors else self.trained_prior
        self.register_buffer("bias_of_step", self.log_prior(prior), persistent=False)

    def log_prior(self, prior: Tensor) -> Tensor:
        """Return what is added to the logits, [k]: the logarithm of the prior to the power of tau."""
        return (prior**self.tau + EPSILON).log()

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        """Return the cross-entropy under the prior, and count the labels."""
        # A labelled image counts once, as in the released code, also if the learner trains two views of it.
        num_images = len(logits_weak) * self.task.batch_labeled / self.task.batch_unlabeled
        count = torch.full_like(y, min(1.0, num_images / len(y)), dtype=self.labels_of_step.dtype)
        self.labels_of_step.zero_().index_add_(0, y, count)

        prior = self.labeled_prior if self.has_separate_priors else self.trained_prior
        loss = F.cross_entropy(logits + self.log_prior(prior), y)  # L_x
        return loss if self.labeled_weight == 1 else self.labeled_weight * loss

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Return the posterior under the pool's prior, and update the priors if this step is due."""
        self.check(probs, index)
        q = (probs.detach().float().log() + self.log_prior(self.pool_prior)).softmax(1)
        # The unlabelled loss of this step is computed after the update, but uses the prior from before the update.
        self.bias_of_step.copy_(self.log_prior(self.pool_prior if self.has_separate_priors else self.trained_prior))
        self._collect(q)
        self._update()
        return q

    def pool_logits(self, logits: Tensor) -> Tensor:
        """Add the logarithm of the prior that this step uses; called after `forward`."""
        return logits + self.bias_of_step  # L_u

    def estimates(self) -> dict[str, Tensor]:
        return {"pool_share": self._pool_share}

    def logs(self) -> dict[str, Tensor]:
        share = self._pool_share
        moved = (share - self.labeled_prior).abs().sum() / 2
        return {"largest_pool_share": share.max(), "distance_from_labels": moved}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Refuse the state of an earlier version, which has the prior of the pool alone."""
        if f"{prefix}pool_prior" in state_dict and f"{prefix}trained_prior" not in state_dict:
            raise ValueError(
                "the checkpoint has the state of an earlier version of simpro, which updated the prior of the pool in "
                "every step; this version cannot continue that training. Start a new run"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def _pool_share(self) -> Tensor:
        """The prior of the pool with the sum 1; an update without confident samples makes the sum smaller."""
        share = self.pool_prior + EPSILON
        return share / share.sum()

    def _collect(self, q: Tensor) -> None:
        """Add the labels and the confident pseudo-labels of this step to N_l and D. A NaN row does not count."""
        is_confident = (q.max(1, keepdim=True).values >= self.confidence).expand_as(q)
        of_step = torch.stack([self.labels_of_step, torch.where(is_confident, q, 0.0).sum(0)])
        self.collected += distributed.gather(of_step.unsqueeze(0)).sum(0)
        self.labels_of_step.zero_()
        self.step += 1

    def _update(self) -> None:
        """Update both priors from the collected sums and empty the sums, if `update_every` steps are over.

        Every step computes the update, because a condition would have to wait for the device.
        """
        is_due = self.step.remainder(self.update_every) == 0
        labels, pool = self.collected
        trained = labels + pool
        weight = torch.where(is_due, 1 - self.momentum, 0.0)
        self.pool_prior.lerp_(pool / (pool.sum() + 1), weight)
        self.trained_prior.lerp_(trained / trained.sum().clamp(min=1), weight)
        self.collected.mul_(~is_due)


def _labeled_weight(weight: float | str, task: Task) -> float:
    """Return the weight of the labelled loss that the option `labeled_weight` describes."""
    if weight == "published":
        labels = task.labeled_targets
        num_labels = 0 if labels is None else len(labels)
        # Both loaders leave out an incomplete last batch. A loader without a complete batch counts as one batch.
        num_batches = max(1, num_labels // task.batch_labeled)
        return num_batches / max(1, task.num_unlabeled // task.batch_unlabeled)
    return float(weight)
