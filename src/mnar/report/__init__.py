"""Figures, tables and the HTML report of one or several runs.

`write_report` writes the page; `summary` and `changes_in` give the tables that the terminal prints.
"""

from mnar.report.changes import Change, change_headings, changes_in, compared_evaluations
from mnar.report.html import render, write_report, write_run_report
from mnar.report.methods import Method, Setting, by_setting
from mnar.report.tables import ABOUT_SHORT_RUNS, Row, Spread, how_fast, is_short, over_runs, summary

__all__ = [
    "ABOUT_SHORT_RUNS",
    "Change",
    "Method",
    "Row",
    "Setting",
    "Spread",
    "by_setting",
    "change_headings",
    "changes_in",
    "compared_evaluations",
    "how_fast",
    "is_short",
    "over_runs",
    "render",
    "summary",
    "write_report",
    "write_run_report",
]
