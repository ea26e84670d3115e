"""PRG on a balanced classifier: its labelled loss by hand, alone and in FixMatch; its pseudo-labels literally."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from mnar.guidances import CADR, PRG, BalancedPRG, Chain
from mnar.learners import FixMatch, MixMatch, ReMixMatch
from mnar.recipes import configure
from mnar.types import Batch, Task
from tests.guidances.test_prg import BATCH, NUM_UNLABELED, assert_same_state, random_batches, state_of
from tests.reference.prg import LiteralPRG

LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3])
SHARES = [0.5, 0.3, 0.1, 0.1]
NUM_CLASSES = len(SHARES)


def make_task(labeled_targets: Tensor | None = LABELS) -> Task:
    return Task(NUM_CLASSES, NUM_UNLABELED, labeled_targets, batch_unlabeled=BATCH)


def labeled_batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(7, NUM_CLASSES, generator=generator)
    return logits, torch.randint(NUM_CLASSES, (7,), generator=generator)


def loss_by_hand(logits: Tensor, y: Tensor, tau: float) -> float:
    """-log of exp(f_y) pi_y^tau / sum_c exp(f_c) pi_c^tau, the mean over the samples."""
    losses = []
    for f, label in zip(logits.tolist(), y.tolist(), strict=True):
        weights = [math.exp(value) * share**tau for value, share in zip(f, SHARES, strict=True)]
        losses.append(-math.log(weights[label] / sum(weights)))
    return sum(losses) / len(losses)


def threshold_by_hand(threshold: float, label: int, beta: float) -> float:
    """The threshold of a class: that of the class with the most labels, times a power of the ratio of the shares."""
    return threshold * math.exp(beta * math.log(SHARES[label] / max(SHARES)))


# The labelled loss


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_the_labelled_loss_equals_the_cross_entropy_by_hand(tau: float) -> None:
    guidance = BalancedPRG(make_task(), tau=tau)
    for seed in range(5):
        logits, y = labeled_batch(seed)
        assert guidance.supervised(logits, y, logits).item() == pytest.approx(loss_by_hand(logits, y, tau), rel=1e-5)


def test_with_tau_0_the_labelled_loss_is_plain_cross_entropy() -> None:
    logits, y = labeled_batch()
    assert torch.equal(BalancedPRG(make_task(), tau=0.0).supervised(logits, y, logits), F.cross_entropy(logits, y))


def test_at_tau_1_a_network_that_cannot_tell_the_classes_apart_learns_equal_logits() -> None:
    """Its gradient on all labels is zero at equal logits; plain cross-entropy prefers the frequent class there."""
    equal = torch.zeros(len(LABELS), NUM_CLASSES, requires_grad=True)
    gradients = []
    for tau in (1.0, 0.0):
        loss = BalancedPRG(make_task(), tau=tau).supervised(equal, LABELS, equal)
        gradients.append(torch.autograd.grad(loss, equal)[0].sum(0))
    assert_close(gradients[0], torch.zeros(NUM_CLASSES))
    assert_close(gradients[1], 0.25 - torch.tensor(SHARES))


@pytest.mark.parametrize("beta", [0.0, 0.1, 1.0])
def test_the_labelled_loss_of_fixmatch_is_the_one_by_hand_and_its_pseudo_labels_are_those_of_the_walk(
    beta: float,
) -> None:
    learner = FixMatch(make_task(), BalancedPRG(make_task(), beta=beta), threshold=0.6)
    expected = PRG(make_task(), smoothing=1.0)
    generator, used = torch.Generator().manual_seed(0), 0
    for seed in range(20):
        logits, y = labeled_batch(seed)
        weak, strong = (2 * torch.randn(BATCH, NUM_CLASSES, generator=generator) for _ in range(2))
        index = torch.randint(NUM_UNLABELED, (BATCH,), generator=generator)
        batch = Batch(logits, y, torch.arange(len(y)), {"weak": weak, "strong": strong}, index)
        logs = learner(nn.Identity(), batch).logs
        assert logs["loss/labeled"].item() == pytest.approx(loss_by_hand(logits, y, tau=2.0), rel=1e-5)
        confidence, label = expected(weak.softmax(1), index).max(1)
        lowest = torch.tensor([threshold_by_hand(0.6, one, beta) for one in label.tolist()])
        assert torch.equal(learner.pseudo_labels, torch.where(confidence >= lowest, label, -1))
        used += int((confidence >= lowest).sum())
    assert used > 0


# The thresholds


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("threshold", [0.95, torch.tensor([0.9, 0.8, 0.7, 0.6])], ids=["number", "per sample"])
def test_the_threshold_of_a_class_with_few_labels_is_lower(beta: float, threshold: Any) -> None:
    q = torch.eye(NUM_CLASSES)[[3, 0, 2, 1]] * 0.8 + 0.05
    own = [threshold] * 4 if isinstance(threshold, float) else threshold.tolist()
    expected = [threshold_by_hand(one, label, beta) for one, label in zip(own, [3, 0, 2, 1], strict=True)]
    assert_close(BalancedPRG(make_task(), beta=beta).threshold(q, threshold), torch.tensor(expected))


def test_balanced_labels_leave_the_thresholds_as_they_are() -> None:
    q = torch.rand(50, NUM_CLASSES)
    guidance = BalancedPRG(make_task(torch.arange(20) % NUM_CLASSES), beta=1.0)
    assert torch.equal(guidance.threshold(q, 0.95), torch.full((50,), 0.95))


# The pseudo-labels


@pytest.mark.parametrize(
    "options",
    [{}, {"smoothing": 0.05, "alpha": 3.0, "window": 4}],
    ids=str,
)
def test_pseudo_labels_equal_the_literal_algorithm_whatever_tau(options: dict[str, Any]) -> None:
    """The adjustment is part of the labelled loss only, so predictions are rectified as they are."""
    literal = LiteralPRG(NUM_CLASSES, batch=BATCH, **{"smoothing": 1.0, **options})
    guidances = [BalancedPRG(make_task(), tau=tau, **options) for tau in (0.0, 2.0)]
    for probs, index in random_batches(NUM_CLASSES, 100):
        expected = torch.from_numpy(literal(probs, index)).float()
        for guidance in guidances:
            assert_close(guidance(probs, index), expected, atol=1e-5, rtol=0)


# State


def test_a_learner_resumed_in_the_middle_continues_bit_for_bit() -> None:
    learner, resumed = (FixMatch(make_task(), BalancedPRG(make_task(), window=5)) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        logits, y = labeled_batch(step)
        weak, strong = (4 * torch.randn(BATCH, NUM_CLASSES, generator=generator) for _ in range(2))
        index = torch.randint(NUM_UNLABELED, (BATCH,), generator=generator)
        batch = Batch(logits, y, torch.arange(len(y)), {"weak": weak, "strong": strong}, index)
        loss = learner(nn.Identity(), batch).loss
        if step >= 15:
            assert torch.equal(resumed(nn.Identity(), batch).loss, loss)
        if step == 14:
            resumed.load_state_dict(copy.deepcopy(learner.state_dict()))


def test_the_prior_is_counted_from_the_labels_and_not_saved_so_the_state_is_that_of_prg() -> None:
    balanced, prg = BalancedPRG(make_task()), PRG(make_task(), smoothing=1.0)
    assert_close(balanced.log_prior, 2 * torch.tensor(SHARES).log())
    for probs, index in random_batches(NUM_CLASSES, 20):
        balanced(probs, index)
        prg(probs, index)
    assert_same_state(state_of(balanced), {f"prg.{name}": value for name, value in state_of(prg).items()})


# Learners


def test_the_default_options_of_fixmatch_are_two_strong_views_and_strong_labelled_views() -> None:
    def options(*settings: str) -> tuple[Any, ...]:
        chosen = configure(dataset="digits", learner="fixmatch", guidance="prg_balanced", settings=list(settings))
        return tuple(chosen.learner.options[name] for name in ("strong_views", "labeled_strong", "targets"))

    assert options() == (2, True, "hard")
    assert options("learner.strong_views=1", "learner.labeled_strong=false") == (1, False, "hard")


@pytest.mark.parametrize("learner", [MixMatch, ReMixMatch])
def test_a_learner_that_does_not_call_supervised_is_refused(learner: Any) -> None:
    with pytest.raises(ValueError, match=rf"{learner.__name__} does not support BalancedPRG.*supervised"):
        learner(make_task(), BalancedPRG(make_task()))


def test_a_chain_with_another_labelled_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be chained"):
        Chain(CADR(make_task()), BalancedPRG(make_task()))


# Bad input


@pytest.mark.parametrize("tau", [-1, math.inf, math.nan])
def test_a_bad_tau_is_an_error_with_its_value_and_a_remedy(tau: float) -> None:
    with pytest.raises(ValueError, match=rf"tau is {tau}; expected a number from 0 to .*, e\.g\. 2"):
        BalancedPRG(make_task(), tau=tau)


@pytest.mark.parametrize("beta", [-0.1, math.nan])
def test_a_bad_beta_is_an_error_with_its_value(beta: float) -> None:
    with pytest.raises(ValueError, match=rf"beta is {beta}; expected a number from 0"):
        BalancedPRG(make_task(), beta=beta)


def test_a_bad_smoothing_is_an_error_with_its_value() -> None:
    with pytest.raises(ValueError, match="smoothing is -1"):
        BalancedPRG(make_task(), smoothing=-1)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_task_without_labels_is_refused_with_what_to_give(labeled_targets: Any) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        BalancedPRG(make_task(labeled_targets))


def test_classes_without_a_label_are_refused_by_their_numbers_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"no labelled sample of class 1, 3; prg_balanced .* another method"):
        BalancedPRG(make_task(torch.tensor([0, 0, 2])))
