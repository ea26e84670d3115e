"""The solver of DARP: change the pseudo-labels of a whole pool as little as possible to reach given class counts.

    min over X of  sum_n w_n KL(X_n || P_n),   every row of X sums to 1, column c to M_c,   w_n = 1 / H(P_n)

It is cheap to change an uncertain row (large entropy H) and expensive to change a confident one. The solution is
X_nc = P_nc a_n exp(-nu_c H_n), where a_n makes the row sum to 1 and nu_c makes the column sum to M_c. As in the paper,
the solver adjusts rows and columns in turn.

    paper     here         meaning
    P, X      probs        pseudo-labels before and after, [N, k]
    M         target       how many samples each class should have, [k]
    1/w       entropy      H(P_n)
    nu        multiplier   price of a class per unit of entropy
    T         iterations   how often rows and columns are adjusted in turn
    delta     delta        how many samples a class keeps as candidates, as a multiple of its target

Internally the class is the first dimension, [k, N], so that a sum over the samples of a class reads contiguous memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_PROB = 1e-6  # added in the entropy, as in the released code, and after noise removal
SMALLEST_ENTROPY = 1e-6  # of a one-hot row: the row can change, but every other row changes first
ZERO_PROB = 1e-30  # replaces a probability of 0, so that its logarithm is finite
FEWEST_SAMPLES = 1e-6  # replaces a target of 0, so that the multiplier of the class is finite
SMALLEST_LOG_TERM = -80.0  # e^-80 of the largest term is negligible; below -87 exp is ten times slower on a CPU
NEWTON_STEPS = 8  # reach float32 precision, even if the entropies span six orders of magnitude


def remove_noise(probs: Tensor, target: Tensor, delta: float) -> Tensor:
    """Keep only the int(delta M_c) largest probabilities of each class, scaled to sum to its target: [N, k] -> [N, k].

    Finally the rows are normalised to sum to 1. Of equal probabilities, those of earlier rows are kept.
    """
    by_class = probs.T
    num_kept = (delta * target.double()).floor().unsqueeze(1)
    order = by_class.argsort(dim=1, descending=True, stable=True)
    is_first = torch.arange(len(probs), device=probs.device) < num_kept
    kept = by_class * torch.empty_like(is_first).scatter_(1, order, is_first)
    scale = (target.unsqueeze(1) + SMALLEST_PROB) / (kept.sum(1, keepdim=True) + SMALLEST_PROB)
    kept = kept * scale.to(kept.dtype) + SMALLEST_PROB
    return (kept / kept.sum(0)).T


def refine(probs: Tensor, target: Tensor, *, iterations: int) -> Tensor:
    """Return the pseudo-labels nearest to `probs` with `target` samples in each class: [N, k], [k] -> [N, k].

    The rows sum to 1. The more iterations, the closer the columns come to the target. There is no host sync.
    """
    by_class = probs.T.contiguous()
    entropy = -(by_class * (by_class + SMALLEST_PROB).log()).sum(0)
    entropy = entropy.clamp(min=SMALLEST_ENTROPY)  # just below zero for a one-hot row
    log_probs = by_class.clamp(min=ZERO_PROB).log()
    log_target = target.clamp(min=FEWEST_SAMPLES).log().to(probs.dtype).unsqueeze(1)

    multiplier = torch.zeros_like(log_target)
    for _ in range(iterations):
        log_rows = torch.addcmul(log_probs, multiplier, entropy, value=-1).log_softmax(0)  # a_n
        multiplier = multiplier + _match_columns(log_rows, entropy, log_target)  # nu_c
    return torch.addcmul(log_probs, multiplier, entropy, value=-1).softmax(0).T


def _match_columns(log_rows: Tensor, entropy: Tensor, log_target: Tensor) -> Tensor:
    """Return by how much the multiplier of each class must rise until its column sums to the target, [k, 1].

    The logarithm of the sum of a column is a convex and falling function of the multiplier. Therefore Newton's method
    needs no bracket: from any start, the first step ends where the sum is right or too large, and the next steps
    approach the root from there without passing it. The slope is minus a mean entropy, so it is never zero.
    """
    rise, terms = torch.zeros_like(log_target), torch.empty_like(log_rows)
    for _ in range(NEWTON_STEPS):
        torch.addcmul(log_rows, rise, entropy, value=-1, out=terms)
        largest = terms.amax(1, keepdim=True)
        terms.sub_(largest).clamp_(min=SMALLEST_LOG_TERM).exp_()
        mass = terms.sum(1, keepdim=True)
        mean_entropy = (terms @ entropy).unsqueeze(1) / mass
        rise = rise + (mass.log() + largest - log_target) / mean_entropy
    return rise
