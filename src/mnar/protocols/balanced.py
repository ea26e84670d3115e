"""The conventional protocol: every class has the same number of labels.

With `gamma_u` the unlabelled part is imbalanced nevertheless ("various gamma_u" in the PRG paper). The last class is
then the largest one, and class c has M_c unlabelled samples in addition to its labelled samples:
M_c = M_1 * gamma_u^(-(k - 1 - c) / (k - 1)).
"""

from __future__ import annotations

from mnar.option_values import Imbalance, NumSamples, checked_options
from mnar.protocols.long_tail import check_num_labels, inverse_tail
from mnar.types import Counts


@checked_options
def balanced(
    num_classes: int, num_labels: NumSamples, *, gamma_u: Imbalance | None = None, m1: NumSamples = 5000
) -> Counts:
    """Return the counts per class, with the same number of labels in every class.

    num_labels  total number of labels
    gamma_u     imbalance of the unlabelled part: its largest class divided by its smallest class; None: all samples
                that have no label are unlabelled data
    m1          size of the largest unlabelled class, used with gamma_u
    """
    check_num_labels(num_classes, num_labels)
    per_class, remainder = divmod(num_labels, num_classes)
    if remainder:
        raise ValueError(
            f"num_labels is {num_labels}, no multiple of {num_classes} classes; "
            f"give {per_class * num_classes} or {(per_class + 1) * num_classes}"
        )
    return Counts((per_class,) * num_classes, inverse_tail(num_classes, gamma_u, m1))
