"""The command line: each command parses its options, calls the library and prints the result."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from torch import OutOfMemoryError
from typer.core import TyperGroup

from mnar import __version__
from mnar.terminal.console import bar, console, error_message, errors, reading_bar
from mnar.training.meters import Diverged
from mnar.training.trainer import Interrupted

if TYPE_CHECKING:
    from mnar.config import RunConfig
    from mnar.own_data.train import Verdict
    from mnar.run.recorder import Display


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Turn Ctrl-C into `Interrupted`, so that `main` prints a message; Typer would exit silently."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("stopped") from error


app = typer.Typer(
    name="mnar",
    cls=Commands,
    help="Semi-supervised learning when labels are missing not at random.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.OPTION=VALUE", help="Set any option, e.g. guidance.alpha=3. Repeatable."),
]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder (or file) that contains the data set.")]
OWN_DATA_HELP = (
    "A folder of images with a CSV, class folders with unlabeled/, a table (.csv, .parquet) or an .npz file."
)
Label = Annotated[str | None, typer.Option(help="Own data: the name of the label column.")]
Ignore = Annotated[list[str] | None, typer.Option(help="Own tables: a column to leave out. Repeatable.")]
NoLabel = Annotated[
    list[str] | None,
    typer.Option("--unlabeled", help="Own data: a further value that means 'no label'. Repeatable."),
]
Size = Annotated[int | None, typer.Option(min=4, help="Own images: resize them to this many pixels per side.")]
Features = Annotated[
    Path | None, typer.Option(help="Own data: an .npy file with one row of numbers per sample, to train on instead.")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 4,
    iterations: Annotated[int | None, typer.Option(min=1, help="Training steps per run.")] = None,
) -> None:
    """Show on real digits what happens when labels are missing not at random, and what PRG changes.

    Example: `mnar demo`
    """
    from mnar.bench.demo import demo as run_demo
    from mnar.report import summary, what_changed

    with bar(f"4 methods × {seeds} seeds") as show:
        runs, reused = run_demo(
            out, seeds=range(1, seeds + 1), iterations=iterations, on_progress=lambda share: show(completed=share)
        )
    if reused:
        console.print(f"{reused} runs were finished before and are shown again; remove {out} to train them again")
    table = Table(title=f"Digits, 72 labels under CADR's protocol (gamma 20): per cent, mean ± sd of {seeds} seeds")
    for heading in ("method", "accuracy", "geometric mean", "best on test"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=heading == "method")
    for row in summary(runs):
        scores = row.headline
        spreads = (scores.accuracy_median_last_20, scores.geometric_mean, scores.accuracy_best_on_test)
        table.add_row(row.method, *(spread.percent for spread in spreads))
    console.print(table)
    console.print("accuracy and geometric mean: median of the last 20 evaluations", style="dim")
    console.print(what_changed(runs), soft_wrap=True, markup=False)
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True, markup=False)


@app.command()
def bench(
    cells: Annotated[
        list[str] | None,
        typer.Argument(metavar="CELLS", help='Recipes: names, patterns ("table1/cifar10-*") or tables ("table1").'),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and results.")] = Path("runs/bench"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: 3; with --show: all.")] = None,
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
    show: Annotated[
        bool, typer.Option("--show", help="Train nothing; show the results of the named cells, or of all cells.")
    ] = False,
) -> None:
    """Train cells of the paper's tables, and show our results beside the paper's.

    After a stop, repeat the command: finished runs are kept, and unfinished runs are resumed.

    Example: `mnar bench table1/cifar10-cadr-g20/fixmatch table1/cifar10-cadr-g20/fixmatch+prg --data ~/data --seeds 1
    --iterations 65536`

    Without any download: `mnar bench digits tabular-digits --seeds 5`

    To show existing results: `mnar bench --show`
    """
    from mnar.bench import RESULTS, Bench, write_results
    from mnar.terminal.bench_table import shown

    chosen: dict[str, Any] = {"data": str(data) if data else None, "iterations": iterations, "settings": settings or ()}
    if show:
        results = Bench.there(out, cells or (), seeds=range(1, (seeds or 0) + 1), **chosen).cells()
    else:
        benched = Bench(out, cells or (), seeds=range(1, (seeds or 3) + 1), **chosen)
        num_runs = len(benched.configs)
        with bar("1 run" if num_runs == 1 else f"{num_runs} runs") as advance:
            results = benched.run(
                lambda share: advance(completed=share),
                minutes=minutes,
                num_processes=processes,
                on_change=lambda cells: write_results(cells, out),
            )
        console.print(f"Results: {out / RESULTS}.md, .html, .csv, .json", soft_wrap=True, markup=False)
        if minutes is not None and any(cell.is_cut_off for cell in results):
            console.print("The time is up; run the same command again to continue.")
    for line in shown(results, console.width):
        console.print(line, soft_wrap=isinstance(line, str) and not console.is_terminal, highlight=False)
    if any(cell.failures for cell in results):
        raise typer.Exit(1)


@app.command()
def inspect(
    source: Annotated[Path, typer.Argument(metavar="DATA", help=OWN_DATA_HELP)],
    label: Label = None,
    ignore: Ignore = None,
    unlabeled: NoLabel = None,
    size: Size = None,
    features: Features = None,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("inspect.json"),
    seed: Annotated[int, typer.Option(help="Seed of the cross-validation folds and the bootstrap.")] = 0,
) -> None:
    """Estimate which classes your labels under-represent, with confidence intervals, and recommend a method.

    Example: `mnar inspect survey.csv --label vote`
    """
    from mnar.own_data.train import inspect_files
    from mnar.terminal.inspection_table import inspection_table

    reading = _reading_options(label, ignore, unlabeled, size, features)
    with reading_bar() as on_stage:
        inspection = inspect_files(source, out, reading=reading, seed=seed, on_stage=on_stage)
    console.print(inspection_table(inspection))
    console.print(f"Full results: {out}", soft_wrap=True, markup=False)


def _reading_options(
    label: str | None, ignore: list[str] | None, unlabeled: list[str] | None, size: int | None, features: Path | None
) -> dict[str, Any]:
    """The options for reading own data that the user gave, as `datasets.user_files.read_data` takes them."""
    options = {"label": label, "ignore": tuple(ignore or ()), "unlabeled": tuple(unlabeled or ()), "size": size}
    return {name: value for name, value in {**options, "features": features}.items() if value}


@app.command()
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

    reading = _reading_options(label, ignore, unlabeled, size, features)
    cell: dict[str, Any] = {"dataset": dataset, "protocol": protocol, "recipe": recipe}
    method: dict[str, Any] = {"learner": learner, "guidance": guidance, "iterations": iterations, "seed": seed}
    settings = settings or []
    if resume is not None:
        extra = (["DATA"] if source else []) + _given(**cell, **method, out=out, **reading)
        if extra:
            raise ValueError(
                f"--resume continues a run with its own options; leave out {', '.join(extra)}, or start a new run"
            )
        _resume(resume, data, settings, tensorboard=tensorboard)
    elif source is not None:
        if extra := _given(**cell, data=data):
            raise ValueError(f"{source} is your own data, so {', '.join(extra)} cannot be used; leave it out")
        _train_own_data(source, reading, method, settings, out, tensorboard=tensorboard)
    elif reading:
        raise ValueError(f"{', '.join(_given(**reading))} can only be used with your own data: `mnar train DATA`")
    else:
        _train_benchmark(
            configure(**cell, data=str(data) if data else None, **method, settings=settings), out, tensorboard
        )


def _train_benchmark(config: RunConfig, out: Path | None, tensorboard: bool) -> None:
    from mnar.report import write_run_report
    from mnar.run import default_folder, new_run

    folder = out or default_folder(config)
    with _display(tensorboard=tensorboard) as display:
        new_run(config, folder, display, on_finished=write_run_report)
    _print_headline(folder)


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


def _given(**options: object) -> list[str]:
    """Names of the options that the user gave."""
    return [f"--{name}" for name, value in options.items() if value is not None]


@contextmanager
def _display(*, tensorboard: bool) -> Iterator[Display]:
    from mnar.terminal.progress import TerminalDisplay
    from mnar.terminal.tensorboard import TensorBoard

    with (
        TerminalDisplay(console) as terminal,
        TensorBoard(terminal) if tensorboard else nullcontext(terminal) as display,
    ):
        yield display


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    data: DataFolder = None,
    settings: SetOption = None,
) -> None:
    """Score the model of a run on its test set, class by class.

    Example: `mnar eval runs/prg`
    """
    from mnar.run import evaluate_run

    scores = evaluate_run(run, root=data, settings=settings or ())
    table = Table(title=escape(str(run)))
    for heading in ("class", "recall %", "precision %", "share of predictions %"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    columns = (scores["class_names"], scores["recall"], scores["precision"], scores["predicted_share"])
    for name, *values in zip(*columns, strict=True):
        table.add_row(escape(name), *(f"{100 * value:.2f}" for value in values))
    console.print(table)
    console.print(
        f"accuracy {scores['accuracy']:.2%}   geometric mean {scores['geometric_mean']:.2%}   "
        f"calibration error {scores['calibration_error']:.2%}",
        highlight=False,
    )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML file with figures and tables of one or several runs.

    Example: `mnar report runs/fixmatch runs/prg --out report.html`
    """
    from mnar.report import write_report
    from mnar.run.reader import read_runs

    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; name the file to write, e.g. --out {out / 'report.html'}")
    records = read_runs(runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_report(records, out, title=f"{len(records)} runs" if len(records) > 1 else records[0].label)
    console.print(f"Report: {out}", soft_wrap=True, markup=False)


@app.command("list")
def list_parts(
    kind: Annotated[
        str | None,
        typer.Argument(help="learners, guidances, datasets, protocols, models, recipes, train, engine …"),
    ] = None,
    which: Annotated[str, typer.Argument(help='Beginning of a name, or a pattern such as "table1/*g20*".')] = "",
) -> None:
    """List the available parts, with every option and its default.

    Example: `mnar list guidances`
    """
    from mnar.terminal.listing import listing

    for line in listing(kind, which):
        console.print(line, highlight=False, soft_wrap=not console.is_terminal)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"mnar {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _print_headline(folder: Path, verdict: Verdict | None = None) -> None:
    from mnar.run import RunFolder
    from mnar.training.evaluation import headline, headline_lines

    lines = RunFolder(folder).evaluations()
    scores, num_in_median = headline(lines), len(headline_lines(lines))
    console.print(
        f"accuracy {scores.accuracy_median_last_20:.2%} (median of the last {num_in_median} evaluations), "
        f"{scores.accuracy_final:.2%} (final), {scores.accuracy_best_on_test:.2%} (best on test); "
        f"geometric mean {scores.geometric_mean:.2%}\n{folder}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if verdict is not None:
        console.print(f"{verdict.text}\npredicted labels: {verdict.predictions}", markup=False, soft_wrap=True)


def main() -> None:
    """Run a command. An error that the user can fix is printed as one line without a traceback; so is a warning."""
    warnings.showwarning = lambda message, *_: errors.print(f"[yellow]warning:[/yellow] {escape(str(message))}")
    try:
        app(prog_name="mnar")
    except Interrupted as error:
        errors.print(escape(str(error)), soft_wrap=True, highlight=False)
        sys.exit(130)
    except (ValueError, OSError, Diverged) as error:
        errors.print(f"[red]error:[/red] {escape(error_message(error))}", soft_wrap=True, highlight=False)
        sys.exit(1)
    except OutOfMemoryError as error:
        remedy = "choose a smaller batch, e.g. --set train.batch_unlabeled=224"
        errors.print(f"[red]error:[/red] the GPU memory is full ({escape(str(error))}); {remedy}", soft_wrap=True)
        sys.exit(1)
