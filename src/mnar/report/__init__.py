"""Figures, tables and the one-file HTML report of one or several runs."""

from mnar.report.html import render, write_report, write_run_report
from mnar.report.methods import Method, Setting, by_setting
from mnar.report.tables import OF_SHORT_RUNS, Row, Spread, how_fast, is_short, over_runs, summary
from mnar.report.text import what_changed

__all__ = [
    "OF_SHORT_RUNS",
    "Method",
    "Row",
    "Setting",
    "Spread",
    "by_setting",
    "how_fast",
    "is_short",
    "over_runs",
    "render",
    "summary",
    "what_changed",
    "write_report",
    "write_run_report",
]
