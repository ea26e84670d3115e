"""Multinomial logistic regression with balanced classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mnar.own_data.portfolio.member import Arrays, Floats, Inputs, Integers, Samples, softmax

MAX_STEPS = 300  # of L-BFGS


@dataclass(frozen=True)
class Linear:
    """A linear classifier."""

    kind: ClassVar[str] = "linear"
    weights: Floats  # [d, k]
    bias: Floats  # [k]; minus infinity for a class without a label

    def probs(self, inputs: Inputs) -> Floats:
        return softmax(inputs.features @ self.weights + self.bias)

    def arrays(self) -> Arrays:
        return {"weights": self.weights, "bias": self.bias}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        return cls(arrays["weights"], arrays["bias"])


def fit_linear(samples: Samples, *, strength: float = 1.0) -> Linear:
    """Fit a logistic regression; `strength` is scikit-learn's C."""
    weights, bias = balanced_regression(samples.labeled_features, samples.labels, samples.num_classes, strength)
    return Linear(weights, bias)


def balanced_regression(
    x: npt.NDArray[np.floating], y: Integers, num_classes: int, strength: float
) -> tuple[Floats, Floats]:
    """Return weights [d, k] and bias [k] of a logistic regression in which every class has the same total weight."""
    # imported here because the import takes a second, and most uses of mnar do not need it
    from sklearn.linear_model import LogisticRegression

    weights, bias = np.zeros((x.shape[1], num_classes)), np.full(num_classes, -np.inf)
    classes = np.unique(y)
    if len(classes) == 1:
        bias[classes] = 0.0
        return weights, bias
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=MAX_STEPS).fit(x, y)
    if len(classes) == 2:  # scikit-learn stores the difference between the two classes
        weights[:, classes[1]], bias[classes] = model.coef_[0], (0.0, model.intercept_[0])
    else:
        weights[:, classes], bias[classes] = model.coef_.T, model.intercept_
    return weights, bias
