"""Trees that are stored as arrays give the probabilities of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from mnar.own_data.inspection.probe import gradient_boosting
from mnar.own_data.portfolio import trees
from mnar.own_data.portfolio.member import Inputs, Samples, balanced
from mnar.own_data.portfolio.trees import Trees, fit_boosting, fit_forest, new_forest
from tests.support.half_labeled import clouds

few_trees = partial(new_forest, num_trees=20)
NEW_ROWS = np.random.default_rng(1).uniform(-6, 6, (300, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "new_forest", few_trees)


@pytest.mark.parametrize("num_labels", [(30, 9), (25, 12, 4), (9, 0, 12), (6, 5, 4, 3, 2, 1)])
@pytest.mark.parametrize("kind", ["boosting", "forest"])
def test_stored_trees_equal_predict_proba_divided_by_the_counts(kind: str, num_labels: tuple[int, ...]) -> None:
    samples = clouds(num_labels, distance=2.0)
    fit, model = (fit_boosting, gradient_boosting()) if kind == "boosting" else (fit_forest, few_trees(0))
    model.fit(samples.labeled_features, samples.labels)
    raw = np.zeros((len(NEW_ROWS), len(num_labels)))
    raw[:, model.classes_] = model.predict_proba(NEW_ROWS)
    by_count = raw / np.maximum(num_labels, 1)
    expected = by_count / by_count.sum(1, keepdims=True)
    stored = fit(samples)
    np.testing.assert_allclose(stored.probs(Inputs(NEW_ROWS)), expected, atol=1e-9)
    with np.errstate(all="raise"):
        assert stored.probs(Inputs(NEW_ROWS[:0])).shape == (0, len(num_labels))


def test_values_at_a_threshold_go_to_the_same_side_as_in_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(0, 4, (200, 3)).astype(np.float32)  # many equal values
    y = (features.sum(1) + rng.integers(0, 3, 200)).astype(int) % 3
    samples = Samples(Inputs(features), y, 3)
    for fit, model in ((fit_boosting, gradient_boosting()), (fit_forest, few_trees(0))):
        model.fit(features, y)
        halves = np.concatenate([features, features + np.float32(0.5)])
        expected = balanced(model.predict_proba(halves), samples.counts)
        np.testing.assert_allclose(fit(samples).probs(Inputs(halves)), expected, atol=1e-9)


@pytest.mark.parametrize("fit", [fit_boosting, fit_forest])
def test_with_labels_of_one_class_only_this_class_is_certain(fit: object) -> None:
    stored: Trees = fit(clouds((0, 5, 0)))  # type: ignore[operator]
    np.testing.assert_array_equal(stored.probs(Inputs(NEW_ROWS[:4])), [[0, 1, 0]] * 4)


def test_rows_in_several_parts_give_what_they_give_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = fit_forest(clouds((9, 9)))
    together = stored.probs(Inputs(NEW_ROWS))
    monkeypatch.setattr(trees, "ROWS_AT_A_TIME", 7)
    np.testing.assert_array_equal(stored.probs(Inputs(NEW_ROWS)), together)


@pytest.mark.parametrize("fit", [fit_boosting, fit_forest])
@pytest.mark.parametrize("num_labels", [(30, 9), (25, 12, 4), (9, 0, 12), (0, 5, 0)])
def test_the_compiled_trees_equal_a_walk_through_the_nodes(
    fit: Callable[[Samples], Trees], num_labels: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = fit(clouds(num_labels, distance=1.0))
    assert stored._compiled is not None
    compiled = stored.probs(Inputs(NEW_ROWS))
    again = Trees.from_arrays(stored.arrays())

    def changed(*args: object) -> None:
        raise ImportError("a version of scikit-learn without this class")

    monkeypatch.setattr(trees, "_compiled_tree", changed)
    assert again._compiled is None or not len(again.roots)
    np.testing.assert_array_equal(again.probs(Inputs(NEW_ROWS)), compiled)
    in_other_order = Inputs(np.asfortranarray(NEW_ROWS))
    np.testing.assert_array_equal(stored.probs(in_other_order), compiled)
