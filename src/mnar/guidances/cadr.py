"""CADR: class-aware doubly robust learning (Hu et al., ICLR 2022).

Keep a running estimate of how common each class is in the unlabelled pool; put it inside the log of the labelled loss,
so that labels teach the pool's predictions too; and ask less confidence of the pseudo-labels of a rare class.

    paper    here                      meaning
    pi       prior                     running mean of the predictions for the weak views
    P        probs                     predictions for the weak views of this batch
    w        least_norm_weight()       pi pinv(P), clipped: w P is near pi, but has a gradient to the weak logits
    s_i      log_rarity()              1 / (w P)[y_i], scaled to mean 1 over the labelled batch
    L_CAP    cap                       mean( CE_i - log s_i )
    L_supp   supp                      mean( log s_i of the predicted class, where that is confident )
    tau_c    threshold()               tau (pi_c / max pi)^beta, for L_CAI, the learner's unlabelled loss

As in the released code; docs/methods/cadr.md says where not, and why.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.types import Task

SMALLEST_PRIOR = 1e-8  # where clipping w left nothing of a class
DOUBLINGS = 22  # half of a direction with 1/2460 of the largest singular value passes; the release cuts off at 1/1880


class CADR(Guidance):
    """q = CADR(task)(probs, index), once a step; itself only with a learner that calls `supervised` and `threshold`.

    momentum             of the prior
    beta                 how much lower the threshold of a rare class is; 0: not at all
    weight_limit         the largest entry of w
    labeled_threshold    tau for the labelled samples in L_supp; the pool's is the learner's own
    labeled_loss         "doubly_robust": L_CAP + L_supp, as released; or classical "inverse_propensity" weighting:
                         CE_i over the share of its class that is labelled, with mean weight 1 over the batch
    """

    paper = "Hu et al., ICLR 2022"
    needs = frozenset({"supervised", "threshold"})
    aligns = True

    prior: Tensor
    labeled_counts: Tensor

    def __init__(
        self,
        task: Task,
        *,
        momentum: float = 0.99,
        beta: float = 0.5,
        weight_limit: float = 5.0,
        labeled_threshold: float = 0.95,
        labeled_loss: Literal["doubly_robust", "inverse_propensity"] = "doubly_robust",
    ) -> None:
        super().__init__(task)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}; that of an average lies in [0, 1), e.g. 0.99")
        if not 0 <= beta < math.inf:
            raise ValueError(f"beta is {beta}; it must be finite and not negative (released: 0.5; 0: one threshold)")
        if not 0 < weight_limit < math.inf:
            raise ValueError(f"weight_limit is {weight_limit}; it must be finite and positive (released: 5)")
        if not 0 <= labeled_threshold <= 1:
            raise ValueError(f"labeled_threshold is {labeled_threshold}; a confidence lies in [0, 1], e.g. 0.95")
        if labeled_loss not in ("doubly_robust", "inverse_propensity"):
            raise ValueError(
                f"unknown labeled_loss {labeled_loss!r}; choose from ['doubly_robust', 'inverse_propensity']"
            )
        self.momentum, self.beta, self.weight_limit = momentum, beta, weight_limit
        self.labeled_threshold, self.by_inverse_propensity = labeled_threshold, labeled_loss == "inverse_propensity"

        k = task.num_classes
        self.register_buffer("prior", torch.full((k,), 1 / k))
        if self.by_inverse_propensity:
            # 1 at least: a class without labels may gain some by pseudo-labels
            self.register_buffer("labeled_counts", task.labeled_counts.clamp(min=1), persistent=False)

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        probs = probs.detach().float()
        self.prior.copy_(self._prior_after(probs))
        return probs

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        if self.by_inverse_propensity:
            return self._inverse_propensity_loss(logits, y)
        probs = logits_weak.float().softmax(1)
        weight = least_norm_weight(self.prior, probs.detach()).clamp(0, self.weight_limit)
        prior = (weight @ probs).clamp(min=SMALLEST_PRIOR)

        confidence, guess = logits.detach().float().softmax(1).max(1)
        relative = self._relative_threshold(self._prior_after(probs.detach()))
        is_sure = confidence >= self.labeled_threshold * relative[guess]

        # s_i depends on the class alone, so the shares of the classes make the means over the samples.
        k = self.task.num_classes
        classes = torch.stack([y, guess, torch.where(is_sure, guess, k)])
        shares = F.one_hot(classes, k + 1).mean(1, dtype=torch.float32)[:, :k]
        log_s, log_s_imputed = log_rarity(prior, shares[:2]).unbind()
        cap = F.cross_entropy(logits, y) - shares[0] @ log_s  # L_CAP
        supp = shares[2] @ log_s_imputed  # L_supp
        return cap + supp

    def threshold(self, q: Tensor, tau: float | Tensor) -> Tensor:
        return tau * self._relative_threshold(self.prior)[q.argmax(1)]

    def estimates(self) -> dict[str, Tensor]:
        return {"pool_share": self.prior}

    def logs(self) -> dict[str, Tensor]:
        return {"lowest_relative_threshold": self._relative_threshold(self.prior).min()}

    def _prior_after(self, probs: Tensor) -> Tensor:
        """pi once this batch is part of it, [k]."""
        mean = distributed.gather(probs.mean(0, keepdim=True)).mean(0)
        mean = torch.where(mean.isnan(), self.prior, mean)  # one overflow upstream must not blind the average
        return self.prior.lerp(mean, 1 - self.momentum)

    def _relative_threshold(self, prior: Tensor) -> Tensor:
        """What the threshold of each class is multiplied by, [k]: 1 for the most common one."""
        return (prior / prior.max()) ** self.beta

    def _inverse_propensity_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """The propensity of class c, p(labelled | c), is its labelled count over pi_c, up to a factor that cancels."""
        weight = (self.prior.clamp(min=SMALLEST_PRIOR) / self.labeled_counts)[y]
        return (weight / weight.mean() * F.cross_entropy(logits, y, reduction="none")).mean()


def least_norm_weight(target: Tensor, rows: Tensor) -> Tensor:
    """target @ pinv(rows): the smallest w for which w @ rows comes nearest to the target; [k], [n, k] -> [n].

    Descent from w = 0 on |w @ rows - target|^2 tends to it, while directions of `rows` that are all but absent stay
    at 0 for long: their singular value counts squared. Such w is u @ rows.T, and a step is the affine map

        u  ->  u - (u @ gram - target) / bound        gram = rows.T @ rows

    so that 2^22 steps are the 22nd squaring of one [k + 1, k + 1] matrix. Unlike pinv and its SVD, that neither waits
    for the host nor jumps where a singular value crosses a limit. In float64, since squaring doubles each error.
    """
    k = len(target)
    rows = rows.double()
    gram = rows.T @ rows
    bound = gram.sum(1).max()  # of a matrix without negative entries: its largest eigenvalue is no larger
    step = torch.eye(k + 1, dtype=torch.float64, device=rows.device)
    step[:k, :k] -= gram / bound
    step[k, :k] = target / bound
    u: Tensor = torch.linalg.matrix_power(step, 2**DOUBLINGS)[k, :k]
    return (rows @ u).to(target.dtype)


def log_rarity(prior: Tensor, shares: Tensor) -> Tensor:
    """log s of each class, for batches in which the classes have these shares: [k], [m, k] -> [m, k]."""
    mean = shares @ prior.reciprocal()  # of 1 / prior over a batch
    return -(prior.log() + mean.log().unsqueeze(1))
