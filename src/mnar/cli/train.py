"""`mnar train`: train on a benchmark data set or on the user's own data, or resume a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mnar.cli.options import (
    OWN_DATA_HELP,
    DataFolder,
    Features,
    Ignore,
    Label,
    NoLabel,
    SetOption,
    Size,
    given_options,
    reading_options,
)
from mnar.terminal.console import console, reading_bar

if TYPE_CHECKING:
    from mnar.config import RunConfig
    from mnar.own_data.train import Verdict
    from mnar.run import Display


def train(
    source: Annotated[Path | None, typer.Argument(metavar="[DATA]", help=f"Your own data. {OWN_DATA_HELP}")] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set (`mnar list datasets`). Default: digits.")] = None,
    data: DataFolder = None,
    protocol: Annotated[
        str | None, typer.Option(help="Which samples keep their label (`mnar list protocols`).")
    ] = None,
    learner: Annotated[str | None, typer.Option(help="How the loss is formed (`mnar list learners`).")] = None,
    guidance: Annotated[
        str | None, typer.Option(help="How pseudo-labels are rectified (`mnar list guidances`).")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A named configuration (`mnar list recipes`).")] = None,
    iterations: Annotated[int | None, typer.Option(help="Training steps. Default: depends on the data set.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the split, the initialisation and all random draws. Default: 1.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to create. Default: a name under runs/.")] = None,
    settings: SetOption = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder to resume. Needs no other option.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    label: Label = None,
    ignore: Ignore = None,
    unlabeled: NoLabel = None,
    size: Size = None,
    features: Features = None,
) -> None:
    """Train a model, or resume a run.

    Example: `mnar train --dataset cifar10 --data ~/data --guidance prg --set protocol.gamma=20 --out runs/prg`

    On your own half-labelled data: `mnar train photos/` or `mnar train survey.csv --label vote`

    After a stop: `mnar train --resume runs/prg`, on another machine with `--data` or `--set engine.…`
    """
    from mnar.recipes import configure

    reading = reading_options(label, ignore, unlabeled, size, features)
    cell: dict[str, Any] = {"dataset": dataset, "protocol": protocol, "recipe": recipe}
    method: dict[str, Any] = {"learner": learner, "guidance": guidance, "iterations": iterations, "seed": seed}
    settings = settings or []
    if resume is not None:
        extra = (["DATA"] if source else []) + given_options(**cell, **method, out=out, **reading)
        if extra:
            raise ValueError(
                f"--resume continues a run with its own options; leave out {', '.join(extra)}, or start a new run"
            )
        _resume(resume, data, settings, tensorboard=tensorboard)
    elif source is not None:
        if extra := given_options(**cell, data=data):
            raise ValueError(f"{source} is your own data, so {', '.join(extra)} cannot be used; leave it out")
        _train_own_data(source, reading, method, settings, out, tensorboard=tensorboard)
    elif reading:
        raise ValueError(
            f"{', '.join(given_options(**reading))} can only be used with your own data: `mnar train DATA`"
        )
    else:
        config = configure(**cell, data=str(data) if data else None, **method, settings=settings)
        _train_configured(config, out, tensorboard=tensorboard)


def _train_configured(config: RunConfig, out: Path | None, *, tensorboard: bool) -> None:
    from mnar.config import OWN_DATA
    from mnar.own_data.train import train_own_data
    from mnar.report import write_run_report
    from mnar.run import default_folder, load_data, new_run

    folder, verdict = out or default_folder(config), None
    with _display(tensorboard=tensorboard) as display:
        if config.dataset.name == OWN_DATA:  # `--dataset own_data --data DATA`
            verdict = train_own_data(config, folder, display, load_data(config))
        else:
            new_run(config, folder, display, on_finished=write_run_report)
    _print_headline(folder, verdict)


def _train_own_data(
    source: Path,
    reading: dict[str, Any],
    method: dict[str, Any],
    settings: list[str],
    out: Path | None,
    *,
    tensorboard: bool,
) -> None:
    from mnar.own_data.train import configure_own_data, train_own_data
    from mnar.run import default_folder

    with reading_bar() as on_stage:
        config, data = configure_own_data(source, reading=reading, **method, settings=settings, on_stage=on_stage)
    folder = out or default_folder(config)
    with _display(tensorboard=tensorboard) as display:
        verdict = train_own_data(config, folder, display, data)
    _print_headline(folder, verdict)


def _resume(folder: Path, data: Path | None, settings: list[str], *, tensorboard: bool) -> None:
    from mnar.config import OWN_DATA
    from mnar.own_data.train import resume_own_data
    from mnar.report import write_run_report
    from mnar.run import RunFolder, resume_run

    verdict = None
    is_own_data = RunFolder(folder).config().dataset.name == OWN_DATA
    with _display(tensorboard=tensorboard) as display:
        if is_own_data:
            verdict = resume_own_data(folder, display, root=data, settings=settings)
        else:
            resume_run(folder, display, root=data, settings=settings, on_finished=write_run_report)
    _print_headline(folder, verdict)


@contextmanager
def _display(*, tensorboard: bool) -> Iterator[Display]:
    from mnar.terminal.progress import TerminalDisplay
    from mnar.terminal.tensorboard import TensorBoard

    with (
        TerminalDisplay(console) as terminal,
        TensorBoard(terminal) if tensorboard else nullcontext(terminal) as display,
    ):
        yield display


def _print_headline(folder: Path, verdict: Verdict | None = None) -> None:
    from mnar.run import RunFolder
    from mnar.training.evaluation import BEST, FINAL, headline, headline_lines, headline_name
    from mnar.training.metrics import headline_metrics

    files = RunFolder(folder)
    lines = files.evaluations()
    figures = headline(lines, files.split()["test"])
    titles = {headline_name(metric.name): metric.title for metric in headline_metrics()}
    medians = [f"{title} {figures[name]:.2%}" for name, title in titles.items() if name in figures]
    console.print(
        f"{', '.join(medians)} (medians of the last {len(headline_lines(lines))} evaluations); "
        f"accuracy {figures[FINAL]:.2%} (final), {figures[BEST]:.2%} (best on test)\n{folder}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if verdict is not None:
        console.print(f"{verdict.text}\npredicted labels: {verdict.predictions}", markup=False, soft_wrap=True)
