from __future__ import annotations

import json
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from mnar.own_data.decisions import ACCEPT, REJECT, REVIEW, Decisions, fit_decisions, labels_needed
from mnar.own_data.portfolio.member import Floats, Integers, with_shares


class World(NamedTuple):
    """Samples of Gaussian classes, whose balanced class probabilities are known exactly."""

    probs: Floats  # [n, k]
    y: Integers  # [n]


def draw(counts: npt.NDArray[np.int64], *, distance: float, seed: int, temperature: float = 1.0) -> World:
    """Draw `counts` samples of each class. A temperature below 1 makes the probabilities too confident."""
    rng = np.random.default_rng(seed)
    num_classes = len(counts)
    y = np.repeat(np.arange(num_classes), counts)
    x = distance * np.eye(num_classes)[y] + rng.standard_normal((len(y), num_classes))
    logits = distance * x / temperature
    probs = np.exp(logits - logits.max(1, keepdims=True))
    return World(probs / probs.sum(1, keepdims=True), y)


LABELED = np.array([300, 150, 60, 30, 15])
POOL = np.array([300, 600, 1500, 3000, 6000])
SHARES = POOL / POOL.sum()


def real_precision(decisions: Decisions, pool: World) -> float:
    labels, *_, codes = decisions.decide(pool.probs)
    return float((labels == pool.y)[codes == ACCEPT].mean())


def expected_precision(decisions: Decisions, pool: World) -> float:
    labels, *_, codes = decisions.decide(pool.probs)
    return decisions.expected_overall(np.bincount(labels[codes == ACCEPT], minlength=len(decisions.shares)))


@pytest.mark.parametrize("with_pool", [True, False])
@pytest.mark.parametrize("temperature", [0.8, 1.0, 1.25])
@pytest.mark.parametrize("precision", [0.9, 0.95])
def test_the_real_precision_in_a_shifted_pool_is_the_expected_one(
    precision: float, temperature: float, with_pool: bool
) -> None:
    differences, accepted = [], []
    for seed in range(8):
        labels = draw(LABELED, distance=2.5, seed=seed, temperature=temperature)
        pool = draw(POOL, distance=2.5, seed=100 + seed, temperature=temperature)
        decisions = fit_decisions(
            labels.probs, labels.y, SHARES, precision=precision, pool_probs=pool.probs[::5] if with_pool else None
        )
        differences.append(expected_precision(decisions, pool) - real_precision(decisions, pool))
        accepted.append((decisions.decide(pool.probs).codes == ACCEPT).mean())
    assert abs(np.mean(differences)) < 0.02
    assert np.abs(differences).mean() < 0.03
    assert np.mean(accepted) > 0.4


def test_confidences_are_the_true_posterior_when_the_model_is_exact() -> None:
    labels, pool = draw(20 * LABELED, distance=2.0, seed=0), draw(POOL, distance=2.0, seed=1)
    decided = fit_decisions(labels.probs, labels.y, SHARES).decide(pool.probs)
    posterior = with_shares(pool.probs, SHARES)
    assert np.array_equal(decided.labels, posterior.argmax(1))
    ordered = np.sort(posterior, axis=1)
    assert np.abs(decided.confidences - ordered[:, -1]).max() < 0.02
    assert np.abs(decided.margins - (ordered[:, -1] - ordered[:, -2])).max() < 0.04
    assert np.array_equal(decided.second, posterior.argsort(1)[:, -2])


def test_confidences_of_too_confident_probabilities_are_the_accuracy_after_calibration() -> None:
    labels = draw(20 * LABELED, distance=2.0, seed=0, temperature=0.5)
    pool = draw(POOL, distance=2.0, seed=1, temperature=0.5)
    decided = fit_decisions(labels.probs, labels.y, SHARES).decide(pool.probs)
    accuracy = (decided.labels == pool.y).mean()
    assert with_shares(pool.probs, SHARES).max(1).mean() - accuracy > 0.05
    assert abs(decided.confidences.mean() - accuracy) < 0.02


def test_without_the_class_mix_of_the_pool_the_promise_would_be_wrong() -> None:
    labels, pool = draw(LABELED, distance=2.0, seed=3), draw(POOL, distance=2.0, seed=4)
    of_labels = LABELED / LABELED.sum()
    corrected = fit_decisions(labels.probs, labels.y, SHARES, precision=0.9)
    uncorrected = fit_decisions(labels.probs, labels.y, of_labels, precision=0.9)
    assert abs(expected_precision(corrected, pool) - real_precision(corrected, pool)) < 0.03
    assert expected_precision(uncorrected, pool) - real_precision(uncorrected, pool) > 0.1


def test_rows_with_a_confidence_below_one_half_are_rejected_and_the_rest_is_reviewed() -> None:
    labels, pool = draw(LABELED, distance=1.5, seed=0), draw(POOL, distance=1.5, seed=1)
    decisions = fit_decisions(labels.probs, labels.y, SHARES)
    decided = decisions.decide(pool.probs)
    assert set(decided.codes) == {ACCEPT, REVIEW, REJECT}
    assert np.array_equal(decided.codes == REJECT, decided.confidences < 0.5)
    is_accepted = decided.confidences >= decisions.thresholds[decided.labels]
    assert np.array_equal(decided.codes == ACCEPT, is_accepted)


def test_a_higher_precision_accepts_a_subset() -> None:
    labels, pool = draw(LABELED, distance=2.0, seed=5), draw(POOL, distance=2.0, seed=6)
    accepted = [
        fit_decisions(labels.probs, labels.y, SHARES, precision=p, pool_probs=pool.probs).decide(pool.probs).codes
        == ACCEPT
        for p in (0.5, 0.7, 0.9, 0.95, 0.97, 0.99, 0.999)
    ]
    for lower, higher in pairwise(accepted):
        assert not (higher & ~lower).any()
    assert accepted[0].sum() > accepted[3].sum() > 0


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_blocks_and_row_order_do_not_change_a_decision(size: int) -> None:
    labels, pool = draw(LABELED, distance=2.0, seed=0), draw(POOL // 10, distance=2.0, seed=1)
    decisions = fit_decisions(labels.probs, labels.y, SHARES)
    whole = decisions.decide(pool.probs)
    blocks = [decisions.decide(pool.probs[i : i + size]) for i in range(0, len(pool.y), size)]
    order = np.random.default_rng(0).permutation(len(pool.y))
    shuffled = decisions.decide(np.asfortranarray(pool.probs[order]))
    for field, at_once in enumerate(whole):
        assert np.array_equal(np.concatenate([block[field] for block in blocks]), at_once)
        assert np.array_equal(shuffled[field], at_once[order])


def test_the_rule_survives_json_exactly() -> None:
    labels = draw(np.array([300, 2, 60, 30, 15]), distance=1.5, seed=0)
    pool = draw(POOL // 10, distance=1.5, seed=1)
    decisions = fit_decisions(labels.probs, labels.y, SHARES, precision=0.9)
    assert decisions.promises.tolist() == [True, False, True, True, True]  # an infinite threshold is tested too
    restored = Decisions.from_dict(json.loads(json.dumps(decisions.to_dict(), allow_nan=False)))
    for name, value in vars(decisions).items():
        assert np.array_equal(getattr(restored, name), value, equal_nan=True)
    for before, after in zip(decisions.decide(pool.probs), restored.decide(pool.probs), strict=True):
        assert np.array_equal(before, after)


@pytest.mark.parametrize("num_labels", [5, 30, 200, 1000])
def test_perfect_predictions_never_promise_more_than_the_labels_support(num_labels: int) -> None:
    y = np.arange(num_labels) % 2
    decisions = fit_decisions(np.eye(2)[y], y, np.array([0.5, 0.5]), precision=0.9)
    supported = num_labels / (num_labels + 0.5)  # half a wrong label more than the labels show
    if supported < 0.9 or num_labels < 6:  # one class has fewer than three of five labels
        assert not decisions.promises.all()
    else:
        assert decisions.promises.all()
        assert np.all(decisions.expected_precision <= supported + 1e-9)
        assert np.all(decisions.expected_precision > supported - 0.02)


def test_too_few_labels_promise_nothing_and_the_note_says_how_many_are_needed() -> None:
    y = np.array([0, 0, 0, 1, 1, 1])
    decisions = fit_decisions(np.eye(2)[y], y, np.array([0.5, 0.5]), precision=0.99)
    assert not decisions.promises.any()
    assert (decisions.decide(np.eye(2)).codes == REVIEW).all()
    assert np.isnan(decisions.expected_overall(np.zeros(2)))
    (note,) = decisions.notes(["cat", "dog"])
    assert "6 held-out labels tell as much about the pool as 6 labels drawn from it at random" in note
    assert labels_needed(0.99) == pytest.approx(49.5)
    assert "At least 50 are needed, about 8.2 times as many labels as now" in note
    assert "Label more samples of" not in note, "labels and pool have the same class mix"


def test_only_classes_with_a_larger_share_of_the_pool_than_of_the_labels_should_be_labelled_first() -> None:
    labels = draw(np.array([64, 20, 10, 4, 2]), distance=2.5, seed=0)
    shares = np.array([0.2, 0.2 - 1e-12, 0.4, 0.1, 0.1])
    (note, *_) = fit_decisions(labels.probs, labels.y, shares, precision=0.97).notes("abcde")
    assert "Label more samples of 'c' (10 labels), 'e' (2 labels) and 'd' (4 labels) first." in note
    shares = np.array([0.63, 0.2, 0.1, 0.03, 0.04])
    (note, *_) = fit_decisions(labels.probs, labels.y, shares, precision=0.99).notes("abcde")
    assert "Label more samples of 'e' (2 labels) first." in note


def test_labels_of_other_classes_than_those_of_the_pool_count_little() -> None:
    y = np.repeat([0, 1], [500, 5])
    like_the_labels = fit_decisions(np.eye(2)[y], y, np.array([500, 5]) / 505)
    of_the_rare_class = fit_decisions(np.eye(2)[y], y, np.array([0.02, 0.98]))
    assert like_the_labels.effective_labels == pytest.approx(505)
    assert of_the_rare_class.effective_labels == pytest.approx(5, rel=0.05)
    assert like_the_labels.promises.all()
    assert not of_the_rare_class.promises.any()


def test_labels_predicted_twice_are_counted_once() -> None:
    labels = draw(LABELED // 5, distance=2.0, seed=0)
    once = fit_decisions(labels.probs, labels.y, SHARES, precision=0.8)
    twice = fit_decisions(
        np.vstack([labels.probs, labels.probs]), np.tile(labels.y, 2), SHARES, precision=0.8, num_labels=LABELED // 5
    )
    assert once.promises.any()
    assert twice.scale == pytest.approx(once.scale, abs=1e-4)
    np.testing.assert_allclose(twice.expected_precision, once.expected_precision, atol=1e-4)
    assert twice.effective_labels == once.effective_labels


def test_a_class_without_labels_is_never_accepted_and_the_others_are() -> None:
    known = draw(LABELED[:4], distance=4.0, seed=0)
    probs = np.column_stack([known.probs, np.zeros(len(known.y))])
    shares = np.array([0.25, 0.25, 0.25, 0.25, np.nan])  # unknown for a class without labels
    decisions = fit_decisions(probs, known.y, shares)
    assert decisions.promises.tolist() == [True, True, True, True, False]
    decided = decisions.decide(np.vstack([probs, np.eye(5)[4]]))
    assert ACCEPT not in decided.codes[decided.labels == 4]
    assert decided.codes[-1] != ACCEPT
    assert any("There is no held-out label of 'e'" in note for note in decisions.notes("abcde"))


def test_a_pool_that_is_partly_of_a_class_without_labels_gets_no_promise() -> None:
    known = draw(LABELED[:4], distance=4.0, seed=0)
    probs = np.column_stack([known.probs, np.zeros(len(known.y))])
    assert not fit_decisions(probs, known.y, np.full(5, 0.2)).promises.any()


def test_a_class_that_is_always_confused_gets_a_note_with_its_best_precision() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 100)
    probs = np.eye(3)[y] * 0.98 + 0.01
    probs[y > 0] = [0.01, 0.6, 0.39]  # the classes 1 and 2 cannot be told apart
    probs[rng.permutation(np.flatnonzero(y > 0))[:100]] = [0.01, 0.39, 0.6]
    decisions = fit_decisions(probs, y, np.full(3, 1 / 3))
    assert decisions.promises.tolist() == [True, False, False]
    (note,) = decisions.notes(["a", "b\x1b", "c"])
    for name, best in zip(("'b\\x1b'", "'c'"), decisions.best_precision[1:], strict=True):
        assert 0.4 < best < 0.6
        assert (
            f"No label of {name} is accepted: its most confident labels are expected to be right in {best:.1%} of the "
            "cases, less than 95.0%." in note
        )
    assert "\x1b" not in note


def test_many_classes_without_a_promise_share_one_sentence() -> None:
    y = np.repeat(np.arange(6), 50)
    probs = np.full((300, 6), 0.08)
    probs[np.arange(300), (y + np.arange(300) % 2) % 6] = 0.6  # half of the predictions are wrong
    decisions = fit_decisions(probs, y, np.full(6, 1 / 6))
    assert not decisions.promises.any()
    (note,) = decisions.notes("abcdef")
    assert note.count("No label of") == 1
    assert "No label of 'a', 'b', 'c', 'd', 'e' and 'f' is accepted" in note
    assert f"in at most {decisions.best_precision.max():.1%} of the cases, less than 95.0%" in note


def test_a_thousand_classes_and_five_labels_are_handled() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(1000), 3)
    predicted = np.where(rng.random(3000) < 0.9, y, rng.integers(1000, size=3000))  # nine of ten are right
    probs = 0.9 * np.eye(1000)[predicted] + 0.1 / 1000
    equal = np.full(1000, 1e-3)
    decisions = fit_decisions(probs, y, equal, precision=0.8)
    labels, *_, codes = decisions.decide(probs)
    accepted = codes == ACCEPT
    assert accepted.mean() > 0.9
    assert abs(decisions.expected_precision[labels[accepted]].mean() - 0.9) < 0.03
    few = fit_decisions(probs[:5], y[:5], equal)
    assert not few.promises.any()
    assert max(map(len, few.notes([f"class {c}" for c in range(1000)]))) < 1000


@pytest.mark.parametrize("precision", [0.0, 1.0, -1.0, 95.0, float("nan")])
def test_a_precision_outside_zero_and_one_is_refused_with_a_remedy(precision: float) -> None:
    with pytest.raises(ValueError, match=r"precision is .*Choose e\.g\. --precision 0\.95"):
        fit_decisions(np.eye(2), np.arange(2), np.array([0.5, 0.5]), precision=precision)


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    equal = np.array([0.5, 0.5])
    with pytest.raises(ValueError, match="one column per class"):
        fit_decisions(np.eye(3), np.arange(3), equal)
    with pytest.raises(ValueError, match="pool_probs has shape"):
        fit_decisions(np.eye(2), np.arange(2), equal, pool_probs=np.eye(3))
    with pytest.raises(ValueError, match="at least one label"):
        fit_decisions(np.zeros((0, 2)), np.zeros(0, np.int64), equal)
    with pytest.raises(ValueError, match="classes are numbered from 0 to 1"):
        fit_decisions(np.eye(2), np.array([0, 2]), equal)
    with pytest.raises(ValueError, match="class shares"):
        fit_decisions(np.eye(2), np.arange(2), np.array([0.0, np.nan]))
