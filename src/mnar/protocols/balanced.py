"""The conventional protocol: every class has as many labels as any other.

With `gamma_u` the unlabelled part is imbalanced all the same ("various gamma_u" in the PRG paper):
M_c = M_1 * gamma_u^(-(k - 1 - c) / (k - 1)), drawn besides the labelled ones.
"""

from __future__ import annotations

from mnar.protocols.long_tail import check_num_labels, inverse_tail
from mnar.types import Counts


def balanced(num_classes: int, num_labels: int, *, gamma_u: float | None = None, m1: int = 5000) -> Counts:
    """The same number of labels in every class, `num_labels` in all."""
    check_num_labels(num_classes, num_labels)
    per_class, remainder = divmod(num_labels, num_classes)
    if remainder:
        raise ValueError(
            f"num_labels is {num_labels}, no multiple of {num_classes} classes; "
            f"give {per_class * num_classes} or {(per_class + 1) * num_classes}"
        )
    return Counts((per_class,) * num_classes, inverse_tail(num_classes, gamma_u, m1))
