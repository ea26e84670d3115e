"""`mnar report`: figures and tables of runs as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.atomic_write import check_writable
from mnar.terminal.console import console


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML file with figures and tables of one or several runs.

    Example: `mnar report runs/fixmatch runs/prg --out report.html`
    """
    from mnar.report import with_baselines, write_report
    from mnar.run.machine import num_cores
    from mnar.run.reader import read_runs

    check_writable(out)
    _check_replaces_no_run(out)
    records = read_runs(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    title = f"{len(records)} runs" if len(records) > 1 else records[0].label
    write_report(with_baselines(records), out, title=title, processes=num_cores())
    console.print(f"Report: {out}", soft_wrap=True, markup=False)


def _check_replaces_no_run(out: Path) -> None:
    """Refuse to write a page in the place of a file of a run."""
    from mnar.own_data.portfolio_run import is_portfolio_run
    from mnar.run import RunFolder
    from mnar.run.file_names import TRAINING_REPORT

    place = out.resolve()
    run = next((path for path in place.parents if RunFolder(path).has_config or is_portfolio_run(path)), None)
    if run is not None and (place.suffix.lower() != ".html" or place.name == TRAINING_REPORT):
        raise FileExistsError(
            f"{out} lies in the run folder {run} and could replace a file of the run; choose another --out, e.g. "
            "report.html"
        )
