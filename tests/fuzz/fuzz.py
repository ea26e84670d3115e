"""Try changed inputs of all readers by the rule, count what happens, and keep the inputs that fail.

`make fuzz MINUTES=60` runs this file; docs/hardening.md describes it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from tests.fuzz.checkpoint_file import CheckpointFile
from tests.fuzz.csv_table import CsvTable
from tests.fuzz.image_folder import ImageFolder
from tests.fuzz.npz_file import NpzFile
from tests.fuzz.parquet_table import ParquetTable
from tests.fuzz.reader import Reader, draw_no_report, fit_quick_members
from tests.fuzz.rule import Judgement, Verdict, judge, kind_of, limit_this_process
from tests.fuzz.run_files import RunFiles
from tests.fuzz.used_table import UsedTable
from tests.fuzz.yaml_options import ConfigFile, Settings
from tests.support.forked_command import import_like, run_forked
from tests.support.killing import in_a_child, was_killed

NEEDING_PYARROW: tuple[type[Reader], ...] = (ParquetTable,) if find_spec("pyarrow") else ()
READERS: tuple[type[Reader], ...] = (
    *(CsvTable, *NEEDING_PYARROW, ImageFolder, NpzFile, ConfigFile, Settings, CheckpointFile, RunFiles, UsedTable),
)
SHARE_OF_WHOLE_COMMANDS = 0.2  # the other commands end when they have read their input, which is several times as fast
MOST_KEPT = 3  # inputs that fail for the same reason
NUM_PROCESSES = 2
SECONDS_PER_REPORT = 60


def make_readers(folder: Path) -> list[Reader]:
    """Write valid inputs of all readers below `folder`, and check that the commands accept them."""
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    readers = []
    for kind in READERS:
        (folder / kind.__name__).mkdir(parents=True)
        reader = kind(folder / kind.__name__)
        for command in reader.first_commands:
            with tempfile.TemporaryDirectory() as place:  # the command may change its input
                copy = Path(shutil.copytree(reader.originals, place, dirs_exist_ok=True))
                ended = import_like(command, copy, draw_no_report)
            assert ended.exit_code == 0, ended.errors
        readers.append(reader)
    return readers


def try_input(reader: Reader, seed: int, folder: Path) -> tuple[Judgement, list[str]]:
    """Write the input of a seed into an empty folder, run its command, and return the judgement and the command."""
    rng = _random(reader, seed)
    command = reader.write_input(folder, rng)
    is_whole = rng.random() < SHARE_OF_WHOLE_COMMANDS and not reader.asks_for_much_work(command)

    def before() -> None:
        fit_quick_members()
        (draw_no_report if is_whole else reader.stop_early)()
        limit_this_process()

    judgement = judge(run_forked(command, folder, before))
    if judgement.verdict is Verdict.WORKED and (difference := reader.difference(folder)):
        judgement = Judgement(Verdict.DIFFERENT, difference)
    return judgement, command


class Failures:
    """A folder of inputs that fail. Of inputs that fail for the same reason, it keeps a few."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kinds = folder, Counter[str]()

    def keep(self, reader: Reader, seed: int, command: Sequence[str], judgement: Judgement) -> None:
        kind = f"{reader.name} {kind_of(judgement)}"
        self.kinds[kind] += 1
        place = self.folder / f"{reader.name.strip('-').replace(' ', '-')}-{seed}"
        if self.kinds[kind] <= MOST_KEPT and not place.exists():
            place.mkdir(parents=True)
            # The input is written again, because the command may have changed its files.
            reader.write_input(place, _random(reader, seed))
            (place / "COMMAND.txt").write_text(f"mnar {shlex.join(command)}\n{judgement.verdict}: {judgement.reason}\n")


def _random(reader: Reader, seed: int) -> random.Random:
    return random.Random(f"{reader.name} {seed}")


def _work(readers: Sequence[Reader], seeds: Iterable[int], until: float, failures: Failures, results: int) -> None:
    """Try an input of every reader for each seed until the time is up. Write one line about each to a pipe."""
    for seed, reader in ((seed, reader) for seed in seeds for reader in readers):
        if time.monotonic() > until:
            return
        try:
            with tempfile.TemporaryDirectory() as folder:
                judgement, command = try_input(reader, seed, Path(folder))
        except Exception as error:  # of the fuzz itself, which must not end the other inputs
            print(f"seed {seed} of {reader.name}: {error!r}", flush=True)
            continue
        if judgement.verdict.is_failure:
            failures.keep(reader, seed, command, judgement)
        os.write(results, f"{reader.name}\t{judgement.verdict}\t{kind_of(judgement)}\n".encode())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, help="try new inputs for this time")
    options.add_argument("--inputs", type=int, help="try this many inputs of every reader, always the same")
    options.add_argument("--out", type=Path, required=True, help="folder for the inputs that fail")
    chosen = options.parse_args()
    first_seed = 0 if chosen.inputs else random.SystemRandom().randrange(10**6, 10**12)
    last_seed = first_seed + (chosen.inputs or 10**9)
    print(f"seeds from {first_seed} on; inputs that fail go to {chosen.out}", flush=True)
    with tempfile.TemporaryDirectory() as originals:
        readers = make_readers(Path(originals))
        until = time.monotonic() + 60 * (chosen.minutes or math.inf)
        reading, writing = os.pipe()
        workers = []
        for number in range(NUM_PROCESSES):
            seeds = range(first_seed + number, last_seed, NUM_PROCESSES)
            workers.append(in_a_child(partial(_work, readers, seeds, until, Failures(chosen.out), writing)))
        os.close(writing)
        counts, kinds = _count(reading)
        assert not any(map(was_killed, workers))
    print_counts(counts)
    for kind, number in kinds.most_common():
        print(f"{number:6} × {kind}")
    sys.exit(1 if kinds else 0)


def _count(results: int) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Count the lines of the pipe, until the last process closes it."""
    counts, kinds, reported = Counter[tuple[str, str]](), Counter[str](), time.monotonic()
    with os.fdopen(results) as lines:
        for line in lines:
            reader, verdict, kind = line.rstrip("\n").split("\t")
            counts[reader, verdict] += 1
            if Verdict(verdict).is_failure:
                kinds[f"{reader}: {kind}"] += 1
            if time.monotonic() > reported + SECONDS_PER_REPORT:
                reported = time.monotonic()
                print(f"{sum(counts.values()):,} inputs, {sum(kinds.values()):,} failures", flush=True)
    return counts, kinds


def print_counts(counts: Counter[tuple[str, str]]) -> None:
    """Print how many inputs of each reader were tried, worked, were refused, and failed."""
    print(f"{'reader':14} {'tried':>8} {'worked':>8} {'refused':>8} {'failures':>8}")
    for reader in READERS:
        of_reader = {verdict: counts[reader.name, verdict] for verdict in Verdict}
        failures = sum(number for verdict, number in of_reader.items() if verdict.is_failure)
        tried, worked, refused = sum(of_reader.values()), of_reader[Verdict.WORKED], of_reader[Verdict.REFUSED]
        print(f"{reader.name:14} {tried:8,} {worked:8,} {refused:8,} {failures:8,}")


if __name__ == "__main__":
    main()
