"""The HTML report of one or several runs: one file without scripts and without external resources."""

from __future__ import annotations

import base64
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mnar.atomic_write import write_atomically
from mnar.report import comparisons, curves, in_words, matrices, per_class
from mnar.report.changes import Change, change_headings, changes, compared_evaluations
from mnar.report.methods import Method, Setting, by_setting, most_telling
from mnar.report.style import characters_without_font, svg
from mnar.report.tables import (
    ABOUT_SHORT_RUNS,
    Row,
    about_schedules,
    environments,
    is_short,
    row,
    run_rows,
    scoring,
    settings,
    task,
)
from mnar.run.collapse_record import read_collapses
from mnar.run.file_names import BASELINE, REPORT
from mnar.run.folder import RunFolder
from mnar.run.reader import Run, read_run
from mnar.training.headline import BEST, FINAL, HEADLINE_EVALUATIONS, headline_name
from mnar.training.metrics import overall_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_SECTIONS = 8  # settings that are drawn; all cells of a paper would take minutes
MANY_RUNS = 20  # below, starting processes would take longer than they save
MOST_PANELS = 14  # panels of a figure with one panel per method: a column of the paper's largest table


def _always(part: Any) -> bool:
    return True


def _never(part: Any) -> bool:
    return False


def _no_numbers(parts: Sequence[Any]) -> str:
    return ""


class Plate(NamedTuple):
    """A figure with its title and an explanation."""

    draw: Callable[[Sequence[Any]], Figure | None]  # takes settings, or the methods of one setting
    title: str
    how_to_read: str
    on_own_data: str = ""  # the explanation for own data, whose pool has unknown classes; empty: the same
    can_show: Callable[[Any], bool] = _always  # whether a setting or method has what the figure shows
    awaits: Callable[[Any], bool] = _never  # whether an unfinished method will have it later
    is_panel_each: bool = True  # one panel per method, or all methods in the same panels
    in_words: Callable[[Sequence[Any]], str] = _no_numbers  # the numbers of the figure as text


class Drawn(NamedTuple):
    title: str
    how_to_read: str
    uri: str
    shown: list[str]  # the settings or methods in the figure
    in_words: str  # its numbers as text; empty if there are too many


class SummaryColumn(NamedTuple):
    figure: str  # the name in `Headline`
    title: str
    statistic: str
    best: str | None = None  # the best method has the "max" or "min" and is printed in bold; None: not compared


class Section(NamedTuple):
    """The part of the page about one setting."""

    name: str
    task: str
    scoring: str
    changes: list[Change]
    methods: list[str]
    plates: list[Drawn]
    different: dict[str, list[Any]]
    shared: dict[str, Any]


OVERVIEWS = (
    Plate(
        comparisons.bars_by_setting,
        "Methods by setting",
        "Bars show medians of the last evaluations, averaged over seeds; a whisker is one standard deviation between "
        "seeds. A method that is strong in one setting and weak in another depends on how the class distributions of "
        "labels and pool are related. Pale bars belong to unfinished runs. Variants of a method that only one "
        "setting has are not drawn; the table lists them.",
        is_panel_each=False,
    ),
    Plate(
        comparisons.sweeps,
        "Scores against an option",
        "Points show medians of the last evaluations, averaged over seeds, with one standard deviation between seeds. "
        "The runs along a line differ only in the option below the panel. Hollow points belong to unfinished runs.",
        is_panel_each=False,
    ),
    Plate(
        comparisons.label_distributions,
        "Labelled and unlabelled samples",
        "The number of samples of each class, from the class with the most labels to the class with the fewest. The "
        "two panels have different scales. If their shapes differ, labels are not missing at random.",
        "The number of labels of each class, from the most labels to the fewest. Held-out labels take no part in "
        "training; they score the model. The classes of the samples without a label are unknown.",
        in_words=in_words.label_counts,
    ),
)
PLATES = (
    Plate(
        curves.learning_curves,
        "Learning curves",
        "Thin lines are single seeds and thick lines their means, over finished runs if there are any. A horizontal "
        "dotted line marks the final result of a finished learner without guidance. The geometric mean falls to zero "
        "as soon as one class is never recognised, so a method that is much lower on the right neglects some classes.",
        is_panel_each=False,
        in_words=in_words.scores,
    ),
    Plate(
        per_class.recalls,
        "Recall per class",
        "The share of the held-out labels of each class that the model predicts correctly, at the last evaluation. The "
        "numbers in brackets are the held-out labels of the class: one label more or less is a large step if there are "
        "few of them. – marks a class without a held-out label.",
        can_show=per_class.has_recall_of_own_data,
        is_panel_each=False,
        in_words=in_words.recalls,
    ),
    Plate(
        per_class.pseudo_label_errors,
        "Pseudo-label error per class over time",
        "Each row is a true class, from the most labels at the top to the fewest at the bottom. The darker a cell, the "
        "larger the share of the class's accepted pseudo-labels that are wrong. Grey: no pseudo-label was accepted.",
        can_show=per_class.has_pseudo_label_errors,
    ),
    Plate(
        matrices.pseudo_label_confusion,
        "Confusion of pseudo-labels",
        "Each row shows the pseudo-labels of the unlabelled samples of one true class, in percent over all seeds, "
        "before the last evaluation or the step beside the name. The last column, –, counts rejected pseudo-labels.",
        can_show=matrices.has_pseudo_label_confusion,
        awaits=matrices.awaits_pseudo_label_confusion,
    ),
    Plate(
        matrices.confusion_matrices,
        "Confusion on the test set",
        "Each row shows the predictions for the test samples of one true class, in percent over all seeds, at the last "
        "evaluation or the step beside the name. Colour off the diagonal is error. A coloured column is a class that "
        "the model predicts too often.",
        can_show=matrices.has_confusion,
        awaits=matrices.awaits_confusion,
    ),
    Plate(
        per_class.precision_and_recall,
        "Precision and recall per class over time",
        "Percent on the test set at three steps, averaged over seeds. A popular class with low precision absorbs "
        "samples of other classes; a rare class with low recall loses its samples to them. – marks a class without a "
        "test sample.",
        can_show=per_class.has_precision,
    ),
    Plate(
        per_class.class_shares,
        "Class shares: labels, pseudo-labels, predictions",
        "Black lines are the true shares: of the unlabelled pool for pseudo-labels, of the test set for predictions. "
        "Pseudo-labels or predictions that follow the grey bars have taken over the bias of the labels.",
        "The true class distribution of the samples without a label is unknown, so no bar here is the truth. The "
        "estimated pool, if drawn, is the estimate of the guidance. Pseudo-labels that follow the grey bars although "
        "the estimated pool differs from them may have taken over the bias of the labels.",
    ),
    Plate(
        curves.pseudo_label_health,
        "Pseudo-label health",
        "The mask rate is the share of unlabelled samples whose pseudo-label was confident enough to be used. A sample "
        "has an empty row if no sample left its predicted class within the window, so PRG has no transitions to use.",
        can_show=curves.has_pseudo_label_health,
        is_panel_each=False,
    ),
)


ABOUT_TRANSITIONS = (
    "Row i, column j: how often a sample's predicted class changed from i to j within the tracking window, from early "
    "to late in the run of one seed. Paler matrices mean that the predictions have settled."
)
ABOUT_MATRICES = "A matrix that the guidance keeps, from early to late in the run of one seed."
ABOUT_ESTIMATES = "The last estimate of the guidance for each class, averaged over seeds."
ABOUT_POOL_SHARES = f"{ABOUT_ESTIMATES} Black lines are the true class shares of the unlabelled pool."
ABOUT_OWN_POOL_SHARES = f"{ABOUT_ESTIMATES} The true class shares of the samples without a label are unknown."


def guidance_plates(methods: Sequence[Method]) -> list[Plate]:
    """One figure for every matrix and every estimate that the guidances of these methods recorded."""
    of_matrices = [
        Plate(
            partial(matrices.guidance_matrices, name=name),
            "Class transitions" if name == "transitions" else f"Matrix of the guidance: {name.replace('_', ' ')}",
            ABOUT_TRANSITIONS if name == "transitions" else ABOUT_MATRICES,
            can_show=partial(matrices.has_guidance_matrix, name=name),
            awaits=matrices.awaits_transitions if name == "transitions" else _never,
        )
        for name in matrices.guidance_matrix_names(methods)
    ]
    of_estimates = [
        Plate(
            partial(per_class.guidance_estimates, name=name),
            f"Estimate of the guidance: {name.replace('_', ' ')}",
            ABOUT_POOL_SHARES if name == per_class.POOL_SHARE else ABOUT_ESTIMATES,
            ABOUT_OWN_POOL_SHARES if name == per_class.POOL_SHARE else "",
            can_show=partial(per_class.has_estimate, name=name),
        )
        for name in per_class.estimate_names(methods)
    ]
    return [*of_matrices, *of_estimates]


def write_run_report(folder: Path, *, name: str = REPORT) -> None:
    """Draw the report of one run into its folder, together with its labels-only baseline if there is one."""
    run = read_run(folder)
    write_report(with_baselines([run]), folder / name, title=f"{run.label} on {run.split['dataset']}")


def with_baselines(runs: Sequence[Run]) -> list[Run]:
    """The finished labels-only baselines inside the folders of runs on own data, then these runs."""
    baselines = [run.folder / BASELINE for run in runs if RunFolder(run.folder / BASELINE).is_finished]
    return [*map(read_run, baselines), *runs]


def write_report(runs: Sequence[Run], path: Path, *, title: str, processes: int = 1) -> None:
    """Write the page atomically.

    processes    how many processes may draw the page of many runs; with more than one, a script must call this function
                 below `if __name__ == "__main__":`
    """
    if not runs:
        raise ValueError("no runs to report on; give at least one run folder")
    write_atomically(Path(path), _page(runs, title, processes))


def render(template: str, **values: Any) -> str:
    """Render a template of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mnar.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def _page(runs: Sequence[Run], title: str, processes: int) -> str:
    by_name = by_setting(runs)
    return render(
        "report.html.j2",
        title=title,
        figures=_summary_columns(),
        summary=[(setting, [(method, row(method)) for method in setting.methods]) for setting in by_name],
        overviews=_drawn(OVERVIEWS, by_name, _first, "settings"),
        sections=_sections(by_name[:MOST_SECTIONS], processes),
        runs=run_rows(by_name),
        environments=environments(runs),
        change_headings=change_headings(),
        compared_evaluations=compared_evaluations,
        best_mean=_best_mean,
        about_short_runs=ABOUT_SHORT_RUNS if _any_short(by_name) else "",
        collapses=_collapses(runs),
        about_schedules=about_schedules(runs),
        about_fonts=about_fonts(name for setting in by_name for name in setting.run.split["class_names"]),
    )


def _collapses(runs: Sequence[Run]) -> list[str]:
    """One sentence for each collapse that the folder of a run records."""
    return [
        f"{run.label}, seed {run.config['seed']}: the run did not learn with a learning rate of {found['lr']:g}: "
        f"{found['seen']} (step {found['step']:,}, {found['action']})."
        for run in runs
        for found in read_collapses(run.folder)
    ]


def about_fonts(class_names: Iterable[str]) -> str:
    """A note on characters that may not be shown; empty if the fonts of the figures have all of them."""
    lacking = characters_without_font(class_names)
    if not lacking:
        return ""
    some = " ".join(lacking[:10])
    return f"If the figures show boxes instead of {some}, install a font that has these characters of the class names."


def _summary_columns() -> list[SummaryColumn]:
    """The columns of the summary: the median of every overall metric, then two other accuracies."""
    median = f"median of last {HEADLINE_EVALUATIONS}"
    columns = [
        SummaryColumn(headline_name(metric.name), metric.title, median, "max" if metric.higher_is_better else "min")
        for metric in overall_metrics()
    ]
    return [*columns, SummaryColumn(FINAL, "accuracy", "final"), SummaryColumn(BEST, "accuracy", "best on test")]


def _best_mean(column: SummaryColumn, rows: Sequence[tuple[Method, Row]]) -> float | None:
    """The mean to be printed in bold: the best of the finished methods; None if there is nothing to compare."""
    means = [
        row.headline[column.figure].mean
        for method, row in rows
        if column.figure in row.headline and not method.progress
    ]
    if column.best is None or len(rows) < 2 or not means:
        return None
    best = max(means) if column.best == "max" else min(means)
    return None if column.best == "max" and best == 0 else best  # nothing is best if all are zero


def _any_short(settings: Sequence[Setting]) -> bool:
    return any(is_short(run) for setting in settings for method in setting.methods for run in method.counted)


def _sections(settings: Sequence[Setting], processes: int) -> list[Section]:
    """Draw the sections, one per setting. Those of many runs are drawn side by side: a figure takes half a second."""
    num_runs = sum(len(method.runs) for setting in settings for method in setting.methods)
    processes = min(len(settings), processes)
    if processes < 2 or num_runs < MANY_RUNS:
        return [_section(setting) for setting in settings]
    # A new interpreter each, because a fork of this process could hang once torch's threads have run.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        # Ctrl-C reaches all processes, but only this one reacts to it. The others start with the signal blocked.
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        drawn = [pool.submit(_section, setting) for setting in settings]
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        try:
            return [section.result() for section in drawn]
        except BrokenProcessPool:  # a process was killed, perhaps because the memory was full
            return [_section(setting) for setting in settings]
        except BaseException:
            for process in active_children():  # otherwise the end of the pool waits for their figures
                process.terminate()
            raise


def _section(setting: Setting) -> Section:
    names = [method.name for method in setting.methods]
    learning_curves, *others = PLATES
    plates = _drawn(
        [learning_curves, *guidance_plates(setting.methods), *others], setting.methods, most_telling, "methods"
    )
    about = task(setting), scoring(setting)
    return Section(setting.name, *about, changes(setting.methods), names, plates, *settings(setting.methods))


def _first(settings: Sequence[Setting], most: int) -> Sequence[Setting]:
    return settings[:most]


def _drawn(
    plates: Sequence[Plate], parts: Sequence[Any], choose: Callable[[Sequence[Any], int], Sequence[Any]], kind: str
) -> list[Drawn]:
    """Draw the figures. `choose` picks the parts of a figure that has no room for all of them."""
    drawn = []
    for plate in plates:
        known = [part for part in parts if plate.can_show(part)]
        shown = choose(known, MOST_PANELS) if plate.is_panel_each else known
        figure = plate.draw(shown)
        left_out = len(known) - len(shown)
        remarks = f" Not drawn: {left_out} of {len(known)} {kind}; report on their folders alone." if left_out else ""
        awaited = [part.name for part in parts if plate.awaits(part)]
        remarks += f" Not recorded yet: {', '.join(awaited)}." if awaited else ""
        if figure is not None:
            names = [part.name for part in shown]
            is_own_data = not all(part.run.knows_the_pool for part in shown)
            how_to_read = plate.on_own_data if is_own_data and plate.on_own_data else plate.how_to_read
            drawn.append(Drawn(plate.title, how_to_read + remarks, data_uri(figure), names, plate.in_words(shown)))
    return drawn


def data_uri(figure: Figure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg(figure)).decode('ascii')}"
