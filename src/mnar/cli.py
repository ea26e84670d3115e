"""The command line: parse, call, print."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import OutOfMemoryError

from mnar import __version__
from mnar.meters import Diverged
from mnar.train import Interrupted

if TYPE_CHECKING:
    from mnar.folder import Display
    from mnar.own_training import Verdict

app = typer.Typer(
    name="mnar",
    help="Semi-supervised learning when labels are missing not at random.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


class Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read the output has gone (`mnar train | head`): a run goes on without them."""
        self.quiet = True


console = Terminal()
errors = Console(stderr=True)

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.OPTION=VALUE", help="Any option, e.g. guidance.alpha=3; may be repeated."),
]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder (or file) that holds the data set.")]
OWN_DATA = "A folder of images with a CSV, class folders with unlabeled/, a table (.csv, .parquet) or an .npz."
Label = Annotated[str | None, typer.Option(help="Of your own data: the column that holds the labels.")]
Ignore = Annotated[list[str] | None, typer.Option(help="Of a table: a column to leave out; may be repeated.")]
NoLabel = Annotated[
    list[str] | None, typer.Option("--unlabeled", help="Of a table: a value that means no label; may be repeated.")
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

    with _bar(f"4 methods × {seeds} seeds") as show:
        runs, reused = run_demo(
            out, seeds=range(1, seeds + 1), iterations=iterations, on_progress=lambda share: show(completed=share)
        )
    if reused:
        console.print(f"{reused} runs were there already, as trained before; remove {out} to train them again")
    table = Table(title=f"Digits, 72 labels under CADR's protocol (gamma 20): per cent, mean ± sd of {seeds} seeds")
    for heading in ("method", "accuracy", "geometric mean", "best on test"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=heading == "method")
    for row in summary(runs):
        spreads = (row.accuracy_median_last_20, row.geometric_mean, row.accuracy_best_on_test)
        table.add_row(row.method, *(spread.percent for spread in spreads))
    console.print(table)
    console.print("accuracy and geometric mean: median of the last 20 evaluations", style="dim")
    console.print(what_changed(runs), soft_wrap=True, markup=False)
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True, markup=False)


@app.command()
def bench(
    cells: Annotated[
        list[str],
        typer.Argument(metavar="CELLS...", help='Recipes: names, patterns ("table1/cifar10-*") or a table ("table1").'),
    ],
    out: Annotated[Path, typer.Option(help="Folder for runs and results.")] = Path("runs/bench"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    iterations: Annotated[int | None, typer.Option(min=1, help="Steps a run; if not given, the recipe's own.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so long, each run with an equal share of it; go on another time.")
    ] = None,
    data: DataFolder = None,
    settings: SetOption = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; if not given, one a core, or one on a GPU.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Train nothing, show what is there.")] = False,
) -> None:
    """Train cells of the paper's tables, and show ours beside the paper's.

    What is done stays, what was cut off goes on: repeat the command after a stop.

    Example: `mnar bench table1/cifar10-cadr-g20/fixmatch table1/cifar10-cadr-g20/fixmatch+prg --data ~/data --seeds 1
    --iterations 65536`

    Without any download: `mnar bench digits tabular-digits --seeds 5`
    """
    from mnar.bench import RESULTS, Bench, shown, write_results

    benched = Bench(
        out,
        cells,
        seeds=range(1, seeds + 1),
        iterations=iterations,
        data=str(data) if data else None,
        settings=settings or (),
    )
    if show:
        results = benched.cells()
    else:
        with _bar(f"{len(benched.configs)} runs") as advance:
            results = benched.run(
                lambda share: advance(completed=share),
                minutes=minutes,
                num_processes=processes,
                on_change=lambda cells: write_results(cells, out),
            )
        console.print(f"Results: {out / RESULTS}.md, .html, .csv, .json", soft_wrap=True, markup=False)
        if minutes is not None and any(cell.missing for cell in results):
            console.print("The time is up; go on with the same command.")
    for line in shown(results, console.width):
        console.print(line, soft_wrap=isinstance(line, str), highlight=False)
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
    with _reading_bar() as on_progress:
        inspection = inspect_own(source, out, reading=reading, seed=seed, on_progress=on_progress)
    console.print(table(inspection))
    console.print(f"All of it: {out}", soft_wrap=True, markup=False)


def _reading(
    label: str | None, ignore: list[str] | None, unlabeled: list[str] | None, size: int | None, features: Path | None
) -> dict[str, Any]:
    """How own data are to be read, as `mnar.inputs.read_data` takes it: what was said, and nothing else."""
    said = {"label": label, "ignore": tuple(ignore or ()), "unlabeled": tuple(unlabeled or ()), "size": size}
    return {name: value for name, value in {**said, "features": features}.items() if value}


@contextmanager
def _bar(what: str = "reading", total: float | None = 1.0) -> Iterator[Callable[..., None]]:
    """Shows what is being done, and how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task(what, total=total)
        yield partial(progress.update, task)


@contextmanager
def _reading_bar() -> Iterator[Callable[[str, int, int], None]]:
    with _bar(total=None) as update:
        yield lambda what, done, total: update(description=what, completed=done, total=total)


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
    from mnar.display import TerminalDisplay
    from mnar.own_training import finish_own, is_own, own_config
    from mnar.recipes import configure
    from mnar.run import new_run, resume_run
    from mnar.tensorboard import TensorBoard

    def also_written(folder: Path, display: TerminalDisplay) -> AbstractContextManager[Display]:
        return TensorBoard(folder, display) if tensorboard else nullcontext(display)

    reading = _reading(label, ignore, unlabeled, size, features)
    chosen = {
        "DATA": source, "--dataset": dataset, "--protocol": protocol, "--learner": learner, "--guidance": guidance,
        "--recipe": recipe, "--iterations": iterations, "--seed": seed, "--out": out,
        **{f"--{name}": value for name, value in reading.items()},
    }  # fmt: skip
    if resume is not None:
        extra = [name for name, value in chosen.items() if value is not None]
        if extra:
            raise ValueError(f"--resume goes on with a run as it is; leave out {', '.join(extra)}, or begin a new run")
        with TerminalDisplay(console) as terminal, also_written(resume, terminal) as display:
            resume_run(resume, display, root=data, settings=settings or ())
            verdict = finish_own(resume, display, root=data, settings=settings or ()) if is_own(resume) else None
        _print_headline(resume, verdict)
        return
    if source is not None:
        extra = [name for name in ("--dataset", "--protocol", "--recipe") if chosen[name] is not None] + (
            ["--data"] if data else []
        )
        if extra:
            raise ValueError(f"{source} is data of your own, which {', '.join(extra)} cannot go with; leave it out")
        with _reading_bar() as on_progress:
            config = own_config(
                source, reading=reading, learner=learner, guidance=guidance, iterations=iterations, seed=seed,
                settings=settings or (), on_progress=on_progress,
            )  # fmt: skip
    elif reading:
        raise ValueError(f"{', '.join(f'--{name}' for name in reading)} is for data of your own: `mnar train DATA`")
    else:
        config = configure(
            recipe=recipe, dataset=dataset, data=str(data) if data else None, protocol=protocol, learner=learner,
            guidance=guidance, iterations=iterations, seed=seed, settings=settings or (),
        )  # fmt: skip
    method = f"{config.learner.name}-{config.guidance.full_name}"
    what = source.resolve().stem if source else f"{config.dataset.name}-{config.protocol.name}"
    folder = out or Path("runs") / f"{what}-{method}-seed{config.seed}"
    with TerminalDisplay(console) as terminal, also_written(folder, terminal) as display:
        new_run(config, folder, display)
        verdict = finish_own(folder, display) if source else None
    _print_headline(folder, verdict)


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
    which: Annotated[str, typer.Argument(help='Of recipes: those that begin so, e.g. "table1/cifar10".')] = "",
) -> None:
    """Show what there is to choose from, with every option and its default.

    Example: `mnar list guidances`
    """
    from mnar.part_list import listing

    for line in listing(kind, which):
        console.print(line, highlight=False, soft_wrap=True)


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
    from mnar.evaluate import headline
    from mnar.report import read_metrics

    scores = headline(read_metrics(folder))
    console.print(
        f"accuracy {scores['accuracy_median_last_20']:.2%} (median of the last {scores['num_in_median']} evaluations), "
        f"{scores['accuracy_final']:.2%} (final), {scores['accuracy_best_on_test']:.2%} (best on test); "
        f"geometric mean {scores['geometric_mean']:.2%}\n{folder}",
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
    except KeyboardInterrupt:
        errors.print("stopped")
        sys.exit(130)
    except Interrupted as error:
        errors.print(escape(str(error)), soft_wrap=True, highlight=False)
        sys.exit(130)
    except (ValueError, OSError, Diverged) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(1)
    except OutOfMemoryError as error:
        remedy = "choose a smaller batch, e.g. --set train.batch_unlabeled=224"
        errors.print(f"[red]error:[/red] the GPU's memory is full ({escape(str(error))}); {remedy}", soft_wrap=True)
        sys.exit(1)
