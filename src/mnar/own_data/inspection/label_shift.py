"""Which share of the unlabelled pool each class has, how sure that is, and whether labels are missing at random.

Two estimators from the predictions of a probe (probe.py), both for label shift: the classes are mixed otherwise in
the pool than among the labels, but rows of one class look alike in both.
- EM (Saerens, Latinne and Decaestecker, Neural Computation 2002) on probabilities that are first calibrated by a
  temperature and a bias per class (calibration.py).
- BBSE (Lipton, Wang and Smola, ICML 2018): the shares that, through the soft confusion matrix of the labelled rows,
  give the mean prediction on the pool.

A class that nobody has labelled cannot be seen by the probe. Its share is NaN and its interval [0, 1]: unknown. The
shares of the others are then shares of what belongs to them.

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

MAX_BOOTSTRAP_ROWS = 20_000  # of the pool; fewer rows than it has make intervals too wide, not too narrow
NUM_PERMUTATIONS = 999

ASSUMPTIONS = (
    "The null hypothesis is that the labelled rows are a random sample of all rows. The test sees one thing, a "
    "difference between what the probe predicts for labelled rows that it has not seen and for unlabelled ones. It "
    "cannot tell labels missing by class from labels missing by some feature that the probe uses. A large p-value does "
    "not mean that labels are missing at random: there may be too few of them, or the difference may be one that the "
    "probe does not see, as for a class that nobody has labelled."
)


class Interval(NamedTuple):
    shares: Floats  # [k]
    low: Floats
    high: Floats


class PoolShares(NamedTuple):
    em: Interval
    bbse: Interval
    disagree: bool  # more than chance explains: label shift may not hold, so show both


class AtRandomTest(NamedTuple):
    p_value: float
    statistic: float  # about chi-square under the null hypothesis, one degree of freedom per class but one
    assumptions: str


def em_shares(
    probs: npt.NDArray[np.floating],
    labeled_shares: Floats,
    *,
    weights: npt.NDArray[np.floating] | None = None,
    start: Floats | None = None,
    tolerance: float = 1e-7,
) -> Floats:
    """The shares under which the pool is likeliest; `probs` are calibrated to the labelled mix, up to a factor per row.

    A class without labels gets 0.
    """
    seen = labeled_shares > 0
    # float32 and one matrix for both products: half the memory traffic, which is all that an iteration costs
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
    return _spread(precise / precise.sum(), seen, 0.0)


def unmix(confusion: Floats, pool_mean: Floats, fallback: Floats) -> Floats:
    """min |confusionᵀ s - pool_mean|² over the simplex; of several such points, the one nearest to `fallback`."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    towards_fallback, sum_to_one = 1e-3, 100.0  # weights of the rows that make the answer unique, and a share
    num_classes = len(fallback)
    left = np.vstack([confusion.T, towards_fallback * np.eye(num_classes), np.full((1, num_classes), sum_to_one)])
    right = np.concatenate([pool_mean, towards_fallback * fallback, [sum_to_one]])
    shares: Floats = nnls(left, right)[0]
    total: float = shares.sum()
    return shares / total


def pool_shares(
    out_of_fold: OutOfFold, y: Integers, *, num_bootstrap: int = 200, level: float = 0.95, seed: int = 0
) -> PoolShares:
    """Both estimates with bootstrap intervals over labelled rows, within their class, and pool rows.

    The probe is not fitted again: the intervals are about this probe. They are symmetric on the arcsine scale, and
    their width follows Student's t with as many degrees of freedom as a class has labels, less one.
    """
    rng = np.random.default_rng(seed)
    pool, _ = _one_prediction_each(out_of_fold, rng)
    seen = np.bincount(y, minlength=out_of_fold.num_classes) > 0
    y_seen = np.unique(y, return_inverse=True)[1]
    counts = np.bincount(y_seen)
    labeled_shares = counts / counts.sum()
    logs_labeled, logs_pool = smoothed_log(out_of_fold.probs_labeled[:, seen]), smoothed_log(pool[:, seen])

    # A calibration fits best where it has most rows, and EM needs it where the pool has them. So it is fitted a second
    # time with classes weighted half-way, as a geometric mean, from the labelled mix to the pool's: all the way would
    # rest on the few labels of rare classes.
    first = fit_calibration(logs_labeled, y_seen, np.ones(len(y))).best
    towards_pool = np.sqrt(np.clip(_em(logs_pool, first, labeled_shares) / labeled_shares, 0.01, 100))
    class_weights = towards_pool / (towards_pool @ labeled_shares)
    mix = class_weights * labeled_shares
    fit = fit_calibration(logs_labeled, y_seen, class_weights[y_seen])
    em = _em(logs_pool, fit.best, mix)

    # BBSE takes any function of the probabilities. Those of a world with equal classes tell rare ones apart best.
    balanced_labeled, balanced_pool = (_balanced(logs, fit.best, mix) for logs in (logs_labeled, logs_pool))
    # one row more for each class, what calibration expects of it: a single label does not make a confusion
    posterior = fit.best(out_of_fold.probs_labeled[:, seen])
    expected = posterior.T @ balanced_labeled / posterior.sum(0)[:, None]

    def bbse_of(label_weights: Floats, expected_weights: Floats, pool_mean: Floats) -> Floats:
        sums = _sum_by_class(label_weights[:, None] * balanced_labeled, y_seen, len(counts))
        confusion = (sums + expected_weights[:, None] * expected) / (counts + expected_weights)[:, None]
        return unmix(confusion, pool_mean, labeled_shares)

    bbse = bbse_of(np.ones(len(y)), np.ones(len(counts)), balanced_pool.mean(0))

    some = rng.permutation(len(pool))[:MAX_BOOTSTRAP_ROWS]
    logs_some, balanced_some = logs_pool[some].astype(np.float32), balanced_pool[some]
    start = 0.99 * em + 0.01 * mix  # from a share of 0 EM would not move
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
    """EM needs each row's probabilities only up to a factor, so they are not normalised."""
    biased = calibration.scale * logs + (calibration.bias - calibration.bias.max()).astype(logs.dtype)
    return em_shares(np.exp(biased, out=biased), mix, **how)


def _balanced(logs: Floats, calibration: Calibration, mix: Floats) -> Floats:
    return softmax(calibration.scale * logs + calibration.bias - np.log(mix))


def _weights_within_class(y: Integers, counts: Integers, rng: np.random.Generator) -> Floats:
    """A Bayesian bootstrap: gamma weights that sum to each class's count.

    With shape (n - 2) / n the variance of a class mean is the unbiased one, s² / (n - 1) for s² with divisor n.
    """
    shape = np.maximum((counts - 2) / counts, 0.5)
    weights = rng.standard_gamma(shape[y]) + 1e-12
    return weights * (counts / np.bincount(y, weights))[y]


def _interval(
    shares: Floats, draws: Floats, counts: Integers, num_rows: int, seen: npt.NDArray[np.bool_], level: float
) -> Interval:
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    angle = np.arcsin(np.sqrt(shares))
    variance = np.arcsin(np.sqrt(draws)).var(0, ddof=1)
    # The pool is all there is, not a sample, so how its classes vary from resample to resample is no error: 1 / 4n on
    # this scale. A quarter of the variance stays in any case, for shares so small that this is too much.
    error = np.sqrt(np.maximum(variance - 1 / (4 * num_rows), variance / 4))
    reach = stdtrit(np.maximum(counts - 1, 1), (1 + level) / 2) * error
    low, high = (np.sin(np.clip(end, 0, np.pi / 2)) ** 2 for end in (angle - reach, angle + reach))
    return Interval(_spread(shares, seen, np.nan), _spread(low, seen, 0.0), _spread(high, seen, 1.0))


def _disagree(difference: Floats, draws: Floats, level: float) -> bool:
    """Whether some class's estimates differ by more than the bootstrap explains, Bonferroni over the classes."""
    chance = NormalDist().inv_cdf(1 - (1 - level) / (2 * len(difference))) * draws.std(0, ddof=1)
    return bool((np.abs(difference) > chance + 1e-3).any())  # a tenth of a percent is no news


def missing_at_random_test(out_of_fold: OutOfFold, y: Integers, *, seed: int = 0) -> AtRandomTest:
    """Are labelled and unlabelled rows alike to a model that has seen neither? A permutation test.

    Each pool row is given to one fold, so a fold holds labelled and unlabelled rows that its model has not seen. Under
    the null hypothesis they are exchangeable there, and which of them are labelled is permuted within each fold.
    """
    rng = np.random.default_rng(seed)
    pool, fold_of_pool = _one_prediction_each(out_of_fold, rng)
    # A class with fewer labels than folds is left out: the model that predicts its labelled row has seen one label less
    # than most of those that predict the pool, which would look like a difference.
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
    """[k, r]: to unit covariance, without the directions in which nothing varies."""
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    varies = values > 1e-6 * values.max(initial=0)
    whitening: Floats = vectors[:, varies] / np.sqrt(values[varies])
    return whitening


def _one_prediction_each(out_of_fold: OutOfFold, rng: np.random.Generator) -> tuple[Floats, Integers]:
    """Each pool row by one model, drawn at random, as each labelled row has one; and which model."""
    num_folds, num_rows, _ = out_of_fold.probs_pool.shape
    if num_rows == 0:
        raise ValueError("there is no unlabelled row, so there are no shares to estimate and nothing to test")
    fold = rng.permutation(num_rows) % num_folds
    return out_of_fold.probs_pool[fold, np.arange(num_rows)].astype(np.float64), fold


def _sum_by_class(values: npt.NDArray[np.floating], y: Integers, num_classes: int) -> Floats:
    return np.eye(num_classes)[:, y] @ values


def _spread(values: Floats, seen: npt.NDArray[np.bool_], elsewhere: float) -> Floats:
    """Values of the classes that have labels, in the order of all classes."""
    spread = np.full(len(seen), elsewhere)
    spread[seen] = values
    return spread
