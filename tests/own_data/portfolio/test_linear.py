from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from mnar.own_data.portfolio.linear import fit_linear
from mnar.own_data.portfolio.member import Inputs
from tests.support.half_labeled import clouds


@pytest.mark.parametrize("num_labels", [(30, 9), (25, 12, 4), (9, 0, 12)])
@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_it_equals_the_balanced_logistic_regression_of_scikit_learn(
    num_labels: tuple[int, ...], strength: float
) -> None:
    samples = clouds(num_labels, distance=2.0)
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=300)
    model.fit(samples.labeled_features, samples.labels)
    expected = np.zeros((len(samples.y), len(num_labels)))
    expected[:, model.classes_] = model.predict_proba(samples.inputs.features)
    np.testing.assert_allclose(fit_linear(samples, strength=strength).probs(samples.inputs), expected, atol=1e-6)


def test_with_labels_of_one_class_only_this_class_is_certain() -> None:
    fitted = fit_linear(clouds((0, 5)))
    np.testing.assert_array_equal(fitted.probs(Inputs(np.ones((2, 3), np.float32))), [[0, 1]] * 2)
