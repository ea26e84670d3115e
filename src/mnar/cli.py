"""The command line: parse, call, print."""

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
from mnar.meters import Diverged
from mnar.terminal import bar, console, errors, in_words, reading_bar
from mnar.train import Interrupted

if TYPE_CHECKING:
    from mnar.folder import Display
    from mnar.own_training import Verdict


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Ctrl-C is told to `main`, not to Typer, which would leave without a word."""
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
    typer.Option("--set", metavar="SECTION.OPTION=VALUE", help="Any option, e.g. guidance.alpha=3; may be repeated."),
]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder (or file) that holds the data set.")]
OWN_DATA = "A folder of images with a CSV, class folders with unlabeled/, a table (.csv, .parquet) or an .npz."
Label = Annotated[str | None, typer.Option(help="Of your own data: the column that holds the labels.")]
Ignore = Annotated[list[str] | None, typer.Option(help="Of a table: a column to leave out; may be repeated.")]
NoLabel = Annotated[
    list[str] | None, typer.Option("--unlabeled", help="Of your own data: what else means no label; may be repeated.")
]
Size = Annotated[int | None, typer.Option(min=4, help="Of your own images: make their sides so many pixels.")]
Features = Annotated[
    Path | None, typer.Option(help="Of your own data: an .npy file with a row of numbers for each sample.")
]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 4,
    iterations: Annotated[int | None, typer.Option(min=1, help="Steps a run.")] = None,
) -> None:
    """See on real digits what missing labels do, and what PRG changes.

    Example: `mnar demo`
    """
    from mnar.demo import demo as run_demo
    from mnar.report import summary, what_changed

    with bar(f"4 methods × {seeds} seeds") as show:
        runs, reused = run_demo(
            out, seeds=range(1, seeds + 1), iterations=iterations, on_progress=lambda share: show(completed=share)
        )
    if reused:
        console.print(f"{reused} runs were there already, as trained before; remove {out} to train them again")
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
        typer.Argument(metavar="CELLS", help='Recipes: names, patterns ("table1/cifar10-*") or a table ("table1").'),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and results.")] = Path("runs/bench"),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; 3, or with --show all there are.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Steps a run; if not given, the recipe's own.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so long, each run with an equal share of it; go on another time.")
    ] = None,
    data: DataFolder = None,
    settings: SetOption = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; if not given, one a core, or one on a GPU.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Train nothing, show what is there: all of it, or the cells named.")
    ] = False,
) -> None:
    """Train cells of the paper's tables, and show ours beside the paper's.

    What is done stays, what was cut off goes on: repeat the command after a stop.

    Example: `mnar bench table1/cifar10-cadr-g20/fixmatch table1/cifar10-cadr-g20/fixmatch+prg --data ~/data --seeds 1
    --iterations 65536`

    Without any download: `mnar bench digits tabular-digits --seeds 5`

    To look at what is there: `mnar bench --show`
    """
    from mnar.bench import RESULTS, Bench, shown, write_results

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
            console.print("The time is up; go on with the same command.")
    for line in shown(results, console.width):
        console.print(line, soft_wrap=isinstance(line, str) and not console.is_terminal, highlight=False)
    if any(cell.failures for cell in results):
        raise typer.Exit(1)


@app.command()
def inspect(
    source: Annotated[Path, typer.Argument(metavar="DATA", help=OWN_DATA)],
    label: Label = None,
    ignore: Ignore = None,
    unlabeled: NoLabel = None,
    size: Size = None,
    features: Features = None,
    out: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("inspect.json"),
    seed: Annotated[int, typer.Option(help="Of folds and bootstrap.")] = 0,
) -> None:
    """Say which classes are missing from the labels of your own data, how surely, and what to train with.

    Example: `mnar inspect survey.csv --label vote`
    """
    from mnar.inspect.table import table
    from mnar.own_training import inspect_own

    reading = _reading(label, ignore, unlabeled, size, features)
    with reading_bar() as on_progress:
        inspection = inspect_own(source, out, reading=reading, seed=seed, on_progress=on_progress)
    console.print(table(inspection))
    console.print(f"All of it: {out}", soft_wrap=True, markup=False)


def _reading(
    label: str | None, ignore: list[str] | None, unlabeled: list[str] | None, size: int | None, features: Path | None
) -> dict[str, Any]:
    """How own data are to be read, as `mnar.inputs.read_data` takes it: what was said, and nothing else."""
    said = {"label": label, "ignore": tuple(ignore or ()), "unlabeled": tuple(unlabeled or ()), "size": size}
    return {name: value for name, value in {**said, "features": features}.items() if value}


@app.command()
def train(
    source: Annotated[Path | None, typer.Argument(metavar="[DATA]", help=f"Your own data. {OWN_DATA}")] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set (`mnar list datasets`); digits if not given.")] = None,
    data: DataFolder = None,
    protocol: Annotated[str | None, typer.Option(help="Who keeps a label (`mnar list protocols`).")] = None,
    learner: Annotated[str | None, typer.Option(help="How the loss is formed (`mnar list learners`).")] = None,
    guidance: Annotated[
        str | None, typer.Option(help="How pseudo-labels are rectified (`mnar list guidances`).")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="A named configuration (`mnar list recipes`).")] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Training steps; if not given, the data set's default.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of split, initialisation and all draws; 1.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to make; runs/… if not given.")] = None,
    settings: SetOption = None,
    resume: Annotated[Path | None, typer.Option(help="Run folder to go on with; needs nothing else.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard's files there.")] = False,
    label: Label = None,
    ignore: Ignore = None,
    unlabeled: NoLabel = None,
    size: Size = None,
    features: Features = None,
) -> None:
    """Train, or go on training.

    Example: `mnar train --dataset cifar10 --data ~/data --guidance prg --set protocol.gamma=20 --out runs/prg`

    On your own half-labelled data: `mnar train photos/` or `mnar train survey.csv --label vote`

    After a stop: `mnar train --resume runs/prg`, with `--data` or `--set engine.…` if the machine is another.
    """
    from mnar.own_training import configure_own, resume_and_finish, train_and_finish
    from mnar.recipes import configure
    from mnar.run import default_folder

    reading = _reading(label, ignore, unlabeled, size, features)
    cell: dict[str, Any] = {"dataset": dataset, "protocol": protocol, "recipe": recipe}
    method: dict[str, Any] = {"learner": learner, "guidance": guidance, "iterations": iterations, "seed": seed}
    if resume is not None:
        extra = (["DATA"] if source else []) + _named(**cell, **method, out=out, **reading)
        if extra:
            raise ValueError(f"--resume goes on with a run as it is; leave out {', '.join(extra)}, or begin a new run")
        with _display(tensorboard=tensorboard) as display:
            verdict = resume_and_finish(resume, display, root=data, settings=settings or ())
        _print_headline(resume, verdict)
        return

    read = None
    if source is not None:
        if extra := _named(**cell, data=data):
            raise ValueError(f"{source} is data of your own, which {', '.join(extra)} cannot go with; leave it out")
        with reading_bar() as on_progress:
            config, read = configure_own(
                source, reading=reading, **method, settings=settings or (), on_progress=on_progress
            )
    elif reading:
        raise ValueError(f"{', '.join(_named(**reading))} is for data of your own: `mnar train DATA`")
    else:
        config = configure(**cell, data=str(data) if data else None, **method, settings=settings or ())
    folder = out or default_folder(config)
    with _display(tensorboard=tensorboard) as display:
        verdict = train_and_finish(config, folder, display, data=read)
    _print_headline(folder, verdict)


def _named(**options: object) -> list[str]:
    """Those that were said."""
    return [f"--{name}" for name, value in options.items() if value is not None]


@contextmanager
def _display(*, tensorboard: bool) -> Iterator[Display]:
    from mnar.display import TerminalDisplay
    from mnar.tensorboard import TensorBoard

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
    """Score a run's model on its test set, class by class.

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
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Draw one or several runs into one HTML file.

    Example: `mnar report runs/fixmatch runs/prg --out report.html`
    """
    from mnar.report import read_runs, write_report

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
    which: Annotated[str, typer.Argument(help='Those that begin so, or a pattern, e.g. "table1/*g20*".')] = "",
) -> None:
    """Show what there is to choose from, with every option and its default.

    Example: `mnar list guidances`
    """
    from mnar.part_list import listing

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


def _print_headline(folder: Path, verdict: Verdict | None) -> None:
    from mnar.evaluate import headline, headline_lines
    from mnar.run_files import read_metrics

    lines = read_metrics(folder)
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
        console.print(f"{verdict.text}\nlabels for the rest: {verdict.predictions}", markup=False, soft_wrap=True)


def main() -> None:
    """Every error that a user can mend is one line, not a traceback; so is every warning."""
    warnings.showwarning = lambda message, *_: errors.print(f"[yellow]warning:[/yellow] {escape(str(message))}")
    try:
        app(prog_name="mnar")
    except Interrupted as error:
        errors.print(escape(str(error)), soft_wrap=True, highlight=False)
        sys.exit(130)
    except (ValueError, OSError, Diverged) as error:
        errors.print(f"[red]error:[/red] {escape(in_words(error))}", soft_wrap=True, highlight=False)
        sys.exit(1)
    except OutOfMemoryError as error:
        remedy = "choose a smaller batch, e.g. --set train.batch_unlabeled=224"
        errors.print(f"[red]error:[/red] the GPU's memory is full ({escape(str(error))}); {remedy}", soft_wrap=True)
        sys.exit(1)
