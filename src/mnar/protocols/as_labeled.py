"""Keep the labels as they are: for data in which some labels are missing already, such as a user's own data."""

from __future__ import annotations

from mnar.option_values import NumSamples, checked_options
from mnar.protocols.long_tail import check_num_labels
from mnar.types import LabelBudget


@checked_options
def as_labeled(num_classes: int, *, num_labels: NumSamples | None = None) -> LabelBudget | None:
    """Keep every label, or `num_labels` of the labels, drawn at random with at least one per class."""
    if num_labels is None:
        return None
    check_num_labels(num_classes, num_labels)
    return LabelBudget(num_labels)
