"""The common look of all figures: colours, fonts, panels, ticks. matplotlib is imported with the first figure."""

from __future__ import annotations

import functools
import io
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numpy as np

from mnar.run.reader import Floats, Run

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 10.0  # inches of a full-width figure: 960 CSS pixels
MOST_NAMED_CLASSES = 20  # with more classes, class names and numbers in cells would not be legible
LONGEST_HORIZONTAL_NAME = 2  # characters; longer class names are rotated

# The colour-blind-safe palette of Okabe and Ito, without the yellow that is too pale for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
LINE_STYLES = ("-", "--", ":")  # after the last colour, the palette repeats with the next style
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one per colour, so that lines can be told apart without colours
# Of bars side by side. The dots come last, because matplotlib draws hundreds of circles for them: 170 kB per colour.
HATCHES = ("", "///", "\\\\\\", "xxx", "...")
INK, FAINT = "#222222", "#BBBBBB"

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titley": 1.0,  # a search for ticks above the panel would take 15 % of the time of a figure
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$5"
    "svg.fonttype": "none",  # text stays selectable text
    "svg.hashsalt": "mnar",  # equal runs give equal files
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a drawing function so that it uses this style, without changing matplotlib's global settings.

    Texts stay texts in the SVG file, so the browser chooses the fonts. matplotlib's warnings about characters that its
    own font lacks are therefore of no use; `characters_without_font` finds these characters for a note on the page.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        from matplotlib import rc_context

        with rc_context(RC), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
            return draw(*args, **kwargs)

    return drawn


@styled
def svg(figure: Figure) -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer, canvas = io.BytesIO(), cast(Any, FigureCanvasSVG(figure))  # the method below has no annotations
    # `figure.savefig` gives the same file, but lays out and draws every figure twice.
    canvas.print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def characters_without_font(texts: Iterable[str]) -> str:
    """The characters of these texts that none of the fonts of this style has, each once."""
    from matplotlib.font_manager import findfont, get_font

    known: set[int] = set()
    for family in RC["font.sans-serif"]:
        with suppress(ValueError):  # this font is not installed
            known |= get_font(findfont(family, fallback_to_default=False)).get_charmap().keys()
    lacking = {character for text in texts for character in text if ord(character) not in known}
    return "".join(sorted(character for character in lacking if character.isprintable()))


def colours(methods: Iterable[str]) -> dict[str, str]:
    return {method: PALETTE[i % len(PALETTE)] for i, method in enumerate(methods)}


def line_styles(methods: Iterable[str]) -> dict[str, str]:
    return {method: LINE_STYLES[i // len(PALETTE) % len(LINE_STYLES)] for i, method in enumerate(methods)}


def marker_of(colour: str) -> str:
    """The marker that belongs to a colour of the palette."""
    return MARKERS[PALETTE.index(colour)] if colour in PALETTE else "o"


def lighter(colour: str) -> str:
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = ((1 + channel) / 2 for channel in to_rgb(colour))
    return to_hex((red, green, blue))


def panels(count: int, *, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows, each `height` inches high; fewer panels than columns make it narrower."""
    from matplotlib.figure import Figure

    rows, width = math.ceil(count / columns), WIDTH / columns
    columns = min(columns, count)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def stacked(count: int, *, height: float) -> tuple[Figure, list[SubFigure]]:
    """A figure with `count` full-width strips, each `height` inches high, for panels of their own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height * count), layout="constrained")
    return figure, list(figure.subfigures(count, 1, squeeze=False).flat)


def class_names(run: Run) -> list[str]:
    """The class names from the most labels to the fewest, shortened for an axis."""
    return [shortened(str(run.split["class_names"][i])) for i in run.class_order]


def shortened(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def room_for_names(runs: Sequence[Run]) -> float:
    """The height in inches that the longest rotated class name takes below a panel."""
    longest = max((len(name) for run in runs if is_named(run) for name in class_names(run)), default=0)
    return 0.07 * longest if longest > LONGEST_HORIZONTAL_NAME else 0.0


def is_named(run: Run) -> bool:
    return run.num_classes <= MOST_NAMED_CLASSES


def class_ticks(axis: Any, names: Sequence[str], *, upright: bool = False, beyond: str | None = None) -> None:
    """Label every class by name, and the column `beyond` the classes; with more than 20 classes, label ranks only."""
    if len(names) <= MOST_NAMED_CLASSES:
        names = [*names, beyond] if beyond else names
        turned = upright and max(map(len, names)) > LONGEST_HORIZONTAL_NAME
        axis.set_ticks(range(len(names)), names, rotation=90 if turned else 0)
    else:
        ranks = np.linspace(0, len(names), 5).round().astype(int).clip(min=1)
        axis.set_ticks(ranks - 1, [str(rank) for rank in ranks])


def classes_label(run: Run, what: str) -> str:
    return what if is_named(run) else f"{what} (rank by number of labels)"


def heat_map(axes: Axes, values: Floats, **options: Any) -> Any:
    """A heat map with sharp cells; missing values are grey."""
    import matplotlib

    cmap = matplotlib.colormaps[options.pop("cmap")].with_extremes(bad="#DDDDDD")
    image = axes.imshow(values, interpolation="none", cmap=cmap, **options)
    axes.spines[:].set_visible(True)
    return image


def numbers(axes: Axes, percent: Floats, *, size: float, dark_from: float, least: float = 0.0) -> None:
    """Write whole percents into the cells with at least `least` percent, in white on dark cells; – if unknown."""
    for (row, column), value in np.ndenumerate(percent):
        if value >= least or np.isnan(value):
            colour, written = "white" if value > dark_from else INK, "–" if np.isnan(value) else f"{value:.0f}"
            text = axes.text(column, row, written, ha="center", va="center", size=size, color=colour)
            text.set_in_layout(False)  # hundreds of texts would make the layout slow


def legend_above(figure: Figure | SubFigure, panels: Iterable[Axes]) -> None:
    """A legend above the figure with every name of all panels once."""
    named: dict[str, Artist] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    fit = 140 // (8 + max(map(len, named)))  # a full-width line holds about 140 characters
    figure.legend(list(named.values()), list(named), loc="outside upper left", ncols=max(1, min(4, fit)))


def colour_scale(figure: Figure, axes: Sequence[Axes], image: Any, label: str) -> None:
    """One colour bar for all panels, with the same width for any number of rows."""
    figure.colorbar(image, ax=axes, label=label, aspect=5 * figure.get_figheight(), pad=0.02)


def thousands(axis: Any) -> None:
    """At most a few ticks, labelled like 20k."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, integer=True))
    axis.set_major_formatter(EngFormatter(sep=""))
