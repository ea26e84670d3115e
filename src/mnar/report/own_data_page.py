"""The report of a training on the user's own data: what was tried, what was chosen, and what the pool looks like."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.atomic_write import write_atomically
from mnar.report.html import about_fonts, data_uri, render
from mnar.report.own_data_figures import Interval, Reliability, class_share_bars, confidence_figure, recall_bars
from mnar.run.file_names import REPORT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THUMBNAIL = 96  # pixels of the longer side; larger images would make the page heavy
UNKNOWN = "–"


@dataclass(frozen=True)
class TriedMember:
    """One model that was tried. The scores are estimates for the pool, from cross-validation on the labels."""

    name: str
    uses_pool: bool
    balanced_accuracy: Interval | None = None
    accuracy: Interval | None = None
    seconds: float | None = None
    is_chosen: bool = False
    remark: str = ""  # e.g. "left out: it did not finish within its time"


class PictureRow(NamedTuple):
    """Pictures side by side, e.g. the most confident predictions of one class."""

    title: str
    pictures: Sequence[tuple[str, npt.NDArray[np.uint8]]]  # caption; image [h, w], [c, h, w] or [h, w, c]


@dataclass(frozen=True)
class OwnDataPage:
    """The content of the page. Lists per class are in the order of `class_names`; shares lie between 0 and 1."""

    title: str
    class_names: Sequence[str]
    num_labels: Sequence[int]  # per class
    num_unlabeled: int
    verdict: str  # a whole sentence: whether the samples without a label helped
    difference: Interval | None = None  # balanced accuracy of the chosen model minus that of the best labels-only model
    members: Sequence[TriedMember] = ()
    pool_shares: Sequence[Interval | None] = ()  # per class; None: cannot be estimated
    predicted_shares: Sequence[float] | None = None  # per class, of the predictions for the pool
    recalls: Mapping[str, Sequence[Interval | None]] = field(default_factory=dict)  # model name -> recall per class
    confidences: npt.ArrayLike | None = None  # [n] of the predictions for the pool
    reliability: Reliability | None = None
    pictures: Sequence[PictureRow] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def __post_init__(self) -> None:
        lists: dict[str, Any] = {"num_labels": self.num_labels, "pool_shares": self.pool_shares or None}
        lists |= {"predicted_shares": self.predicted_shares, **self.recalls}
        for name, values in lists.items():
            if values is not None and len(values) != len(self.class_names):
                raise ValueError(
                    f"{name} has {len(values)} entries for {len(self.class_names)} classes; give one per class"
                )


def write_own_data_report(folder: Path, page: OwnDataPage) -> None:
    """Write the page as report.html into the folder, atomically."""
    write_atomically(folder / REPORT, own_data_html(page))


def own_data_html(page: OwnDataPage) -> str:
    """The page as one HTML text without scripts and without external resources."""
    pool_shares = page.pool_shares or [None] * len(page.class_names)
    has_confidence = page.confidences is not None or page.reliability is not None
    return render(
        "own_data.html.j2",
        page=page,
        num_labels=sum(page.num_labels),
        classes=_class_rows(page),
        members=[_member_row(member) for member in page.members],
        has_remarks=any(member.remark for member in page.members),
        difference=None if page.difference is None else _points(page.difference),
        shares=data_uri(class_share_bars(page.class_names, page.num_labels, pool_shares, page.predicted_shares)),
        recalls=_uri(recall_bars(page.class_names, page.num_labels, page.recalls) if page.recalls else None),
        confidence=_uri(confidence_figure(page.confidences, page.reliability) if has_confidence else None),
        pictures=[
            (row.title, [(caption, thumbnail(image)) for caption, image in row.pictures]) for row in page.pictures
        ],
        about_fonts=about_fonts(map(str, page.class_names)),
    )


def thumbnail(image: npt.NDArray[np.uint8]) -> str:
    """The image as the data URI of a small PNG file."""
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise ValueError(
            f"a picture has shape {pixels.shape} and type {pixels.dtype}; give uint8 pixels as [h, w] or [c, h, w]"
        )
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _class_rows(page: OwnDataPage) -> list[tuple[str, ...]]:
    """Name, labels, shares of the labels, of the estimated pool and of the predictions; most labels first."""
    total = max(1, sum(page.num_labels))
    rows: list[tuple[str, ...]] = []
    for i in np.argsort(-np.asarray(page.num_labels), kind="stable"):
        pool = page.pool_shares[i] if page.pool_shares else None
        predicted = UNKNOWN if page.predicted_shares is None else f"{100 * page.predicted_shares[i]:.1f}"
        labels = page.num_labels[i]
        rows.append((str(page.class_names[i]), f"{labels:,}", f"{100 * labels / total:.1f}", _percent(pool), predicted))
    return rows


def _member_row(member: TriedMember) -> tuple[TriedMember, str, str, str]:
    seconds = UNKNOWN if member.seconds is None else f"{member.seconds:,.1f}"
    return member, _percent(member.balanced_accuracy), _percent(member.accuracy), seconds


def _percent(estimate: Interval | None) -> str:
    """E.g. "83.1 (79.0 to 86.9)"."""
    if estimate is None or np.isnan(estimate.value):
        return UNKNOWN
    value, low, high = (100 * end for end in estimate)
    return f"{value:.1f}" if np.isnan(low) or np.isnan(high) else f"{value:.1f} ({low:.1f} to {high:.1f})"


def _points(difference: Interval) -> str:
    """E.g. "+2.1 points, 95 % interval −0.4 to +4.6"."""
    value, low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in difference)
    return f"{value} points, 95 % interval {low} to {high}"


def _uri(figure: Figure | None) -> str:
    return "" if figure is None else data_uri(figure)
