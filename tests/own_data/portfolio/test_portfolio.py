"""The choice among members, on samples whose best choice is known."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pytest

from mnar.own_data.portfolio import fit_portfolio, members_for
from mnar.own_data.portfolio import portfolio as portfolio_module
from mnar.own_data.portfolio.combination import combine, logs
from mnar.own_data.portfolio.cross_validation import Tried
from mnar.own_data.portfolio.graph import fit_graph
from mnar.own_data.portfolio.kernel import fit_kernel
from mnar.own_data.portfolio.linear import fit_linear
from mnar.own_data.portfolio.member import Arrays, Floats, Inputs, Integers, Member, Samples
from mnar.own_data.portfolio.portfolio import Silent, TriedMember
from mnar.own_data.portfolio.scores import Comparison, Score
from mnar.own_data.portfolio.verdict import disagreement, verdict_text
from tests.support.half_labeled import clouds, clouds_and_truth

LINEAR = Member("linear", "logistic regression", fit_linear)
KERNEL = Member("kernel", "kernel regression", fit_kernel)
GRAPH = Member("graph", "label propagation", partial(fit_graph, num_neighbors=5), uses_pool=True)


@dataclass(frozen=True)
class Told:
    """A member that is told the truth, and follows it with a certain probability. A row is known by its features."""

    kind: ClassVar[str] = "told"
    class_of: dict[tuple[float, ...], int]
    num_classes: int
    right: float

    def probs(self, inputs: Inputs) -> Floats:
        truth = np.array([self.class_of[tuple(row)] for row in inputs.features.tolist()], np.int64)
        probs = np.full((len(truth), self.num_classes), (1 - self.right) / (self.num_classes - 1))
        probs[np.arange(len(truth)), truth] = self.right
        return probs

    def arrays(self) -> Arrays:
        raise NotImplementedError

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        raise NotImplementedError


def told(samples: Samples, truth: Integers, right: float, name: str, *, uses_pool: bool = False) -> Member:
    class_of = dict(zip(map(tuple, samples.inputs.features.tolist()), truth.tolist(), strict=True))
    return Member(name, "", lambda _: Told(class_of, samples.num_classes, right), uses_pool=uses_pool)  # type: ignore[arg-type]


def failing(samples: Samples) -> Any:
    raise ValueError("no")


def two_moons(num_labels: int = 24, num_pool: int = 400) -> tuple[Samples, Integers]:
    """Return two half-circles with few labels: a graph follows them, a line does not."""
    from sklearn.datasets import make_moons

    features, truth = make_moons(num_labels + num_pool, noise=0.08, random_state=0)
    y = np.where(np.arange(len(truth)) < num_labels, truth, -1)
    return Samples(Inputs(features.astype(np.float32)), y, 2), truth


def test_a_member_that_knows_the_truth_gets_nearly_all_weight() -> None:
    samples, truth = clouds_and_truth((20, 10, 5), distance=0.5)
    members = [LINEAR, told(samples, truth, 0.95, "oracle")]
    portfolio = fit_portfolio(samples, members)
    assert portfolio.choice is not None
    assert portfolio.choice.names[0] == "oracle"
    assert (portfolio.probs(samples.inputs).argmax(1) == truth).all()
    assert portfolio.choice.balanced_accuracy.value == pytest.approx(1, abs=0.02)


def test_on_two_moons_the_pool_helps_and_is_used() -> None:
    samples, truth = two_moons()
    portfolio = fit_portfolio(samples, [LINEAR, GRAPH])
    choice = portfolio.choice
    assert choice is not None
    assert choice.comparison is not None
    assert choice.comparison.verdict == "helped"
    assert choice.uses_pool
    assert (portfolio.probs(samples.inputs).argmax(1) == truth).mean() > 0.98
    assert choice.names[0] == "graph"
    assert verdict_text(choice, samples.counts, ["a", "b"]).startswith("the unlabelled samples helped: the right class")


def test_a_harmful_member_of_the_pool_is_not_used_and_the_verdict_says_so() -> None:
    samples, truth = clouds_and_truth((40, 30, 20), distance=4.0)
    liar = told(samples, (truth + 1) % 3, 0.9, "liar", uses_pool=True)
    choice = fit_portfolio(samples, [LINEAR, liar]).choice
    assert choice is not None
    assert choice.comparison is not None
    assert choice.comparison.verdict != "helped"
    assert choice.names == ("linear",)
    assert not choice.uses_pool


def test_if_the_labels_alone_predict_better_no_member_of_the_pool_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    worse = Comparison(Score(0.8, 0.7, 0.9), Score(-0.1, -0.2, 0.0), num_labels=100)
    monkeypatch.setattr(portfolio_module, "compare", lambda with_pool, alone, y: worse)
    samples, _ = two_moons()
    portfolio = fit_portfolio(samples, [LINEAR, GRAPH])  # the graph is far better, but the comparison says otherwise
    assert portfolio.choice is not None
    assert portfolio.choice.names == ("linear",)
    assert len(portfolio.members) == 1
    text = verdict_text(portfolio.choice, samples.counts, ["a", "b"])
    assert text.startswith("the unlabelled samples did harm: the right class gets 0.80 times the probability")
    assert text.endswith("the chosen model does not use them")
    assert portfolio.choice.reason.endswith("because the labels alone predict at least as well")


def test_the_chosen_portfolio_is_the_weighted_sum_of_its_members_fitted_to_all_labels() -> None:
    samples = clouds((20, 10, 5), distance=1.5)
    portfolio = fit_portfolio(samples, [LINEAR, KERNEL, GRAPH])
    assert portfolio.choice is not None
    fits = {"linear": fit_linear, "kernel": fit_kernel, "graph": GRAPH.fit}
    weights = {line.name: line.weight for line in portfolio.choice.members if line.weight > 0}
    expected = combine(
        np.stack([logs(fits[name](samples).probs(samples.inputs)) for name in weights]), np.array([*weights.values()])
    )
    np.testing.assert_allclose(portfolio.balanced_probs(samples.inputs), expected)
    np.testing.assert_array_equal(portfolio.probs(samples.inputs), portfolio.balanced_probs(samples.inputs))


def test_the_objective_accuracy_multiplies_by_the_estimated_shares_of_the_pool() -> None:
    samples, truth = clouds_and_truth((100, 100), 1200, distance=1.0)
    kept = np.flatnonzero((samples.y >= 0) | (truth == 0) | (np.arange(len(truth)) % 6 == 1))  # few of class 1
    samples, truth = replace(samples, inputs=samples.inputs.rows(kept), y=samples.y[kept]), truth[kept]
    is_pool = samples.y < 0
    shares = np.bincount(truth[is_pool]) / is_pool.sum()
    right, recall = {}, {}
    for objective in ("balanced_accuracy", "accuracy"):
        portfolio = fit_portfolio(samples, [LINEAR, KERNEL], objective=objective)  # type: ignore[arg-type]
        np.testing.assert_allclose(portfolio.shares, shares, atol=0.15)
        predicted = portfolio.probs(samples.inputs).argmax(1)[is_pool]
        right[objective] = (predicted == truth[is_pool]).mean()
        recall[objective] = np.mean([(predicted == c)[truth[is_pool] == c].mean() for c in range(2)])
        np.testing.assert_allclose(
            portfolio.pool_probs(samples.inputs)[:, 0],
            (probs := portfolio.balanced_probs(samples.inputs) * portfolio.shares)[:, 0] / probs.sum(1),
        )
    assert right["accuracy"] > right["balanced_accuracy"] + 0.02
    assert recall["balanced_accuracy"] > recall["accuracy"]


def test_the_estimated_scores_agree_with_the_truth_on_the_pool() -> None:
    samples, truth = clouds_and_truth((60, 40, 20), 900, distance=1.5)
    portfolio = fit_portfolio(samples, [LINEAR, KERNEL, GRAPH])
    assert portfolio.choice is not None
    is_pool = samples.y < 0
    predicted = portfolio.probs(samples.inputs).argmax(1)[is_pool]
    recalls = [(predicted == c)[truth[is_pool] == c].mean() for c in range(3)]
    score = portfolio.choice.balanced_accuracy
    assert score.low < np.mean(recalls) < score.high
    assert score.high - score.low < 0.3


def test_a_member_that_fails_is_left_out_and_said_so() -> None:
    samples = clouds((9, 9))
    choice = fit_portfolio(samples, [Member("broken", "", failing), LINEAR]).choice
    assert choice is not None
    broken, linear = choice.members
    assert (broken.weight, broken.balanced_accuracy) == (0.0, None)
    assert broken.remark == "left out: could not be fitted (no)"
    assert linear.weight > 0


def test_if_every_member_fails_the_error_gives_the_reasons() -> None:
    with pytest.raises(ValueError, match=r"no member of the portfolio could be fitted: broken could not .*more labels"):
        fit_portfolio(clouds((9, 9)), [Member("broken", "", failing)])


def test_with_no_time_the_first_member_still_gives_a_model() -> None:
    def slow(samples: Samples) -> Any:
        time.sleep(0.02)
        return fit_linear(samples)

    samples = clouds((9, 9))
    choice = fit_portfolio(samples, [LINEAR, Member("slow", "", slow)], seconds=0.0).choice
    assert choice is not None
    assert choice.names == ("linear",)
    assert "are left" in choice.members[1].remark


def test_labels_without_any_pattern_give_undecided_predictions_and_no_claim() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((160, 4)).astype(np.float32)
    y = np.where(np.arange(160) < 60, rng.integers(0, 2, 160), -1)
    samples = Samples(Inputs(features), y, 2)
    portfolio = fit_portfolio(samples, [KERNEL, GRAPH])
    assert portfolio.choice is not None
    assert len(portfolio.members) > 0
    assert np.abs(portfolio.balanced_probs(samples.inputs) - 0.5).mean() < 0.25
    assert portfolio.choice.comparison is not None


@pytest.mark.parametrize(
    "num_labels",
    [
        pytest.param((12, 1, 1), id="classes with a single label"),
        pytest.param((2, 1, 1, 1, 1, 1), id="more classes than folds"),
        pytest.param((9, 0, 9), id="a class without a label"),
    ],
)
def test_few_labels_give_a_model_and_finite_scores(num_labels: tuple[int, ...]) -> None:
    samples = clouds(num_labels, 60)
    portfolio = fit_portfolio(samples, [LINEAR, KERNEL, GRAPH])
    assert portfolio.choice is not None
    assert np.isfinite(portfolio.balanced_probs(samples.inputs)).all()
    assert np.isfinite(portfolio.choice.balanced_accuracy).all()
    assert np.isfinite(portfolio.shares).all()
    assert portfolio.shares.sum() == pytest.approx(1)


def test_without_a_pool_there_is_no_comparison_and_the_shares_are_those_of_the_labels() -> None:
    samples = clouds((30, 10), 0)
    portfolio = fit_portfolio(samples, [LINEAR, KERNEL])
    assert portfolio.choice is not None
    assert portfolio.choice.comparison is None
    assert portfolio.choice.shares is None
    np.testing.assert_allclose(portfolio.shares, [0.75, 0.25])
    assert "every sample has a label" in verdict_text(portfolio.choice, samples.counts, ["a", "b"])


class Diary(Silent):
    """A watcher that notes everything, and gives back kept results."""

    def __init__(self, kept: dict[str, Tried] | None = None) -> None:
        self.notes: list[str] = []
        self.kept = kept if kept is not None else {}

    def started(self, members: Sequence[Member]) -> None:
        self.notes.append(" ".join(member.name for member in members))

    def fold_done(self, name: str, done: int, total: int) -> None:
        self.notes.append(f"{name} {done}/{total}")

    def tried(self, member: TriedMember) -> None:
        self.notes.append(f"{member.name} tried")

    def load(self, name: str) -> Tried | None:
        return self.kept.get(name)

    def keep(self, tried: Tried) -> None:
        self.kept[tried.name] = tried


def test_a_watcher_hears_of_every_fold_and_kept_results_are_used_again() -> None:
    samples, diary = clouds((9, 9)), Diary()
    first = fit_portfolio(samples, [LINEAR, KERNEL], watcher=diary)
    assert diary.notes[0] == "linear kernel"
    assert diary.notes[1:12] == [*(f"linear {n}/10" for n in range(1, 11)), "linear tried"]
    resumed = Diary(diary.kept)
    again = fit_portfolio(samples, [LINEAR, KERNEL], watcher=resumed)
    assert resumed.notes == ["linear kernel", "linear tried", "kernel tried"]
    np.testing.assert_array_equal(again.probs(samples.inputs), first.probs(samples.inputs))


def test_predictions_that_contradict_the_estimated_shares_are_pointed_out() -> None:
    samples, truth = clouds_and_truth((20, 20), 200, distance=4.0)
    choice = fit_portfolio(samples, [LINEAR]).choice
    assert choice is not None
    assert disagreement(choice, truth[samples.y < 0], ["a", "b"]) == ()
    (warning,) = disagreement(choice, np.zeros(200, np.int64), ["a", "b"])
    assert "0.0% of the predictions for the pool are " in warning
    assert ", but the estimated share is " in warning
    assert warning.endswith("--objective accuracy follows the estimated shares")


def test_the_quick_members_of_the_table_find_overlapping_clouds_with_skewed_labels() -> None:
    samples, truth = clouds_and_truth((60, 12, 4), 240, distance=2.5)
    portfolio = fit_portfolio(samples, members_for(samples, fast=True))
    predicted = portfolio.probs(samples.inputs).argmax(1)
    recalls = [(predicted == c)[(truth == c) & (samples.y < 0)].mean() for c in range(3)]
    assert min(recalls) > 0.8
