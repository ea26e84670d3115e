"""What a recipe is: a named configuration, and what a paper printed for it."""

from __future__ import annotations

from typing import NamedTuple

from mnar.recipes.defaults import Sections


class ClassScores(NamedTuple):
    """Per cent, one a class."""

    precision: tuple[float, ...]
    recall: tuple[float, ...]


class Recipe(NamedTuple):
    """A cell of a table. Its name is TABLE/SETTING/METHOD. Figures are per cent, as printed.

    Without a figure it is only drawn in the paper, or not there at all; without a deviation it was printed without.
    """

    sections: Sections
    accuracy: float | None = None
    deviation: float | None = None
    geometric_mean: float | None = None
    geometric_mean_deviation: float | None = None
    per_class: dict[int, ClassScores] | None = None  # after so many steps
    note: str = ""  # what to know before quoting the figure

    @property
    def printed(self) -> str:
        """The accuracy as the paper has it."""
        return _printed(self.accuracy, self.deviation)

    @property
    def printed_geometric_mean(self) -> str:
        return _printed(self.geometric_mean, self.geometric_mean_deviation)


def _printed(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
