"""Figures, tables and the one-file HTML report of one or several runs."""

from mnar.report.html import write_report
from mnar.report.record import Run, by_method, read_metrics, read_run
from mnar.report.tables import Row, Spread, summary
from mnar.report.text import what_changed

__all__ = ["Row", "Run", "Spread", "by_method", "read_metrics", "read_run", "summary", "what_changed", "write_report"]
