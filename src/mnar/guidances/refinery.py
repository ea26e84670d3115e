"""DARP's refinery: the pseudo-labels of a whole pool, moved as little as possible to given class counts.

    min over X of  sum_n w_n KL(X_n || P_n),   every row of X sums to 1, column c to M_c,   w_n = 1 / H(P_n)

An uncertain row (large entropy H) is cheap to move, a certain one is not. The solution is
X_nc = P_nc a_n exp(-nu_c H_n), where a_n makes the row sum to 1 and nu_c the column to M_c. As in the paper, rows
and columns take turns.

    paper     here         meaning
    P, X      probs        pseudo-labels before and after, [N, k]
    M         target       how many samples each class is to have, [k]
    1/w       entropy      H(P_n)
    nu        multiplier   what a class pays for each unit of entropy
    T         iterations   turns of rows and columns
    delta     delta        samples that may be of a class, as a multiple of its target

Inside, classes come first, [k, N]: a sum over the samples of a class runs along the memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_PROB = 1e-6  # added in the released code's entropy, and after noise removal
SMALLEST_ENTROPY = 1e-6  # of a one-hot row: it can be moved, but every other row moves first
ZERO_PROB = 1e-30  # the logarithm of a zero stays finite
FEWEST_SAMPLES = 1e-6  # a class whose target is none: its multiplier stays finite
SMALLEST_LOG_TERM = -80.0  # e^-80 of a sum's largest term is nothing; below -87 a CPU takes ten times as long for exp
NEWTON_STEPS = 8  # to float32, also where entropies span six orders of magnitude


def remove_noise(probs: Tensor, target: Tensor, delta: float) -> Tensor:
    """Keep the int(delta M_c) largest probabilities of each class, scaled to its target: [N, k] -> [N, k].

    Rows sum to 1 again; of equal probabilities, those of earlier rows are kept.
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
    """The pseudo-labels nearest to `probs` with `target` samples in each class: [N, k], [k] -> [N, k].

    Rows sum to 1; columns come the closer to the target, the more iterations there are. No host sync.
    """
    by_class = probs.T.contiguous()
    entropy = -(by_class * (by_class + SMALLEST_PROB).log()).sum(0)
    entropy = entropy.clamp(min=SMALLEST_ENTROPY)  # of a one-hot row it is just below zero
    log_probs = by_class.clamp(min=ZERO_PROB).log()
    log_target = target.clamp(min=FEWEST_SAMPLES).log().to(probs.dtype).unsqueeze(1)

    multiplier = torch.zeros_like(log_target)
    for _ in range(iterations):
        log_rows = torch.addcmul(log_probs, multiplier, entropy, value=-1).log_softmax(0)  # a_n
        multiplier = multiplier + _match_columns(log_rows, entropy, log_target)  # nu_c
    return torch.addcmul(log_probs, multiplier, entropy, value=-1).softmax(0).T


def _match_columns(log_rows: Tensor, entropy: Tensor, log_target: Tensor) -> Tensor:
    """By how much the multiplier of each class must rise for its column to sum to the target, [k, 1].

    The logarithm of a column's sum is a convex and falling function of its multiplier. So Newton's method needs no
    bracket: its first step ends where the sum is too large or right, whatever it came from, and from there it goes
    up to the root without ever passing it. A slope is a mean entropy, never zero.
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
