"""Logistic regression on a Gaussian (RBF) kernel with balanced classes.

A support vector classifier has about the same accuracy, but its probabilities need a second cross-validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from mnar.own_data.portfolio.linear import balanced_regression
from mnar.own_data.portfolio.member import Arrays, Features, Floats, Inputs, Samples, softmax

MAX_CENTERS = 1000  # labelled rows that serve as centres of the kernel
SMALLEST_EIGENVALUE = 1e-7  # relative to the largest; smaller directions of the kernel matrix are rounding errors
ROWS_AT_A_TIME = 512  # 512 x 1000 numbers of the kernel are 4 MB; a larger part leaves the cache of the processor


@dataclass(frozen=True)
class Kernel:
    """A classifier whose scores are sums of Gaussians around the centres."""

    kind: ClassVar[str] = "kernel"
    centers: Features  # [c, d]
    weights: Floats  # [c, k]
    bias: Floats  # [k]
    gamma: float  # the Gaussian is exp(-gamma * squared distance)

    def probs(self, inputs: Inputs) -> Floats:
        x = inputs.features
        parts = [
            softmax(gaussians(x[i : i + ROWS_AT_A_TIME], self.centers, self.gamma) @ self.weights + self.bias)
            for i in range(0, len(x), ROWS_AT_A_TIME)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.bias)))

    def arrays(self) -> Arrays:
        return {
            "centers": self.centers,
            "weights": self.weights,
            "bias": self.bias,
            "gamma": np.array(self.gamma),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        return cls(arrays["centers"], arrays["weights"], arrays["bias"], arrays["gamma"].item())


def gaussians(x: Features, centers: Features, gamma: float) -> Floats:
    """Return the kernel of all pairs of rows, [n, c]."""
    # torch computes exponentials in half the time of numpy, and every step after the first works in place.
    a, b = (torch.from_numpy(np.asarray(rows, np.float64)) for rows in (x, centers))
    squared = torch.addmm((b**2).sum(1), a, b.T, alpha=-2).add_((a**2).sum(1, keepdim=True))
    kernel: Floats = squared.clamp_(min=0).mul_(-gamma).exp_().numpy()
    return kernel


def fit_kernel(samples: Samples, *, strength: float = 100.0, width: float = 1.0) -> Kernel:
    """Fit a kernel logistic regression.

    strength    scikit-learn's C
    width       the squared width of the Gaussian, in units of the mean squared distance of a sample from the mean
    """
    x = samples.labeled_features
    drawn = np.random.default_rng(samples.seed).permutation(len(x))[:MAX_CENTERS]
    centers = x[np.sort(drawn)]
    spread = float(samples.inputs.features.var(0, dtype=np.float64).sum())
    gamma = 1 / (width * spread) if spread > 0 else 1.0
    # The regression is linear in coordinates whose inner products are the kernel.
    values, vectors = np.linalg.eigh(gaussians(centers, centers, gamma))
    kept = values > SMALLEST_EIGENVALUE * values[-1]
    to_coordinates = vectors[:, kept] / np.sqrt(values[kept])
    coordinates = gaussians(x, centers, gamma) @ to_coordinates
    weights, bias = balanced_regression(coordinates, samples.labels, samples.num_classes, strength)
    return Kernel(centers, to_coordinates @ weights, bias, gamma)
