"""Train cells of the paper's tables and show our results beside the paper's.

`Bench` trains recipes with several seeds (parallel.py runs them at the same time), `write_results` writes the tables.
"""

from mnar.bench.bench import Bench
from mnar.bench.cell import Cell, choose, first_like
from mnar.bench.result_files import RESULTS, write_results
from mnar.bench.run_result import RunResult

__all__ = ["RESULTS", "Bench", "Cell", "RunResult", "choose", "first_like", "write_results"]
