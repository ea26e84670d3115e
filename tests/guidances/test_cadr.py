"""CADR against golden numbers, a literal oracle, and what must hold whatever the input."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar import distributed
from mnar.guidances import Chain, NoGuidance
from mnar.guidances.cadr import CADR, least_norm_weight
from mnar.learners import FixMatch, PiModel
from mnar.types import Task
from tests.reference.cadr import LiteralCADR

FIXTURES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_numbers.json").read_text())
GIVEN, GOLDEN = FIXTURES["inputs"]["CADR"], FIXTURES["baselines"]["CADR"]
NUM_CLASSES, NUM_UNLABELED, BATCH, BATCH_LABELED = 4, 37, 16, 8
LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.0, "beta": 1.0},
    {"momentum": 0.5, "beta": 0.0},
    {"weight_limit": 0.05, "labeled_threshold": 0.5},
]


class Labels(NamedTuple):
    logits: Tensor
    y: Tensor


def make_task(labeled_targets: Tensor | None = LABELS) -> Task:
    return Task(NUM_CLASSES, NUM_UNLABELED, labeled_targets, BATCH_LABELED, BATCH)


def random_batches(count: int) -> Iterator[tuple[Labels, Tensor, Tensor]]:
    """Labels, mostly of class 0 and mostly predicted; weak logits that drift from class to class; their rows."""
    generator = torch.Generator().manual_seed(0)
    for n in range(count):
        size = int(torch.randint(2, BATCH + 1, (), generator=generator))
        preference = torch.tensor([2 * math.sin(n / 10 + c) for c in range(NUM_CLASSES)])
        logits_weak = 3 * torch.randn(size, NUM_CLASSES, generator=generator) + preference
        y = LABELS[torch.randint(len(LABELS), (BATCH_LABELED,), generator=generator)]
        logits = 2 * torch.randn(BATCH_LABELED, NUM_CLASSES, generator=generator) + 3 * F.one_hot(y, NUM_CLASSES)
        index = torch.randint(NUM_UNLABELED, (size,), generator=generator)
        yield Labels(logits.requires_grad_(), y), logits_weak.requires_grad_(), index


def gradient_of(loss: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(loss, of, retain_graph=True)[0]


# Golden numbers


def golden_probs() -> Tensor:
    return torch.tensor(FIXTURES["inputs"]["prg_batches"][1]["probs"])


def golden_cadr(**options: Any) -> CADR:
    cadr = CADR(Task(3, NUM_UNLABELED, batch_unlabeled=BATCH), **options)
    cadr.prior.copy_(torch.tensor(GIVEN["prior_ema"]))
    return cadr


def test_the_labelled_loss_equals_the_golden_numbers() -> None:
    logits, y = torch.tensor(GIVEN["logits_labeled"]), torch.tensor(GIVEN["targets"])
    loss = golden_cadr().supervised(logits, y, golden_probs().log())
    assert loss.item() == pytest.approx(GOLDEN["L_cap"] + GOLDEN["L_supp"], abs=1e-6)
    nobody_is_sure = golden_cadr(labeled_threshold=1.0, beta=0.0)
    assert nobody_is_sure.supervised(logits, y, golden_probs().log()).item() == pytest.approx(GOLDEN["L_cap"], abs=1e-6)


def test_prior_thresholds_and_the_unlabelled_loss_equal_the_golden_numbers() -> None:
    cadr, probs = golden_cadr(), golden_probs()
    q = cadr(probs, torch.arange(len(probs)))
    assert torch.equal(q, probs)
    assert_close(cadr.prior, torch.tensor(GOLDEN["p_ema_new"]), atol=1e-6, rtol=0)
    assert_close(cadr.threshold(torch.eye(3), 0.95), torch.tensor(GOLDEN["thresholds"]), atol=1e-6, rtol=0)
    confidence, target = q.max(1)
    mask = confidence >= cadr.threshold(q, 0.95)
    assert mask.int().tolist() == GOLDEN["mask_u"]
    strong = torch.tensor(GIVEN["probs_strong"]).log()
    unlabeled = (mask * F.cross_entropy(strong, target, reduction="none")).mean()
    assert unlabeled.item() == pytest.approx(GOLDEN["L_cai"], abs=1e-6)


def test_the_oracle_equals_the_golden_numbers() -> None:
    oracle = LiteralCADR(3)
    oracle.prior = GIVEN["prior_ema"]
    probs = FIXTURES["inputs"]["prg_batches"][1]["probs"]
    parts = oracle.labeled(GIVEN["logits_labeled"], GIVEN["targets"], np.log(probs).tolist())
    assert parts.prior == pytest.approx(GOLDEN["prior"])
    assert [math.exp(s) for s in parts.log_s] == pytest.approx(GOLDEN["w_labeled"])
    assert (parts.cap, parts.supp) == pytest.approx((GOLDEN["L_cap"], GOLDEN["L_supp"]))
    assert parts.mask == [bool(m) for m in GOLDEN["mask_l"]]
    oracle.track(probs)
    assert oracle.prior == pytest.approx(GOLDEN["p_ema_new"])
    assert oracle.thresholds(0.95) == pytest.approx(GOLDEN["thresholds"])


# The literal version


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_prior_thresholds_loss_and_gradients_equal_the_literal_version_over_40_steps(options: dict[str, Any]) -> None:
    cadr, oracle = CADR(make_task(), **options), LiteralCADR(NUM_CLASSES, **options)
    for labels, logits_weak, index in random_batches(40):
        loss = cadr.supervised(*labels, logits_weak)
        lists = (labels.logits.double().tolist(), labels.y.tolist(), logits_weak.double().tolist())
        parts = oracle.labeled(*lists)
        assert loss.item() == pytest.approx(parts.cap + parts.supp, rel=1e-5, abs=1e-5)
        by_labeled, by_weak = oracle.gradients(*lists)
        assert_close(gradient_of(loss, labels.logits), torch.tensor(by_labeled), atol=1e-5, rtol=1e-3)
        assert_close(gradient_of(loss, logits_weak), torch.tensor(by_weak), atol=1e-5, rtol=1e-3)

        probs = logits_weak.detach().softmax(1)
        q = cadr(probs, index)
        oracle.track(probs.double().tolist())
        assert torch.equal(q, probs)
        assert_close(cadr.prior, torch.tensor(oracle.prior), atol=1e-6, rtol=1e-4)
        expected = torch.tensor([oracle.thresholds(0.95)[c] for c in probs.argmax(1).tolist()])
        assert_close(cadr.threshold(q, 0.95), expected, atol=1e-6, rtol=1e-4)


def test_a_learners_own_thresholds_are_multiplied() -> None:
    cadr = CADR(make_task())
    cadr.prior.copy_(torch.tensor([0.4, 0.1, 0.4, 0.1]))
    own = torch.tensor([0.9, 0.8, 0.5])
    assert_close(cadr.threshold(torch.eye(NUM_CLASSES)[:3], own), torch.tensor([0.9, 0.4, 0.5]))


# Properties


def right_and_sure() -> Labels:
    y = torch.tensor([0, 0, 1, 3])
    return Labels(6.0 * F.one_hot(y, NUM_CLASSES) + torch.linspace(0, 0.5, NUM_CLASSES), y)


def test_the_loss_is_plain_cross_entropy_where_all_labelled_predictions_are_right_and_sure() -> None:
    cadr, labels = CADR(make_task()), right_and_sure()
    for _, logits_weak, index in random_batches(10):
        loss = cadr.supervised(*labels, logits_weak)
        assert_close(loss, F.cross_entropy(*labels), atol=1e-6, rtol=0)
        assert gradient_of(loss, logits_weak).abs().max() < 1e-6, "nothing is left to correct"
        cadr(logits_weak.softmax(1), index)


def test_labelled_logits_get_the_gradient_of_plain_cross_entropy_and_weak_logits_get_one_too() -> None:
    cadr = CADR(make_task(), labeled_threshold=1.0, beta=0.0)  # nobody is sure: L_CAP alone
    cadr.prior.copy_(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for labels, logits_weak, _ in random_batches(10):
        loss = cadr.supervised(*labels, logits_weak)
        plain = F.cross_entropy(*labels)
        assert_close(gradient_of(loss, labels.logits), gradient_of(plain, labels.logits))
        assert gradient_of(loss, logits_weak).abs().sum() > 1e-3


def test_l_cap_is_least_where_the_pool_is_predicted_as_uniform() -> None:
    """-mean log s >= 0, by Jensen, and 0 where all classes are as common: there it is plain cross-entropy."""
    cadr = CADR(make_task(), labeled_threshold=1.0, beta=0.0)
    logits_weak = 9 * torch.eye(NUM_CLASSES).requires_grad_()  # w P is pi, for all pi
    for labels, _, _ in random_batches(5):
        plain = F.cross_entropy(*labels)
        cadr.prior.fill_(1 / NUM_CLASSES)
        loss = cadr.supervised(*labels, logits_weak)
        assert_close(loss, plain)
        assert gradient_of(loss, logits_weak).abs().max() < 1e-6
        cadr.prior.copy_(torch.tensor([0.5, 0.3, 0.15, 0.05]))
        assert cadr.supervised(*labels, logits_weak) > plain + 1e-3


def test_the_mean_of_the_labelled_weight_is_one_so_a_single_class_is_plain_cross_entropy() -> None:
    cadr = CADR(make_task(), labeled_threshold=1.0, beta=0.0)
    for labels, logits_weak, _ in random_batches(3):
        y = torch.full_like(labels.y, 2)
        assert_close(cadr.supervised(labels.logits, y, logits_weak), F.cross_entropy(labels.logits, y))


# The weight without an SVD


@pytest.mark.parametrize(("num_rows", "num_classes"), [(448, 10), (448, 100), (7, 10), (1, 3)])
@pytest.mark.parametrize("sharpness", [1.0, 3.0, 8.0])
def test_the_weight_is_numpys_pseudo_inverse_where_the_rows_differ(
    num_rows: int, num_classes: int, sharpness: float
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    rows = (sharpness * torch.randn(num_rows, num_classes, generator=generator)).softmax(1).double()
    target = torch.rand(num_classes, generator=generator).double()
    assert np.linalg.cond(rows.numpy()) < 200
    expected = target.numpy() @ np.linalg.pinv(rows.numpy())
    assert_close(least_norm_weight(target, rows), torch.from_numpy(expected), atol=1e-7, rtol=1e-7)


def test_the_weight_of_rows_of_lower_rank_is_finite_and_numpys() -> None:
    generator = torch.Generator().manual_seed(0)
    few = (2 * torch.randn(3, 10, generator=generator)).softmax(1).double()
    rows = few[torch.arange(48) % 3]
    target = torch.rand(10, generator=generator).double()
    expected = target.numpy() @ np.linalg.pinv(rows.numpy(), rcond=1e-6)
    assert_close(least_norm_weight(target, rows), torch.from_numpy(expected), atol=1e-7, rtol=0)


@pytest.mark.parametrize("spread", [1e-7, 1e-5, 1e-3])
def test_directions_that_are_all_but_absent_do_not_blow_the_weight_up(spread: float) -> None:
    """pinv gives weights of the order 1 / spread; the released cut-off, and the descent, keep them near its own."""
    generator = torch.Generator().manual_seed(0)
    rows = (spread * torch.randn(448, 10, generator=generator)).softmax(1).double()
    target = torch.rand(10, generator=generator).double()
    released = 1 / (5.3e-4 * np.linalg.norm(rows.numpy(), 2))  # what its cut-off leaves at most
    assert least_norm_weight(target, rows).norm() <= released * target.norm()


@pytest.mark.parametrize("row", [[0.0, 0.0, 0.0, 0.0], [3.0, -2.0, 0.0, 1.0], [200.0, 0.0, 0.0, 0.0]])
def test_a_pool_of_equal_predictions_gives_a_finite_loss_and_gradient(row: list[float]) -> None:
    cadr = CADR(make_task())
    logits_weak = torch.tensor(row).expand(BATCH, -1).clone().requires_grad_()
    for labels, _, _ in random_batches(3):
        loss = cadr.supervised(*labels, logits_weak)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient_of(loss, logits_weak)).all()
        assert torch.isfinite(gradient_of(loss, labels.logits)).all()


# Inverse propensity


def test_inverse_propensity_is_cross_entropy_over_labelled_count_times_prior_with_mean_weight_one() -> None:
    cadr = CADR(make_task(), labeled_loss="inverse_propensity")
    counts = [5, 3, 1, 1]
    for labels, logits_weak, index in random_batches(5):
        losses = F.cross_entropy(*labels, reduction="none").tolist()
        weights = [cadr.prior[c].item() / counts[c] for c in labels.y.tolist()]
        expected = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)
        assert cadr.supervised(*labels, logits_weak).item() == pytest.approx(expected, rel=1e-5)
        cadr(logits_weak.softmax(1), index)


def test_inverse_propensity_leaves_the_prior_and_the_thresholds_as_they_are() -> None:
    cadr, weighted = CADR(make_task()), CADR(make_task(), labeled_loss="inverse_propensity")
    for labels, logits_weak, index in random_batches(3):
        assert not cadr.supervised(*labels, logits_weak).equal(weighted.supervised(*labels, logits_weak))
        probs = logits_weak.softmax(1)
        assert torch.equal(cadr(probs, index), weighted(probs, index))
        assert torch.equal(cadr.threshold(probs, 0.9), weighted.threshold(probs, 0.9))


def test_a_class_that_has_pseudo_labels_alone_weighs_as_if_it_had_one_label() -> None:
    cadr = CADR(make_task(torch.tensor([0, 0, 0, 0])), labeled_loss="inverse_propensity")
    labels = Labels(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 0.0]]), torch.tensor([0, 1]))
    of_0, of_1 = F.cross_entropy(*labels, reduction="none").tolist()
    loss = cadr.supervised(*labels, torch.zeros(BATCH, NUM_CLASSES))
    assert loss.item() == pytest.approx((0.25 * of_0 + of_1) / 1.25)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_inverse_propensity_without_labels_is_refused_with_what_to_do_instead(labeled_targets: Any) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        CADR(make_task(labeled_targets), labeled_loss="inverse_propensity")
    CADR(make_task(labeled_targets))


# State


@pytest.mark.parametrize("labeled_loss", ["doubly_robust", "inverse_propensity"])
def test_state_is_the_prior_alone(labeled_loss: Any) -> None:
    assert set(CADR(make_task(), labeled_loss=labeled_loss).state_dict()) == {"prior"}


def test_the_labelled_loss_changes_no_state() -> None:
    cadr = CADR(make_task())
    for labels, logits_weak, _ in random_batches(2):
        cadr.supervised(*labels, logits_weak)
    assert cadr.prior.tolist() == [0.25] * NUM_CLASSES


def test_state_dict_in_the_middle_of_a_sequence_continues_bit_for_bit() -> None:
    cadr, resumed = CADR(make_task()), CADR(make_task())
    addresses = {name: buffer.data_ptr() for name, buffer in cadr.named_buffers()}
    history = list(random_batches(24))
    for _, logits_weak, index in history[:12]:
        cadr(logits_weak.softmax(1), index)
    resumed.load_state_dict(copy.deepcopy(cadr.state_dict()))
    for labels, logits_weak, index in history[12:]:
        assert torch.equal(cadr.supervised(*labels, logits_weak), resumed.supervised(*labels, logits_weak))
        q, again = (each(logits_weak.softmax(1), index) for each in (cadr, resumed))
        assert torch.equal(q, again)
        assert torch.equal(cadr.threshold(q, 0.95), resumed.threshold(q, 0.95))
    assert {name: buffer.data_ptr() for name, buffer in cadr.named_buffers()} == addresses, "changed in place"
    assert list(cadr.parameters()) == []


def test_one_batch_that_is_not_a_number_leaves_the_prior_as_it_was() -> None:
    cadr, spared = CADR(make_task()), CADR(make_task())
    for n, (_, logits_weak, index) in enumerate(random_batches(6)):
        probs = logits_weak.softmax(1)
        if n == 3:
            broken = probs.clone()
            broken[0] = math.nan
            cadr(broken, index)
        cadr(probs, index)
        spared(probs, index)
    assert torch.equal(cadr.prior, spared.prior)


def test_several_processes_average_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is made up: it always has the same predictions."""
    other = torch.tensor([[0.7, 0.1, 0.1, 0.1]])
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "gather", lambda local: torch.cat([local, other]))
    cadr = CADR(make_task(), momentum=0.5)
    cadr(torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.1, 0.1, 0.6, 0.2]]), torch.tensor([0, 1]))
    assert_close(cadr.prior, (torch.full((4,), 0.25) + torch.tensor([0.4, 0.2, 0.25, 0.15])) / 2)


@pytest.mark.parametrize("labeled_loss", ["doubly_robust", "inverse_propensity"])
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(labeled_loss: Any) -> None:
    with FakeTensorMode():
        cadr = CADR(make_task(torch.tensor([0, 1, 2, 3])), labeled_loss=labeled_loss)
        for _ in range(2):
            logits = torch.randn(BATCH_LABELED, NUM_CLASSES, requires_grad=True)
            logits_weak = torch.randn(BATCH, NUM_CLASSES, requires_grad=True)
            loss = cadr.supervised(logits, torch.zeros(BATCH_LABELED, dtype=torch.int64), logits_weak)
            loss.backward()
            assert logits.grad is not None
            assert (logits_weak.grad is not None) == (labeled_loss == "doubly_robust")
            q = cadr(logits_weak.detach().softmax(1), torch.arange(BATCH))
            threshold = cadr.threshold(q, 0.95)
            assert threshold.shape == (BATCH,)
            assert cadr.logs()["lowest_relative_threshold"].shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_handled_in_float32_without_gradient(dtype: torch.dtype) -> None:
    cadr, expected = CADR(make_task()), CADR(make_task())
    for _, logits_weak, index in random_batches(5):
        probs = logits_weak.softmax(1).to(dtype)
        q = cadr(probs, index.int())
        assert q.dtype == torch.float32
        assert not q.requires_grad
        assert torch.equal(q, expected(probs.float(), index))


def test_the_log_is_the_lowest_threshold_as_a_share_of_the_highest() -> None:
    cadr = CADR(make_task())
    assert cadr.logs()["lowest_relative_threshold"] == 1
    cadr.prior.copy_(torch.tensor([0.64, 0.16, 0.16, 0.04]))
    assert cadr.logs()["lowest_relative_threshold"].item() == pytest.approx(0.25)


def test_a_chain_passes_its_hooks_on() -> None:
    cadr, alone = CADR(make_task()), CADR(make_task())
    chain = Chain(cadr, NoGuidance(make_task()))
    assert chain.needs == CADR.needs
    for labels, logits_weak, index in random_batches(3):
        assert torch.equal(chain.supervised(*labels, logits_weak), alone.supervised(*labels, logits_weak))
        q, expected = chain(logits_weak.softmax(1), index), alone(logits_weak.softmax(1), index)
        assert_close(chain.threshold(q, 0.95), alone.threshold(expected, 0.95), rtol=0, atol=0)


# Bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"momentum": math.nan}, "momentum is nan"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"beta": math.inf}, "beta is inf"),
        ({"weight_limit": 0.0}, "weight_limit is 0.0"),
        ({"weight_limit": math.nan}, "weight_limit is nan"),
        ({"labeled_threshold": 1.1}, "labeled_threshold is 1.1"),
        ({"labeled_threshold": -0.1}, "labeled_threshold is -0.1"),
        ({"labeled_loss": "ipw"}, "labeled_loss is 'ipw'.*'doubly_robust', 'inverse_propensity'"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CADR(make_task(), **options)


def test_a_learner_without_thresholds_is_refused() -> None:
    FixMatch(make_task(), CADR(make_task()))
    with pytest.raises(ValueError, match=r"PiModel does not support CADR.*threshold"):
        PiModel(make_task(), CADR(make_task()))


def test_a_bad_call_changes_nothing() -> None:
    cadr = CADR(make_task())
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        cadr(torch.full((1, NUM_CLASSES), 0.25), torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        cadr(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    assert cadr.prior.tolist() == [0.25] * NUM_CLASSES
