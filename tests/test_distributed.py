from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from mnar import distributed
from mnar.guidances import PRG
from mnar.types import Task

WORLD_SIZE, NUM_STEPS, LOCAL_BATCH = 2, 12, 6
OPTIONS: tuple[dict[str, Any], ...] = ({"usage": "soft"}, {"usage": "hard"}, {"last": True, "alpha": 3.0})
TASK = Task(num_classes=4, num_unlabeled=20, batch_unlabeled=WORLD_SIZE * LOCAL_BATCH)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Whole batches, rank after rank, in which samples repeat; more of them than the window holds."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            (2 * torch.randn(WORLD_SIZE * LOCAL_BATCH, 4, generator=generator)).softmax(1),
            torch.randint(20, (WORLD_SIZE * LOCAL_BATCH,), generator=generator),
        )
        for _ in range(NUM_STEPS)
    ]


def guided(rank: int, world_size: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """For each choice of options: what one process's share of the batches became, and the state after it."""
    results = []
    for options in OPTIONS:
        guidance = PRG(TASK, window=5, **options)
        outputs = [guidance(*(whole.chunk(world_size)[rank] for whole in batch)) for batch in batches()]
        state = guidance.state_dict() | {"class_usage": guidance.class_usage}
        results.append((torch.stack(outputs), state))
    return results


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=WORLD_SIZE)
    assert (distributed.rank(), distributed.world_size()) == (rank, WORLD_SIZE)
    gathered = distributed.gather(torch.tensor([[rank, 7]]))
    assert gathered.tolist() == [[0, 7], [1, 7]]
    assert distributed.mean(torch.tensor([rank, 7.0])).tolist() == [0.5, 7.0]
    torch.save(guided(rank, WORLD_SIZE), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_one_process_is_the_whole_world() -> None:
    assert (distributed.rank(), distributed.world_size()) == (0, 1)
    local = torch.rand(3, 2)
    assert distributed.gather(local) is local
    assert distributed.mean(local) is local


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_track_what_one_that_sees_the_whole_batch_would(tmp_path: Path) -> None:
    spawn(work, args=(tmp_path,), nprocs=WORLD_SIZE)
    alone = guided(rank=0, world_size=1)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD_SIZE)]
    for options, (whole, state), *shares in zip(OPTIONS, alone, *ranks, strict=True):
        (first, first_state), (second, second_state) = shares
        for name, buffer in state.items():
            assert torch.equal(first_state[name], second_state[name]), (options, name)
            torch.testing.assert_close(first_state[name], buffer)
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    assert state["counts"][:-1].sum() > 0, "samples moved"
