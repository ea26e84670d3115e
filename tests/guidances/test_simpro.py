"""SimPro against its released training loop, classical EM on known likelihoods, and what holds whatever the input."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar import distributed
from mnar.config import OWN_DATA
from mnar.guidances import PRG, Chain, NoGuidance
from mnar.guidances.simpro import SimPro
from mnar.learners import FixMatch, MixMatch
from mnar.recipes import configure
from mnar.types import Batch, Task
from tests.reference.simpro import LiteralSimPro, cross_entropy, label_shift_em, one_hot

NUM_CLASSES, NUM_UNLABELED, BATCH, BATCH_LABELED = 4, 37, 16, 4
LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3])
DERIVED: dict[str, Any] = {"tau": 1.0, "update_every": 1, "confidence": 0.0, "loss_prior": "separate"}
MIXES = {"like the labels": (0.05, 0.15, 0.8), "reversed": (0.8, 0.15, 0.05), "a class is absent": (0.9, 0.1, 0.0)}


def make_task(labeled_targets: Tensor | None = LABELS) -> Task:
    return Task(NUM_CLASSES, NUM_UNLABELED, labeled_targets, batch_labeled=BATCH_LABELED, batch_unlabeled=BATCH)


def random_steps(count: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Logits of a labelled, a weak and a strong batch, whose classes drift, and the labels of the labelled batch."""
    generator = torch.Generator().manual_seed(0)
    for n in range(count):
        preference = torch.tensor([math.sin(n / 200 + c) for c in range(NUM_CLASSES)])
        labeled, weak, strong = (
            3 * torch.randn(size, NUM_CLASSES, generator=generator) + preference
            for size in (BATCH_LABELED, BATCH, BATCH)
        )
        y = LABELS[torch.randint(len(LABELS), (BATCH_LABELED,), generator=generator)]
        yield labeled, weak, strong, y


def run_step(simpro: SimPro, labeled: Tensor, weak: Tensor, strong: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Call the hooks in the order of a learner: the labelled loss, the pseudo-labels and the logits of the pool."""
    loss = simpro.supervised(labeled, y, weak)
    q = simpro(weak.softmax(1), torch.arange(len(weak)))
    return loss, q, simpro.pool_logits(strong)


def gaussian_pool(size: int, mix: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Points of unit Gaussians two apart: exact p(x|y), up to a factor for each x, and the class shares they have."""
    generator = torch.Generator().manual_seed(0)
    label = torch.multinomial(torch.tensor(mix), size, replacement=True, generator=generator)
    x = 2 * label + torch.randn(size, generator=generator)
    log_likelihood = -((x.unsqueeze(1) - 2 * torch.arange(len(mix))) ** 2) / 2
    return log_likelihood.softmax(1), F.one_hot(label, len(mix)).float().mean(0)


def gaussian_task(size: int, batch: int) -> Task:
    return Task(3, size, torch.tensor([0] + 3 * [1] + 16 * [2]), batch_unlabeled=batch)


# The released training loop


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tau": 1.0},
        {"update_every": 1},
        {"update_every": 7, "momentum": 0.5},
        {"update_every": 100, "momentum": 0.0, "confidence": 0.0},
        {"update_every": 50, "confidence": 1.0},  # almost no sample is confident
    ],
    ids=str,
)
@pytest.mark.parametrize("loss_prior", ["trained", "separate"])
def test_pseudo_labels_losses_and_priors_equal_the_literal_loop_over_1200_steps(
    options: dict[str, Any], loss_prior: Any
) -> None:
    simpro = SimPro(make_task(), loss_prior=loss_prior, **options)
    oracle = LiteralSimPro(LABELS.tolist(), NUM_CLASSES, **options)
    for labeled, weak, strong, y in random_steps(1_200):
        loss, q, pool_logits = run_step(simpro, labeled, weak, strong, y)
        expected = oracle.step(weak.tolist(), y.tolist())
        of_labels, of_pool = (oracle.a, oracle.a) if loss_prior == "trained" else (oracle.a_l, oracle.a_u)
        losses = cross_entropy(labeled.tolist(), of_labels, one_hot(y.tolist(), NUM_CLASSES))
        assert_close(q, torch.tensor(expected), atol=1e-5, rtol=1e-3)
        assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-3, abs=1e-5)
        assert_close(pool_logits, strong + torch.tensor(of_pool), atol=1e-3, rtol=1e-3)
    oracle._end()  # after 1,200 steps, only the defaults are in the middle of a period
    if 1_200 % simpro.update_every == 0:
        assert_close(simpro.pool_prior, torch.tensor(oracle.pi_u), atol=1e-5, rtol=1e-3)
        assert_close(simpro.trained_prior, torch.tensor(oracle.phi), atol=1e-5, rtol=1e-3)


def test_the_defaults_are_those_of_the_released_code() -> None:
    simpro = SimPro(make_task())
    assert (simpro.tau, simpro.momentum, simpro.update_every, simpro.confidence) == (2.0, 0.9, 500, 0.95)
    assert simpro.pool_prior.tolist() == [0.25] * 4
    assert simpro.trained_prior.tolist() == pytest.approx([0.5, 0.3, 0.1, 0.1])


def test_priors_change_after_500_steps_and_not_before_so_step_501_is_the_first_with_new_ones() -> None:
    simpro = SimPro(make_task())
    biases = []
    for labeled, weak, strong, y in random_steps(501):
        _, _, pool_logits = run_step(simpro, labeled, weak, strong, y)
        biases.append((pool_logits - strong)[0])
    assert_close(biases[499], biases[0], atol=1e-5, rtol=0)
    assert (biases[500] - biases[0]).abs().max() > 0.01


def test_a_labelled_image_counts_once_whether_or_not_a_strong_view_of_it_is_trained() -> None:
    one_view, two_views = SimPro(make_task()), SimPro(make_task())
    for labeled, weak, strong, y in random_steps(20):
        run_step(one_view, labeled, weak, strong, y)
        run_step(two_views, labeled.repeat(2, 1), weak, strong, y.repeat(2))
    assert one_view.collected[0].sum().item() == 20 * BATCH_LABELED
    assert_close(two_views.collected, one_view.collected)


def test_a_step_of_fixmatch_equals_the_released_losses_with_soft_targets_and_two_strong_views() -> None:
    """The network adds nothing: a view is its own logits."""
    simpro, oracle = (make(update_every=3) for make in (lambda **o: SimPro(make_task(), **o), literal))
    learner = FixMatch(make_task(), simpro, targets="soft", strong_views=2, labeled_strong=True)
    for labeled, weak, strong, y in random_steps(10):
        x, second = torch.cat([labeled, labeled.flip(1)]), strong.flip(0)
        views = {"weak": weak, "strong": strong, "strong2": second}
        batch = Batch(x, y.repeat(2), torch.arange(2 * len(y)), views, torch.arange(BATCH))
        step = learner(torch.nn.Identity(), batch)
        q = oracle.step(weak.tolist(), y.tolist())
        of_labels = cross_entropy(x.tolist(), oracle.a, one_hot(y.tolist() * 2, NUM_CLASSES))
        of_pool = cross_entropy(torch.cat([strong, second]).tolist(), oracle.a, q + q)
        used = [loss if max(row) >= 0.95 else 0.0 for loss, row in zip(of_pool, q + q, strict=True)]
        assert 0 < step.logs["mask_rate"] < 1
        expected = sum(of_labels) / len(of_labels) + sum(used) / len(used)
        assert step.loss.item() == pytest.approx(expected, rel=1e-4)


def literal(**options: Any) -> LiteralSimPro:
    return LiteralSimPro(LABELS.tolist(), NUM_CLASSES, **options)


def test_the_labelled_loss_has_the_gradient_of_cross_entropy_under_the_prior() -> None:
    simpro = SimPro(make_task())
    logits = torch.randn(5, NUM_CLASSES, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.tensor([0, 3, 1, 0, 2])
    (gradient,) = torch.autograd.grad(simpro.supervised(logits, y, torch.zeros(BATCH, NUM_CLASSES)), logits)
    posterior = (logits.detach() + 2 * torch.tensor([0.5, 0.3, 0.1, 0.1]).log()).softmax(1)
    assert_close(gradient, (posterior - F.one_hot(y, NUM_CLASSES)) / len(y))


def test_where_labels_and_pool_are_uniform_fixmatch_loses_what_it_loses_without_guidance() -> None:
    task = make_task(torch.arange(NUM_CLASSES))
    generator = torch.Generator().manual_seed(0)
    x, weak, strong = (torch.randn(n, 5, generator=generator) for n in (4, BATCH, BATCH))
    batch = Batch(x, torch.arange(4), torch.arange(4), {"weak": weak, "strong": strong}, torch.arange(BATCH))
    network = torch.nn.Linear(5, NUM_CLASSES)
    loss, expected = (
        FixMatch(task, guidance, threshold=0.4)(network, batch) for guidance in (SimPro(task), NoGuidance(task))
    )
    assert expected.logs["mask_rate"] > 0
    assert_close(loss.loss, expected.loss)


@pytest.mark.parametrize(
    ("num_labels", "num_unlabeled", "expected"),
    [
        (72, 50_000, 1 / 97),  # CIFAR-10 with 72 labels and mu = 8: 1 batch of labels, 97 of the pool
        (1_200, 40_000, 18 / 78),  # incomplete batches are left out
        (6_400, 512, 100.0),
        (10, 100, 1.0),  # no complete batch counts as one
    ],
)
def test_the_published_labelled_weight_is_the_ratio_of_the_loaders_lengths(
    num_labels: int, num_unlabeled: int, expected: float
) -> None:
    labels = torch.arange(num_labels) % NUM_CLASSES
    task = Task(NUM_CLASSES, num_unlabeled, labels, batch_labeled=64, batch_unlabeled=512)
    assert SimPro(task, labeled_weight="published").labeled_weight == pytest.approx(expected)


def test_the_labelled_weight_multiplies_the_labelled_loss_and_is_1_by_default() -> None:
    ((labeled, weak, _, y),) = random_steps(1)
    losses = [
        SimPro(make_task(), **options).supervised(labeled, y, weak)
        for options in ({}, {"labeled_weight": 1.0}, {"labeled_weight": 0.25})
    ]
    assert torch.equal(losses[0], losses[1])
    assert_close(losses[2], losses[0] / 4)


# The paper's derivation: every step, all samples, separate priors


@pytest.mark.parametrize("start", ["uniform", "labeled"])
def test_a_whole_set_at_momentum_0_is_classical_em_for_label_shift_over_100_iterations(start: Any) -> None:
    likelihoods, _ = gaussian_pool(200, MIXES["reversed"])
    simpro = SimPro(gaussian_task(200, batch=200), momentum=0.0, start=start, **DERIVED)
    expected = label_shift_em(likelihoods.tolist(), simpro.pool_prior.tolist(), iterations=100)
    for _ in range(100):
        simpro(likelihoods, torch.arange(200))
    assert_close(simpro.estimates()["pool_share"], torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("start", ["uniform", "labeled"])
@pytest.mark.parametrize("mix", MIXES)
def test_with_exact_likelihoods_the_estimate_becomes_the_mix_of_the_pool(mix: str, start: Any) -> None:
    likelihoods, shares = gaussian_pool(50_000, MIXES[mix])
    simpro = SimPro(gaussian_task(50_000, batch=448), momentum=0.99, start=start, **DERIVED)
    generator = torch.Generator().manual_seed(1)
    for _ in range(1_000):
        index = torch.randint(50_000, (448,), generator=generator)
        simpro(likelihoods[index], index)
    assert_close(simpro.estimates()["pool_share"], shares, atol=0.02, rtol=0)


def test_the_mean_of_predictions_is_not_the_mix_of_the_pool_which_is_why_em_is_needed() -> None:
    likelihoods, shares = gaussian_pool(50_000, MIXES["reversed"])
    assert (likelihoods.mean(0) - shares).abs().max() > 0.05


def test_a_class_that_had_vanished_comes_back() -> None:
    simpro = SimPro(make_task(), momentum=0.5, **DERIVED)
    first, last = (torch.eye(NUM_CLASSES)[[c] * BATCH] for c in (0, 3))
    for _ in range(1_000):
        simpro(first, torch.arange(BATCH))
    assert simpro.pool_prior[3].item() < 1e-12
    simpro(last, torch.arange(BATCH))
    assert simpro.estimates()["pool_share"][3].item() == pytest.approx(0.5, rel=1e-3)


# What holds whatever the input


def test_a_learner_whose_losses_have_no_place_for_the_priors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"MixMatch does not support SimPro.*pool_logits.*supervised"):
        MixMatch(make_task(), SimPro(make_task()))


@pytest.mark.parametrize("options", [{"update_every": 2}, DERIVED, {**DERIVED, "start": "labeled"}], ids=str)
def test_a_class_without_labels_has_finite_losses_and_pseudo_labels(options: dict[str, Any]) -> None:
    simpro = SimPro(make_task(torch.tensor([0, 0, 1, 1])), **options)
    logits = torch.zeros(2, NUM_CLASSES, requires_grad=True)
    loss = simpro.supervised(logits, torch.tensor([0, 3]), torch.zeros(BATCH, NUM_CLASSES))
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    for labeled, weak, strong, _ in random_steps(20):
        _, q, pool_logits = run_step(simpro, labeled, weak, strong, torch.tensor([0, 1, 1, 0]))
        assert torch.isfinite(q).all()
        assert_close(q.sum(1), torch.ones(len(q)))
        assert torch.isfinite(pool_logits).all()


def test_a_pool_without_confident_samples_for_2000_updates_leaves_finite_estimates() -> None:
    simpro = SimPro(make_task(), update_every=1, start="labeled")
    for _ in range(2_000):
        q = simpro(torch.full((BATCH, NUM_CLASSES), 0.25), torch.arange(BATCH))
    assert torch.isfinite(q).all()
    assert simpro.estimates()["pool_share"].sum().item() == pytest.approx(1)
    assert all(torch.isfinite(value) for value in simpro.logs().values())


def test_the_log_is_the_largest_share_and_the_share_of_the_pool_that_the_labels_do_not_explain() -> None:
    simpro = SimPro(make_task())
    simpro.pool_prior.copy_(torch.tensor([0.05, 0.15, 0.1, 0.2]))  # the labels: 0.5, 0.3, 0.1, 0.1
    logs = simpro.logs()
    assert logs["largest_pool_share"].item() == pytest.approx(0.4)
    assert logs["distance_from_labels"].item() == pytest.approx(0.4)
    assert_close(simpro.estimates()["pool_share"], torch.tensor([0.1, 0.3, 0.2, 0.4]))


def test_several_processes_add_their_labels_and_confident_pseudo_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is made up: it always has the same sums."""
    other = torch.tensor([[[2.0, 0.0, 1.0, 1.0], [0.0, 3.0, 1.0, 0.0]]])
    monkeypatch.setattr(distributed, "gather", lambda local: torch.cat([local, other]))
    simpro = SimPro(make_task(), update_every=2, momentum=0.0)
    confident = torch.tensor([[0.97, 0.01, 0.01, 0.01], [0.4, 0.2, 0.2, 0.2]])
    for _ in range(2):
        simpro.supervised(torch.zeros(2, NUM_CLASSES), torch.tensor([0, 3]), torch.zeros(BATCH, NUM_CLASSES))
        simpro(confident, torch.tensor([0, 1]))
    d, n_l = torch.tensor([0.97, 3.01, 1.01, 0.01]), torch.tensor([3.0, 0.0, 1.0, 2.0])
    assert_close(simpro.pool_prior, 2 * d / (2 * 5 + 1))
    assert_close(simpro.trained_prior, (n_l + d) / (n_l + d).sum())
    assert simpro.collected.abs().sum() == 0


@pytest.mark.parametrize("confidence", [0.0, 0.95])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_row_that_is_not_a_number_does_not_count_and_the_others_count_as_they_are(
    confidence: float, broken: float
) -> None:
    simpro, spared = (SimPro(make_task(), confidence=confidence, update_every=2) for _ in range(2))
    for _, weak, _, _ in random_steps(4):
        probs = weak.softmax(1)[:-1]
        q = simpro(torch.cat([probs, torch.full((1, NUM_CLASSES), broken)]), torch.arange(BATCH))
        assert_close(q[:-1], spared(probs, torch.arange(BATCH - 1)))
    assert_close(simpro.pool_prior, spared.pool_prior)
    assert_close(simpro.trained_prior, spared.trained_prior)


def test_in_a_chain_the_pseudo_labels_are_counted_as_simpro_made_them_and_not_as_the_next_stage_did() -> None:
    alone, chained = SimPro(make_task(), update_every=3), SimPro(make_task(), update_every=3)
    chain = Chain(chained, PRG(make_task()))
    for labeled, weak, _, y in random_steps(10):
        alone.supervised(labeled, y, weak)
        alone(weak.softmax(1), torch.arange(BATCH))
        chain.supervised(labeled, y, weak)
        chain(weak.softmax(1), torch.arange(BATCH))
    assert torch.equal(chained.pool_prior, alone.pool_prior)
    assert torch.equal(chained.trained_prior, alone.trained_prior)


# State


@pytest.mark.parametrize("loss_prior", ["trained", "separate"])
def test_state_dict_in_the_middle_of_a_period_continues_bit_for_bit(loss_prior: Any) -> None:
    simpro, resumed = (SimPro(make_task(), update_every=5, loss_prior=loss_prior) for _ in range(2))
    addresses = {name: buffer.data_ptr() for name, buffer in simpro.named_buffers()}
    history = list(random_steps(24))
    for step in history[:12]:
        run_step(simpro, *step)
    state = copy.deepcopy(simpro.state_dict())
    assert set(state) == {"pool_prior", "trained_prior", "collected", "step"}
    resumed.load_state_dict(state)
    for step in history[12:]:
        for mine, other in zip(run_step(simpro, *step), run_step(resumed, *step), strict=True):
            assert torch.equal(mine, other)
    assert {name: buffer.data_ptr() for name, buffer in simpro.named_buffers()} == addresses, "changed in place"
    assert simpro.labeled_prior.tolist() == pytest.approx([0.5, 0.3, 0.1, 0.1]), "the other priors start as copies"


def test_the_state_of_the_earlier_version_is_refused_with_what_to_do() -> None:
    learner = FixMatch(make_task(), SimPro(make_task()))
    with pytest.raises(ValueError, match=r"earlier version of simpro.*Start a new run"):
        learner.load_state_dict({"guidance.pool_prior": torch.full((NUM_CLASSES,), 0.25)})


@pytest.mark.parametrize("options", [{}, DERIVED, {"labeled_weight": "published"}], ids=str)
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(options: dict[str, Any]) -> None:
    with FakeTensorMode():
        simpro = SimPro(make_task(torch.tensor([0, 1, 2, 3])), **options)
        for _ in range(2):
            logits = torch.rand(BATCH, NUM_CLASSES)
            assert simpro.supervised(logits, torch.zeros(BATCH, dtype=torch.int64), logits).shape == ()
            assert simpro(logits.softmax(1), torch.arange(BATCH)).shape == (BATCH, NUM_CLASSES)
            assert simpro.pool_logits(logits).shape == (BATCH, NUM_CLASSES)
            assert all(value.shape == () for value in simpro.logs().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_handled_in_float32_without_gradient(dtype: torch.dtype) -> None:
    simpro, expected = SimPro(make_task(), update_every=2), SimPro(make_task(), update_every=2)
    for _, weak, _, _ in random_steps(5):
        half = weak.softmax(1).to(dtype)
        before = half.clone()
        q = simpro(half.requires_grad_(), torch.arange(BATCH))
        assert q.dtype == torch.float32
        assert not q.requires_grad
        assert torch.equal(q, expected(before.float(), torch.arange(BATCH)))
        assert torch.equal(half, before)


# Options


def test_the_learner_gets_the_options_of_the_released_code_unless_the_user_sets_others() -> None:
    released = configure(dataset="cifar10", guidance="simpro")
    assert released.guidance.options == {
        "tau": 2.0,
        "momentum": 0.9,
        "update_every": 500,
        "confidence": 0.95,
        "loss_prior": "trained",
        "start": "uniform",
        "labeled_weight": 1.0,
    }
    options = released.learner.options
    assert [options[name] for name in ("targets", "strong_views", "labeled_strong")] == ["soft", 2, True]
    settings = ["learner.targets=hard", "learner.strong_views=1", "guidance.update_every=50"]
    changed = configure(dataset="cifar10", guidance="simpro", settings=settings)
    options = changed.learner.options
    assert [options[name] for name in ("targets", "strong_views", "labeled_strong")] == ["hard", 1, True]
    assert changed.guidance.options["update_every"] == 50


def test_short_and_other_data_sets_have_options_of_their_own_unless_the_user_sets_others() -> None:
    assert configure(dataset="cifar100", guidance="simpro").guidance.options["tau"] == 1.0
    assert configure(dataset="digits", guidance="simpro").guidance.options["update_every"] == 10
    own = configure(dataset=OWN_DATA, guidance="simpro", learner="pseudo_label").guidance.options
    assert {name: own[name] for name in DERIVED} == DERIVED
    assert own["momentum"] == 0.99
    chosen = configure(dataset="cifar100", guidance="simpro", settings=["guidance.tau=3"])
    assert chosen.guidance.options["tau"] == 3.0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tau": -1.0}, "tau is -1.0"),
        ({"tau": math.inf}, "tau is inf"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"momentum": math.nan}, "momentum is nan"),
        ({"update_every": 0}, "update_every is 0"),
        ({"confidence": 1.5}, "confidence is 1.5"),
        ({"loss_prior": "phi"}, "loss_prior is 'phi'.*'trained', 'separate'"),
        ({"start": "labelled"}, "start is 'labelled'.*'uniform', 'labeled'"),
        ({"labeled_weight": -1.0}, "labeled_weight is -1.0"),
        ({"labeled_weight": "paper"}, "labeled_weight is 'paper'.*'published'"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SimPro(make_task(), **options)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_task_without_labels_is_refused_with_what_to_give(labeled_targets: Any) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        SimPro(make_task(labeled_targets))


def test_a_bad_call_changes_nothing() -> None:
    simpro = SimPro(make_task(), update_every=1)
    before = copy.deepcopy(simpro.state_dict())
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        simpro(torch.eye(NUM_CLASSES)[:1], torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        simpro(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    assert all(torch.equal(simpro.state_dict()[name], value) for name, value in before.items())
