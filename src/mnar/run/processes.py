"""Several processes train one run: torchrun starts them, process 0 writes the run folder, and all of them agree.

Before the first step, every check runs in all processes (`together`): if one process fails, all of them fail, and
process 0 tells the reason. After that, torchrun ends all processes when one of them ends with an error.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

import mnar
from mnar import distributed
from mnar.config import RunConfig
from mnar.run.file_names import CONFIG
from mnar.run.folder import RunFolder, SplitRecord
from mnar.run.lock import locked
from mnar.training.trainer import Interrupted

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")
BACKENDS = ("gloo", "nccl")
LONGEST_WAIT = 600  # seconds that a process waits for process 0
POLLS, POLL_SECONDS = 20, 0.05  # how often a process looks for the answer of process 0, before it asks again
SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ending:
    """What the end of this process depends on."""

    has_joined = False  # whether it has joined a process group
    is_agreed = False  # whether all processes end because of an error that all of them know


class ToldByFirst(RuntimeError):
    """Training ends in all processes, and process 0 tells the reason."""


def is_launched() -> bool:
    """Whether torchrun, or another launcher that sets the same variables, has started this process."""
    return all(name in os.environ for name in SET_BY_TORCHRUN)


def is_follower() -> bool:
    """Whether this is not the first process, which is the one that prints. This is known before the processes join."""
    return is_launched() and int(os.environ["RANK"]) > 0


def is_restarted() -> bool:
    """Whether torchrun has started this command again, because a process had ended with an error."""
    return is_launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def end_joined(code: int) -> None:
    """End this process without Python's clean-up, if it has joined a process group. Other processes go on.

    A thread of gloo may still hold a tensor of the last exchange. If the thread releases the tensor during Python's
    clean-up, it aborts the process. torchrun then kills process 0, which may still be drawing the report.
    """
    if Ending.has_joined:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def joined(backend: str | None = None) -> Iterator[None]:
    """Join the process group that torchrun has started; do nothing in a process that torchrun has not started.

    backend    "nccl" or "gloo", which exchange tensors; None: NCCL between GPUs. Tensors on the CPU always use gloo
    """
    if not is_launched():
        _check_backend(backend)
        yield
        return
    from torch.distributed.rendezvous import rendezvous  # a build of torch may have no distributed training

    on_gpu = torch.cuda.is_available() and dist.is_nccl_available() and backend != "gloo"
    store, rank, world_size = next(rendezvous("env://"))
    store = _store_of_this_start(store, rank, world_size)
    exchange = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(exchange, store=store, rank=rank, world_size=world_size)
    Ending.has_joined = True
    try:
        together(lambda: _check_backend(backend))
        yield
    except Exception as error:
        # After any other error, the group is left as it is: other processes may have ended and would not answer.
        if isinstance(error, Interrupted) or Ending.is_agreed:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _store_of_this_start(store: Store, rank: int, world_size: int) -> Store:
    """Return a part of the store in which no earlier start of the job has left anything.

    torchrun keeps the store when it starts a job again, and gloo would read the addresses of processes that have ended.
    The number of restarts differs between machines, so process 0 names the start, and it answers every process, which
    thereby knows that the name is not an old one.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    mine = uuid.uuid4().hex
    if rank == 0:
        store.set("mnar/start", mine)
        for other in range(1, world_size):
            greeting = store.get(f"mnar/{mine}/{other}").decode()  # waits for the process
            store.set(f"mnar/{mine}/{other}/{greeting}", "welcome")
        return PrefixStore(mine, store)
    until = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < until:
        start = store.get("mnar/start").decode()
        store.set(f"mnar/{start}/{rank}", mine)
        for _ in range(POLLS):
            if store.check([f"mnar/{start}/{rank}/{mine}"]):
                return PrefixStore(start, store)
            time.sleep(POLL_SECONDS)
    raise distributed.LostProcess(f"process 0 did not answer process {rank} within {LONGEST_WAIT} seconds")


def _check_backend(backend: str | None) -> None:
    if backend is None:
        return
    if backend not in BACKENDS:
        raise ValueError(f"unknown --backend {backend!r}; choose from {list(BACKENDS)}")
    if not is_launched():
        raise ValueError(
            f"--backend {backend} is for several processes, but there is one; leave it out, or start the command with "
            "`torchrun --nproc-per-node=2 -m mnar train …`"
        )
    if backend == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise ValueError("--backend nccl needs GPUs, but torch sees none; leave it out, or choose --backend gloo")


def together(action: Callable[[], T]) -> T:
    """Run `action` in every process. If it fails in one of them, it fails in all of them, and process 0 tells why.

    `action` must not exchange tensors.
    """
    if distributed.world_size() == 1:
        return action()
    error: Exception | None = None
    try:
        result = action()
    except (ValueError, OSError) as caught:
        error = caught
    problems: list[str | None] = distributed.gather_objects(None if error is None else str(error))
    if not any(problem is not None for problem in problems):
        return result
    Ending.is_agreed = True
    if distributed.rank() > 0:
        raise ToldByFirst from error
    if error is not None:
        raise error
    number, problem = next((number, text) for number, text in enumerate(problems) if text is not None)
    raise ValueError(f"process {number} of {len(problems)} cannot start: {problem}")


def only_first(action: Callable[[], object]) -> None:
    """Run `action` in process 0. The other processes wait, and if it fails, they fail, too."""
    together(lambda: action() if distributed.rank() == 0 else None)


def wait_for_first() -> None:
    """Wait until process 0 gets here."""
    only_first(lambda: None)


@contextmanager
def led(folder: Path) -> Iterator[None]:
    """Create and lock the run folder in process 0, which is the only one that writes to it."""
    with ExitStack() as stack:

        def lead() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))

        only_first(lead)
        yield


def check_shared(folder: Path, config: RunConfig) -> None:
    """Refuse a run folder in which a process does not see the files of process 0."""
    if distributed.world_size() == 1:
        return

    def check() -> None:
        if not RunFolder(folder).has_config or RunFolder(folder).config().differences(config):
            raise ValueError(
                f"{folder / CONFIG} on {socket.gethostname()} is not the file that process 0 has written, so the "
                "processes do not share the run folder; choose --out on a file system that all machines share"
            )

    together(check)


def check_same(config: RunConfig, split: SplitRecord, *, first_step: int) -> None:
    """Refuse processes that would train different runs: other versions, configurations, data or checkpoints."""
    if distributed.world_size() == 1:
        return
    mine = {
        "version of mnar": mnar.__version__,
        "version of torch": torch.__version__,
        "data (hash)": split["data_hash"],
        "split (hash)": split["hash"],
        "step of the checkpoint": first_step,
    }
    everyone = distributed.gather_objects((config.to_yaml(), mine))

    def check() -> None:
        for number, (other_config, other) in enumerate(everyone[1:], start=1):
            differences = _differences(everyone[0], (other_config, other))
            if differences:
                raise ValueError(
                    f"process 0 and process {number} differ in {'; '.join(differences)}. Start all processes with the "
                    "same command, the same data and the same versions"
                )

    together(check)


def _differences(first: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> list[str]:
    of_options = RunConfig.from_yaml(first[0]).differences(RunConfig.from_yaml(other[0]))
    of_facts = [f"{name}: {value} and {other[1][name]}" for name, value in first[1].items() if value != other[1][name]]
    return [*of_options, *of_facts]
