"""Predict every labelled sample by members that were not fitted to its label.

All members use the same folds, so their predictions can be compared in pairs. A held-out sample belongs to the pool of
its fold, as it would if its label were missing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.probe import stratified_folds
from mnar.own_data.portfolio.member import Floats, Integers, Member, Samples

NUM_FOLDS = 5
NUM_REPEATS = 2
MOST_SCORED_POOL_ROWS = 5000  # rows of the pool that the models of the first repeat predict, to estimate its shares
# A member that would need this many seconds is left out after its first fold, if it predicts that fold much worse than
# another member.
SLOW = 20.0
MUCH_WORSE = 0.7  # in nats: the right class gets half the probability

# errors of a fit that leave a member out
FAILURES = (ValueError, ArithmeticError, np.linalg.LinAlgError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Folds:
    """The folds of a repeated cross-validation."""

    rows: Integers  # [m] the labelled rows
    y: Integers  # [m] their classes
    fold: Integers  # [repeats, m]
    pool: Integers  # rows of the pool that are predicted too

    @property
    def num_folds(self) -> int:
        return int(self.fold.max()) + 1


@dataclass(frozen=True)
class Tried:
    """What the cross-validation of one member gave."""

    name: str
    uses_pool: bool
    seconds: float
    probs_labeled: Floats  # [repeats, m, k]
    probs_pool: npt.NDArray[np.float32]  # [folds, N, k], by the models of the first repeat


class LeftOut(Exception):
    """A member is left out; the message says why."""


def make_folds(samples: Samples, *, repeats: int = NUM_REPEATS) -> Folds:
    """Divide the labelled samples into folds."""
    rows = np.flatnonzero(samples.is_labeled)
    num_folds = min(NUM_FOLDS, len(rows))
    fold = np.stack([stratified_folds(samples.labels, num_folds, samples.seed + r) for r in range(repeats)])
    rng = np.random.default_rng(samples.seed)
    pool = np.sort(rng.permutation(np.flatnonzero(~samples.is_labeled))[:MOST_SCORED_POOL_ROWS])
    return Folds(rows, samples.labels, fold, pool)


def cross_validate(
    member: Member,
    samples: Samples,
    folds: Folds,
    *,
    until: float,
    best_first_loss: float = np.inf,
    on_fold: Callable[[int, int], None] = lambda done, total: None,
) -> Tried:
    """Fit the member once per fold and repeat.

    until              value of `time.monotonic()` at which the time is up; a member that would need longer is left out
    best_first_loss    loss of the best member so far in the first fold
    on_fold            called with the number of fitted folds and their total
    """
    num_repeats, num_labeled = folds.fold.shape
    probs_labeled = np.zeros((num_repeats, num_labeled, samples.num_classes))
    probs_pool = np.zeros((folds.num_folds, len(folds.pool), samples.num_classes), np.float32)
    start, total = time.monotonic(), num_repeats * folds.num_folds
    done = 0
    for repeat in range(num_repeats):
        for j in range(folds.num_folds):
            fit_start = time.monotonic()
            held_out = np.flatnonzero(folds.fold[repeat] == j)
            try:
                with warnings.catch_warnings():
                    # e.g. about an optimiser that stopped early; the score shows whether this matters
                    warnings.simplefilter("ignore")
                    fitted = member.fit(samples.without_labels(folds.rows[held_out]))
                    probs_labeled[repeat, held_out] = fitted.probs(samples.inputs.rows(folds.rows[held_out]))
                    if repeat == 0:
                        probs_pool[j] = fitted.probs(samples.inputs.rows(folds.pool))
            except FAILURES as error:
                raise LeftOut(f"could not be fitted ({' '.join(str(error).split())})") from error
            done += 1
            on_fold(done, total)
            now = time.monotonic()
            needed = _seconds_needed(now - fit_start, done, folds)
            # The first fit may be much slower than the others, because it computes what all fits share.
            if now + (needed if done > 1 else 0) > until:
                left = max(0.0, until - now)
                raise LeftOut(f"would need {needed:.0f} more seconds, but only {left:.0f} are left")
            if done == 1 and needed > SLOW:
                loss = weighted_loss(probs_labeled[0, held_out], folds.y[held_out])
                if loss > best_first_loss + MUCH_WORSE:
                    raise LeftOut("is much worse than another member in the first fold")
        if time.monotonic() - start > SLOW / num_repeats:
            # A slow member is not fitted again for further repeats. Each row still has a prediction by a model that was
            # not fitted to its label.
            probs_labeled[repeat + 1 :] = probs_labeled[repeat]
            on_fold(total, total)
            break
    if not (np.isfinite(probs_labeled).all() and np.isfinite(probs_pool).all()):
        raise LeftOut("predicts values that are not finite numbers")
    return Tried(member.name, member.uses_pool, time.monotonic() - start, probs_labeled, probs_pool)


def _seconds_needed(seconds_per_fit: float, done: int, folds: Folds) -> float:
    """Return the time that a member still needs, with one more fit to all labels at the end."""
    num_repeats = len(folds.fold)
    is_slow = seconds_per_fit * folds.num_folds > SLOW / num_repeats  # a slow member has only one repeat
    num_fits = folds.num_folds * (1 if is_slow else num_repeats)
    return seconds_per_fit * max(1, num_fits - done + 1)


def first_loss(tried: Tried, folds: Folds) -> float:
    """Return the loss of a member in the first fold of the first repeat."""
    held_out = folds.fold[0] == 0
    return weighted_loss(tried.probs_labeled[0, held_out], folds.y[held_out])


def weighted_loss(probs: Floats, y: Integers, *, floor: float = 0.01) -> float:
    """Return the mean over the classes of the mean negative log-probability of the right class."""
    losses = -np.log(probs[np.arange(len(y)), y] + floor)
    return float(np.mean([losses[y == c].mean() for c in np.unique(y)]))
