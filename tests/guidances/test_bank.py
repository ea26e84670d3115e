"""Banks: their types, checkpoints of earlier versions, and banks that several processes share."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from mnar import distributed
from mnar.guidances import PRG, NoGuidance
from mnar.guidances.bank import BankRows, empty_bank
from mnar.learners import FlexMatch
from mnar.types import Task
from tests.support.equality import assert_same
from tests.support.processes import in_processes

NUM_CLASSES, NUM_UNLABELED, BATCH = 4, 31, 12  # 31 samples: two or three processes hold parts of different sizes
TASK = Task(NUM_CLASSES, NUM_UNLABELED, batch_unlabeled=BATCH)


@pytest.mark.parametrize(
    ("num_classes", "dtype"), [(2, torch.int16), (32_767, torch.int16), (32_768, torch.int32), (10**6, torch.int32)]
)
def test_a_bank_has_the_smallest_type_that_holds_its_classes(num_classes: int, dtype: torch.dtype) -> None:
    bank = empty_bank(5, num_classes)
    assert (bank.dtype, bank.tolist()) == (dtype, [-1] * 6)
    bank[2] = num_classes - 1
    assert bank[2] == num_classes - 1


def test_event_codes_of_1000_classes_are_exact_although_the_bank_has_16_bits() -> None:
    prg = PRG(Task(1000, 3, batch_unlabeled=3))
    index = torch.arange(3)
    for label in ([999, 998, 0], [998, 0, 999]):
        prg(torch.nn.functional.one_hot(torch.tensor(label), 1000).float(), index)
    assert prg.bank.dtype == torch.int16
    assert prg.transitions.nonzero().tolist() == [[0, 999], [998, 0], [999, 998]]


@pytest.mark.parametrize("num_classes", [3, 40_000])
def test_flexmatch_counts_classes_of_either_type(num_classes: int) -> None:
    learner = FlexMatch(Task(num_classes, 5, batch_unlabeled=4), NoGuidance(Task(num_classes, 5)))
    last = num_classes - 1
    learner._select(torch.tensor([last, 1, last]), torch.tensor([True, False, True]), torch.tensor([4, 2, 0]))
    assert learner.selected.tolist() == [last, -1, -1, -1, last, -1]
    assert (learner.counts[0], learner.counts[num_classes]) == (3, 2)


def test_more_classes_or_samples_than_32_bits_can_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_classes is 50000; .* at most 46340 classes\. Choose another guidance"):
        PRG(Task(50_000, 10))
    with pytest.raises(ValueError, match=r"num_unlabeled is 2147483648; .* at most 2147483647 samples are possible"):
        NoGuidance(Task(10, 2**31))


# Checkpoints of earlier versions


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_bank_of_an_earlier_version_with_wider_integers_continues_bit_for_bit(dtype: torch.dtype) -> None:
    prg, resumed = PRG(TASK, window=5), PRG(TASK, window=5)
    history = batches(40)
    for batch in history[:20]:
        prg(*batch)
    state = copy.deepcopy(prg.state_dict())
    resumed.load_state_dict(state | {"bank": state["bank"].to(dtype)})
    for batch in history[20:]:
        assert torch.equal(prg(*batch), resumed(*batch))
    assert_same(resumed.state_dict(), prg.state_dict())


def test_flexmatch_loads_the_wider_bank_of_an_earlier_version() -> None:
    learner = FlexMatch(TASK, NoGuidance(TASK))
    state = learner.state_dict()
    earlier = torch.arange(-1, NUM_UNLABELED, dtype=torch.int32) % NUM_CLASSES
    learner.load_state_dict(state | {"selected": earlier})
    assert learner.selected.dtype == torch.int16
    assert learner.selected.tolist() == earlier.tolist()


# A bank that several processes share

VARIANTS: dict[str, dict[str, Any]] = {"prg": {}, "prg_last": {"last": True, "alpha": 3.0}}
State = dict[str, Tensor]


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Whole batches, in which samples repeat."""
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(count, BATCH, NUM_CLASSES, generator=generator)).softmax(2)
    return list(zip(probs, torch.randint(NUM_UNLABELED, (count, BATCH), generator=generator), strict=True))


def guided(first: int, last: int, states: dict[str, State] | None, *, sharded: bool = True) -> dict[str, Any]:
    """For each variant: the outputs for this process's part of some batches, the state afterwards, the rows held."""
    results = {}
    for name, options in VARIANTS.items():
        guidance = PRG(TASK, window=5, shard_bank=sharded, **options)
        if states is not None:
            guidance.load_state_dict(states[name])
        outputs = [guidance(*map(distributed.own_rows, batch)) for batch in batches(last)[first:]]
        results[name] = {"outputs": outputs, "state": copy.deepcopy(guidance.state_dict()), "rows": len(guidance.bank)}
    return results


def guided_both_ways() -> tuple[dict[str, Any], dict[str, Any], str]:
    """What `guided` gives with whole banks and with a shared bank, and the refusal of the state of another task."""
    other = PRG(TASK._replace(num_unlabeled=NUM_UNLABELED + 8)).state_dict()
    with pytest.raises(RuntimeError) as caught:
        PRG(TASK, shard_bank=True).load_state_dict(other)
    return guided(0, 30, None, sharded=False), guided(0, 30, None), str(caught.value)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")
def test_processes_that_share_a_bank_have_the_state_of_a_whole_bank_and_any_number_of_them_continues(
    tmp_path: Path,
) -> None:
    of_two = in_processes(2, tmp_path / "two", guided_both_ways)
    for whole, shared, refusal in of_two:
        for name in VARIANTS:
            assert (whole[name].pop("rows"), shared[name].pop("rows")) == (NUM_UNLABELED + 1, 16 + 1)
            assert_same(shared[name], whole[name])
            assert shared[name]["state"]["counts"][:-1].sum() > 0, "samples moved"
        assert "size mismatch for bank" in refusal

    states = {name: of_two[0][1][name]["state"] for name in VARIANTS}
    alone = guided(30, 60, states)
    for of_process in in_processes(3, tmp_path / "three", guided, 30, 60, states):
        for name in VARIANTS:
            assert of_process[name]["rows"] == 11 + 1
            for buffer in ("bank", "counts", "events"):
                assert torch.equal(of_process[name]["state"][buffer], alone[name]["state"][buffer]), (name, buffer)


def test_one_process_holds_all_rows_of_a_bank_even_if_it_is_sharded() -> None:
    rows = BankRows(10, sharded=True)
    assert (rows.size, rows.first, rows.is_sharded) == (10, 0, False)
