"""The one-file report of one or several runs, with nothing to load and nothing to execute."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mnar.atomic_write import write_atomically
from mnar.report import comparisons, curves, matrices, per_class
from mnar.report.methods import Setting, by_setting, most_telling
from mnar.report.style import svg
from mnar.report.tables import OF_SHORT_RUNS, environments, is_short, row, run_rows, settings, task
from mnar.report.text import changes
from mnar.run.file_names import REPORT
from mnar.run.reader import Run, read_run
from mnar.training.evaluation import HEADLINE_EVALUATIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_SECTIONS = 8  # a page of all cells of a paper would take minutes to draw
MOST_PANELS = 14  # of a figure with one for each method: a column of the paper's largest table


def _always(part: Any) -> bool:
    return True


def _never(part: Any) -> bool:
    return False


class Plate(NamedTuple):
    """A figure and how to read it."""

    draw: Callable[[Sequence[Any]], Figure | None]  # of settings, or of the methods of one
    title: str
    how_to_read: str
    can_show: Callable[[Any], bool] = _always  # a setting or a method
    awaits: Callable[[Any], bool] = _never  # what cannot be shown before training has gone on
    is_panel_each: bool = True  # or all in the same


class Drawn(NamedTuple):
    title: str
    how_to_read: str
    uri: str
    shown: list[str]  # settings or methods


class Section(NamedTuple):
    """What the page says about one setting."""

    name: str
    task: str
    lead: str
    methods: list[str]  # all of them
    plates: list[Drawn]
    different: dict[str, list[Any]]
    shared: dict[str, Any]


OVERVIEWS = (
    Plate(
        comparisons.bars_by_setting,
        "Methods by setting",
        "Medians of the last evaluations, means over seeds; a whisker is a standard deviation between seeds. A method "
        "that is strong in one setting and weak in another depends on what the labels say about the pool. A pale bar "
        "is of runs that are not finished. Variants of a method that were tried in one setting alone have no bar; the "
        "table has them.",
        is_panel_each=False,
    ),
    Plate(
        comparisons.sweeps,
        "Scores along a setting",
        "Medians of the last evaluations, means over seeds, with a standard deviation between seeds; along a line "
        "nothing differs but the setting below it. A hollow point is of runs that are not finished.",
        is_panel_each=False,
    ),
    Plate(
        comparisons.label_distributions,
        "Labelled and unlabelled samples",
        "Samples of each class, from the most labels to the fewest; the two panels have scales of their own. Where "
        "their shapes differ, labels are not missing at random.",
    ),
)
PLATES = (
    Plate(
        curves.learning_curves,
        "Learning curves",
        "Thin lines are single seeds, and thick lines their means, of the finished ones if there are any; a level "
        "dotted line is the final result of a finished learner without guidance. The geometric mean falls to zero as "
        "soon as one class is forgotten, so a method far lower on the right pays for accuracy with some classes.",
        is_panel_each=False,
    ),
    Plate(
        matrices.transition_matrices,
        "Class transitions",
        "Row i, column j: how often a sample's predicted class moved from i to j within the tracking window, "
        "from early to late in the run of one seed; the paler, the more settled.",
        matrices.has_transitions,
        matrices.awaits_transitions,
    ),
    Plate(
        per_class.pseudo_label_errors,
        "Pseudo-label error per class over time",
        "Each row is a true class, from the most labels at the top to the fewest at the bottom; the darker, "
        "the more of its accepted pseudo-labels name another class, and grey where none was accepted.",
        per_class.has_pseudo_label_errors,
    ),
    Plate(
        matrices.pseudo_label_confusion,
        "Confusion of pseudo-labels",
        "Each row shows which pseudo-labels the unlabelled samples of a true class got, in percent over all seeds, "
        "before the last evaluation or the step beside the name; the last column, –, holds those not accepted.",
        matrices.has_pseudo_label_confusion,
        matrices.awaits_pseudo_label_confusion,
    ),
    Plate(
        matrices.confusion_matrices,
        "Confusion on the test set",
        "Each row shows where the test samples of a true class end up, in percent over all seeds, at the last "
        "evaluation or the step beside the name; colour off the diagonal is error, and a coloured column attracts "
        "other classes.",
        matrices.has_confusion,
        matrices.awaits_confusion,
    ),
    Plate(
        per_class.precision_and_recall,
        "Precision and recall per class over time",
        "On the test set, in percent, early, later and last, means over seeds. A popular class with low "
        "precision has taken in samples of others; a rare one with low recall has lost them.",
        per_class.has_precision,
    ),
    Plate(
        per_class.class_shares,
        "Class shares: labels, pseudo-labels, predictions",
        "Black lines are the truth, of the unlabelled pool for pseudo-labels and of the test set for "
        "predictions; what follows the grey labels instead has taken over their bias.",
    ),
    Plate(
        curves.pseudo_label_health,
        "Pseudo-label health",
        "The mask rate is the share of unlabelled samples whose pseudo-label was confident enough to use; "
        "a sample's row of C is empty where no tracked prediction has left its class: PRG has nothing to go by.",
        curves.has_pseudo_label_health,
        is_panel_each=False,
    ),
)


def write_run_report(folder: Path) -> None:
    """Draw the report of one run into its folder."""
    run = read_run(folder)
    write_report([run], folder / REPORT, title=f"{run.label} on {run.split['dataset']}")


def write_report(runs: Sequence[Run], path: Path, *, title: str) -> None:
    """Write the page in one go: at every moment the file is the old page or the new one, whole."""
    if not runs:
        raise ValueError("no runs to report on; give at least one run folder")
    write_atomically(Path(path), _page(runs, title))


def render(template: str, **values: Any) -> str:
    """A page of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mnar.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def _page(runs: Sequence[Run], title: str) -> str:
    by_name = by_setting(runs)
    return render(
        "report.html.j2",
        title=title,
        summary=[(setting, [(method, row(method)) for method in setting.methods]) for setting in by_name],
        overviews=_drawn(OVERVIEWS, by_name, _first, "settings"),
        sections=[_section(setting) for setting in by_name[:MOST_SECTIONS]],
        runs=run_rows(by_name),
        environments=environments(runs),
        last=HEADLINE_EVALUATIONS,
        of_short_runs=OF_SHORT_RUNS if _any_short(by_name) else "",
    )


def _any_short(settings: Sequence[Setting]) -> bool:
    return any(is_short(run) for setting in settings for method in setting.methods for run in method.counted)


def _section(setting: Setting) -> Section:
    names = [method.name for method in setting.methods]
    plates = _drawn(PLATES, setting.methods, most_telling, "methods")
    return Section(setting.name, task(setting), changes(setting.methods), names, plates, *settings(setting.methods))


def _first(settings: Sequence[Setting], most: int) -> Sequence[Setting]:
    return settings[:most]


def _drawn(
    plates: Sequence[Plate], parts: Sequence[Any], choose: Callable[[Sequence[Any], int], Sequence[Any]], kind: str
) -> list[Drawn]:
    """Where a figure could show more than it has room for, `choose` says which."""
    drawn = []
    for plate in plates:
        known = [part for part in parts if plate.can_show(part)]
        shown = choose(known, MOST_PANELS) if plate.is_panel_each else known
        figure = plate.draw(shown)
        left_out = len(known) - len(shown)
        said = (
            f" Left out: {left_out} of {len(known)} {kind}; give their folders alone to see them." if left_out else ""
        )
        awaited = [part.name for part in parts if plate.awaits(part)]
        said += f" Not recorded yet: {', '.join(awaited)}." if awaited else ""
        if figure is not None:
            names = [part.name for part in shown]
            drawn.append(Drawn(plate.title, plate.how_to_read + said, _data_uri(figure), names))
    return drawn


def _data_uri(figure: Figure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg(figure)).decode('ascii')}"
