"""Labels that are missing already: who keeps one follows no rule of ours."""

from __future__ import annotations

from mnar.protocols.long_tail import check_num_labels
from mnar.types import Thinned


def found(num_classes: int, *, num_labels: int | None = None) -> Thinned | None:
    """No counts: the labelled samples are those that have a label, or `num_labels` of them."""
    if num_labels is None:
        return None
    check_num_labels(num_classes, num_labels)
    return Thinned(num_labels)
