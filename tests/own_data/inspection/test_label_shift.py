from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from mnar.own_data.inspection import label_shift
from mnar.own_data.inspection.calibration import Calibration, fit_calibration, smoothed_log
from mnar.own_data.inspection.label_shift import Interval, em_shares, missing_at_random_test, pool_shares, unmix
from mnar.own_data.inspection.probe import OutOfFold, out_of_fold
from tests.reference.simpro import label_shift_em

CENTRES = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.5]])
LABELED_MIX = np.array([0.7, 0.2, 0.1])
POOL_MIX = np.array([0.1, 0.3, 0.6])

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def gaussians(mix: Floats, count: int, rng: np.random.Generator) -> tuple[Floats, Integers]:
    y = rng.choice(3, count, p=mix)
    return CENTRES[y] + rng.normal(size=(count, 2)), y


def likelihoods(x: Floats) -> Floats:
    density: Floats = np.exp(-((x[:, None] - CENTRES) ** 2).sum(2) / 2)
    return density


def posterior(x: Floats, mix: Floats, sharpness: float = 1.0) -> Floats:
    joint: Floats = (likelihoods(x) * mix) ** sharpness
    sums: Floats = joint.sum(1, keepdims=True)
    return joint / sums


def exact_probe(num_labeled: int, num_pool: int, seed: int) -> tuple[OutOfFold, Integers, Floats]:
    """Five times the same, overconfident model of the labelled mix; the labels; the pool's true shares."""
    rng = np.random.default_rng(seed)
    x, y = gaussians(LABELED_MIX, num_labeled, rng)
    x_pool, y_pool = gaussians(POOL_MIX, num_pool, rng)
    of_pool = posterior(x_pool, LABELED_MIX, sharpness=2).astype(np.float32)
    probe = OutOfFold(posterior(x, LABELED_MIX, sharpness=2), np.arange(len(y)) % 5, np.stack([of_pool] * 5))
    return probe, y, np.bincount(y_pool, minlength=3) / num_pool


def test_em_equals_the_literal_loop_run_to_convergence() -> None:
    x, _ = gaussians(POOL_MIX, 200, np.random.default_rng(0))
    literal = label_shift_em(likelihoods(x).tolist(), LABELED_MIX.tolist(), iterations=500)
    np.testing.assert_allclose(em_shares(posterior(x, LABELED_MIX), LABELED_MIX), literal, atol=1e-5)


def test_em_finds_the_pools_shares_from_exact_probabilities() -> None:
    x, y = gaussians(POOL_MIX, 100_000, np.random.default_rng(0))
    shares = em_shares(posterior(x, LABELED_MIX), LABELED_MIX)
    np.testing.assert_allclose(shares, np.bincount(y) / len(y), atol=0.005)


def test_em_counts_a_row_as_often_as_its_weight_says_whatever_its_scale() -> None:
    x, _ = gaussians(POOL_MIX, 200, np.random.default_rng(0))
    probs, weights = posterior(x, LABELED_MIX), np.random.default_rng(1).integers(0, 4, 200)
    repeated = em_shares(np.repeat(probs, weights, axis=0), LABELED_MIX)
    weighted = em_shares(probs * np.linspace(0.1, 10, 200)[:, None], LABELED_MIX, weights=weights.astype(np.float64))
    np.testing.assert_allclose(weighted, repeated, atol=1e-5)


def test_em_gives_a_class_without_labels_0() -> None:
    x, _ = gaussians(POOL_MIX, 50, np.random.default_rng(0))
    assert em_shares(posterior(x, LABELED_MIX), np.array([0.6, 0.4, 0]))[2] == 0


def test_bbse_equals_the_literal_inverse_of_the_confusion_matrix() -> None:
    rng = np.random.default_rng(0)
    x, y = gaussians(LABELED_MIX, 2000, rng)
    x_pool, _ = gaussians(POOL_MIX, 2000, rng)
    probs, probs_pool = posterior(x, LABELED_MIX), posterior(x_pool, LABELED_MIX)
    confusion = np.array([[probs[y == c, j].mean() for j in range(3)] for c in range(3)])
    literal = np.linalg.inv(confusion.T) @ probs_pool.mean(0)
    assert literal.min() > 0
    np.testing.assert_allclose(unmix(confusion, probs_pool.mean(0), LABELED_MIX), literal, atol=1e-4)
    np.testing.assert_allclose(literal, POOL_MIX, atol=0.05)


def test_bbse_equals_a_grid_search_where_the_inverse_leaves_the_simplex() -> None:
    confusion = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    pool = np.array([0.02, 0.45, 0.53])  # less of class 0 than there can be
    grid = [(i / 200, j / 200, 1 - (i + j) / 200) for i, j in itertools.product(range(201), repeat=2) if i + j <= 200]
    best = min(grid, key=lambda shares: float(((np.array(shares) @ confusion - pool) ** 2).sum()))
    np.testing.assert_allclose(unmix(confusion, pool, np.full(3, 1 / 3)), best, atol=0.006)


def test_bbse_of_a_probe_that_knows_nothing_is_the_labelled_shares() -> None:
    labeled_shares = np.array([0.75, 0.25])
    shares = unmix(np.full((2, 2), 0.5), np.full(2, 0.5), labeled_shares)
    np.testing.assert_allclose(shares, labeled_shares, atol=1e-4)


def calibrate(probs: Floats, y: Integers) -> Calibration:
    return fit_calibration(smoothed_log(probs), y, np.ones(len(y))).best


def test_calibration_undoes_a_temperature_and_a_bias() -> None:
    x, y = gaussians(LABELED_MIX, 20_000, np.random.default_rng(0))
    exact = posterior(x, LABELED_MIX)
    distorted = exact**1.5 * [1.0, 4.0, 0.25]
    distorted /= distorted.sum(1, keepdims=True)
    calibrated = calibrate(distorted, y)
    assert calibrated.scale == pytest.approx(1 / 1.5, abs=0.05)
    assert np.abs(calibrated(distorted) - exact).mean() < np.abs(distorted - exact).mean() / 5


def test_calibration_from_three_labels_one_of_them_sure_and_wrong_stays_near_the_identity() -> None:
    probs = np.array([[0.6, 0.3, 0.1], [0.2, 0.6, 0.2], [1.0, 0.0, 0.0]])
    calibrated = calibrate(probs, np.array([0, 1, 2]))
    assert 0.3 < calibrated.scale < 1.5
    assert np.abs(calibrated.bias).max() < 1


def test_intervals_contain_the_truth_in_about_the_nominal_share_of_60_pools() -> None:
    covered: dict[str, list[bool]] = {"em": [], "bbse": []}
    errors, errors_of_labeled, disagreements = [], [], 0
    for seed in range(60):
        probe, y, truth = exact_probe(200, 1000, seed)
        found = pool_shares(probe, y, num_bootstrap=60)
        for name, interval in (("em", found.em), ("bbse", found.bbse)):
            covered[name] += ((interval.low <= truth) & (truth <= interval.high)).tolist()
        errors.append(np.abs(found.em.shares - truth).mean())
        errors_of_labeled.append(np.abs(np.bincount(y) / len(y) - truth).mean())
        disagreements += found.disagree
    assert 0.88 <= np.mean(covered["em"]) <= 0.995
    assert 0.88 <= np.mean(covered["bbse"]) <= 0.995
    assert np.mean(errors) < np.mean(errors_of_labeled) / 8
    assert disagreements <= 6


def test_intervals_narrow_with_more_labels_and_a_lower_level() -> None:
    def width(interval: Interval) -> float:
        return float((interval.high - interval.low).mean())

    few, many = (pool_shares(*exact_probe(n, 2000, seed=0)[:2], num_bootstrap=60) for n in (60, 2000))
    lower = pool_shares(*exact_probe(60, 2000, seed=0)[:2], num_bootstrap=60, level=0.5)
    assert width(many.em) < width(few.em) / 2
    assert width(many.bbse) < width(few.bbse) / 2
    assert width(lower.em) < width(few.em) / 2


def test_the_estimates_disagree_when_a_class_looks_otherwise_in_the_pool() -> None:
    probe, y, _ = exact_probe(2000, 4000, seed=0)
    unlike_any_label = np.array([0.34, 0.33, 0.33], np.float32)
    pool = probe.probs_pool.copy()
    pool[:, ::2] = unlike_any_label
    assert not pool_shares(probe, y, num_bootstrap=60).disagree
    assert pool_shares(probe._replace(probs_pool=pool), y, num_bootstrap=60).disagree


def test_a_class_without_a_label_has_an_unknown_share_and_does_not_change_the_others() -> None:
    probe, y, _ = exact_probe(100, 300, seed=0)
    wider = OutOfFold(
        np.insert(probe.probs_labeled, 1, 0, axis=1), probe.fold, np.insert(probe.probs_pool, 1, 0, axis=2)
    )
    found = pool_shares(wider, np.array([0, 2, 3])[y], num_bootstrap=20)
    narrow = pool_shares(probe, y, num_bootstrap=20)
    for interval, without in ((found.em, narrow.em), (found.bbse, narrow.bbse)):
        assert np.isnan(interval.shares[1])
        assert (interval.low[1], interval.high[1]) == (0, 1)
        np.testing.assert_allclose(np.delete(interval.shares, 1), without.shares)


def blobs_probe(keep: Floats, num_labeled: int, seed: int) -> tuple[OutOfFold, Integers]:
    """A fitted probe of 1,000 rows of equal classes; class c keeps its labels in proportion to keep[c]."""
    from sklearn.naive_bayes import GaussianNB

    rng = np.random.default_rng(seed)
    x, y = gaussians(np.full(3, 1 / 3), 1000, rng)
    labeled = rng.choice(1000, num_labeled, replace=False, p=keep[y] / keep[y].sum())
    pool = np.setdiff1d(np.arange(1000), labeled)
    return out_of_fold(GaussianNB, x[labeled], y[labeled], x[pool], seed=seed), y[labeled]


@pytest.mark.parametrize(("num_labeled", "num_splits"), [(150, 200), (30, 100)])
def test_false_alarms_are_about_5_percent_when_labels_are_missing_at_random(
    num_labeled: int, num_splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_shift, "NUM_PERMUTATIONS", 99)
    p_values = [missing_at_random_test(*blobs_probe(np.ones(3), num_labeled, s)).p_value for s in range(num_splits)]
    assert np.mean(np.array(p_values) < 0.05) <= 0.08
    assert np.mean(np.array(p_values) < 0.5) > 0.3  # and the p-values are not all large


def test_cadr_like_skew_is_found_in_90_percent_of_40_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_shift, "NUM_PERMUTATIONS", 99)
    keep = 20.0 ** -(np.arange(3) / 2)
    p_values = [missing_at_random_test(*blobs_probe(keep, 100, seed)).p_value for seed in range(40)]
    assert np.mean(np.array(p_values) < 0.05) >= 0.9


def test_the_statistic_equals_the_literal_weighted_difference_over_folds() -> None:
    rng = np.random.default_rng(0)
    labeled, pool = rng.dirichlet([1, 1], 10), rng.dirichlet([1, 1], 20)
    fold = np.repeat([0, 1], 5)
    probe = OutOfFold(labeled, fold, np.stack([pool, pool]).astype(np.float32))
    fold_of_pool = np.random.default_rng(3).permutation(20) % 2
    centred, difference = [], 0.0
    for j in (0, 1):
        ours, theirs = labeled[fold == j, 0], pool[fold_of_pool == j, 0]
        together = np.concatenate([ours, theirs])
        centred += (together - together.mean()).tolist()
        difference += (ours.mean() - theirs.mean()) / 2
    variance = np.mean(np.square(centred)) * 2 * (1 / 5 + 1 / 10) / 4
    found = missing_at_random_test(probe, np.tile([0, 1], 5), seed=3)
    assert found.statistic == pytest.approx(difference**2 / variance, rel=1e-4)
    assert "labels that are missing by class from labels that are missing by a feature" in found.assumptions


def degenerate(case: str) -> tuple[OutOfFold, Integers]:
    probe, y, _ = exact_probe(60, 200, seed=0)
    if case == "one class has one label":
        kept = np.flatnonzero((y != 2) | (np.cumsum(y == 2) == 1))
        return OutOfFold(probe.probs_labeled[kept], probe.fold[kept], probe.probs_pool), y[kept]
    if case == "a pool of 3 rows":
        return probe._replace(probs_pool=probe.probs_pool[:, :3]), y
    if case == "probabilities of 0 and 1":
        return OutOfFold(np.eye(3)[y], probe.fold, np.eye(3, dtype=np.float32)[probe.probs_pool.argmax(2)]), y
    if case == "sure and wrong":
        return OutOfFold(np.eye(3)[(y + 1) % 3], probe.fold, np.eye(3, dtype=np.float32)[probe.probs_pool.argmax(2)]), y
    if case == "a class never predicted":
        probs, pool = probe.probs_labeled * [1, 1, 0], probe.probs_pool * np.array([1, 1, 0], np.float32)
        return OutOfFold(probs / probs.sum(1, keepdims=True), probe.fold, pool / pool.sum(2, keepdims=True)), y
    if case == "two labels":
        pool = np.stack([np.tile(row, (9, 1)) for row in np.eye(2, dtype=np.float32)])
        return OutOfFold(np.eye(2)[::-1], np.array([0, 1]), pool), np.array([0, 1])
    assert case == "one class"
    return OutOfFold(np.ones((4, 1)), np.arange(4), np.ones((4, 9, 1), np.float32)), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    "case",
    [
        "one class has one label",
        "a pool of 3 rows",
        "probabilities of 0 and 1",
        "sure and wrong",
        "a class never predicted",
        "two labels",
        "one class",
    ],
)
@pytest.mark.filterwarnings("error")
def test_degenerate_input_still_gives_shares_within_their_intervals_and_a_p_value(case: str) -> None:
    probe, y = degenerate(case)
    found = pool_shares(probe, y, num_bootstrap=20)
    for interval in (found.em, found.bbse):
        assert interval.shares.sum() == pytest.approx(1, abs=1e-5)
        assert (interval.low >= 0).all()
        assert (interval.high <= 1).all()
        assert (interval.low <= interval.shares + 1e-9).all()
        assert (interval.shares <= interval.high + 1e-9).all()
    assert 0 < missing_at_random_test(probe, y).p_value <= 1


def test_a_class_with_one_label_has_a_wide_interval() -> None:
    probe, y = degenerate("one class has one label")
    found = pool_shares(probe, y, num_bootstrap=60)
    assert found.em.high[2] - found.em.low[2] > 0.3


def test_fewer_labels_than_folds_in_every_class_leave_nothing_to_test() -> None:
    assert missing_at_random_test(*degenerate("two labels"))[:2] == (1.0, 0.0)


def test_no_unlabelled_row_is_an_error() -> None:
    probe, y, _ = exact_probe(60, 200, seed=0)
    empty = probe._replace(probs_pool=probe.probs_pool[:, :0])
    with pytest.raises(ValueError, match="no unlabelled row"):
        pool_shares(empty, y)
    with pytest.raises(ValueError, match="no unlabelled row"):
        missing_at_random_test(empty, y)


def test_the_same_seed_gives_the_same_intervals() -> None:
    probe, y, _ = exact_probe(60, 200, seed=0)
    first, second, other = (pool_shares(probe, y, num_bootstrap=20, seed=seed).em for seed in (0, 0, 1))
    assert np.array_equal(first.low, second.low)
    assert not np.array_equal(first.low, other.low)
