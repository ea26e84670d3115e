"""What the choice says about the pool, in sentences: whether it helped, and whether the predictions agree with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mnar.own_data.portfolio.member import Integers
from mnar.own_data.portfolio.portfolio import Choice

TOLERANCE = 0.05  # a predicted share this far outside the interval of the estimate is pointed out
FEW_LABELS = 10


def verdict_text(choice: Choice, counts: Integers, class_names: Sequence[str]) -> str:
    """Say whether the unlabelled samples helped, with the interval that decides."""
    comparison = choice.comparison
    if comparison is None:
        if choice.shares is None:
            return "every sample has a label, so there was no pool that could help"
        return "there is no comparison with the labels alone, because only one kind of member was tried"
    ratio, gain = comparison.ratio, comparison.balanced_accuracy
    evidence = (
        f"the right class gets {ratio.value:.2f} times the probability that the labels alone give it "
        f"(80 % interval {ratio.low:.2f} to {ratio.high:.2f}); balanced accuracy {100 * gain.value:+.1f} points "
        f"(95 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    )
    if comparison.verdict == "helped":
        return f"the unlabelled samples helped: {evidence}"
    not_used = "" if choice.uses_pool else "; the chosen model does not use them"
    if comparison.verdict in ("did harm", "made no difference"):
        return f"the unlabelled samples {comparison.verdict}: {evidence}{not_used}"
    few = [name for name, count in zip(class_names, counts, strict=True) if 0 < count < FEW_LABELS]
    remedy = f"; more labels of {', '.join(few[:5])} would tell" if few else "; more labels would tell"
    return f"it cannot be told whether the unlabelled samples helped: {evidence}{not_used}{remedy}"


def disagreement(choice: Choice, labels: Integers, class_names: Sequence[str]) -> tuple[str, ...]:
    """Warn if the shares of the predicted classes contradict the estimated shares of the pool."""
    if choice.shares is None or not len(labels):
        return ()
    predicted = np.bincount(labels, minlength=len(class_names)) / len(labels)
    low, high = choice.shares.low - TOLERANCE, choice.shares.high + TOLERANCE
    outside = np.flatnonzero((predicted < low) | (predicted > high))
    if not len(outside):
        return ()
    distance = np.maximum(low - predicted, predicted - high).round(9)  # equal for two classes, but for rounding
    worst = outside[np.argmax(distance[outside])]
    text = (
        f"{predicted[worst]:.1%} of the predictions for the pool are {class_names[worst]}, but the estimated share is "
        f"{choice.shares.low[worst]:.1%} to {choice.shares.high[worst]:.1%}"
    )
    others = {1: "", 2: " (1 other class differs as well)"}.get(
        len(outside), f" ({len(outside) - 1} other classes differ as well)"
    )
    if choice.objective == "balanced_accuracy":
        remedy = (
            "the predictions treat every class as equally important; --objective accuracy follows the estimated shares"
        )
    else:
        remedy = "the estimate may be wrong, e.g. if labelled and unlabelled samples of a class do not look alike"
    return (f"{text}{others}; {remedy}",)
