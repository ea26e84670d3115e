"""Several processes in tests: functions in processes that are joined by gloo, and `mnar train` under torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def in_processes(number: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `work(*arguments)` in new processes, which are joined if there are several, and return their results."""
    folder.mkdir(exist_ok=True)
    spawn(_work, args=(number, folder, work, arguments), nprocs=number)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(number)]


def _work(rank: int, number: int, folder: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if number > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=number)
    torch.save(work(*arguments), folder / f"{rank}.pt")
    if number > 1:
        dist.destroy_process_group()
        # Without Python's clean-up: once, a process that had left its group was aborted by torch while it ended.
        os._exit(0)


def torchrun(*arguments: object, number: int = 2, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `mnar train` with these arguments in several processes."""
    return _launched(f"--nproc-per-node={number}", "--master-port", str(free_port()), *options, arguments=arguments)


def torchrun_on_two_nodes(*arguments: object) -> list[subprocess.Popen[str]]:
    """Start `mnar train` as two machines would: each of two launchers, which meet at a port, starts one process."""
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=test")
    return [_launched("--nnodes=2", "--nproc-per-node=1", *meeting, arguments=arguments) for _ in range(2)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _launched(*options: str, arguments: tuple[object, ...]) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    launch = ["torch.distributed.run", *options]
    return subprocess.Popen(
        [sys.executable, "-m", *launch, "-m", "mnar", "train", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def workers_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """The process number of each rank."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    found = {}
    for child in children:
        variables = dict(
            entry.split("=", 1) for entry in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in entry
        )
        if "RANK" in variables:
            found[int(variables["RANK"])] = int(child)
    return found
