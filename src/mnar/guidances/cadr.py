"""CADR: class-aware doubly robust learning (Hu et al., ICLR 2022).

CADR keeps a moving average of how common each class is in the unlabelled pool. It puts this class prior inside the
logarithm of the labelled loss, so that the labelled loss also trains the predictions for the pool, and it lowers the
confidence threshold for pseudo-labels of rare classes.

    paper    here                      meaning
    pi       prior                     moving average of the predictions for the weak views
    P        probs                     predictions for the weak views of this batch
    w        least_norm_weight()       pi pinv(P), clipped: w P is near pi, but has a gradient to the weak logits
    s_i      log_rarity()              1 / (w P)[y_i], scaled to mean 1 over the labelled batch
    L_CAP    cap                       mean( CE_i - log s_i )
    L_supp   supp                      mean( log s_i of the predicted class, 0 where the prediction is not confident )
    tau_c    threshold()               tau (pi_c / max pi)^beta, for L_CAI, the learner's unlabelled loss

The implementation follows the released code. docs/methods/cadr.md says where it does not, and why.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.option_values import Factor, PositiveFactor, Share, ShareBelowOne, checked_options
from mnar.types import Task

SMALLEST_PRIOR = 1e-8  # of a class; w P can become 0 when w is clipped, and its logarithm must stay finite
DOUBLINGS = 22  # a singular value of 1/2460 of the largest passes by half; the released code cuts off at 1/1880


class CADR(Guidance):
    """Estimate the class prior of the pool, and use it in the labelled loss and in the confidence thresholds.

    Call `q = guidance(probs, index)` once per step, where `guidance = CADR(task)`. The pseudo-labels stay unchanged:
    CADR has an effect only if the learner also calls `supervised` and `threshold`.

    momentum             decay of the moving average of the prior, per step
    beta                 the larger, the lower the threshold of a rare class; 0: the same threshold for every class
    weight_limit         the largest entry of w; larger entries are clipped
    labeled_threshold    tau for the labelled samples in L_supp; the unlabelled loss uses the learner's own tau
    labeled_loss         "doubly_robust": L_CAP + L_supp, as in the released code; or "inverse_propensity", the
                         classical weighting: CE_i divided by the share of its class that is labelled, with mean
                         weight 1 over the batch
    """

    paper = "Hu et al., ICLR 2022"
    needs = frozenset({"supervised", "threshold"})
    aligns = True

    prior: Tensor
    labeled_counts: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        momentum: ShareBelowOne = 0.99,
        beta: Factor = 0.5,
        weight_limit: PositiveFactor = 5.0,
        labeled_threshold: Share = 0.95,
        labeled_loss: Literal["doubly_robust", "inverse_propensity"] = "doubly_robust",
    ) -> None:
        super().__init__(task)
        self.momentum, self.beta, self.weight_limit = momentum, beta, weight_limit
        self.labeled_threshold, self.by_inverse_propensity = labeled_threshold, labeled_loss == "inverse_propensity"
        self.trains_weak_views = not self.by_inverse_propensity

        k = task.num_classes
        self.register_buffer("prior", torch.full((k,), 1 / k))
        if self.by_inverse_propensity:
            # At least 1: pseudo-labels may add samples of a class without labels, and its weight must stay finite.
            self.register_buffer("labeled_counts", task.labeled_counts.clamp(min=1), persistent=False)

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Update the prior with the predictions, and return the predictions unchanged."""
        self.check(probs, index)
        probs = probs.detach().float()
        self.prior.copy_(self._prior_after(probs))
        return probs

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        """Return L_CAP + L_supp, or the loss weighted by inverse propensity, as `labeled_loss` says."""
        if self.by_inverse_propensity:
            return self._inverse_propensity_loss(logits, y)
        # L_CAP and L_supp are no means over samples, so they need the samples of all processes.
        own_probs = logits_weak.float().softmax(1)
        probs = distributed.gather_with_gradient(own_probs)
        weight = least_norm_weight(self.prior, probs.detach()).clamp(0, self.weight_limit)
        prior = (weight @ probs).clamp(min=SMALLEST_PRIOR)

        confidence, guess = logits.detach().float().softmax(1).max(1)
        relative = self._relative_threshold(self._prior_after(own_probs.detach()))
        is_sure = confidence >= self.labeled_threshold * relative[guess]

        # s_i depends only on the class, so a mean over samples is a sum over classes weighted by their shares.
        k = self.task.num_classes
        classes = torch.stack([y, guess, torch.where(is_sure, guess, k)], dim=1)
        classes = distributed.gather(classes, sent_as=torch.int32)
        shares = F.one_hot(classes.T, k + 1).mean(1, dtype=prior.dtype)[:, :k]
        log_s, log_s_imputed = log_rarity(prior, shares[:2]).unbind()
        cap = F.cross_entropy(logits, y) - shares[0] @ log_s  # L_CAP
        supp = shares[2] @ log_s_imputed  # L_supp
        return cap + supp

    def threshold(self, q: Tensor, tau: float | Tensor) -> Tensor:
        """Return tau_c of the class c of each pseudo-label, [n]: the rarer the class, the lower the threshold."""
        return tau * self._relative_threshold(self.prior)[q.argmax(1)]

    def estimates(self) -> dict[str, Tensor]:
        return {"pool_share": self.prior}

    def logs(self) -> dict[str, Tensor]:
        return {"lowest_relative_threshold": self._relative_threshold(self.prior).min()}

    def _prior_after(self, probs: Tensor) -> Tensor:
        """Return pi after the update by this batch, [k]."""
        mean = distributed.mean(probs.mean(0))
        mean = torch.where(mean.isnan(), self.prior, mean)  # one overflow upstream must not destroy the average
        return self.prior.lerp(mean, 1 - self.momentum)

    def _relative_threshold(self, prior: Tensor) -> Tensor:
        """Return the factor of the threshold of each class, [k]; it is 1 for the most common class."""
        return (prior / prior.max()) ** self.beta

    def _inverse_propensity_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the mean of CE_i / p(labelled | y_i), with the weights scaled to mean 1 over the batch.

        The propensity p(labelled | c) is the number of labels of class c divided by pi_c, up to a factor that cancels.
        """
        weight = (self.prior.clamp(min=SMALLEST_PRIOR) / self.labeled_counts)[y]
        return (weight / distributed.mean(weight.mean()) * F.cross_entropy(logits, y, reduction="none")).mean()


def least_norm_weight(target: Tensor, rows: Tensor) -> Tensor:
    """Return target @ pinv(rows), the smallest w for which w @ rows is nearest to the target: [k], [n, k] -> [n].

    Gradient descent on |w @ rows - target|^2 from w = 0 tends to this w. Directions of `rows` with a tiny singular
    value stay near 0 for long, because the singular value enters squared. Every iterate has the form w = u @ rows.T,
    and a step is the affine map

        u  ->  u - (u @ gram - target) / bound        gram = rows.T @ rows

    Therefore 2^22 steps are 22 squarings of one [k + 1, k + 1] matrix. In contrast to pinv, which needs an SVD, this
    causes no host sync, and the result does not jump where a singular value crosses a limit. The matrix is float64,
    because each squaring doubles the relative error.
    """
    k = len(target)
    rows = rows.double()
    gram = rows.T @ rows
    bound = gram.sum(1).max()  # the largest row sum of a non-negative matrix bounds its largest eigenvalue
    step = torch.eye(k + 1, dtype=torch.float64, device=rows.device)
    step[:k, :k] -= gram / bound
    step[k, :k] = target / bound
    u: Tensor = torch.linalg.matrix_power(step, 2**DOUBLINGS)[k, :k]
    return (rows @ u).to(target.dtype)


def log_rarity(prior: Tensor, shares: Tensor) -> Tensor:
    """Return log s of each class for m batches with the given class shares: [k], [m, k] -> [m, k]."""
    mean = shares @ prior.reciprocal()  # mean of 1 / prior over each batch
    return -(prior.log() + mean.log().unsqueeze(1))
