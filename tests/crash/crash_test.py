"""Kill runs at each of their file operations, continue them, and compare them with runs that were not killed.

`make crash-test` runs this file; docs/hardening.md describes it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from tests.crash.comparison import differences
from tests.crash.file_operations import FileOperations
from tests.crash.methods import METHODS, OUT, Method, save_time, write_data
from tests.support.forked_command import import_like, run_forked
from tests.support.killing import in_a_child, was_killed

KILLED = -9
NUM_PROCESSES = 2
KILLS_PER_REPORT = 100


class Undisturbed(NamedTuple):
    """A run that was not killed."""

    method: Method
    data: Path
    folder: Path
    moments: list[str]  # at which the run can be killed


def run_undisturbed(method: Method, data: Path, folder: Path) -> Undisturbed:
    """Run the command of a method to its end, and check that no file is renamed before its content is on the disk."""
    folder.mkdir()
    operations, noted = FileOperations(folder / OUT), folder / "moments.json"

    def watch() -> None:
        save_time()
        operations.watch()

    def note() -> None:
        noted.write_text(json.dumps([operations.moments, operations.unsafe, sorted(operations.unflushed)]))

    ended = import_like(method.start(data), folder, watch, note)
    assert ended.exit_code == 0, f"{method.name}: {ended.errors}"
    moments, unsafe, unflushed = json.loads(noted.read_text())
    assert not unsafe, f"{method.name}: {unsafe}"
    assert not unflushed, f"{method.name}: {unflushed} were never flushed to the disk"
    return Undisturbed(method, data, folder, moments)


def try_kill(undisturbed: Undisturbed, moment: int) -> list[str]:
    """Kill the command at a moment, counted from 1, continue it, and return what is wrong with the result."""
    method, data = undisturbed.method, undisturbed.data
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def watch() -> None:
            save_time()
            FileOperations(folder / OUT, kill_at=moment).watch()

        killed = run_forked(method.start(data), folder, watch)
        if killed.exit_code != KILLED:
            return [f"the command ended with the code {killed.exit_code} and was not killed {killed.errors[-300:]}"]
        continued = run_forked(method.continuation(folder, data), folder, save_time)
        if continued.exit_code != 0:
            return [f"the command that continues the run fails: {continued.errors[-300:].strip()}"]
        return differences(folder / OUT, undisturbed.folder / OUT)


def _work(experiments: Iterable[tuple[Undisturbed, int]], results: int) -> None:
    for undisturbed, moment in experiments:
        wrong = try_kill(undisturbed, moment)
        where = f"killed before moment {moment}: {undisturbed.moments[moment - 1]}"
        os.write(results, (json.dumps([undisturbed.method.name, where, wrong]) + "\n").encode())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sample", type=int, help="do only this many experiments, spread evenly over all of them")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        data.mkdir()
        write_data(data)
        runs = [run_undisturbed(method, data, Path(place) / method.name) for method in METHODS]
        experiments = [(run, moment) for run in runs for moment in range(1, len(run.moments) + 1)]
        if chosen.sample:
            experiments = [experiments[i * len(experiments) // chosen.sample] for i in range(chosen.sample)]
        reading, writing = os.pipe()
        workers = [
            in_a_child(partial(_work, experiments[number::NUM_PROCESSES], writing)) for number in range(NUM_PROCESSES)
        ]
        os.close(writing)
        tried, failed = Counter[str](), Counter[str]()
        with os.fdopen(reading) as lines:
            for name, where, wrong in map(json.loads, lines):
                tried[name] += 1
                if tried.total() % KILLS_PER_REPORT == 0:
                    print(f"{tried.total()} of {len(experiments)} kills", flush=True)
                if wrong:
                    failed[name] += 1
                    print(f"{name}, {where}: {'; '.join(wrong)}", flush=True)
        assert not any(map(was_killed, workers))
    print(f"{'method':20} {'moments':>8} {'killed':>8} {'equal':>8}")
    for run in runs:
        name = run.method.name
        print(f"{name:20} {len(run.moments):8} {tried[name]:8} {tried[name] - failed[name]:8}")
    print(f"{len(experiments)} kills, {failed.total()} of them with a wrong result")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
