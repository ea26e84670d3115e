"""Estimate the class shares of the unlabelled pool, with intervals, and test whether labels are missing at random.

Two estimators use the predictions of a probe (probe.py). Both assume label shift: the class distribution of the pool
differs from that of the labels, but labelled and unlabelled rows of one class look alike.
- EM (Saerens, Latinne and Decaestecker, Neural Computation 2002) on probabilities that are first calibrated by a
  temperature and a bias per class (calibration.py).
- BBSE (Lipton, Wang and Smola, ICML 2018) finds the class shares for which the soft confusion matrix of the labelled
  rows predicts the mean prediction on the pool.

The probe cannot recognise a class without labels. The share of such a class is NaN and its interval is [0, 1]: unknown.
The shares of the other classes are then shares of the pool without that class.

paper    here         meaning
C        confusion    [k, k]: mean prediction for labelled rows of each class    BBSE
mu       pool_mean    [k]: mean prediction on the pool                           BBSE
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.calibration import Calibration, fit_calibration, smoothed_log, softmax
from mnar.own_data.inspection.probe import Floats, Integers, OutOfFold

# Rows of the pool that the bootstrap uses. Using fewer rows than the pool has makes intervals too wide, not too narrow.
MAX_BOOTSTRAP_ROWS = 20_000
NUM_PERMUTATIONS = 999

ASSUMPTIONS = (
    "The null hypothesis is that the labelled samples are a random sample of all samples. The test detects only one "
    "thing: a difference between the probe's predictions for labelled samples that it was not trained on and its "
    "predictions for unlabelled samples. The test cannot distinguish labels that are missing by class from labels that "
    "are missing by a feature that the probe uses. A large p-value does not prove that labels are missing at random. "
    "There may be too few labels, or the probe may not see the difference, for example if a class has no label at all."
)


class Interval(NamedTuple):
    """Estimated class shares of the pool, with the ends of their confidence intervals."""

    shares: Floats  # [k]
    low: Floats
    high: Floats

    def for_bayes_rule(self) -> Floats:
        """Return class shares that sum to 1 and exclude no class, except those whose share is unknown.

        An estimate of 0 with an interval up to 1 % does not exclude the class, so the ends of the interval count too.
        """
        known = np.where(np.isnan(self.shares), 0, (self.low + 2 * self.shares + self.high) / 4)
        relative: Floats = known / known.sum()
        return relative


class PoolShares(NamedTuple):
    """Both estimates of the class shares of the pool."""

    em: Interval
    bbse: Interval
    disagree: bool  # they differ by more than chance explains: label shift may not hold, so both should be shown


class AtRandomTest(NamedTuple):
    """Result of the test whether labels are missing at random."""

    p_value: float
    statistic: float  # about chi-square under the null hypothesis; degrees of freedom: number of classes minus one
    assumptions: str  # what the test can and cannot detect, in sentences


def em_shares(
    probs: npt.NDArray[np.floating],
    labeled_shares: Floats,
    *,
    weights: npt.NDArray[np.floating] | None = None,
    start: Floats | None = None,
    tolerance: float = 1e-7,
) -> Floats:
    """Return the class shares that maximise the likelihood of the pool.

    probs             [n, k] predictions for the pool, calibrated to `labeled_shares`; each row up to a factor
    labeled_shares    [k] class distribution of the labels; a class without labels gets share 0 in the result
    weights           [n] weights of the rows; None: all equal
    start             [k] shares to start from; None: `labeled_shares`
    tolerance         the iteration ends when no share changes by more than this
    """
    seen = labeled_shares > 0
    # float32 and one matrix for both products halve the memory traffic, which dominates the cost of an iteration
    ratios = np.ascontiguousarray(probs[:, seen] / labeled_shares[seen], dtype=np.float32)
    row_weights = np.ones(len(ratios), np.float32) if weights is None else weights.astype(np.float32)
    row_weights = row_weights / row_weights.sum()
    shares = (labeled_shares if start is None else start)[seen].astype(np.float32)
    for _ in range(1000):
        before = shares
        mixture = np.maximum(ratios @ shares, np.finfo(np.float32).tiny)
        shares = shares * ((row_weights / mixture) @ ratios)
        shares = shares / shares.sum()
        if np.abs(shares - before).max() < tolerance:
            break
    precise = shares.astype(np.float64)
    return _for_all_classes(precise / precise.sum(), seen, 0.0)


def unmix(confusion: Floats, pool_mean: Floats, fallback: Floats) -> Floats:
    """Return the shares s on the simplex that minimise |confusionᵀ s - pool_mean|².

    If several points minimise it, the result is the one nearest to `fallback`.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    towards_fallback, sum_to_one = 1e-3, 100.0  # weights of the rows that make the solution unique and its sum 1
    num_classes = len(fallback)
    left = np.vstack([confusion.T, towards_fallback * np.eye(num_classes), np.full((1, num_classes), sum_to_one)])
    right = np.concatenate([pool_mean, towards_fallback * fallback, [sum_to_one]])
    shares: Floats = nnls(left, right)[0]
    total: float = shares.sum()
    return shares / total


def pool_shares(
    out_of_fold: OutOfFold, y: Integers, *, num_bootstrap: int = 200, level: float = 0.95, seed: int = 0
) -> PoolShares:
    """Estimate the class shares by EM and by BBSE, with bootstrap intervals at confidence `level`.

    The bootstrap resamples the labelled rows within their class, and the pool rows. The probe is not trained again, so
    the intervals hold for this probe. They are symmetric on the arcsine scale. Their width follows Student's t, with
    the number of labels of the class minus one as degrees of freedom.
    """
    rng = np.random.default_rng(seed)
    pool, _ = _one_prediction_each(out_of_fold, rng)
    seen = np.bincount(y, minlength=out_of_fold.num_classes) > 0
    y_seen = np.unique(y, return_inverse=True)[1]
    counts = np.bincount(y_seen)
    labeled_shares = counts / counts.sum()
    logs_labeled, logs_pool = smoothed_log(out_of_fold.probs_labeled[:, seen]), smoothed_log(pool[:, seen])

    # A calibration fits best for the classes with most rows, but EM needs it for the classes that are frequent in the
    # pool. So it is fitted a second time with weighted classes: their weighted distribution is half-way, as a geometric
    # mean, between that of the labels and that of the pool. Going all the way would rely on the few labels of rare
    # classes.
    first = fit_calibration(logs_labeled, y_seen, np.ones(len(y))).best
    towards_pool = np.sqrt(np.clip(_em(logs_pool, first, labeled_shares) / labeled_shares, 0.01, 100))
    class_weights = towards_pool / (towards_pool @ labeled_shares)
    mix = class_weights * labeled_shares
    fit = fit_calibration(logs_labeled, y_seen, class_weights[y_seen])
    em = _em(logs_pool, fit.best, mix)

    # BBSE works with any function of the probabilities. Probabilities under equal class shares separate rare classes
    # best.
    balanced_labeled, balanced_pool = (_balanced(logs, fit.best, mix) for logs in (logs_labeled, logs_pool))
    # Each class gets one additional row, the expectation under the calibration, because a single label does not
    # determine a row of the confusion matrix.
    posterior = fit.best(out_of_fold.probs_labeled[:, seen])
    expected = posterior.T @ balanced_labeled / posterior.sum(0)[:, None]

    def bbse_of(label_weights: Floats, expected_weights: Floats, pool_mean: Floats) -> Floats:
        sums = _sum_by_class(label_weights[:, None] * balanced_labeled, y_seen, len(counts))
        confusion = (sums + expected_weights[:, None] * expected) / (counts + expected_weights)[:, None]
        return unmix(confusion, pool_mean, labeled_shares)

    bbse = bbse_of(np.ones(len(y)), np.ones(len(counts)), balanced_pool.mean(0))

    some = rng.permutation(len(pool))[:MAX_BOOTSTRAP_ROWS]
    logs_some, balanced_some = logs_pool[some].astype(np.float32), balanced_pool[some]
    start = 0.99 * em + 0.01 * mix  # EM cannot leave a share of 0
    em_draws, bbse_draws = np.empty((2, num_bootstrap, len(counts)))
    for b in range(num_bootstrap):
        label_weights = _weights_within_class(y_seen, counts, rng)
        pool_weights = rng.standard_exponential(len(some))
        calibration = fit.resampled(class_weights[y_seen] * (label_weights - 1), rng)
        em_draws[b] = _em(logs_some, calibration, mix, weights=pool_weights, start=start, tolerance=1e-5)
        pool_mean = pool_weights @ balanced_some / pool_weights.sum()
        bbse_draws[b] = bbse_of(label_weights, rng.standard_exponential(len(counts)), pool_mean)
    return PoolShares(
        _interval(em, em_draws, counts, len(some), seen, level),
        _interval(bbse, bbse_draws, counts, len(some), seen, level),
        _disagree(em - bbse, em_draws - bbse_draws, level),
    )


def _em(logs: npt.NDArray[np.floating], calibration: Calibration, mix: Floats, **how: Any) -> Floats:
    """Run EM on calibrated predictions. EM needs them only up to a factor per row, so they are not normalised."""
    biased = calibration.scale * logs + (calibration.bias - calibration.bias.max()).astype(logs.dtype)
    return em_shares(np.exp(biased, out=biased), mix, **how)


def _balanced(logs: Floats, calibration: Calibration, mix: Floats) -> Floats:
    """Return calibrated probabilities as they would be if all classes were equally frequent."""
    return softmax(calibration.scale * logs + calibration.bias - np.log(mix))


def _weights_within_class(y: Integers, counts: Integers, rng: np.random.Generator) -> Floats:
    """Draw row weights of a Bayesian bootstrap: gamma weights that sum to the number of labels in each class.

    With shape (n - 2) / n the variance of a class mean is the unbiased one, s² / (n - 1) for s² with divisor n.
    """
    shape = np.maximum((counts - 2) / counts, 0.5)
    weights = rng.standard_gamma(shape[y]) + 1e-12
    return weights * (counts / np.bincount(y, weights))[y]


def _interval(
    shares: Floats, draws: Floats, counts: Integers, num_rows: int, seen: npt.NDArray[np.bool_], level: float
) -> Interval:
    """Return the interval of each class from bootstrap draws; `num_rows` is the number of resampled pool rows."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    angle = np.arcsin(np.sqrt(shares))
    variance = np.arcsin(np.sqrt(draws)).var(0, ddof=1)
    # The pool is the whole population, not a sample. So the variation of its class shares between resamples, 1 / 4n on
    # this scale, is not an error and is subtracted. At least a quarter of the variance stays, because for very small
    # shares this subtraction is too large.
    error = np.sqrt(np.maximum(variance - 1 / (4 * num_rows), variance / 4))
    reach = stdtrit(np.maximum(counts - 1, 1), (1 + level) / 2) * error
    low, high = (np.sin(np.clip(end, 0, np.pi / 2)) ** 2 for end in (angle - reach, angle + reach))
    return Interval(
        _for_all_classes(shares, seen, np.nan),
        _for_all_classes(low, seen, 0.0),
        _for_all_classes(high, seen, 1.0),
    )


def _disagree(difference: Floats, draws: Floats, level: float) -> bool:
    """Return whether the two estimates of any class differ by more than chance (Bonferroni over the classes)."""
    chance = NormalDist().inv_cdf(1 - (1 - level) / (2 * len(difference))) * draws.std(0, ddof=1)
    return bool((np.abs(difference) > chance + 1e-3).any())  # differences below 0.1 % do not matter


def missing_at_random_test(out_of_fold: OutOfFold, y: Integers, *, seed: int = 0) -> AtRandomTest:
    """Test whether a model predicts the same for labelled and unlabelled rows that it was not trained on.

    This is a permutation test. Each pool row is assigned to one fold, so a fold has labelled and unlabelled rows that
    its model was not trained on. Under the null hypothesis these rows are exchangeable, so the test permutes within
    each fold which of them are labelled.
    """
    rng = np.random.default_rng(seed)
    pool, fold_of_pool = _one_prediction_each(out_of_fold, rng)
    # A class with fewer labels than folds is left out. The model that predicts a labelled row of the class was trained
    # on one label fewer than most models that predict the pool, which would look like a difference.
    num_folds = len(out_of_fold.probs_pool)
    compared = np.bincount(y, minlength=out_of_fold.num_classes) >= num_folds
    groups = [
        (out_of_fold.probs_labeled[out_of_fold.fold == j][:, compared], pool[fold_of_pool == j][:, compared])
        for j in range(num_folds)
    ]
    groups = [(labeled, unlabeled) for labeled, unlabeled in groups if len(unlabeled)]
    stacked = [np.vstack(group) for group in groups]
    centred = [rows - rows.mean(0) for rows in stacked]
    whitening = _whitening(np.vstack(centred))
    whitened = [rows @ whitening for rows in centred]
    sizes = np.array([(len(labeled), len(unlabeled)) for labeled, unlabeled in groups])
    factors = (1 + sizes[:, 0] / sizes[:, 1]) / sizes[:, 0].sum()  # from a sum of centred rows to a weighted difference
    variance = (factors**2 * sizes.prod(1) / sizes.sum(1)).sum()

    def statistic(chosen: list[Integers]) -> float:
        sums = [rows[index].sum(0) for rows, index in zip(whitened, chosen, strict=True)]
        return float(((factors @ sums) ** 2).sum() / variance)

    found = statistic([np.arange(num_labeled) for num_labeled in sizes[:, 0]])
    permuted = [
        statistic([rng.permutation(labeled + unlabeled)[:labeled] for labeled, unlabeled in sizes])
        for _ in range(NUM_PERMUTATIONS)
    ]
    as_large = sum(value >= found * (1 - 1e-9) for value in permuted)
    return AtRandomTest((1 + as_large) / (1 + NUM_PERMUTATIONS), found, ASSUMPTIONS)


def _whitening(centred: Floats) -> Floats:
    """Return a matrix [k, r] that whitens to unit covariance and drops directions without variance."""
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    varies = values > 1e-6 * values.max(initial=0)
    whitening: Floats = vectors[:, varies] / np.sqrt(values[varies])
    return whitening


def _one_prediction_each(out_of_fold: OutOfFold, rng: np.random.Generator) -> tuple[Floats, Integers]:
    """Return one prediction for each pool row, by a randomly drawn model, and the number of that model.

    Each labelled row has one out-of-fold prediction too.
    """
    num_folds, num_rows, _ = out_of_fold.probs_pool.shape
    if num_rows == 0:
        raise ValueError(
            "there is no unlabelled row, so there are no class shares to estimate and nothing to test; "
            "give rows without a label"
        )
    fold = rng.permutation(num_rows) % num_folds
    return out_of_fold.probs_pool[fold, np.arange(num_rows)].astype(np.float64), fold


def _sum_by_class(values: npt.NDArray[np.floating], y: Integers, num_classes: int) -> Floats:
    """Return the sum of the rows of each class, [num_classes, ...]."""
    return np.eye(num_classes)[:, y] @ values


def _for_all_classes(values: Floats, seen: npt.NDArray[np.bool_], for_unlabeled: float) -> Floats:
    """Expand values of the classes that have labels to all classes; the other classes get `for_unlabeled`."""
    expanded = np.full(len(seen), for_unlabeled)
    expanded[seen] = values
    return expanded
