from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mnar.own_data.inspection.inspection
from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, Table
from mnar.own_data.inspection import Inspection, inspect_data
from mnar.own_data.inspection.inspection import NUM_STEPS
from mnar.own_data.inspection.label_shift import Interval, PoolShares
from mnar.types import DataSet

LABELS, POOL = (200, 100, 50), (100, 300, 600)  # rows of each class: the labels are rare where the pool is large


def half_labeled(
    labels: tuple[int, ...], pool: tuple[int, ...], *, num_features: int = 4, spread: float = 1.0, seed: int = 0
) -> PartlyLabeled:
    """Normal clouds, three standard deviations apart; class names are their numbers."""
    rng = np.random.default_rng(seed)
    num_classes = len(labels)
    truth = np.concatenate([np.repeat(np.arange(num_classes), count) for count in (labels, pool)])
    centres = 3 * np.eye(num_classes, num_features)
    x = (centres[truth] + spread * rng.normal(size=(len(truth), num_features))).astype(np.float32)
    y = np.where(np.arange(len(truth)) < sum(labels), truth, UNLABELED)
    order = rng.permutation(len(y))
    names = tuple(f"class {c}" for c in range(num_classes))
    return PartlyLabeled(x[order], y[order], names, [str(row) for row in order])


@pytest.fixture(scope="module")
def biased() -> Inspection:
    return inspect_data(half_labeled(LABELS, POOL))


@pytest.fixture(scope="module")
def with_one_never_labeled() -> Inspection:
    return inspect_data(half_labeled((100, 100, 0), (100, 300, 200)))


def values(inspection: Inspection) -> npt.NDArray[np.float64]:
    return np.array([c.pool_share.value if c.pool_share else np.nan for c in inspection.classes])


def test_counts_and_labelled_shares_are_those_of_the_data(biased: Inspection) -> None:
    assert (biased.kind, biased.num_labeled, biased.num_unlabeled) == ("features", 350, 1000)
    assert [c.name for c in biased.classes] == ["class 0", "class 1", "class 2"]
    assert [c.num_labels for c in biased.classes] == [200, 100, 50]
    assert [c.labeled_share for c in biased.classes] == [200 / 350, 100 / 350, 50 / 350]


def test_the_true_shares_of_the_pool_are_near_the_estimates_and_in_their_intervals(biased: Inspection) -> None:
    np.testing.assert_allclose(values(biased), (0.1, 0.3, 0.6), atol=0.03)
    for found, true_share in zip(biased.classes, (0.1, 0.3, 0.6), strict=True):
        assert found.pool_share is not None
        assert found.pool_share.low <= true_share <= found.pool_share.high
        assert found.pool_share.high - found.pool_share.low < 0.15


def test_labelled_one_in_n_counts_rows_of_the_class_in_all_data_for_each_label(biased: Inspection) -> None:
    for found, labels, pool in zip(biased.classes, LABELS, POOL, strict=True):
        assert found.labeled_one_in is not None
        assert found.pool_share is not None
        assert found.labeled_one_in.value == pytest.approx((labels + found.pool_share.value * 1000) / labels)
        assert found.labeled_one_in.low <= (labels + pool) / labels <= found.labeled_one_in.high


def test_biased_labels_give_a_small_p_value_and_a_guidance_against_bias(biased: Inspection) -> None:
    assert biased.at_random is not None
    assert biased.recommendation is not None
    assert biased.at_random.p_value < 0.01
    assert biased.recommendation.guidance == "cadr"
    assert biased.cannot_tell == ()


def test_the_probe_is_scored_on_rows_that_it_has_not_seen(biased: Inspection) -> None:
    assert biased.probe is not None
    assert biased.probe.model == "gradient boosting"
    assert 0.9 < biased.probe.accuracy < 1
    noise = half_labeled((100, 100), (300, 300), spread=1000.0)
    guessing = inspect_data(noise).probe
    assert guessing is not None
    assert guessing.balanced_accuracy == pytest.approx(0.5, abs=0.1)


def test_labels_missing_at_random_give_no_significant_p_value() -> None:
    inspection = inspect_data(half_labeled((60, 120, 240), (100, 200, 400)))
    assert inspection.at_random is not None
    assert inspection.recommendation is not None
    assert inspection.at_random.p_value > 0.05
    assert inspection.recommendation.guidance == "prg_last"
    np.testing.assert_allclose(values(inspection), (1 / 7, 2 / 7, 4 / 7), atol=0.03)


def test_the_share_of_a_class_without_a_label_is_unknown_and_a_sentence_says_so(
    with_one_never_labeled: Inspection,
) -> None:
    never = with_one_never_labeled.classes[2]
    assert with_one_never_labeled.never_labeled == ("class 2",)
    assert (never.num_labels, never.pool_share, never.labeled_one_in) == (0, None, None)
    assert values(with_one_never_labeled)[:2].sum() == pytest.approx(1)
    assert (
        "Classes without a label: class 2. Their shares of the pool cannot be estimated"
        in with_one_never_labeled.cannot_tell[0]
    )


def test_a_class_with_one_label_has_a_wide_interval() -> None:
    classes = inspect_data(half_labeled((100, 100, 1), (200, 200, 200))).classes
    assert classes[2].pool_share is not None
    assert classes[0].pool_share is not None
    assert classes[2].pool_share.low <= 1 / 3 <= classes[2].pool_share.high
    width_of_one, width_of_many = (c.pool_share.high - c.pool_share.low for c in (classes[2], classes[0]))  # type: ignore[union-attr]
    assert width_of_one > 2 * width_of_many


@pytest.mark.parametrize("labels", [(3, 2, 0), (2, 2, 1), (1, 1, 0)])
def test_with_too_few_labels_for_the_test_a_sentence_says_so(labels: tuple[int, ...]) -> None:
    inspection = inspect_data(half_labeled(labels, (50, 50, 50)))
    assert inspection.at_random is None
    assert any("cannot be tested, because no class has" in sentence for sentence in inspection.cannot_tell)
    assert inspection.recommendation is not None
    assert inspection.recommendation.guidance == "cadr"


@pytest.mark.parametrize("labels", [(30, 0), (0, 0)])
def test_with_fewer_than_two_labelled_classes_only_counts_are_given(labels: tuple[int, ...]) -> None:
    inspection = inspect_data(half_labeled(labels, (50, 50)))
    assert inspection.num_labeled == sum(labels)
    assert (inspection.probe, inspection.at_random, inspection.recommendation) == (None, None, None)
    assert all(c.pool_share is None for c in inspection.classes)
    assert "Fewer than two classes have labels" in inspection.cannot_tell[0]


def test_without_an_unlabelled_row_plain_supervised_learning_is_recommended() -> None:
    inspection = inspect_data(half_labeled((50, 50), (0, 0)))
    assert inspection.recommendation is not None
    assert inspection.recommendation.learner == "supervised"
    assert inspection.probe is not None
    assert inspection.probe.accuracy > 0.9
    assert "no pool" in inspection.cannot_tell[0]


def test_a_mixed_table_with_holes_is_probed_with_gradient_boosting() -> None:
    data = half_labeled(LABELS, POOL)
    assert isinstance(data.x, np.ndarray)
    numeric = data.x[:, :2].astype(np.float64)
    numeric[::7, 0] = np.nan
    codes = (data.x[:, 2:3] > 1.5).astype(np.int64)
    codes[::11] = -1
    table = Table(numeric, codes, ("a", "b"), ("c",), (("low", "high"),))
    inspection = inspect_data(data._replace(x=table))
    assert inspection.kind == "table"
    assert inspection.probe is not None
    assert inspection.probe.model == "gradient boosting"
    np.testing.assert_allclose(values(inspection), (0.1, 0.3, 0.6), atol=0.05)


def test_wide_features_are_probed_with_a_logistic_regression() -> None:
    inspection = inspect_data(half_labeled(LABELS, POOL, num_features=65))
    assert inspection.probe is not None
    assert inspection.probe.model == "logistic regression"
    np.testing.assert_allclose(values(inspection), (0.1, 0.3, 0.6), atol=0.05)


def test_the_shares_of_unlabelled_digits_are_found_from_pixels(digits_data: DataSet) -> None:
    truth = digits_data.train_y.numpy()
    rng = np.random.default_rng(0)
    is_kept = rng.random(len(truth)) < np.array([0.5, 0.1])[(truth > 4).astype(int)]
    y = np.where(is_kept, truth, UNLABELED)
    inspection = inspect_data(PartlyLabeled(digits_data.train_x.numpy(), y, digits_data.class_names, range(len(y))))  # type: ignore[arg-type]
    true_shares = np.bincount(truth[~is_kept], minlength=10) / (~is_kept).sum()
    labeled_shares = np.array([c.labeled_share for c in inspection.classes])
    assert np.abs(values(inspection) - true_shares).mean() < np.abs(labeled_shares - true_shares).mean() / 3
    assert inspection.at_random is not None
    assert inspection.at_random.p_value < 0.05
    assert inspection.recommendation is not None
    assert inspection.recommendation.learner == "fixmatch"


def test_a_large_pool_is_sampled_and_one_in_n_still_counts_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mnar.own_data.inspection.inspection.MOST_ROWS, "features", 500)
    inspection = inspect_data(half_labeled((100, 100), (500, 1500)))
    assert inspection.notes == ("the estimates use a random sample of 500 of the 2,000 unlabelled rows",)
    np.testing.assert_allclose(values(inspection), (0.25, 0.75), atol=0.05)
    one_in = inspection.classes[1].labeled_one_in
    assert one_in is not None
    assert one_in.value == pytest.approx(16, abs=1)


def test_many_labels_are_sampled_and_the_sample_has_rows_of_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mnar.own_data.inspection.inspection.MOST_ROWS, "features", 60)
    for seed in range(3):
        inspection = inspect_data(half_labeled((400, 300, 2, 7), (100, 100, 50, 50)), seed=seed)
        assert inspection.notes[0] == "the estimates use a random sample of 60 of the 709 labelled rows"
        assert all(found.pool_share and found.labeled_one_in for found in inspection.classes)


def test_the_second_estimate_is_kept_only_where_it_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    data = half_labeled((50, 50), (100, 100))
    em, bbse = (Interval(np.array(shares), np.zeros(2), np.ones(2)) for shares in ([0.4, 0.6], [0.7, 0.3]))
    for disagree in (True, False):
        found = PoolShares(em, bbse, disagree)
        monkeypatch.setattr(mnar.own_data.inspection.inspection, "pool_shares", lambda *_, found=found, **__: found)
        second = inspect_data(data).classes[0].pool_share_bbse
        assert (second.value if second else None) == (0.7 if disagree else None)


def test_json_is_plain_and_has_everything(with_one_never_labeled: Inspection) -> None:
    content = with_one_never_labeled.to_json()
    again = json.loads(json.dumps(content, allow_nan=False))
    assert again["classes"][2] == {
        "name": "class 2",
        "num_labels": 0,
        "labeled_share": 0.0,
        "pool_share": None,
        "pool_share_bbse": None,
        "labeled_one_in": None,
    }
    assert again["classes"][0]["pool_share"].keys() == {"value", "low", "high"}
    assert again["at_random"].keys() == {"p_value", "statistic", "assumptions"}
    assert again["probe"].keys() == {"model", "accuracy", "balanced_accuracy"}
    assert again["recommendation"].keys() == {"learner", "guidance", "reason"}
    assert again["never_labeled"] == ["class 2"]
    assert types_in(content) <= {dict, list, tuple, str, int, float, bool, type(None)}


def types_in(value: Any) -> set[type]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return {type(value)}.union(*(types_in(part) for part in parts))


def test_a_seed_repeats_the_inspection_and_progress_reaches_the_last_step(biased: Inspection) -> None:
    steps: list[tuple[int, int]] = []
    again = inspect_data(half_labeled(LABELS, POOL), progress=lambda done, total: steps.append((done, total)))
    assert again == biased
    assert steps == [(step, NUM_STEPS) for step in range(NUM_STEPS + 1)]


def test_notes_from_reading_are_handed_on() -> None:
    data = half_labeled((5, 5), (10, 10))._replace(notes=("two files were skipped",))
    assert inspect_data(data).notes == ("two files were skipped",)
