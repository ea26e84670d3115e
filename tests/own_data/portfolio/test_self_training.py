"""Self-training: what the guidances see, what they change, and the rounds."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from torch import Tensor

from mnar.guidances import (
    CADR,
    DARP,
    GUIDANCES,
    PRG,
    CReST,
    DistributionAlignment,
    Guidance,
    NoGuidance,
    SimPro,
    class_of,
)
from mnar.own_data.portfolio.member import Integers, balanced
from mnar.own_data.portfolio.self_training import (
    BY_NAME,
    NEED_A_NETWORK,
    NETWORK_HOOKS,
    make_guidance,
    rectify,
    self_train,
)
from mnar.types import Task
from tests.support.half_labeled import clouds_and_truth

USABLE = ["cadr", "darp", "distribution_alignment", "none", "prg", "prg_last", "prg_smooth", "simpro", "tracking"]


def fit_regression(x: Any, y: npt.NDArray[Any]) -> Any:
    return LogisticRegression().fit(x, y)


class Watched(NoGuidance):
    """Keeps what it sees, and may claim to change the labelled loss of a network."""

    def __init__(self, task: Task, *, supervised: bool = False) -> None:
        super().__init__(task)
        self.seen = torch.full((task.num_unlabeled, task.num_classes), torch.nan)
        if supervised:
            self.needs = frozenset({"supervised"})  # type: ignore[misc]

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.seen[index] = probs
        return super().forward(probs, index)


def data(num_labels: tuple[int, ...] = (40, 12, 4), distance: float = 1.5) -> tuple[Any, Integers, Integers]:
    samples, truth = clouds_and_truth(num_labels, 300, distance=distance)
    return samples.inputs.features, samples.y, truth


def literal_self_training(x: Any, y: Integers, rounds: int, threshold: float) -> tuple[Any, Integers]:
    """Plain self-training with a loop over the rows of the pool."""
    model, before = LogisticRegression().fit(x[y >= 0], y[y >= 0]), None
    for _ in range(rounds):
        full = list(y)
        for row in np.flatnonzero(y < 0):
            probs = model.predict_proba(x[row : row + 1])[0]
            if np.float32(probs.max()) >= np.float32(threshold):
                full[row] = int(probs.argmax())
        if full == before:
            break
        before, used = full, [row for row in range(len(y)) if full[row] >= 0]
        model = LogisticRegression().fit(x[used], np.array(full)[used])
    return model, np.array(full)[y < 0]


@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_without_a_guidance_it_equals_literal_self_training(rounds: int) -> None:
    x, y, _ = data()
    result = self_train(fit_regression, x, y, classes=np.arange(3), guidance="none", rounds=rounds)
    model, pseudo_labels = literal_self_training(x, y, rounds, 0.8)
    np.testing.assert_array_equal(result.pseudo_labels, pseudo_labels)
    np.testing.assert_allclose(result.model.predict_proba(x), model.predict_proba(x), atol=1e-3)
    used = result.pseudo_labels[result.pseudo_labels >= 0]
    np.testing.assert_array_equal(result.train_counts, np.bincount(y[y >= 0]) + np.bincount(used, minlength=3))
    assert result.num_rounds == rounds if rounds < 20 else result.num_rounds < 20


@pytest.mark.parametrize("supervised", [False, True])
def test_a_guidance_gets_raw_probabilities_and_balanced_ones_if_it_changes_the_labelled_loss(supervised: bool) -> None:
    x, y, _ = data()
    result = self_train(
        fit_regression, x, y, classes=np.arange(3), guidance=partial(Watched, supervised=supervised), rounds=1
    )
    raw = fit_regression(x[y >= 0], y[y >= 0]).predict_proba(x[y < 0])
    expected = balanced(raw, np.array([40, 12, 4])) if supervised else raw
    np.testing.assert_allclose(result.guidance.seen, expected, atol=1e-6)
    forced = self_train(fit_regression, x, y, classes=np.arange(3), guidance=Watched, rounds=1, balance=True)
    np.testing.assert_allclose(forced.guidance.seen, balanced(raw, np.array([40, 12, 4])), atol=1e-6)


def test_cadr_and_simpro_get_balanced_probabilities_and_the_others_raw_ones() -> None:
    task = Task(3, 10, torch.tensor([0, 1, 2]))
    assert [name for name in USABLE if "supervised" in make_guidance(name, task).needs] == ["cadr", "simpro"]


def both_rounds(guidance: str) -> tuple[Any, Any]:
    x, y, _ = data()
    made = [
        self_train(fit_regression, x, y, classes=np.arange(3), guidance=name, rounds=4) for name in (guidance, "none")
    ]
    return made[0], made[1]


@pytest.mark.parametrize("guidance", sorted(set(USABLE) - {"none", "tracking"}))
def test_a_guidance_changes_pseudo_labels_of_the_pool(guidance: str) -> None:
    guided, plain = both_rounds(guidance)
    assert (guided.pseudo_labels != plain.pseudo_labels).mean() > 0.02


def test_tracking_counts_transitions_and_changes_nothing() -> None:
    guided, plain = both_rounds("tracking")
    np.testing.assert_array_equal(guided.pseudo_labels, plain.pseudo_labels)
    assert guided.guidance.transitions.sum() > 0


def test_prg_counts_the_moves_of_the_predicted_classes_from_round_to_round() -> None:
    x, y, _ = data()
    predicted = []

    class Recorded(LogisticRegression):  # type: ignore[misc]
        def predict_proba(self, rows: Any) -> Any:
            probs = super().predict_proba(rows)
            predicted.append(probs.argmax(1))
            return probs

    result = self_train(
        lambda rows, labels: Recorded().fit(rows, labels), x, y, classes=np.arange(3), guidance="prg", rounds=3
    )
    expected = np.zeros((3, 3))
    for before, after in pairwise(predicted):
        np.add.at(expected, (before, after), before != after)
    assert expected.sum() > 0
    np.testing.assert_array_equal(result.guidance.transitions, expected)


def test_in_the_first_round_prg_leaves_predictions_and_threshold_alone() -> None:
    x, y, _ = data()
    results = [
        self_train(fit_regression, x, y, classes=np.arange(3), guidance=name, rounds=1) for name in ("prg", "none")
    ]
    np.testing.assert_array_equal(results[0].pseudo_labels, results[1].pseudo_labels)


def test_simpro_estimates_the_shares_of_the_pool() -> None:
    samples, truth = clouds_and_truth((60, 20, 6), 900, distance=3.0)
    keep = np.flatnonzero((samples.y >= 0) | (truth != 0) | (np.arange(len(truth)) % 2 == 0))  # half of class 0
    x, y = samples.inputs.features[keep], samples.y[keep]
    result = self_train(fit_regression, x, y, classes=np.arange(3), guidance="simpro")
    shares = np.bincount(truth[keep][y < 0]) / (y < 0).sum()
    np.testing.assert_allclose(result.guidance.pool_prior, shares, atol=0.06)


def test_cadr_lowers_the_threshold_of_rare_classes() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([3, 1], 400)
    guide = make_guidance("cadr", Task(2, 400, torch.tensor([0, 1])))
    rectified, needed = rectify(guide, probs, 0.8, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(rectified, probs, atol=1e-6)
    of_rare = needed[probs.argmax(1) == 1]
    assert of_rare.min() == pytest.approx(0.8 * np.sqrt(1 / 3), rel=0.1)  # the prior is 3/4 and 1/4, and beta is 1/2
    assert of_rare.max() < 0.8
    assert needed[probs.argmax(1) == 0].max() == pytest.approx(0.8)


def test_pseudo_labels_are_used_by_the_threshold_of_their_class() -> None:
    class Lenient(NoGuidance):
        """Accepts every pseudo-label of class 2, and none of the others."""

        def threshold(self, q: Tensor, tau: float | Tensor) -> Tensor:
            return torch.where(q.argmax(1) == 2, 0.0, 2.0)

    x, y, _ = data()
    result = self_train(fit_regression, x, y, classes=np.arange(3), guidance=Lenient, rounds=1)
    predicted = fit_regression(x[y >= 0], y[y >= 0]).predict(x[y < 0])
    np.testing.assert_array_equal(result.pseudo_labels, np.where(predicted == 2, 2, -1))
    assert result.train_counts[2] > 4


def test_darp_returns_the_solution_for_the_predictions_of_the_same_round() -> None:
    probs = np.random.default_rng(0).dirichlet([3, 1, 1], 100)
    target = (20.0, 40.0, 40.0)
    guide = DARP(Task(3, 100, torch.tensor([0, 1, 2])), target=target)
    rectified, _ = rectify(guide, probs, 0.8, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(rectified.sum(0), target, atol=2)
    np.testing.assert_allclose(guide.store[:-1], probs, atol=1e-6)


def test_alignment_gives_the_pseudo_labels_the_wanted_distribution() -> None:
    probs = np.random.default_rng(0).dirichlet([5, 2], 2000)
    guide = DistributionAlignment(Task(2, 2000, torch.tensor([0, 1])), target="uniform")
    rectified, _ = rectify(guide, probs, 0.8, torch.Generator().manual_seed(0))
    assert probs.mean(0)[0] > 0.65
    np.testing.assert_allclose(rectified.mean(0), 0.5, atol=0.05)


@pytest.mark.parametrize("num_pool", [1, 2, 33, 1000])
def test_every_row_of_the_pool_passes_once_whatever_the_size(num_pool: int) -> None:
    probs = np.random.default_rng(0).dirichlet([1, 1], num_pool)
    guide = Watched(Task(2, num_pool, torch.tensor([0, 1]), batch_unlabeled=448))
    rectified, needed = rectify(guide, probs, 0.8, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(guide.seen, probs, atol=1e-6)
    np.testing.assert_allclose(rectified, probs, atol=1e-6)
    assert needed == pytest.approx([0.8] * num_pool)


@pytest.mark.parametrize("guidance", USABLE)
def test_a_pool_of_one_row_is_enough(guidance: str) -> None:
    x, y, _ = data()
    rows = [*np.flatnonzero(y >= 0).tolist(), len(y) - 1]
    result = self_train(fit_regression, x[rows], y[rows], classes=np.arange(3), guidance=guidance)
    assert result.pseudo_labels.shape == (1,)


@pytest.mark.parametrize("guidance", USABLE)
def test_a_class_without_a_label_stays_without_pseudo_labels(guidance: str) -> None:
    x, y, _ = data((20, 0, 9))
    result = self_train(fit_regression, x, y, classes=np.arange(3), guidance=guidance)
    assert 1 not in result.pseudo_labels
    assert result.train_counts[1] == 0


def test_if_no_prediction_is_confident_the_model_of_the_labels_stays() -> None:
    x, y, _ = data(distance=0.2)
    result = self_train(fit_regression, x, y, classes=np.arange(3), guidance="none", threshold=1.0)
    assert (result.num_rounds, result.pseudo_labels.max()) == (1, -1)
    alone = fit_regression(x[y >= 0], y[y >= 0])
    np.testing.assert_array_equal(result.model.predict_proba(x), alone.predict_proba(x))


def test_a_class_that_loses_all_pseudo_labels_in_a_round_is_still_predicted() -> None:
    class Forgetful(NoGuidance):
        """Never believes in class 2."""

        def forward(self, probs: Tensor, index: Tensor) -> Tensor:
            return probs * torch.tensor([1.0, 1.0, 0.0])

    x, y, _ = data(distance=4.0)
    result = self_train(fit_regression, x, y, classes=np.arange(3), guidance=Forgetful)
    assert result.train_counts[2] == 4
    assert 2 in result.model.predict(x)


def test_classes_may_be_any_sorted_values() -> None:
    x, y, _ = data()
    names = np.array(["a", "b", "c"])
    numbers = self_train(fit_regression, x, y, classes=np.arange(3), guidance="cadr")
    texts = self_train(fit_regression, x, y, classes=names, guidance="cadr")
    np.testing.assert_array_equal(texts.pseudo_labels, numbers.pseudo_labels)
    np.testing.assert_array_equal(texts.model.predict(x), names[numbers.model.predict(x)])


def test_simpro_corrects_what_plain_self_training_makes_worse() -> None:
    """Naive Bayes trusts its class prior, so skewed labels mislead it on a uniform pool."""

    def recall_of_rare(guidance: str) -> float:
        recalled = []
        for seed in range(5):
            samples, truth = clouds_and_truth((90, 9, 3), 300, distance=1.7, seed=seed)
            result = self_train(
                lambda rows, labels: GaussianNB(var_smoothing=0.1).fit(rows, labels),
                samples.inputs.features,
                samples.y,
                classes=np.arange(3),
                guidance=guidance,
            )
            predicted = result.model.predict(samples.inputs.features)
            recalled.append((predicted[truth == 2] == 2).mean())
        return float(np.mean(recalled))

    assert recall_of_rare("simpro") > recall_of_rare("none") + 0.2


def test_the_same_seed_repeats_the_result() -> None:
    x, y, _ = data()
    first, again = (
        self_train(fit_regression, x, y, classes=np.arange(3), guidance="prg_last", seed=3) for _ in range(2)
    )
    np.testing.assert_array_equal(first.pseudo_labels, again.pseudo_labels)


def test_every_guidance_is_either_usable_or_needs_a_network() -> None:
    assert sorted(BY_NAME) == USABLE
    assert sorted([*BY_NAME, *NEED_A_NETWORK]) == sorted(GUIDANCES)
    for name, make in BY_NAME.items():
        assert class_of(make) is class_of(GUIDANCES[name])
        assert not class_of(make).needs & NETWORK_HOOKS
    by_their_hooks = [name for name in NEED_A_NETWORK if class_of(GUIDANCES[name]).needs & NETWORK_HOOKS]
    assert by_their_hooks == [name for name in NEED_A_NETWORK if name != "prg_balanced"]


@pytest.mark.parametrize(
    ("guidance", "message"),
    [
        ("crest", "guidance 'crest' needs a network; choose from .*'simpro'"),
        ("cdmad", "guidance 'cdmad' needs a network"),
        ("adello", "guidance 'adello' needs a network"),
        ("prg_balanced", "guidance 'prg_balanced' needs a network; choose from .*'prg_smooth'"),
        (CReST, "guidance 'CReST' needs a network; choose from"),
        ("prgg", "guidance 'prgg' is unknown; choose from .*'prg'"),
    ],
)
def test_a_guidance_that_cannot_work_is_refused_with_the_usable_names(guidance: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_guidance(guidance, Task(3, 10, torch.tensor([0, 1, 2])))


def test_a_guidance_object_is_refused_because_it_belongs_to_another_task() -> None:
    task = Task(3, 10, torch.tensor([0, 1, 2]))
    with pytest.raises(TypeError, match="guidance is an object of class PRG; give the class"):
        make_guidance(PRG(task), task)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "kind", "option", "value"),
    [("simpro", SimPro, "momentum", 0.9), ("cadr", CADR, "momentum", 0.9), ("prg", PRG, "empty_row_identity", True)],
)
def test_a_name_stands_for_options_that_suit_few_rounds(
    made: str, kind: type[Guidance], option: str, value: object
) -> None:
    guide = make_guidance(made, Task(3, 10, torch.tensor([0, 1, 2])))
    assert isinstance(guide, kind)
    assert getattr(guide, option) == value


@pytest.mark.parametrize(
    ("options", "message"), [({"rounds": 0}, "rounds is 0"), ({"threshold": 80}, "threshold is 80")]
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    x, y, _ = data()
    with pytest.raises(ValueError, match=message):
        self_train(fit_regression, x, y, classes=np.arange(3), **options)
