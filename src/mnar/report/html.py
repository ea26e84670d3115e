"""The one-file report of one or several runs, with nothing to load and nothing to execute."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mnar.checkpoint import write_atomically
from mnar.evaluate import HEADLINE_EVALUATIONS
from mnar.report import figures
from mnar.report.record import Run, by_method
from mnar.report.style import colours, svg
from mnar.report.tables import environments, run_rows, settings, summary, tasks
from mnar.report.text import what_changed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Plate(NamedTuple):
    """A figure of the page and how to read it."""

    draw: Callable[[Sequence[Run]], Figure | None]
    title: str
    how_to_read: str


PLATES = (
    Plate(
        figures.learning_curves,
        "Learning curves",
        "Thick lines are means over seeds, thin lines single seeds; the geometric mean falls to zero as soon "
        "as one class is forgotten, so a method far lower on the right pays for accuracy with some classes.",
    ),
    Plate(
        figures.transition_matrices,
        "Class transitions that PRG tracked",
        "Row i, column j: how often a sample's predicted class moved from i to j within the tracking window, "
        "early, in the middle and late in the run of the first seed; the paler, the more settled.",
    ),
    Plate(
        figures.pseudo_label_errors,
        "Pseudo-label error per class over time",
        "Each row is a true class, from the most labels at the top to the fewest at the bottom; the darker, "
        "the more of its accepted pseudo-labels name another class, and grey where none was accepted.",
    ),
    Plate(
        figures.confusion_matrices,
        "Confusion on the test set",
        "Each row shows where the test samples of a true class end up, in percent, at the end of training "
        "and over all seeds; colour off the diagonal is error, and a coloured column attracts other classes.",
    ),
    Plate(
        figures.class_shares,
        "Class shares: labels, pseudo-labels, predictions",
        "Black lines are the truth, of the unlabelled pool for pseudo-labels and of the test set for "
        "predictions; what follows the grey labels instead has taken over their bias.",
    ),
    Plate(
        figures.pseudo_label_health,
        "Pseudo-label health",
        "The mask rate is the share of unlabelled samples whose pseudo-label was confident enough to use; "
        "a sample's row of C is empty where no tracked prediction has left its class: PRG has nothing to go by.",
    ),
)


def write_report(runs: Sequence[Run], path: Path, *, title: str, lead: str = "") -> None:
    """Write the page in one go: at every moment the file is the old page or the new one, whole."""
    if not runs:
        raise ValueError("no runs to report on; give at least one run folder")
    write_atomically(Path(path), _page(runs, title, lead or what_changed(runs)))


def _page(runs: Sequence[Run], title: str, lead: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mnar.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = [(plate, plate.draw(runs)) for plate in PLATES]
    different, shared = settings(runs)
    return environment.get_template("report.html.j2").render(
        title=title,
        lead=lead,
        rows=summary(runs),
        colours=colours(by_method(runs)),
        plates=[(plate, _data_uri(figure)) for plate, figure in drawn if figure is not None],
        different=different,
        shared=shared,
        runs=run_rows(runs),
        tasks=tasks(runs),
        environments=environments(runs),
        last=HEADLINE_EVALUATIONS,
    )


def _data_uri(figure: Figure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg(figure)).decode('ascii')}"
