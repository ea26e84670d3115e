"""`mnar train`: train on a benchmark data set or on the user's own data, or resume a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from mnar.cli.options import (
    OWN_DATA_HELP,
    DataFolder,
    Features,
    Id,
    Ignore,
    Label,
    NoLabel,
    ScheduleOption,
    SetOption,
    Size,
    given_options,
    reading_options,
)
from mnar.terminal.console import console, reading_bar

if TYPE_CHECKING:
    from mnar.config import RunConfig
    from mnar.own_data.portfolio_run import Outcome
    from mnar.own_data.train import Verdict
    from mnar.run import Display


def train(
    source: Annotated[Path | None, typer.Argument(metavar="[DATA]", help=f"Your own data. {OWN_DATA_HELP}")] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set (`mnar list datasets`). Default: digits.")] = None,
    data: DataFolder = None,
    protocol: Annotated[
        str | None, typer.Option(help="Which samples keep their label (`mnar list protocols`).")
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(
            help="How the loss of a network is formed (`mnar list learners`). Own data: also one member of the "
            "portfolio, e.g. kernel or graph."
        ),
    ] = None,
    guidance: Annotated[
        str | None, typer.Option(help="How pseudo-labels are rectified (`mnar list guidances`).")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A named configuration (`mnar list recipes`).")] = None,
    schedule: ScheduleOption = None,
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
    id: Id = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="Own data: what the predictions maximise, balanced_accuracy (the default: every class counts the "
            "same) or accuracy on the samples without a label."
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Own data: try only two quick members.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Own data: a time limit. Default: depends on the data.")] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="Several processes (torchrun): gloo or nccl. Default: nccl between GPUs, gloo between CPUs."),
    ] = None,
) -> None:
    """Train a model, or resume a run.

    Example: `mnar train --dataset cifar10 --data ~/data --guidance prg --set protocol.gamma=20 --out runs/prg`

    On your own half-labelled data: `mnar train photos/` or `mnar train survey.csv --label vote`. This tries several
    kinds of classifiers and combines the best. --learner names a single one, e.g. kernel, graph or fixmatch.

    After a stop: `mnar train --resume runs/prg`, on another machine with `--data` or `--set engine.…`

    On several GPUs: `torchrun --nproc-per-node=4 -m mnar train --dataset cifar10 …`
    """
    from mnar.run.processes import joined

    reading = reading_options(label, ignore, unlabeled, size, features, id)
    portfolio: dict[str, Any] = {"objective": objective, "fast": fast or None}
    cell: dict[str, Any] = {"dataset": dataset, "protocol": protocol, "recipe": recipe, "schedule": schedule}
    method: dict[str, Any] = {"learner": learner, "guidance": guidance, "iterations": iterations, "seed": seed}
    with joined(backend):
        _train(source, data, cell, method, reading, portfolio, out, settings or [], resume, minutes, tensorboard)


def _train(
    source: Path | None,
    data: Path | None,
    cell: dict[str, Any],
    method: dict[str, Any],
    reading: dict[str, Any],
    portfolio: dict[str, Any],
    out: Path | None,
    settings: list[str],
    resume: Path | None,
    minutes: float | None,
    tensorboard: bool,
) -> None:
    from mnar.config import OWN_DATA, parse_setting
    from mnar.recipes import configure
    from mnar.run.processes import together

    def check() -> str | None:
        """Check the options. Return the first option that asks for a network on own data, if there is one."""
        of_network = None
        of_own_data = given_options(**reading, **portfolio, minutes=minutes)
        if resume is not None:
            extra = (["DATA"] if source else []) + given_options(**cell, **method, out=out) + of_own_data
            if extra:
                raise ValueError(
                    f"--resume continues a run with its own options; leave out {', '.join(extra)}, or start a new run"
                )
        elif source is None and of_own_data:
            raise ValueError(
                f"{', '.join(of_own_data)} can only be used with your own data; name them: `mnar train DATA`"
            )
        elif source is not None:
            if extra := given_options(**cell, data=data):
                raise ValueError(f"{source} is your own data, so {', '.join(extra)} cannot be used; leave it out")
            of_network = _network_options(method["learner"], method["guidance"], settings, tensorboard=tensorboard)
            if of_network and (extra := given_options(**portfolio)):
                raise ValueError(
                    f"{', '.join(extra)} chooses among several classifiers, but {of_network} asks for one network; "
                    "leave one of them out"
                )
        roots = [value for *option, value in map(parse_setting, settings) if option == ["dataset", "root"]]
        if source is not None and roots:
            raise ValueError(f"{source} is the data, so --set dataset.root cannot be applied; leave it out")
        files = source or ([data, *roots][-1] if cell["dataset"] == OWN_DATA else None)
        if resume is None and isinstance(files, str | Path):
            _check_is_no_class(out or Path("runs"), Path(files))
        _refuse_portfolio_in_several_processes(resume, is_new=source is not None and of_network is None)
        return of_network

    of_network = together(check)
    if resume is not None:
        _resume(resume, data, settings, tensorboard=tensorboard)
    elif source is not None:
        if of_network:
            _train_own_data(source, reading, method, settings, minutes, out, tensorboard=tensorboard)
        else:
            _train_portfolio(source, reading, method, settings, {**portfolio, "minutes": minutes}, out)
    else:
        config = together(lambda: configure(**cell, data=str(data) if data else None, **method, settings=settings))
        _train_configured(config, out, tensorboard=tensorboard)


def _check_is_no_class(folder: Path, source: Path) -> None:
    """Refuse a run folder inside class folders, where the next command would take the folder for a class."""
    from mnar.datasets.user_files.class_folders import read_class_folders
    from mnar.datasets.user_files.read_data import kind_and_reader

    if not source.is_dir() or not folder.resolve().is_relative_to(source.resolve()):
        return
    if kind_and_reader(source, (), holds_table=False)[1] is read_class_folders:
        elsewhere = os.path.relpath(source.resolve().parent / "runs" / source.resolve().name)
        raise ValueError(
            f"the run folder would lie in {source}, where every folder is a class; choose a folder outside, e.g. "
            f"--out {shlex.quote(elsewhere)}"
        )


def _refuse_portfolio_in_several_processes(resume: Path | None, *, is_new: bool) -> None:
    from mnar import distributed
    from mnar.own_data.portfolio_run import is_portfolio_run

    if distributed.world_size() > 1 and (is_new or (resume is not None and is_portfolio_run(resume))):
        raise ValueError(
            "the portfolio of classifiers is trained in one process; start the command without torchrun, or name a "
            "network, e.g. --learner fixmatch"
        )


def _train_configured(config: RunConfig, out: Path | None, *, tensorboard: bool) -> None:
    from mnar.config import OWN_DATA
    from mnar.own_data.train import train_own_data
    from mnar.report import write_run_report
    from mnar.run import default_folder, load_data, new_run
    from mnar.run.begun import check_same_run, is_begun
    from mnar.run.processes import together

    folder, verdict = out or default_folder(config), None
    if is_begun(folder):
        together(lambda: check_same_run(folder, config))
        _resume(folder, None, [], tensorboard=tensorboard)
        return
    with _display(tensorboard=tensorboard) as display:
        if config.dataset.name == OWN_DATA:  # `--dataset own_data --data DATA`
            verdict = train_own_data(config, folder, display, together(lambda: load_data(config)))
        else:
            new_run(config, folder, display, on_finished=write_run_report)
    _print_headline(folder, verdict)


def _network_options(
    learner: str | None, guidance: str | None, settings: list[str], *, tensorboard: bool
) -> str | None:
    """The first option that only a single network has; None if the portfolio can be used."""
    from mnar.config import names_of, parse_setting
    from mnar.own_data.portfolio.members import NAMES

    if learner is not None and learner not in NAMES:
        if learner not in names_of("learner"):
            raise ValueError(f"unknown learner {learner!r}; choose from {sorted({*NAMES, *names_of('learner')})}")
        return f"--learner {learner}"
    if guidance is not None:
        return f"--guidance {guidance}"
    if tensorboard:
        return "--tensorboard"
    # the portfolio needs no held-out labels, because it scores its members by cross-validation
    for setting in settings:
        section, option, _ = parse_setting(setting)
        if section != "dataset" or option == "held_out":
            return f"--set {setting}"
    return None


def _train_portfolio(
    source: Path,
    reading: dict[str, Any],
    method: dict[str, Any],
    settings: list[str],
    options: dict[str, Any],
    out: Path | None,
) -> None:
    from mnar.config import OWN_DATA, complete, parse_setting
    from mnar.datasets.own_data import own_data
    from mnar.own_data.portfolio_run import PortfolioConfig, new_portfolio_run, portfolio_folder, read_own_data
    from mnar.run import check_new_folder
    from mnar.terminal.portfolio_table import PortfolioTable

    of_data = {option: value for _, option, value in map(parse_setting, settings)}
    reading |= of_data
    options_of_data = complete(own_data, {"root": source, **reading}, "dataset", OWN_DATA)
    reading = {name: value for name in reading if (value := options_of_data[name]) is not None}
    if "features" in reading:  # an absolute path, so that --resume works from any folder
        reading["features"] = str(reading["features"].resolve())
    given = {**options, "iterations": method["iterations"], "seed": method["seed"]}
    config = PortfolioConfig(
        str(source),
        {name: list(value) if isinstance(value, tuple) else value for name, value in reading.items()},
        member=method["learner"],
        **{name: value for name, value in given.items() if value is not None},
    )
    folder = out or portfolio_folder(config)
    check_new_folder(folder)
    with reading_bar() as on_stage:
        data = read_own_data(config, lambda done, total: on_stage("reading", done, total))
    with PortfolioTable(console) as display:
        outcome = new_portfolio_run(config, folder, display, data)
    _print_outcome(folder, outcome)


def _print_outcome(folder: Path, outcome: Outcome) -> None:
    from mnar.run.file_names import REPORT
    from mnar.terminal.portfolio_table import choice_table, percent

    choice = outcome.choice
    console.print(choice_table(choice))
    for text in (
        f"chosen: {choice.reason}",
        f"estimated balanced accuracy {percent(choice.balanced_accuracy)} %, "
        f"accuracy on the pool {percent(choice.accuracy)} %",
        outcome.verdict,
    ):
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    for warning in outcome.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", highlight=False, soft_wrap=True)
    files = [] if choice.shares is None else [f"predicted labels: {outcome.predictions}"]
    files += [f"report: {folder / REPORT}", str(folder)]
    console.print("\n".join(files), highlight=False, markup=False, soft_wrap=True)


def _train_own_data(
    source: Path,
    reading: dict[str, Any],
    method: dict[str, Any],
    settings: list[str],
    minutes: float | None,
    out: Path | None,
    *,
    tensorboard: bool,
) -> None:
    from mnar.own_data.train import configure_own_data, train_own_data
    from mnar.run import check_new_folder, default_folder
    from mnar.run.begun import check_same_own_data, is_begun
    from mnar.run.processes import together

    if out is not None and not is_begun(out):
        together(lambda: check_new_folder(out))
    with reading_bar() as on_stage:
        config, data = configure_own_data(
            source, reading=reading, **method, settings=settings, minutes=minutes, on_stage=on_stage
        )
    folder = out or default_folder(config)
    if is_begun(folder):
        together(lambda: check_same_own_data(folder, config))
        _resume(folder, None, [], tensorboard=tensorboard)
        return
    with _display(tensorboard=tensorboard) as display:
        verdict = train_own_data(config, folder, display, data)
    _print_headline(folder, verdict)


def _resume(folder: Path, data: Path | None, settings: list[str], *, tensorboard: bool) -> None:
    from mnar.config import OWN_DATA
    from mnar.own_data.portfolio_run import is_portfolio_run, resume_portfolio_run
    from mnar.own_data.train import resume_own_data
    from mnar.report import write_run_report
    from mnar.run import RunFolder, resume_run
    from mnar.run.processes import together

    if is_portfolio_run(folder):
        from mnar.terminal.portfolio_table import PortfolioTable

        if settings:
            raise ValueError(f"{folder} is a run of the portfolio, to which --set cannot be applied; leave it out")
        with PortfolioTable(console) as display:
            outcome = resume_portfolio_run(folder, display, root=data)
        _print_outcome(folder, outcome)
        return
    verdict = None
    is_own_data = together(lambda: RunFolder(folder).config().dataset.name == OWN_DATA)
    with _display(tensorboard=tensorboard) as terminal:
        if is_own_data:
            verdict = resume_own_data(folder, terminal, root=data, settings=settings)
        else:
            resume_run(folder, terminal, root=data, settings=settings, on_finished=write_run_report)
    _print_headline(folder, verdict)


@contextmanager
def _display(*, tensorboard: bool) -> Iterator[Display]:
    from mnar import distributed
    from mnar.run import Display
    from mnar.terminal.progress import TerminalDisplay
    from mnar.terminal.tensorboard import TensorBoard

    if distributed.rank() > 0:
        yield Display()
        return
    with (
        TerminalDisplay(console) as terminal,
        TensorBoard(terminal) if tensorboard else nullcontext(terminal) as display,
    ):
        yield display


def _print_headline(folder: Path, verdict: Verdict | None = None) -> None:
    from mnar import distributed
    from mnar.run import RunFolder
    from mnar.run.file_names import REPORT
    from mnar.training.headline import BEST, FINAL, headline, headline_lines, headline_name
    from mnar.training.metrics import headline_metrics

    if distributed.rank() > 0:
        return
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
        paths = f"predicted labels: {verdict.predictions}\nreport: {folder / REPORT}"
        console.print(f"{verdict.text}\n{paths}", markup=False, soft_wrap=True)
