"""Print how long `mnar inspect` takes to read and inspect a large CSV file, and its peak memory.

    python benchmarks/reading.py --rows 1000000 --columns 50

The file has columns of numbers, of which some cells are empty, every tenth column has categories, and one row in ten
has a label. The file is removed at the end, unless --file names it.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mnar.datasets.user_files import csv_columns, read_data
from mnar.own_data.inspection import inspect_data

CHUNK = 10_000


def write_file(path: Path, num_rows: int, num_columns: int, labeled_share: float = 0.1) -> None:
    """Write a table of numbers and categories with a label column."""
    rng = np.random.default_rng(0)
    kinds = ["category" if column % 10 == 9 else "number" for column in range(num_columns)]
    towns = np.array([f"town {town}" for town in range(30)])
    with path.open("w") as file:
        file.write(",".join([*(f"x{column}" for column in range(num_columns)), "label"]) + "\n")
        for start in range(0, num_rows, CHUNK):
            size = min(CHUNK, num_rows - start)
            label = rng.integers(0, 5, size)
            cells = []
            for column, kind in enumerate(kinds):
                if kind == "category":
                    cells.append(towns[rng.integers(0, 30, size)])
                else:
                    texts = (rng.normal(size=size) + 0.2 * label * (column < 10)).round(6).astype(str)
                    cells.append(np.where(rng.random(size) < 0.05 * (column % 3 == 0), "", texts))
            cells.append(np.where(rng.random(size) < labeled_share, np.char.add("class ", label.astype(str)), ""))
            file.writelines(",".join(row) + "\n" for row in zip(*cells, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--file", type=Path, help="the file to write, or to read if it exists")
    parser.add_argument("--without-arrow", action="store_true", help="read with the csv module of Python")
    options = parser.parse_args()
    csv_columns.USE_ARROW = not options.without_arrow
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "large.csv"
        if not path.exists():
            write_file(path, options.rows, options.columns)
        uses_arrow = csv_columns.USE_ARROW and find_spec("pyarrow") is not None
        print(f"{path.stat().st_size / 1e6:,.0f} MB, read with {'pyarrow' if uses_arrow else 'the csv module'}")
        start, cpu_start = time.perf_counter(), time.process_time()
        data = read_data(path)
        for stage in ("read_data", "read_data and inspect_data"):
            if stage != "read_data":
                inspect_data(data)
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
            print(f"{stage}: {seconds:.1f} s ({cpu_seconds:.1f} s CPU), peak memory {peak_memory():.2f} GB")


def peak_memory() -> float:
    """Return the peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
