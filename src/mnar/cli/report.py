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
    _check_replaces_nothing_else(out)
    records = read_runs(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    title = f"{len(records)} runs" if len(records) > 1 else records[0].label
    write_report(with_baselines(records), out, title=title, processes=num_cores())
    console.print(f"Report: {out}", soft_wrap=True, markup=False)


def _check_replaces_nothing_else(out: Path) -> None:
    """Refuse to write the page in the place of anything but a page, and of the page that a run has for its user."""
    from mnar.config import OWN_DATA
    from mnar.own_data.portfolio_run import is_portfolio_run
    from mnar.run import RunFolder
    from mnar.run.file_names import REPORT, TRAINING_REPORT

    place = out.resolve()
    if place.suffix.lower() != ".html":
        if place.exists():
            raise FileExistsError(f"{out} exists and is no .html file; choose another --out, e.g. report.html")
        if any(RunFolder(path).has_config or is_portfolio_run(path) for path in place.parents):
            raise ValueError(f"{out} lies in a run folder and is no .html file; choose another --out, e.g. report.html")
    folder = place.parent
    is_portfolio, is_network = is_portfolio_run(folder), RunFolder(folder).has_config
    if place.name == TRAINING_REPORT:
        is_page_of_the_run = is_portfolio or is_network
    else:
        is_on_own_data = is_portfolio or (is_network and RunFolder(folder).config().dataset.name == OWN_DATA)
        is_page_of_the_run = place.name == REPORT and is_on_own_data
    if is_page_of_the_run:
        raise FileExistsError(f"{out} is a page that the training of {folder} writes; choose another --out")
