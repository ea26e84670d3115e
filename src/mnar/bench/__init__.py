"""Cells of the paper's tables, trained and shown beside what the paper printed."""

from mnar.bench.bench import Bench
from mnar.bench.cell import Cell, choose, first_like
from mnar.bench.files import RESULTS, write_results
from mnar.bench.run_result import RunResult

__all__ = ["RESULTS", "Bench", "Cell", "RunResult", "choose", "first_like", "write_results"]
