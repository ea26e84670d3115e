"""Figures, tables and the HTML report of one or several runs.

`write_report` writes the page; `summary` and `changes_in` give the tables that the terminal prints.
`write_own_data_report` writes the page about several models that were tried on the user's own data.
"""

from mnar.report.changes import Change, change_headings, changes_in, compared_evaluations
from mnar.report.html import render, with_baselines, write_report, write_run_report
from mnar.report.methods import Method, Setting, by_setting
from mnar.report.own_data import (
    AtRandom,
    ClassSamples,
    ConfusedPair,
    Interval,
    NextSample,
    OwnDataPage,
    Reliability,
    ShownSample,
    TriedMember,
    write_own_data_report,
)
from mnar.report.tables import ABOUT_SHORT_RUNS, Row, Spread, how_fast, is_short, over_runs, summary

__all__ = [
    "ABOUT_SHORT_RUNS",
    "AtRandom",
    "Change",
    "ClassSamples",
    "ConfusedPair",
    "Interval",
    "Method",
    "NextSample",
    "OwnDataPage",
    "Reliability",
    "Row",
    "Setting",
    "ShownSample",
    "Spread",
    "TriedMember",
    "by_setting",
    "change_headings",
    "changes_in",
    "compared_evaluations",
    "how_fast",
    "is_short",
    "over_runs",
    "render",
    "summary",
    "with_baselines",
    "write_own_data_report",
    "write_report",
    "write_run_report",
]
