"""The page about a training on the user's own data. It answers the questions of the user in the order of the template.

The charts are HTML and SVG in the page itself. They follow the colours of the page (light, dark, print) and the width
of the screen, and the numbers of each chart stand beside it as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mnar.atomic_write import write_atomically
from mnar.report.html import render
from mnar.report.own_data.content import Interval, OwnDataPage, ShownSample, TriedMember
from mnar.report.own_data.reliability import binned, confidence_shares
from mnar.report.own_data.thumbnails import thumbnail
from mnar.report.own_data.words import (
    UNKNOWN,
    bin_sentences,
    confidence_sentence,
    confusion_sentence,
    percent,
    points,
    reliability_sentence,
    short_classes,
    what_is_confused,
    whether_at_random,
    whether_short,
)
from mnar.run.file_names import REPORT

MOST_OPEN_ROWS = 30  # a table with more classes is folded


class ShareRow(NamedTuple):
    """One class in the chart of class shares, in per cent."""

    name: str
    num_labels: str
    of_labels: float
    of_pool: Interval | None
    of_predictions: float | None
    texts: tuple[str, str, str]  # the three shares as texts


class ScoreRow(NamedTuple):
    """One class in the chart of precision and recall, in per cent."""

    name: str
    num_labels: str
    recall: Interval | None
    labels_only_recall: Interval | None
    precision: Interval | None
    texts: tuple[str, str]  # precision and recall as texts


class Picture(NamedTuple):
    """A sample as the template shows it."""

    sample: ShownSample
    uri: str  # empty for a row of a table


def write_own_data_report(folder: Path, page: OwnDataPage) -> None:
    """Write the page as report.html into the folder, atomically."""
    write_atomically(folder / REPORT, own_data_html(page))


def own_data_html(page: OwnDataPage) -> str:
    """Return the page as one HTML text without scripts and without external resources."""
    bins = [] if page.reliability is None else binned(page.reliability)
    short, share_rows = short_classes(page), _share_rows(page)
    return render(
        "own_data.html.j2",
        page=page,
        num_labels=sum(page.num_labels),
        answers={
            "random": whether_at_random(page),
            "short": whether_short(page, short),
            "errors": what_is_confused(page),
        },
        share_rows=share_rows,
        largest_share=_largest(share_rows),
        is_open=len(page.class_names) <= MOST_OPEN_ROWS,
        members=[_member_row(member) for member in page.members],
        has_remarks=any(member.remark for member in page.members),
        difference="" if page.difference is None else points(page.difference),
        short=short,
        confused=[confusion_sentence(pair) for pair in page.confused],
        score_rows=_score_rows(page),
        bins=bins,
        bin_sentences=bin_sentences(bins),
        about_reliability=reliability_sentence(bins),
        histogram=[] if page.confidences is None else confidence_shares(page.confidences),
        about_confidence="" if page.confidences is None else confidence_sentence(page.confidences),
        samples=[(group.class_name, _pictures(group.confident), _pictures(group.contested)) for group in page.samples],
        next_samples=[
            (picture, each.reason)
            for picture, each in zip(
                _pictures([each.sample for each in page.next_samples]), page.next_samples, strict=True
            )
        ],
    )


def _by_labels(page: OwnDataPage) -> list[int]:
    """Return the classes from the most labels to the fewest."""
    return [int(i) for i in np.argsort(-np.asarray(page.num_labels), kind="stable")]


def _share_rows(page: OwnDataPage) -> list[ShareRow]:
    total = max(1, sum(page.num_labels))
    rows = []
    for i in _by_labels(page):
        of_labels = page.num_labels[i] / total
        of_pool = page.pool_shares[i] if page.pool_shares else None
        of_predictions = None if page.predicted_shares is None else float(page.predicted_shares[i])
        texts = percent(of_labels), percent(of_pool), percent(of_predictions)
        rows.append(
            ShareRow(
                str(page.class_names[i]),
                f"{page.num_labels[i]:,}",
                100 * of_labels,
                _times_100(of_pool),
                None if of_predictions is None else 100 * of_predictions,
                texts,
            )
        )
    return rows


def _score_rows(page: OwnDataPage) -> list[ScoreRow]:
    if not page.recalls:
        return []
    unknown: list[Interval | None] = [None] * len(page.class_names)
    precisions, labels_only = page.precisions or unknown, page.labels_only_recalls or unknown
    return [
        ScoreRow(
            str(page.class_names[i]),
            f"{page.num_labels[i]:,}",
            _times_100(page.recalls[i]),
            _times_100(labels_only[i]),
            _times_100(precisions[i]),
            (percent(precisions[i]), percent(page.recalls[i])),
        )
        for i in _by_labels(page)
    ]


def _largest(rows: Sequence[ShareRow]) -> float:
    """Return the end of the scale of the class shares, in per cent."""
    ends = [end for row in rows for end in (row.of_labels, row.of_predictions or 0, row.of_pool and row.of_pool.high)]
    return max([1.0, *(float(end) for end in ends if end)])


def _member_row(member: TriedMember) -> tuple[TriedMember, str, str, str]:
    seconds = UNKNOWN if member.seconds is None else f"{member.seconds:,.1f}"
    return member, percent(member.balanced_accuracy), percent(member.accuracy), seconds


def _pictures(samples: Sequence[ShownSample]) -> list[Picture]:
    return [Picture(sample, "" if sample.image is None else thumbnail(sample.image)) for sample in samples]


def _times_100(estimate: Any) -> Interval | None:
    if estimate is None or np.isnan(estimate.value):
        return None
    return Interval(*(100 * end for end in estimate))
