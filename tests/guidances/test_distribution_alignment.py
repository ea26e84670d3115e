"""Distribution alignment against golden numbers, a literal oracle, and what must hold whatever the input."""

from __future__ import annotations

import copy
import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from mnar import distributed
from mnar.guidances import PRG, Chain
from mnar.guidances.distribution_alignment import DistributionAlignment
from mnar.types import Task
from tests.reference.distribution_alignment import LiteralAlignment
from tests.support.drifting import drifting_batches

FIXTURES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_numbers.json").read_text())
NUM_CLASSES, NUM_UNLABELED, BATCH = 4, 37, 16
TARGETS = {"uniform": (1.0, 1.0, 1.0, 1.0), "labeled": (5.0, 3.0, 1.0, 1.0), (0.1, 2.0, 0.7, 4.0): (0.1, 2.0, 0.7, 4.0)}
AVERAGES: list[dict[str, Any]] = [{"window": 1}, {"window": 7}, {"window": 128}, {"ema": 0.0}, {"ema": 0.9}]
LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3])


def make_task(labeled_targets: Tensor | None = LABELS) -> Task:
    return Task(NUM_CLASSES, NUM_UNLABELED, labeled_targets, batch_unlabeled=BATCH)


random_batches = partial(drifting_batches, num_classes=NUM_CLASSES, num_unlabeled=NUM_UNLABELED, largest=BATCH)


def test_alignment_equals_the_golden_numbers() -> None:
    golden = FIXTURES["inputs"]["DA"]
    probs = torch.tensor(FIXTURES["inputs"]["prg_batches"][1]["probs"])
    task = Task(3, NUM_UNLABELED, batch_unlabeled=BATCH)
    alignment = DistributionAlignment(task, target=tuple(golden["target"]))
    alignment(torch.tensor([golden["running"]]), torch.tensor([0]))
    aligned = alignment(probs, torch.arange(len(probs)))
    assert_close(aligned, torch.tensor(FIXTURES["baselines"]["DA"]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("average", AVERAGES, ids=str)
@pytest.mark.parametrize("update", ["before", "after"])
def test_alignment_equals_the_literal_version_over_300_steps(target: Any, average: dict[str, Any], update: str) -> None:
    options = {**average, "update": update}
    alignment = DistributionAlignment(make_task(), target=target, **options)
    oracle = LiteralAlignment(TARGETS[target], **options)
    assert_close(alignment.running_prediction, torch.tensor(oracle.running_prediction()))
    for probs, index in random_batches(300):
        aligned = alignment(probs, index)
        assert_close(aligned, torch.tensor(oracle(probs.tolist())), atol=1e-5, rtol=1e-4)
        assert_close(alignment.running_prediction, torch.tensor(oracle.running_prediction()), atol=1e-5, rtol=1e-4)


def test_the_defaults_are_remixmatchs_labelled_shares_128_batches_and_an_update_after_use() -> None:
    task = make_task()
    alignment, named = DistributionAlignment(task), DistributionAlignment(task, target="labeled", window=128)
    oracle = LiteralAlignment(TARGETS["labeled"], window=128, update="after")
    for probs, index in random_batches(150):
        aligned = alignment(probs, index)
        assert torch.equal(aligned, named(probs, index))
        assert_close(aligned, torch.tensor(oracle(probs.tolist())), atol=1e-5, rtol=1e-4)


def test_a_batch_of_equal_rows_that_is_all_of_the_history_becomes_the_target() -> None:
    alignment = DistributionAlignment(make_task(), window=1, update="before")
    row = torch.tensor([0.1, 0.2, 0.3, 0.4])
    aligned = alignment(row.expand(5, -1), torch.arange(5))
    assert_close(aligned, torch.tensor([0.5, 0.3, 0.1, 0.1]).expand(5, -1), atol=1e-4, rtol=0)


def test_a_target_of_tiny_numbers_has_their_ratios() -> None:
    alignment = DistributionAlignment(make_task(), target=(1e-60, 2e-60, 3e-60, 4e-60))
    assert_close(alignment.target, torch.tensor([0.1, 0.2, 0.3, 0.4]))


def test_nothing_happens_where_target_and_running_prediction_agree() -> None:
    alignment = DistributionAlignment(make_task(), target="uniform")
    ((probs, index),) = random_batches(1)
    assert_close(alignment(probs, index), probs)  # no history yet: uniform


@pytest.mark.parametrize("update", ["before", "after"])
def test_classes_without_labels_or_predictions_give_finite_distributions(update: Any) -> None:
    alignment = DistributionAlignment(make_task(torch.tensor([0, 0, 1])), window=2, update=update)
    only_the_last = torch.eye(NUM_CLASSES)[[3, 3, 3]]
    for probs in (only_the_last, only_the_last, torch.full((3, NUM_CLASSES), 0.25), only_the_last):
        aligned = alignment(probs, torch.arange(3))
        assert torch.isfinite(aligned).all()
        assert_close(aligned.sum(1), torch.ones(3))
        assert torch.isfinite(alignment.logs()["largest_ratio"])
    assert alignment.target.tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])


@pytest.mark.parametrize("average", AVERAGES, ids=str)
def test_one_batch_that_is_not_a_number_is_not_part_of_the_history(average: dict[str, Any]) -> None:
    alignment, spared = (DistributionAlignment(make_task(), **average) for _ in range(2))
    broken = torch.full((3, NUM_CLASSES), math.nan)
    for n, (probs, index) in enumerate(random_batches(6)):
        if n == 3:
            alignment(broken, torch.arange(3))
        alignment(probs, index)
        spared(probs, index)
    assert torch.isfinite(alignment.ratio).all()
    if average == {"window": 128}:
        assert_close(alignment.ratio, spared.ratio)


def test_the_log_is_the_largest_ratio_of_target_to_running_prediction() -> None:
    alignment = DistributionAlignment(make_task(), target="uniform")
    assert alignment.logs()["largest_ratio"] == 1
    alignment(torch.tensor([[0.05, 0.35, 0.2, 0.4]]), torch.tensor([0]))
    assert alignment.logs()["largest_ratio"].item() == pytest.approx(5, rel=1e-4)


def test_several_processes_average_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process is made up: it always has the same predictions."""
    other = torch.tensor([[0.7, 0.1, 0.1, 0.1]])
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "gather", lambda local: torch.cat([local, other]))
    alignment = DistributionAlignment(make_task())
    alignment(torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.1, 0.1, 0.6, 0.2]]), torch.tensor([0, 1]))
    assert_close(alignment.running_prediction, torch.tensor([0.4, 0.2, 0.25, 0.15]))


def test_in_a_chain_prg_sees_and_tracks_aligned_predictions() -> None:
    task = make_task()
    chain = Chain(DistributionAlignment(task, update="before"), PRG(task))
    alignment, prg = DistributionAlignment(task, update="before"), PRG(task)
    for probs, index in random_batches(20):
        assert torch.equal(chain(probs, index), prg(alignment(probs, index), index))
    assert set(chain.logs()) == {"largest_ratio", "empty_row_share", "transitions"}


# State


def test_state_is_what_the_next_batch_needs_and_neither_target_nor_log() -> None:
    assert set(DistributionAlignment(make_task()).state_dict()) == {"history", "batches"}


@pytest.mark.parametrize(("average", "update"), list(itertools.product(AVERAGES, ["before", "after"])), ids=str)
def test_state_dict_in_the_middle_of_a_sequence_continues_bit_for_bit(average: dict[str, Any], update: Any) -> None:
    alignment, resumed = (DistributionAlignment(make_task(), update=update, **average) for _ in range(2))
    addresses = {name: buffer.data_ptr() for name, buffer in alignment.named_buffers()}
    history = list(random_batches(24))
    for probs, index in history[:12]:
        alignment(probs, index)
    resumed.load_state_dict(copy.deepcopy(alignment.state_dict()))
    for probs, index in history[12:]:
        assert torch.equal(alignment(probs, index), resumed(probs, index))
    assert {name: buffer.data_ptr() for name, buffer in alignment.named_buffers()} == addresses, "changed in place"
    assert list(alignment.parameters()) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ema", [None, 0.9])
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(target: Any, ema: float | None) -> None:
    with FakeTensorMode():
        alignment = DistributionAlignment(make_task(torch.tensor([0, 1, 2, 3])), target=target, ema=ema)
        for _ in range(2):
            aligned = alignment(torch.rand(BATCH, NUM_CLASSES).softmax(1), torch.arange(BATCH))
            assert aligned.shape == (BATCH, NUM_CLASSES)
            assert alignment.logs()["largest_ratio"].shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_handled_in_float32_without_gradient(dtype: torch.dtype) -> None:
    alignment, expected = DistributionAlignment(make_task()), DistributionAlignment(make_task())
    for probs, index in random_batches(5):
        aligned = alignment(probs.to(dtype).requires_grad_(), index)
        assert aligned.dtype == torch.float32
        assert not aligned.requires_grad
        assert torch.equal(aligned, expected(probs.to(dtype).float(), index))


# Bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"window": 0}, "window is 0"),
        ({"ema": 1.0}, "ema is 1.0"),
        ({"ema": -0.1}, "ema is -0.1"),
        ({"ema": math.nan}, "ema is nan"),
        ({"update": "during"}, "update is 'during'"),
        ({"target": "labelled"}, "target is 'labelled'; expected .* or a list of numbers from 0"),
        ({"target": (0.5, 0.5)}, r"target has 2 numbers, \(0.5, 0.5\); expected 4"),
        ({"target": (1.0, 2.0, 0.0, 1.0)}, r"\(1.0, 2.0, 0.0, 1.0\); expected 4 positive"),
        ({"target": (1.0, 2.0, -1.0, 1.0)}, r"\(1.0, 2.0, -1.0, 1.0\); expected .*a list of numbers from 0"),
        ({"target": (1.0, 2.0, math.inf, 1.0)}, r"inf, 1.0\); expected .*a list of numbers"),
        ({"target": (1.0, 2.0, math.nan, 1.0)}, r"nan, 1.0\); expected .*a list of numbers"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DistributionAlignment(make_task(), **options)


@pytest.mark.parametrize("labeled_targets", [None, torch.zeros(0, dtype=torch.int64)])
def test_a_labelled_target_without_labels_is_refused_with_what_to_choose_instead(labeled_targets: Any) -> None:
    with pytest.raises(ValueError, match=r"no labels \(Task\.labeled_targets\).*give it some, or choose"):
        DistributionAlignment(make_task(labeled_targets))
    DistributionAlignment(make_task(labeled_targets), target="uniform")


def test_a_bad_call_changes_nothing() -> None:
    alignment = DistributionAlignment(make_task())
    before = copy.deepcopy(alignment.state_dict())
    with pytest.raises(IndexError, match=str(NUM_UNLABELED)):
        alignment(torch.full((1, NUM_CLASSES), 0.25), torch.tensor([NUM_UNLABELED]))
    with pytest.raises(ValueError, match="3"):
        alignment(torch.full((1, 3), 1 / 3), torch.tensor([0]))
    for name, value in alignment.state_dict().items():
        assert torch.equal(value, before[name]), name
