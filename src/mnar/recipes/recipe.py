"""`Recipe`: a named configuration, and the figures that the paper prints for it."""

from __future__ import annotations

from typing import NamedTuple

from mnar.recipes.defaults import Sections


class ClassScores(NamedTuple):
    """Precision and recall of each class, in per cent."""

    precision: tuple[float, ...]
    recall: tuple[float, ...]


class Recipe(NamedTuple):
    """One cell of a table of the paper. The name of a recipe is TABLE/SETTING/METHOD.

    Figures are in per cent, as printed. A figure is None if the paper only draws it or does not have it. A standard
    deviation is None if the paper prints none.
    """

    sections: Sections
    accuracy: float | None = None
    deviation: float | None = None
    geometric_mean: float | None = None
    geometric_mean_deviation: float | None = None
    per_class: dict[int, ClassScores] | None = None  # by number of training steps
    note: str = ""  # read this before quoting the figure
    own_guidance: Sections | None = None  # options of the learner's own guidance that differ from its default

    @property
    def printed(self) -> str:
        """The accuracy as the paper prints it."""
        return _printed(self.accuracy, self.deviation)

    @property
    def printed_geometric_mean(self) -> str:
        """The geometric mean of the recalls as the paper prints it."""
        return _printed(self.geometric_mean, self.geometric_mean_deviation)

    def printed_metric(self, metric: str) -> str:
        """A metric by its name, as the paper prints it; a dash for metrics that the paper does not have."""
        printed = {"accuracy": self.printed, "geometric_mean": self.printed_geometric_mean}
        return printed.get(metric, _printed(None, None))


def _printed(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
