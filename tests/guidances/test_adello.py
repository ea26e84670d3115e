"""ADELLO against a literal oracle through FixMatch, and what must hold whatever the input."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar import distributed
from mnar.guidances import ADELLO, PRG, Chain, NoGuidance
from mnar.learners import FixMatch, FlexMatch, MixMatch
from mnar.types import Batch, Task
from tests.reference.adello import LiteralADELLO
from tests.support.drifting import drifting_batches

NUM_CLASSES, NUM_UNLABELED, BATCH = 4, 37, 16
LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3])
OPTIONS: list[dict[str, float]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.5, "smallest_alpha": 0.0, "consistency_from": 0.0},
    {"momentum": 0.9, "smallest_alpha": 1.0, "consistency_from": 0.5},
    {"momentum": 0.0, "consistency_from": 1.0},
]


def make_task(labeled_targets: Tensor | None = LABELS) -> Task:
    return Task(NUM_CLASSES, NUM_UNLABELED, labeled_targets, batch_unlabeled=BATCH)


random_batches = partial(drifting_batches, num_classes=NUM_CLASSES, num_unlabeled=NUM_UNLABELED, largest=BATCH)


def as_batch(f_x: Tensor, y: Tensor, f_weak: Tensor, *f_strong: Tensor) -> Batch:
    """A batch for the network `nn.Identity()`: its samples are the logits."""
    strong = {f"strong{n}" if n > 1 else "strong": f for n, f in enumerate(f_strong, start=1)}
    index = torch.arange(len(f_weak))
    return Batch(f_x, y, torch.arange(len(y)), {"weak": f_weak, **strong}, index)


def random_logits(generator: torch.Generator, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labelled logits, labels, weak and strong logits; the classes that the network prefers drift."""
    preference = torch.tensor([math.sin(step / 20 + c) for c in range(NUM_CLASSES)])
    f_x, f_weak, noise = (2 * torch.randn(n, NUM_CLASSES, generator=generator) + preference for n in (5, BATCH, BATCH))
    y = LABELS[torch.randint(len(LABELS), (5,), generator=generator)]
    return f_x, y, 2 * f_weak, f_weak + noise


# The losses of a step


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_losses_and_shares_with_fixmatch_equal_the_literal_version_over_400_steps(options: dict[str, float]) -> None:
    adello = ADELLO(make_task(), **options)
    learner = FixMatch(make_task(), adello)
    oracle = LiteralADELLO(LABELS.tolist(), NUM_CLASSES, **options)
    generator = torch.Generator().manual_seed(0)
    seen = torch.zeros(3)
    for step in range(400):
        logits = random_logits(generator, step)
        learner.progress.fill_(step / 400)
        result = learner(nn.Identity(), as_batch(*logits))
        expected = oracle.step(step / 400, *(values.tolist() for values in logits))
        parts = torch.stack([result.logs[f"loss/{part}"] for part in ("labeled", "unlabeled", "extra")])
        assert_close(parts, torch.tensor(expected), atol=1e-4, rtol=1e-4)
        assert_close(result.loss, parts.sum())
        assert_close(adello.pool_shares, torch.tensor(oracle.pool_shares), atol=1e-5, rtol=1e-3)
        seen += parts
    assert (seen[:2] > 0).all()
    assert (seen[2] > 0) == (options.get("consistency_from") != 1), "at 1, the complementary loss never counts"


def test_the_defaults_are_those_of_the_released_configurations() -> None:
    adello = ADELLO(make_task())
    assert (adello.smallest_alpha, adello.momentum) == (0.1, 0.999)
    assert adello.consistency_from * 262_144 == 50_000


def test_pseudo_labels_are_the_predictions_at_any_time() -> None:
    adello = ADELLO(make_task(), momentum=0.5)
    for progress, (probs, index) in zip((0.0, 0.3, 0.9), random_batches(3), strict=True):
        adello.progress.fill_(progress)
        assert torch.equal(adello(probs, index), probs)


def test_the_losses_of_the_first_step_are_those_of_fixmatch_if_the_labels_are_balanced() -> None:
    task = make_task(torch.arange(NUM_CLASSES))
    batch = as_batch(*random_logits(torch.Generator().manual_seed(0), 0))
    loss, expected = (FixMatch(task, guidance)(nn.Identity(), batch) for guidance in (ADELLO(task), NoGuidance(task)))
    assert expected.logs["mask_rate"] > 0
    assert_close(loss.loss, expected.loss)


def test_the_unlabelled_loss_wants_f_with_the_shares_of_the_pool_first_and_with_equal_shares_at_alpha_0() -> None:
    """The loss is smallest where the corrected logits have the class shares of the pool."""
    adello = ADELLO(make_task(), smallest_alpha=0.0)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4])
    weak = torch.full((BATCH, NUM_CLASSES), 0.25)
    for progress, expected in ((0.0, shares), (1.0, torch.full((4,), 0.25))):
        adello.pool_shares.copy_(shares)
        adello.progress.fill_(progress)
        adello(weak, torch.arange(BATCH))
        assert_close(adello.pool_logits(expected.log()).softmax(0), shares)


def test_the_labelled_loss_has_the_gradient_of_the_corrected_posterior() -> None:
    adello = ADELLO(make_task(), momentum=0.5)
    for probs, index in random_batches(10):
        adello(probs, index)
    adello.progress.fill_(0.6)
    logits = torch.randn(5, NUM_CLASSES, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.tensor([0, 3, 1, 0, 2])
    (gradient,) = torch.autograd.grad(adello.supervised(logits, y, logits), logits)
    target = adello.pool_shares ** (1 - 0.9 * 0.36)
    prior = torch.tensor([0.5, 0.3, 0.1, 0.1]) / (target / target.sum())
    posterior = logits.detach().exp() * prior
    posterior /= posterior.sum(1, keepdim=True)
    assert_close(gradient, (posterior - F.one_hot(y, NUM_CLASSES)) / len(y))


def test_the_complementary_loss_is_the_mean_over_strong_views() -> None:
    adello = ADELLO(make_task(), momentum=0.5, consistency_from=0.0)
    generator = torch.Generator().manual_seed(0)
    first, second, probs = (torch.randn(BATCH, NUM_CLASSES, generator=generator) for _ in range(3))
    probs, mask = probs.softmax(1), torch.arange(BATCH) % 3 == 0
    of_both = adello.extra_loss([first, second], probs, mask)
    of_each = [adello.extra_loss([view], probs, mask) for view in (first, second)]
    assert_close(of_both, (of_each[0] + of_each[1]) / 2)
    assert adello.extra_loss([first], probs, torch.ones(BATCH, dtype=torch.bool)) == 0


def test_with_fixmatch_every_strong_view_trains_both_unlabelled_losses() -> None:
    task = make_task()
    learner = FixMatch(task, ADELLO(task, consistency_from=0.0), strong_views=2)
    f_x, y, weak, strong = random_logits(torch.Generator().manual_seed(0), 0)
    views = [strong.clone().requires_grad_(), strong.roll(1, 0).requires_grad_()]
    gradients = torch.autograd.grad(learner(nn.Identity(), as_batch(f_x, y, weak, *views)).loss, views)
    assert all((gradient.abs().sum(1) > 0).all() for gradient in gradients), "confident or not, every sample counts"


# Logs, several processes, overflow


def test_the_logs_are_alpha_the_largest_share_and_the_distance_from_the_labels() -> None:
    adello = ADELLO(make_task())
    adello.pool_shares.copy_(torch.tensor([0.1, 0.3, 0.2, 0.4]))  # the labels: 0.5, 0.3, 0.1, 0.1
    adello.progress.fill_(0.5)
    logs = {name: value.item() for name, value in adello.logs().items()}
    assert logs == pytest.approx({"alpha": 0.775, "largest_pool_share": 0.4, "distance_from_labels": 0.4})


def test_several_processes_average_their_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is made up: it always has the same predictions."""
    other = torch.tensor([[0.7, 0.1, 0.1, 0.1]])
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "gather", lambda local: torch.cat([local, other]))
    adello = ADELLO(make_task(), momentum=0.0)
    adello(torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.1, 0.1, 0.6, 0.2]]), torch.tensor([0, 1]))
    assert_close(adello.pool_shares, torch.tensor([0.4, 0.2, 0.25, 0.15]))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_batch_that_is_not_a_number_leaves_the_shares_as_they_were(broken: float) -> None:
    adello = ADELLO(make_task(), momentum=0.5)
    for probs, index in random_batches(3):
        adello(probs, index)
    before = adello.pool_shares.clone()
    adello(torch.full((3, NUM_CLASSES), broken), torch.arange(3))
    assert_close(adello.pool_shares, before)


def test_a_class_that_is_never_predicted_keeps_all_losses_finite() -> None:
    adello = ADELLO(make_task(), momentum=0.0, consistency_from=0.0)
    adello.progress.fill_(0.9)
    only_first = torch.eye(NUM_CLASSES)[[0] * BATCH]
    for _ in range(3):
        adello(only_first, torch.arange(BATCH))
    logits = torch.zeros(BATCH, NUM_CLASSES, requires_grad=True)
    y = torch.arange(BATCH) % NUM_CLASSES
    pool = adello.pool_logits(logits)
    extra = adello.extra_loss([pool], only_first, torch.zeros(BATCH, dtype=torch.bool))
    loss = adello.supervised(logits, y, logits) + F.cross_entropy(pool, y) + extra
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


# State


def test_a_learner_resumed_in_the_middle_continues_bit_for_bit_and_only_the_shares_are_saved() -> None:
    def make() -> FixMatch:
        return FixMatch(make_task(), ADELLO(make_task(), momentum=0.9))

    learner, resumed, generator = make(), make(), torch.Generator().manual_seed(0)
    assert set(learner.state_dict()) == {"guidance.pool_shares"}
    addresses = {name: buffer.data_ptr() for name, buffer in learner.named_buffers()}
    for step in range(40):
        batch = as_batch(*random_logits(generator, step))
        learner.progress.fill_(step / 40)
        loss = learner(nn.Identity(), batch).loss
        if step >= 20:
            resumed.progress.fill_(step / 40)
            assert torch.equal(resumed(nn.Identity(), batch).loss, loss)
        if step == 19:
            resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert {name: buffer.data_ptr() for name, buffer in learner.named_buffers()} == addresses, "changed in place"


def test_two_steps_of_fixmatch_run_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        task = make_task(torch.tensor([0, 1, 2, 3]))
        learner = FixMatch(task, ADELLO(task))
        for _ in range(2):
            f_x, f_weak, f_strong = (torch.rand(n, NUM_CLASSES, requires_grad=True) for n in (5, BATCH, BATCH))
            step = learner(nn.Identity(), as_batch(f_x, torch.zeros(5, dtype=torch.int64), f_weak, f_strong))
            step.loss.backward()
            assert step.loss.shape == ()
            assert all(value.shape == () for value in learner.guidance.logs().values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_handled_in_float32_without_gradient(dtype: torch.dtype) -> None:
    adello, expected = ADELLO(make_task()), ADELLO(make_task())
    for probs, index in random_batches(5):
        half = probs.to(dtype)
        q = adello(half.clone().requires_grad_(), index)
        assert q.dtype == torch.float32
        assert not q.requires_grad
        assert torch.equal(q, expected(half.float(), index))
        assert torch.equal(adello.pool_shares, expected.pool_shares)


# With other parts


def test_after_prg_in_a_chain_the_shares_are_those_of_the_rectified_predictions() -> None:
    task = make_task()
    chain, prg, adello = Chain(PRG(task), ADELLO(task)), PRG(task), ADELLO(task)
    FixMatch(task, chain)  # a chain with ADELLO has all hooks that FixMatch calls
    for probs, index in random_batches(30):
        assert torch.equal(chain(probs, index), adello(prg(probs, index), index))
    (last,) = [stage for stage in chain.stages if isinstance(stage, ADELLO)]
    assert torch.equal(last.pool_shares, adello.pool_shares)
    logits = torch.randn(BATCH, NUM_CLASSES, generator=torch.Generator().manual_seed(0))
    assert torch.equal(chain.pool_logits(logits), adello.pool_logits(logits))


@pytest.mark.parametrize("learner", [FlexMatch, MixMatch])
def test_a_learner_without_a_place_for_the_complementary_loss_is_refused(learner: Any) -> None:
    with pytest.raises(ValueError, match=rf"{learner.__name__} does not support ADELLO.*extra_loss"):
        learner(make_task(), ADELLO(make_task()))


# Bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"momentum": 1.0}, "momentum is 1.0; expected .*, e.g. 0.999"),
        ({"momentum": math.nan}, "momentum is nan"),
        ({"smallest_alpha": -0.1}, "smallest_alpha is -0.1; expected a number from 0 to 1, e.g. 0.1"),
        ({"smallest_alpha": 1.5}, "smallest_alpha is 1.5"),
        ({"consistency_from": 50_000}, "consistency_from is 50000; expected a number from 0 to 1, e.g. 0.19"),
        ({"consistency_from": -1}, "consistency_from is -1"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ADELLO(make_task(), **options)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_task_without_labels_is_refused_with_what_to_give(labeled_targets: Any) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        ADELLO(make_task(labeled_targets))


def test_classes_without_a_label_are_refused_by_their_numbers_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"no labelled sample of class 1, 3; ADELLO .* or choose another method"):
        ADELLO(make_task(torch.tensor([0, 0, 2])))


def test_a_bad_call_changes_nothing() -> None:
    adello = ADELLO(make_task())
    before = adello.pool_shares.clone()
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        adello(torch.eye(NUM_CLASSES)[:1], torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        adello(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    assert torch.equal(adello.pool_shares, before)
