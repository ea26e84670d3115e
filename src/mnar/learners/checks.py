"""A check of an option that several learners share."""

from __future__ import annotations

from mnar.guidances.guidance import Guidance


def checked_weak_gradient(weak_gradient: bool, guidance: Guidance) -> bool:
    """Return `weak_gradient`. Refuse False if the guidance trains the weak views."""
    if not weak_gradient and guidance.trains_weak_views:
        raise ValueError(
            f"learner.weak_gradient is false, but the labelled loss of {type(guidance).__name__} trains the weak "
            "views; choose --set learner.weak_gradient=true"
        )
    return weak_gradient
