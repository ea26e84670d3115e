"""The short list of samples to label next in the report. `mnar next` writes a longer one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.next_samples import NextSamples, next_samples
from mnar.own_data.portfolio.member import Floats, Integers, normalized

NUM_SHOWN = 12
MOST_CANDIDATES = 3000  # of the pool, at random; more would take seconds, and the list shows only the first few


def candidates_of(num_rows: int, seed: int) -> npt.NDArray[np.intp]:
    """Return the positions of the rows that are considered, in ascending order."""
    return np.sort(np.random.default_rng(seed).permutation(num_rows)[:MOST_CANDIDATES])


def balanced(pool_probs: Floats, shares: Interval | None) -> Floats:
    """Turn probabilities for the class shares of the pool into probabilities for equally frequent classes, [n, k].

    Without an estimate of the shares, the probabilities stay as they are.
    """
    if shares is None:
        return pool_probs
    in_pool = shares.for_bayes_rule()
    return normalized(np.divide(pool_probs, in_pool, out=np.zeros_like(pool_probs), where=in_pool > 0))


def short_list(
    balanced_probs: Floats,
    features: npt.NDArray[np.floating],
    labeled_features: npt.NDArray[np.floating],
    num_labels: Integers,
    shares: Interval | None,
    class_names: Sequence[str],
    candidates: npt.NDArray[np.intp],
) -> NextSamples | None:
    """Choose a few of the candidates; None without candidates or labels.

    balanced_probs    [n, k] probabilities of the candidates for equally frequent classes
    candidates        [n] their positions in the pool; the result has such positions too
    """
    if not len(candidates) or not len(labeled_features):
        return None
    budget = min(NUM_SHOWN, len(candidates))
    found = next_samples(
        balanced_probs, features, labeled_features, num_labels, shares, budget=budget, class_names=class_names
    )
    return NextSamples(candidates[found.rows], found.reasons)
