"""`mnar bench`: cells of the paper's tables beside the paper's figures."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mnar.cli.options import DataFolder, LauncherOptions, ScheduleOption, SetOption
from mnar.terminal.console import bar, console


class LauncherName(StrEnum):
    local, ray, slurm = "local", "ray", "slurm"


def bench(
    cells: Annotated[
        list[str] | None,
        typer.Argument(metavar="CELLS", help='Recipes: names, patterns ("table1/cifar10-*") or tables ("table1").'),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and results.")] = Path("runs/bench"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 3; with --show: all.")] = None,
    schedule: ScheduleOption = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Training steps per run. Default: the recipe's.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop after this many minutes, shared equally among the runs; the same command continues."),
    ] = None,
    data: DataFolder = None,
    settings: SetOption = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time. Default: one per CPU core, or one on a GPU.")
    ] = None,
    launcher: Annotated[
        LauncherName, typer.Option(help="Train in processes of this machine, on a Ray cluster, or as jobs of Slurm.")
    ] = LauncherName.local,
    launcher_options: LauncherOptions = None,
    show: Annotated[
        bool, typer.Option("--show", help="Train nothing; show the results of the named cells, or of all cells.")
    ] = False,
) -> None:
    """Train cells of the paper's tables, and show our results beside the paper's.

    After a stop, repeat the command: finished runs are kept, and unfinished runs are resumed.

    Example: `mnar bench table1/cifar10-cadr-g20/fixmatch table1/cifar10-cadr-g20/fixmatch+prg --data ~/data --seeds 1
    --iterations 65536`

    Without any download: `mnar bench digits tabular-digits --seeds 5`

    With the schedule for short trainings: `mnar bench digits --seeds 1 --schedule fast --out runs/fast`

    On a Ray cluster: `mnar bench digits --launcher ray --launcher-option address=HOST:6379 --out /shared/digits`

    To show existing results: `mnar bench --show`
    """
    from mnar.bench import RESULTS, Bench, write_results
    from mnar.bench.launchers import make_launcher
    from mnar.run.processes import is_launched
    from mnar.terminal.bench_table import shown

    if is_launched() and int(os.environ["WORLD_SIZE"]) > 1:
        raise ValueError("mnar bench starts its own processes; start the command without torchrun")
    chosen: dict[str, Any] = {
        "data": str(data) if data else None,
        "schedule": schedule,
        "iterations": iterations,
        "settings": settings or (),
    }
    if show:
        results = Bench.existing(out, cells or (), seeds=range(1, (seeds or 0) + 1), **chosen).cells()
    else:
        chosen_launcher = make_launcher(launcher, launcher_options or ())
        benched = Bench(out, cells or (), seeds=range(1, (seeds or 3) + 1), **chosen)
        num_runs = len(benched.configs)
        with bar("1 run" if num_runs == 1 else f"{num_runs} runs") as advance:
            results = benched.run(
                lambda share: advance(completed=share),
                minutes=minutes,
                num_processes=processes,
                on_change=lambda cells: write_results(cells, out),
                launcher=chosen_launcher,
            )
        console.print(f"Results: {out / RESULTS}.md, .html, .csv, .json", soft_wrap=True, markup=False)
        if minutes is not None and any(cell.is_cut_off for cell in results):
            console.print("The time is up; run the same command again to continue.")
    for line in shown(results, console.width):
        console.print(line, soft_wrap=isinstance(line, str) and not console.is_terminal, highlight=False)
    if any(cell.failures for cell in results):
        raise typer.Exit(1)
