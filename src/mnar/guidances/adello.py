"""ADELLO: flexible distribution alignment and complementary consistency (Sanchez Aimar et al., ECCV 2024).

ADELLO corrects the logits in all losses. Early in training, predictions get the class shares that the pool is
estimated to have. Towards the end of training, the network becomes a classifier for balanced classes.

    symbol    here                meaning
    f         logits              output of the network
    pi_l      labeled_shares      class shares of the labels
    q         pool_shares         class shares of the predictions for the pool, a moving average over the batches
    alpha     alpha               1 - (1 - smallest_alpha) progress^2: the power of the pool's shares
    q_alpha   _target_shares()    normalise(q^alpha): the class shares that the losses aim at
    L_s       supervised()        cross-entropy of f(x) + log(pi_l / q_alpha) and the labels
    L_u       pool_logits()       cross-entropy of f(s) + log(q / q_alpha) and the pseudo-labels
    L_c       extra_loss()        the same with soft pseudo-labels, for the samples below the confidence threshold

The test set is assumed to have balanced classes. There the classifier is arg-max f, so nothing is corrected.
docs/methods/adello.md says where this implementation departs from the paper and its released code, and why.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.guidance import Guidance
from mnar.option_values import Share, ShareBelowOne, checked_options
from mnar.types import Task

EPSILON = 1e-9  # added to class shares, so that the logarithm of a share of 0 is finite; as in the released code


class ADELLO(Guidance):
    """Align the losses with the estimated class shares of the pool, and less and less so during training.

    Call `q = guidance(probs, index)` once per step, where `guidance = ADELLO(task)`. The learner must also call
    `supervised`, `pool_logits` and `extra_loss`. Your own training loop must set `guidance.progress` before each step.

    smallest_alpha      alpha at the end of training: 1 keeps the class shares of the pool, 0 balances the classes
    momentum            decay of the moving average of the pool's shares: the share of it that a batch leaves unchanged
    consistency_from    share of training after which the samples below the confidence threshold also count; 1: never
    """

    paper = "Sanchez Aimar et al., ECCV 2024"
    needs = frozenset({"supervised", "pool_logits", "extra_loss"})
    aligns = True

    labeled_shares: Tensor
    pool_shares: Tensor
    pool_adjustment: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        smallest_alpha: Share = 0.1,
        momentum: ShareBelowOne = 0.999,
        consistency_from: Share = 50_000 / 262_144,
    ) -> None:
        super().__init__(task)
        self.smallest_alpha, self.momentum, self.consistency_from = smallest_alpha, momentum, consistency_from

        labeled_shares = task.labeled_shares(needed_by="ADELLO")
        self.register_buffer("labeled_shares", labeled_shares, persistent=False)
        self.register_buffer("pool_shares", torch.full_like(labeled_shares, 1 / task.num_classes))
        # log(q / q_alpha) of the current step; `forward` sets it anew in each step, so it need not be saved.
        self.register_buffer("pool_adjustment", torch.zeros_like(labeled_shares), persistent=False)

    @property
    def alpha(self) -> Tensor:
        """The power of the pool's shares in the current step, 0-d: from 1 at the start to `smallest_alpha`."""
        return 1 - (1 - self.smallest_alpha) * self.progress.square()

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        """Return the cross-entropy of logits that are corrected from the labels' shares to the target shares."""
        return F.cross_entropy(logits + _log_ratio(self.labeled_shares, self._target_shares()), y)  # L_s

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        """Return the predictions as they are, and update the shares of the pool.

        As in the released code, all losses of a step use the shares before the update by its batch.
        """
        self.check(probs, index)
        probs = probs.detach().float()
        self.pool_adjustment.copy_(_log_ratio(self.pool_shares, self._target_shares()))
        self._update(probs)
        return probs

    def pool_logits(self, logits: Tensor) -> Tensor:
        """Correct logits from the pool's shares to the target shares; called after `forward`."""
        return logits + self.pool_adjustment  # L_u

    def extra_loss(self, logits: Sequence[Tensor], probs: Tensor, mask: Tensor) -> Tensor:
        """Return the cross-entropy with soft pseudo-labels over the samples that the learner's own loss leaves out."""
        is_used = ~mask & (self.progress >= self.consistency_from)
        of_views = [(is_used * F.cross_entropy(view, probs, reduction="none")).mean() for view in logits]
        return of_views[0] if len(of_views) == 1 else torch.stack(of_views).mean()  # L_c

    def estimates(self) -> dict[str, Tensor]:
        return {"pool_share": self.pool_shares}

    def logs(self) -> dict[str, Tensor]:
        moved = (self.pool_shares - self.labeled_shares).abs().sum() / 2
        return {"alpha": self.alpha, "largest_pool_share": self.pool_shares.max(), "distance_from_labels": moved}

    def _target_shares(self) -> Tensor:
        """Return the pool's shares to the power of alpha, normalised: less imbalanced the smaller alpha is."""
        shares = self.pool_shares**self.alpha
        return shares / shares.sum()

    def _update(self, probs: Tensor) -> None:
        """Update the moving average with the mean prediction of all processes."""
        mean = distributed.mean(probs.nan_to_num(0, 0, 0).mean(0))
        mean += (1 - mean.sum()) * self.pool_shares  # a sample whose prediction is NaN counts as the current shares
        self.pool_shares.lerp_(mean, 1 - self.momentum)


def _log_ratio(shares: Tensor, target: Tensor) -> Tensor:
    """Return the correction of the logits from some class shares to the target shares."""
    return ((shares + EPSILON) / (target + EPSILON)).log()
