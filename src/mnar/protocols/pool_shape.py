"""The five pool shapes of long-tailed semi-supervised learning (Du et al., "SimPro", ICML 2024, and earlier papers).

The labels are always long-tailed. The unlabelled pool has its own imbalance, and the shape says which classes of the
pool are the large ones. All counts are rounded down, as in the code of SimPro, ACR, ADELLO and DASO.

paper      here       meaning
N_c        labeled    labelled samples of class c: N_1 * gamma_l^(-c / (k - 1))
r(c)       SHAPES     rank of class c in the pool, 0 for the largest class; for k = 6 classes:
                      consistent  0 1 2 3 4 5   as in the labels
                      reversed    5 4 3 2 1 0   the class with the most labels is the rarest class
                      middle      4 2 0 1 3 5   the largest classes are in the middle
                      head_tail   1 3 5 4 2 0   the largest classes are at both ends
M_c        unlabeled  unlabelled samples of class c, in addition to the labelled ones: M_1 * gamma_u^(-r(c) / (k - 1));
                      with the shape "uniform", M_1 in every class

docs/training.md has the counts for CIFAR-10, and says where papers differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from mnar.option_values import Imbalance, NumSamples, checked_options
from mnar.protocols.long_tail import long_tail, round_down
from mnar.types import ExactCounts

# Shape -> function from the ranks, the largest class first, to the rank of each class.
SHAPES: dict[str, Callable[[Sequence[int]], Sequence[int]]] = {
    "consistent": lambda ranks: ranks,
    "uniform": lambda ranks: ranks,  # all ranks have the same size
    "reversed": lambda ranks: ranks[::-1],
    "middle": lambda ranks: [*ranks[::2][::-1], *ranks[1::2]],
    "head_tail": lambda ranks: [*ranks[1::2], *ranks[::2][::-1]],
}


@checked_options
def pool_shape(
    num_classes: int,
    shape: Literal["consistent", "uniform", "reversed", "middle", "head_tail"],
    gamma_l: Imbalance = 100.0,
    gamma_u: Imbalance | None = None,
    *,
    n1: NumSamples = 500,
    m1: NumSamples = 4000,
) -> ExactCounts:
    """Return the labelled and unlabelled counts per class.

    shape    class distribution of the pool: "consistent" with the labels, "uniform", "reversed", "middle" (the largest
             classes are in the middle) or "head_tail" (the largest classes are at both ends)
    gamma_l  imbalance of the labelled part: its largest class divided by its smallest class
    gamma_u  imbalance of the unlabelled part; None: as gamma_l, or 1 for a uniform pool
    n1       number of labelled samples of the largest class
    m1       number of unlabelled samples of the largest class

    A class that cannot give its unlabelled samples is an error, because a smaller class would change the shape.
    """
    is_uniform = shape == "uniform"
    if is_uniform and gamma_u not in (None, 1):
        raise ValueError(
            f"gamma_u is {gamma_u:g}, but a uniform pool has gamma_u = 1; leave gamma_u out, or choose another shape: "
            f"{[name for name in SHAPES if name != 'uniform']}"
        )
    if gamma_u is None:
        gamma_u = 1.0 if is_uniform else gamma_l
    labeled = tuple(round_down(size) for size in long_tail(num_classes, n1, gamma_l))
    by_rank = [round_down(size) for size in long_tail(num_classes, m1, gamma_u)]
    return ExactCounts(labeled, tuple(by_rank[rank] for rank in SHAPES[shape](range(num_classes))))
