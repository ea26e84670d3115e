from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pytest

from mnar.own_data.portfolio import cross_validation
from mnar.own_data.portfolio.cross_validation import (
    LeftOut,
    cross_validate,
    first_loss,
    make_folds,
    weighted_loss,
)
from mnar.own_data.portfolio.member import Arrays, Floats, Inputs, Member, Samples
from tests.support.half_labeled import clouds

FOREVER = np.inf


@dataclass(frozen=True)
class Memory:
    """A member that is sure of the rows whose labels it saw, and undecided elsewhere. A row is its own number."""

    kind: ClassVar[str] = "memory"
    class_of: dict[float, int]
    num_classes: int

    def probs(self, inputs: Inputs) -> Floats:
        rows = inputs.features[:, 0].tolist()
        undecided = np.full(self.num_classes, 1 / self.num_classes)
        known = [np.eye(self.num_classes)[self.class_of[r]] if r in self.class_of else undecided for r in rows]
        return np.array(known).reshape(len(rows), self.num_classes)

    def arrays(self) -> Arrays:
        raise NotImplementedError

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        raise NotImplementedError


def fit_memory(samples: Samples) -> Memory:
    rows = samples.labeled_features[:, 0].tolist()
    return Memory(dict(zip(rows, samples.labels.tolist(), strict=True)), samples.num_classes)


def numbered(y: list[int], num_classes: int) -> Samples:
    features = np.arange(len(y), dtype=np.float32)[:, None]
    return Samples(Inputs(features), np.array(y), num_classes)


def member(fit: Callable[[Samples], Any]) -> Member:
    return Member("memory", "a member that memorises", fit)


@pytest.mark.parametrize(
    "y",
    [
        pytest.param([0, 1] * 10 + [-1] * 7, id="two classes"),
        pytest.param([0] * 9 + [1, 2, 3] + [-1] * 4, id="classes with a single label"),
        pytest.param([0, 1, 2, 3, 4, 5, 6, 7, 8, -1], id="more classes than folds"),
        pytest.param([0, 1, 1], id="fewer labels than folds, and no pool"),
        pytest.param([0, 0, 2, 2, -1], id="a class without labels"),
    ],
)
def test_no_label_is_predicted_by_a_member_that_was_fitted_to_it(y: list[int]) -> None:
    samples = numbered(y, 9)
    folds = make_folds(samples)
    tried = cross_validate(member(fit_memory), samples, folds, until=FOREVER)
    np.testing.assert_allclose(tried.probs_labeled, 1 / 9)
    assert tried.probs_labeled.shape == (2, sum(c >= 0 for c in y), 9)
    assert tried.probs_pool.shape == (folds.num_folds, sum(c < 0 for c in y), 9)


def test_every_fold_fits_all_other_labels_and_has_the_held_out_rows_in_its_pool() -> None:
    samples, seen = numbered([0, 1] * 10 + [-1] * 7, 2), []

    def fit(part: Samples) -> Memory:
        seen.append((len(part.labels), len(part.pool_features)))
        return fit_memory(part)

    cross_validate(member(fit), samples, make_folds(samples), until=FOREVER)
    assert seen == [(16, 11)] * 10


def test_the_repeats_have_different_folds_and_the_scored_pool_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_validation, "MOST_SCORED_POOL_ROWS", 3)
    folds = make_folds(clouds((10, 10), 20))
    assert not np.array_equal(*folds.fold)
    assert len(folds.pool) == 3
    assert (folds.pool >= 20).all()


def failing(samples: Samples) -> Any:
    raise ValueError("the matrix is\n   singular")


def test_a_member_that_raises_is_left_out_with_its_message() -> None:
    samples = clouds((5, 5))
    with pytest.raises(LeftOut, match=r"could not be fitted \(the matrix is singular\)"):
        cross_validate(member(failing), samples, make_folds(samples), until=FOREVER)


@pytest.mark.parametrize("is_pool", [False, True])
def test_a_member_that_predicts_nan_for_labels_or_pool_is_left_out(is_pool: bool) -> None:
    class Broken(Memory):
        def probs(self, inputs: Inputs) -> Floats:
            is_hit = (inputs.features[:, 0] >= 10) == is_pool
            return np.where(is_hit[:, None], np.nan, super().probs(inputs))

    samples = numbered([0, 1] * 5 + [-1] * 7, 2)
    with pytest.raises(LeftOut, match="not finite"):
        cross_validate(member(lambda part: Broken({}, 2)), samples, make_folds(samples), until=FOREVER)


def test_a_member_that_would_run_out_of_time_is_left_out_after_two_fits() -> None:
    samples, num_fits = clouds((5, 5)), []

    def slow(part: Samples) -> Memory:
        num_fits.append(1)
        time.sleep(0.05)
        return fit_memory(part)

    with pytest.raises(LeftOut, match=r"would need \d more seconds, but only \d are left"):
        cross_validate(member(slow), samples, make_folds(samples), until=time.monotonic() + 0.4)
    assert len(num_fits) == 2, "the first fit may be slower than the others, so it does not decide"


def test_a_member_whose_first_fit_computes_what_all_fits_share_is_not_left_out() -> None:
    samples, num_fits = clouds((5, 5)), []

    def slow_at_first(part: Samples) -> Memory:
        num_fits.append(1)
        time.sleep(0.3 if len(num_fits) == 1 else 0)
        return fit_memory(part)

    tried = cross_validate(member(slow_at_first), samples, make_folds(samples), until=time.monotonic() + 2)
    assert len(num_fits) == tried.probs_labeled.shape[0] * make_folds(samples).num_folds


def test_a_slow_member_is_left_out_after_one_fold_only_if_it_is_much_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_validation, "SLOW", 0.0)
    samples = numbered([0, 1] * 10, 2)
    folds = make_folds(samples)
    undecided = -np.log(0.5 + 0.01)
    tried = cross_validate(member(fit_memory), samples, folds, until=FOREVER, best_first_loss=undecided - 0.6)
    assert first_loss(tried, folds) == pytest.approx(undecided)
    with pytest.raises(LeftOut, match="much worse than another member in the first fold"):
        cross_validate(member(fit_memory), samples, folds, until=FOREVER, best_first_loss=undecided - 0.8)


def test_progress_counts_the_fits_of_all_repeats() -> None:
    samples, calls = clouds((5, 5)), list[tuple[int, int]]()

    def note(done: int, total: int) -> None:
        calls.append((done, total))

    cross_validate(member(fit_memory), samples, make_folds(samples), until=FOREVER, on_fold=note)
    assert calls == [(done, 10) for done in range(1, 11)]


def test_the_loss_gives_every_class_the_same_weight() -> None:
    probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    expected = (-np.log(0.9) - np.log(0.4)) / 2
    assert weighted_loss(probs, np.array([0, 0, 0, 1]), floor=0.0) == pytest.approx(expected)
