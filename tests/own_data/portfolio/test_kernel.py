from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize  # type: ignore[import-untyped]

from mnar.own_data.portfolio import kernel
from mnar.own_data.portfolio.kernel import fit_kernel, gaussians
from mnar.own_data.portfolio.member import Floats, Inputs, Samples, softmax
from tests.support.half_labeled import clouds


def literal_kernel_regression(samples: Samples, strength: float, width: float) -> Floats:
    """Minimise the balanced log-loss of f = K a + b plus a' K a / 2C over a and b, and predict all samples."""
    x, y, k = samples.labeled_features.astype(float), samples.labels, samples.num_classes
    all_rows = samples.inputs.features.astype(float)
    gamma = 1 / (width * np.mean(np.sum((all_rows - all_rows.mean(0)) ** 2, axis=1)))
    matrix = np.array([[np.exp(-gamma * np.sum((a - b) ** 2)) for b in x] for a in x])
    class_weight = len(y) / (k * np.bincount(y))

    def loss(flat: Floats) -> tuple[float, Floats]:
        a, b = flat[: len(y) * k].reshape(len(y), k), flat[len(y) * k :]
        probs = softmax(matrix @ a + b)
        value = strength * class_weight[y] @ -np.log(probs[np.arange(len(y)), y]) + (a * (matrix @ a)).sum() / 2
        slope = strength * class_weight[y][:, None] * (probs - np.eye(k)[y])
        return value, np.concatenate([(matrix @ slope + matrix @ a).ravel(), slope.sum(0)])

    flat = minimize(loss, np.zeros(len(y) * k + k), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    a, b = flat[: len(y) * k].reshape(len(y), k), flat[len(y) * k :]
    new = np.array([[np.exp(-gamma * np.sum((row - b) ** 2)) for b in x] for row in all_rows])
    return softmax(new @ a + b)


@pytest.mark.parametrize(("strength", "width"), [(1.0, 3.0), (10.0, 1.0)])
def test_it_equals_a_literal_kernel_logistic_regression(strength: float, width: float) -> None:
    samples = clouds((9, 5, 3), 12, distance=2.0)
    probs = fit_kernel(samples, strength=strength, width=width).probs(samples.inputs)
    np.testing.assert_allclose(probs, literal_kernel_regression(samples, strength, width), atol=2e-3)


def test_gaussians_equal_the_formula() -> None:
    x, centers = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    expected = [[np.exp(-0.3 * np.sum((a.astype(float) - b) ** 2)) for b in centers] for a in x]
    np.testing.assert_allclose(gaussians(x, centers, 0.3), expected)


def test_more_labels_than_centres_are_still_all_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MAX_CENTERS", 20)
    samples = clouds((60, 60), 0, distance=3.0)
    fitted = fit_kernel(samples)
    assert fitted.centers.shape == (20, 3)
    assert (fitted.probs(samples.inputs).argmax(1) == samples.y).mean() > 0.95


def test_constant_features_give_equal_probabilities() -> None:
    samples = Samples(Inputs(np.ones((9, 2), np.float32)), np.array([0, 0, 0, 0, 1, -1, -1, -1, -1]), 2)
    np.testing.assert_allclose(fit_kernel(samples).probs(samples.inputs), 0.5, atol=1e-3)


def test_rows_in_several_parts_give_what_they_give_together(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = clouds((30, 20, 9), 100, distance=2.0)
    fitted = fit_kernel(samples)
    together = fitted.probs(samples.inputs)
    for num_rows in (1, 7, 64):
        monkeypatch.setattr(kernel, "ROWS_AT_A_TIME", num_rows)
        np.testing.assert_allclose(fitted.probs(samples.inputs), together, atol=1e-12)
