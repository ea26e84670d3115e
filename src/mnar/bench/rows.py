"""The rows of a bench's tables, our results beside the paper's: shared by the terminal and the result files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mnar.bench.cell import Cell
from mnar.recipes import TITLES
from mnar.report import ABOUT_SHORT_RUNS
from mnar.training.headline import BEST, FINAL, HEADLINE_EVALUATIONS, headline_name
from mnar.training.metrics import headline_metrics

NONE = "–"
HOW_TO_READ = (
    f"Scores are medians of the last {HEADLINE_EVALUATIONS} evaluations (of all evaluations, if a run has fewer), "
    "mean ± standard deviation over n seeds. GM is the geometric mean of the recalls. Best on test chooses the "
    "evaluation by the test set itself."
)
AFTER_A_FAILURE = (
    "After the cause is fixed, the same command continues. To train a run from the start, remove its folder "
    "(runs/RECIPE/seed-N) first."
)
SHORT_TITLES = {"geometric_mean": "GM"}  # where the title of a metric is too long for a column
SETTING, METHOD, SCHEDULE = "setting", "method", "schedule"
ABOUT_SCHEDULES = (
    "The paper's figures belong to the published schedule. The column schedule names the schedule of our runs, if it "
    "is another one."
)

ABOUT_CHANGES = (
    "A row whose name has settings in brackets is not the paper's cell: these settings differ from the recipe, and the "
    "paper's figure is left out."
)


def paper_column(metric: str) -> str:
    return f"paper_{metric}"


def headings() -> dict[str, str]:
    """The columns of a table by name, with their headings."""
    scores = {}
    for metric in headline_metrics():
        scores[metric.name] = f"{SHORT_TITLES.get(metric.name, metric.title)}, %"
        scores[paper_column(metric.name)] = "paper"
    others = {FINAL: "final", BEST: "best on test", "n": "n", "minutes": "minutes", "images_per_second": "images/s"}
    return {SETTING: "setting", METHOD: "method", SCHEDULE: "schedule", **scores, **others}


def row(cell: Cell) -> dict[str, str]:
    """One cell as text, by column, in the order of `headings()`."""
    percent = {name: spread.percent for name, spread in (cell.headline or {}).items()}
    num_seeds = len(cell.folders)
    cells = {
        SETTING: cell.setting,
        METHOD: cell.method,
        SCHEDULE: ", ".join(cell.schedules) or NONE,
        FINAL: percent.get(FINAL, NONE),
        BEST: percent.get(BEST, NONE),
        "n": str(len(cell.counted)) if cell.num_done == num_seeds else f"{cell.num_done} of {num_seeds}",
        "minutes": NONE if cell.minutes is None else _two_digits(cell.minutes),
        "images_per_second": f"{cell.images_per_second:,.0f}" if cell.images_per_second else NONE,
    }
    for metric in headline_metrics():
        cells[metric.name] = percent.get(headline_name(metric.name), NONE)
        cells[paper_column(metric.name)] = cell.paper.printed_metric(metric.name)
    return {column: cells[column] for column in headings()}


def _two_digits(value: float) -> str:
    """At least two significant digits."""
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def how_to_read(cells: Iterable[Cell]) -> str:
    cells = list(cells)
    about = {
        ABOUT_SHORT_RUNS: any(cell.is_short for cell in cells),
        ABOUT_SCHEDULES: any(cell.schedules for cell in cells),
        ABOUT_CHANGES: any(cell.changes for cell in cells),
    }
    return " ".join([HOW_TO_READ, *(text for text, applies in about.items() if applies)])


def by_table(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells by the title of their table, in the order of the tables."""
    tables: dict[str, list[Cell]] = {}
    for cell in cells:
        tables.setdefault(TITLES[cell.table], []).append(cell)
    return tables


def filled_columns(rows: Sequence[dict[str, str]]) -> list[str]:
    """The columns after setting and method in which at least one row has a value, in order."""
    columns = [column for column in headings() if column not in (SETTING, METHOD)]
    return [column for column in columns if any(line[column] != NONE for line in rows)]


def what_is_missing(cells: Sequence[Cell]) -> list[str]:
    """The unfinished runs, each reason of a failure once, and the remedy."""
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        for reason in dict.fromkeys(cell.failures.values()):
            reasons.setdefault(reason, []).append(cell.name)
    missing = [f"{cell.name}: {cell.missing}" for cell in cells if cell.missing]
    failed = [f"failed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [*missing, *failed, *([AFTER_A_FAILURE] if failed else [])]


def notes(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """Remarks on the paper's figures, each with the cells that it belongs to."""
    named: dict[str, list[str]] = {}
    for cell in cells:
        if cell.paper.note:
            named.setdefault(cell.paper.note, []).append(cell.name.partition("/")[2])
    return named


def circumstances(cells: Sequence[Cell]) -> str:
    """Steps, hardware and commits of all runs, in one line."""
    runs = [result for cell in cells for result in cell.results]
    steps = sorted({result.iterations for result in runs})
    devices = sorted({result.device for result in runs})
    commits = sorted({result.commit for result in runs if result.commit})
    shorter = " (fewer than in the recipes)" if any(cell.is_shortened for cell in cells) else ""
    schedules = sorted({name for cell in cells for name in cell.schedules})
    words = [f"schedule: {', '.join(schedules)}" if schedules else ""]
    words += [f"steps: {', '.join(f'{n:,}' for n in steps)}{shorter}" if steps else "", *devices]
    words += [f"commit {', '.join(commits)}" if commits else ""]
    return "; ".join(word for word in words if word)
