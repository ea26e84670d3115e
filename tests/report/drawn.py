"""Helpers that read values and texts from a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mnar.report import Method, by_setting
from mnar.report.style import svg
from mnar.run.reader import Floats, Run


def methods_of(runs: Sequence[Run]) -> list[Method]:
    """The methods of runs that share one setting."""
    (setting,) = by_setting(runs)
    return setting.methods


def words(figure: Figure) -> set[str]:
    texts = ElementTree.fromstring(svg(figure)).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(text.itertext()).strip() for text in texts}


def cells(axes: Axes) -> Floats:
    """The values of a heat map; a missing value is NaN."""
    (image,) = axes.images
    values: Any = np.ma.asarray(image.get_array())
    return np.asarray(np.ma.filled(values.astype(float), np.nan))


def tick_labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]
