"""Minutes of training until a run reaches an accuracy, for a list of runs or recipes.

    python benchmarks/time_to_accuracy.py runs/prg-seed1 runs/prg-seed2          # runs that exist, in and below folders
    python benchmarks/time_to_accuracy.py --recipes table1/cifar10-cadr-g20/fixmatch+prg --schedule fast \\
        --data ~/data --iterations 16384 --seeds 3 --first-seed 2 --out runs/fast   # trains missing runs first

The second form trains with `mnar.bench`: finished runs are kept, interrupted runs are resumed. One row is one method
over its seeds:

    first     the first evaluation of the averaged model that reaches the target
    median    the first evaluation at which the headline accuracy reaches the target, i.e. the median of the last 20
              evaluations. Before the 20th evaluation, it is the median of all evaluations so far.

Both columns show the median over all seeds, and how many seeds reached the target. A seed that has not reached it
counts as later than all others, so the median is "–" if too few seeds have.

metrics.jsonl contains no times, because it is the same however often a run is resumed. environment.json contains the
first step, the last step and the seconds of every session. The time of an evaluation is the time of the earlier
sessions plus a share of its own session: the share of the session's images that were processed before the evaluation.
Evaluations, checkpoints and the compilation of kernels are part of the seconds. Work that was lost when a process was
killed after its last checkpoint is not. Evaluations after the last checkpoint have no time and are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mnar.atomic_write import write_atomically
from mnar.bench import Bench
from mnar.report.methods import by_setting
from mnar.run.file_names import ENVIRONMENT
from mnar.run.folder import Evaluation
from mnar.run.reader import NotEvaluated, Run, read_run, read_runs
from mnar.training.headline import ACCURACY, FINAL, headline
from mnar.training.trainer import Interrupted

TARGETS = (90.0, 93.0, 94.0)
NEVER = math.inf


class Reached(NamedTuple):
    """Minutes until one run reaches an accuracy; `NEVER` if it has not."""

    first: float
    median: float


class Timed(NamedTuple):
    """One run with the minutes until each target."""

    seed: int
    is_finished: bool
    schedule: str
    reached: dict[float, Reached]  # by target in percent
    accuracy: float  # median of the last 20 evaluations
    final: float
    geometric_mean: float
    minutes: float
    ms_per_step: float


def timed(run: Run, targets: Sequence[float]) -> Timed:
    """Measure one run. Raise `NotEvaluated` if no evaluation has a time yet."""
    minutes_until, sessions = clock(run), run.environment["sessions"]
    seconds = sum(session["seconds"] for session in sessions)
    lines = [line for line in run.lines if line["step"] <= sessions[-1]["to_step"]]
    if not lines:
        raise NotEvaluated(f"{run.folder} has no checkpoint after its first evaluation yet; train it further")
    figures = headline(lines)
    num_steps = sum(session["to_step"] - session["from_step"] for session in sessions)
    return Timed(
        seed=run.config["seed"],
        is_finished=run.is_finished,
        schedule=run.schedule,
        reached={target: reached(lines, target / 100, minutes_until) for target in targets},
        accuracy=figures[ACCURACY],
        final=figures[FINAL],
        geometric_mean=figures["geometric_mean"],
        minutes=(seconds_of_pretraining(run) + seconds) / 60,
        ms_per_step=1000 * seconds / num_steps,
    )


def reached(lines: Sequence[Evaluation], target: float, minutes_until: Callable[[int], float]) -> Reached:
    """Find the first evaluation, and the first headline accuracy, that reaches a target between 0 and 1."""
    first = next((line["step"] for line in lines if line["test"]["accuracy"] >= target), None)
    so_far = (lines[: number + 1] for number in range(len(lines)))
    median = next((until[-1]["step"] for until in so_far if headline(until)[ACCURACY] >= target), None)
    return Reached(*(NEVER if step is None else minutes_until(step) for step in (first, median)))


def clock(run: Run) -> Callable[[int], float]:
    """Return the function that says how many minutes a run had trained when it reached a step.

    If a step was trained more than once, e.g. because a run went back to an older checkpoint, the last time counts:
    the evaluation of that step is in metrics.jsonl, and the time before it was spent.
    """
    sessions = run.environment["sessions"]
    if not sessions or any(not {"from_step", "to_step"} <= session.keys() for session in sessions):
        raise ValueError(
            f"{run.folder / ENVIRONMENT} lacks the steps of a session (from_step, to_step), so evaluations have no "
            "time; train the run again with this version"
        )
    steps = [0, *(line["step"] for line in run.lines)]
    images = [0, *(line.get("images", line["step"]) for line in run.lines)]  # batches may grow during the training
    before = seconds_of_pretraining(run)

    def minutes_until(step: int) -> float:
        number = max(i for i, session in enumerate(sessions) if session["from_step"] < step <= session["to_step"])
        session, earlier = sessions[number], before + sum(session["seconds"] for session in sessions[:number])
        began, now, ended = np.interp([session["from_step"], step, session["to_step"]], steps, images)
        return float(earlier + session["seconds"] * (now - began) / (ended - began)) / 60

    return minutes_until


def seconds_of_pretraining(run: Run) -> float:
    return sum(session["seconds"] for session in run.pretraining["sessions"]) if run.pretraining else 0.0


class Row(NamedTuple):
    """One method with all its seeds."""

    name: str
    runs: list[Timed]

    def over_seeds(self, name: str) -> float:
        """The median of a field of `Timed`."""
        return statistics.median(getattr(run, name) for run in self.runs)

    def cells(self, targets: Sequence[float]) -> list[str]:
        unfinished = sum(not run.is_finished for run in self.runs)
        return [
            self.name,
            ", ".join(dict.fromkeys(run.schedule for run in self.runs)),
            f"{len(self.runs)}" + (f" ({unfinished} unfinished)" if unfinished else ""),
            *(self._reached(target, kind) for target in targets for kind in Reached._fields),
            *(f"{100 * self.over_seeds(score):.1f}" for score in ("accuracy", "final", "geometric_mean")),
            f"{self.over_seeds('minutes'):.1f}",
            f"{self.over_seeds('ms_per_step'):.2f}",
        ]

    def _reached(self, target: float, kind: str) -> str:
        minutes = [getattr(run.reached[target], kind) for run in self.runs]
        median, count = statistics.median(minutes), sum(minute < NEVER for minute in minutes)
        return f"{'–' if median == NEVER else f'{median:.1f}'} ({count}/{len(minutes)})"


def rows_of(groups: dict[str, list[Run]], targets: Sequence[float]) -> list[Row]:
    """One row for each name. Runs without a timed evaluation are named on stderr and left out."""
    rows = []
    for name, runs in groups.items():
        measured = []
        for run in runs:
            try:
                measured.append(timed(run, targets))
            except NotEvaluated as error:
                print(f"left out: {error}", file=sys.stderr)
        if measured:
            rows.append(Row(name, measured))
    return rows


def existing(folders: Sequence[Path]) -> dict[str, list[Run]]:
    """The runs in and below these folders by setting and method. The runs of one method differ by seed only."""
    groups = {}
    for setting in by_setting(read_runs(folders)):
        dataset = setting.run.split["dataset"]  # the name of a setting leaves it out if all runs share it
        task = setting.name if setting.name.startswith(dataset) else f"{dataset}, {setting.name}"
        groups |= {f"{task}: {method.name}": method.runs for method in setting.methods}
    return groups


def trained(bench: Bench, num_processes: int | None) -> dict[str, list[Run]]:
    """Train the runs of a bench that are missing, and return all evaluated runs by recipe."""
    cells = bench.run(lambda share: None, num_processes=num_processes)
    groups: dict[str, list[Run]] = {}
    for cell in cells:
        for seed, folder in cell.folders.items():
            if seed in cell.failures:
                print(f"{cell.name}, seed {seed} failed: {cell.failures[seed]}", file=sys.stderr)
            else:
                groups.setdefault(cell.name, []).append(read_run(folder))
    return groups


def table(rows: Sequence[Row], targets: Sequence[float]) -> str:
    """The rows as a Markdown table."""
    reached = [f"min to {target:g} %, {kind}" for target in targets for kind in Reached._fields]
    scores = ["accuracy (median of last 20)", "final", "GM", "min in total", "ms per step"]
    lines = [["method", "schedule", "seeds", *reached, *scores], *(row.cells(targets) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def as_json(rows: Sequence[Row]) -> str:
    """All runs as JSON. Minutes are null for a target that a run has not reached."""

    def of_run(run: Timed) -> dict[str, Any]:
        minutes = {
            f"{target:g}": {kind: None if value == NEVER else value for kind, value in reached._asdict().items()}
            for target, reached in run.reached.items()
        }
        return {**run._asdict(), "reached": minutes}

    return json.dumps([{"method": row.name, "runs": [of_run(run) for run in row.runs]} for row in rows], indent=1)


def percent(text: str) -> float:
    """Read a target. 1 or less is refused, because it is the accuracy as a share, such as 0.9 for 90 %."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 < value <= 100:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an accuracy in percent, larger than 1 and at most 100; choose e.g. --targets 90 93.5"
        )
    return value


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run folders, or folders that contain some")
    parser.add_argument(
        "--targets", nargs="+", type=percent, default=TARGETS, metavar="PERCENT", help="accuracies, e.g. 90 93.5"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single run to this file")
    of_recipes = parser.add_argument_group("to train missing runs first")
    of_recipes.add_argument("--recipes", nargs="+", metavar="RECIPE", help="names or patterns, as for `mnar bench`")
    of_recipes.add_argument("--schedule", help="e.g. fast; without it, the recipe's own schedule")
    of_recipes.add_argument("--data", help="folder of the data set")
    of_recipes.add_argument("--seeds", type=int, default=3, help="number of seeds")
    of_recipes.add_argument("--first-seed", type=int, default=1)
    of_recipes.add_argument("--iterations", type=int, help="training steps per run")
    of_recipes.add_argument("--processes", type=int, help="runs that are trained at the same time")
    of_recipes.add_argument("--out", type=Path, help="folder of the runs")
    of_recipes.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE")
    options = parser.parse_args(arguments)
    if bool(options.runs) == bool(options.recipes):
        parser.error("give either run folders or --recipes")
    if options.recipes and not options.out:
        parser.error("--recipes needs --out, the folder of the runs")
    return options


def measure(options: argparse.Namespace) -> None:
    if options.recipes:
        bench = Bench(
            options.out,
            options.recipes,
            seeds=range(options.first_seed, options.first_seed + options.seeds),
            schedule=options.schedule,
            iterations=options.iterations,
            data=options.data,
            settings=options.set,
        )
        groups = trained(bench, options.processes)
    else:
        groups = existing(options.runs)
    rows = rows_of(groups, options.targets)
    if not rows:
        raise ValueError("no run has an evaluation with a time, so there is nothing to show; train the runs further")
    if options.json:
        write_atomically(options.json, as_json(rows))
    print(table(rows, options.targets))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table. An error that the user can fix is one line without a traceback, and the exit code is 2."""
    options = parsed(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(message, file=sys.stderr)  # without a line of code
            measure(options)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as error:
        print(error, file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
