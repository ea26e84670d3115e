"""The page about a training on the user's own data."""

from mnar.report.own_data.content import (
    AtRandom,
    ClassSamples,
    ConfusedPair,
    Interval,
    NextSample,
    OwnDataPage,
    Reliability,
    ShownSample,
    TriedMember,
)
from mnar.report.own_data.page import own_data_html, write_own_data_report

__all__ = [
    "AtRandom",
    "ClassSamples",
    "ConfusedPair",
    "Interval",
    "NextSample",
    "OwnDataPage",
    "Reliability",
    "ShownSample",
    "TriedMember",
    "own_data_html",
    "write_own_data_report",
]
