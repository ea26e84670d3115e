"""Print how long `mnar predict` takes for a large table, and its peak memory, with and without pyarrow.

    python benchmarks/predict_time.py --rows 1000000
    python benchmarks/predict_time.py --rows 1000000 --members

The table has 16 columns of numbers and 4 of categories. A default portfolio is trained on 30,000 rows with 500 labels
of 5 classes, most of them of two classes, unless --run names a run on this table. --members also prints the CPU time of
every member of the portfolio, with one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mnar.own_data.inputs import samples_of
from mnar.own_data.portfolio.graph import Graph
from mnar.own_data.portfolio.kernel import Kernel
from mnar.own_data.portfolio.linear import Linear
from mnar.own_data.portfolio.member import Fitted
from mnar.own_data.portfolio.members import members_for
from mnar.own_data.portfolio.network import Network
from mnar.own_data.portfolio.threads import one_thread
from mnar.own_data.portfolio_run import PortfolioConfig, read_own_data

NUM_NUMBERS, NUM_CATEGORIES, NUM_LEVELS, NUM_CLASSES = 16, 4, 6, 5
CLOUDS_PER_CLASS = 3
LABELED_SHARES = (0.4, 0.3, 0.15, 0.1, 0.05)  # how likely a row of each class is to be labelled
TRAINING_ROWS, NUM_LABELS = 30_000, 500
ROWS_OF_A_MEMBER = 32_768  # rows that are predicted to time one member
CHUNK = 10_000
WITHOUT_ARROW = (
    "import sys; from mnar.datasets.user_files import csv_columns; csv_columns.USE_ARROW = False; "
    "from mnar.cli import main; sys.exit(main())"
)


def write_table(path: Path, num_rows: int, *, seed: int, num_labels: int = 0) -> None:
    """Write rows of several clouds per class. With labels, there is a label column, which is empty for most rows."""
    num_clouds = NUM_CLASSES * CLOUDS_PER_CLASS
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    centers = fixed.normal(0, 1.1, (num_clouds, NUM_NUMBERS))
    level_shares = fixed.dirichlet(np.full(NUM_LEVELS, 0.7), (num_clouds, NUM_CATEGORIES)).cumsum(2)
    cloud = rng.integers(0, num_clouds, num_rows)
    y = cloud % NUM_CLASSES
    chance = np.array(LABELED_SHARES)[y]
    is_labeled = np.zeros(num_rows, bool)
    if num_labels:
        is_labeled[rng.choice(num_rows, num_labels, replace=False, p=chance / chance.sum())] = True
    names = [f"x{j}" for j in range(NUM_NUMBERS)] + [f"c{j}" for j in range(NUM_CATEGORIES)]
    with path.open("w") as file:
        file.write(",".join([*names, "label"] if num_labels else names) + "\n")
        for start in range(0, num_rows, CHUNK):
            rows = slice(start, min(start + CHUNK, num_rows))
            clouds = cloud[rows]
            numbers = centers[clouds] + rng.normal(0, 1.6, (len(clouds), NUM_NUMBERS))
            levels = (
                (rng.random((len(clouds), NUM_CATEGORIES, 1)) > level_shares[clouds]).sum(2).clip(max=NUM_LEVELS - 1)
            )
            cells = [*np.char.mod("%.4f", numbers).T, *np.char.add("level ", levels.astype(str)).T]
            if num_labels:
                cells.append(np.where(is_labeled[rows], np.char.add("class ", y[rows].astype(str)), ""))
            file.writelines(",".join(row) + "\n" for row in zip(*cells, strict=True))


def timed_process(command: list[str]) -> tuple[float, float, float]:
    """Run a command. Return its seconds, its seconds of CPU time, and its peak memory in GB."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9


def print_predict_times(run: Path, table: Path, out: Path) -> None:
    """Print one line with pyarrow, if it is installed, and one without."""
    arguments = ["predict", str(run), str(table), "--out", str(out), "--overwrite"]
    print(f"mnar {' '.join(arguments[:2])} {table.name} ({table.stat().st_size / 1e6:,.0f} MB)")
    ways = {"without pyarrow": [sys.executable, "-c", WITHOUT_ARROW]}
    if find_spec("pyarrow") is not None:
        ways = {"with pyarrow": [sys.executable, "-m", "mnar"], **ways}
    for name, program in ways.items():
        seconds, cpu_seconds, memory = timed_process([*program, *arguments])
        print(f"{name}: {seconds:.1f} s, {cpu_seconds:.1f} s of CPU time, peak memory {memory:.2f} GB", flush=True)


def print_member_times(training: Path) -> None:
    """Print the CPU time of each member for a million rows, and of the matrix products that it cannot do without."""
    data = read_own_data(PortfolioConfig(str(training)))
    samples, encoder = samples_of(data, seed=1)
    rng, x = np.random.default_rng(0), data.train_x.numpy()
    new_rows = x[rng.integers(0, len(x), ROWS_OF_A_MEMBER)] + rng.normal(0, 0.1, (1, x.shape[1])).astype(np.float32)
    inputs = encoder.inputs(new_rows)
    print("member           CPU seconds per million rows    matrix products alone")
    with one_thread():
        for member in members_for(samples):
            fitted = member.fit(samples)
            fitted.probs(inputs.rows(np.arange(9)))  # prepares the search of a graph and the trees
            seconds = cpu_seconds(lambda fitted=fitted: fitted.probs(inputs))  # type: ignore[misc]
            products = matrix_products(fitted, inputs.features)
            floor = f"{cpu_seconds(products):.1f}" if products is not None else "-"
            print(f"{member.name:14} {seconds:31.1f} {floor:>24}", flush=True)


def cpu_seconds(compute: Callable[[], object]) -> float:
    """Return the CPU seconds for a million rows."""
    start = time.process_time()
    compute()
    return (time.process_time() - start) * 1e6 / ROWS_OF_A_MEMBER


def matrix_products(fitted: Fitted, x: npt.NDArray[np.float32]) -> Callable[[], object] | None:
    """Return a function that computes only the matrix products of a member, in the precision of the member."""
    match fitted:
        case Linear():
            shapes, dtype = [fitted.weights.shape], torch.float64
        case Kernel():
            shapes, dtype = [fitted.centers.shape[::-1], fitted.weights.shape], torch.float64
        case Graph():
            shapes, dtype = [fitted.rows.shape[::-1]], torch.float32
        case Network():
            weights = [weight.shape[::-1] for weight in fitted.weights.values() if weight.ndim == 2]
            shapes, dtype = [*weights[1:], weights[0]], torch.float64  # the model stores its last layer first
        case _:
            return None
    matrices = [torch.randn(*shape, dtype=dtype) for shape in shapes]

    def products() -> None:
        for part in torch.from_numpy(x).to(dtype).split(256):
            for matrix in matrices:
                if matrix.shape[1] > 1024:  # in parts that stay in the cache
                    for columns in matrix.split(1024, 1):
                        part @ columns
                else:
                    part = part @ matrix

    return products


def hardware() -> str:
    """Return the processor, the number of its cores, and the versions that matter."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    processor = models[0] if models else platform.processor()
    return f"{processor}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, help="a run on the table of this benchmark; without it, a run is trained")
    parser.add_argument("--members", action="store_true", help="also time every member of the portfolio")
    options = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training, table, run = folder / "training.csv", folder / "new.csv", options.run or folder / "run"
        write_table(training, TRAINING_ROWS, seed=1, num_labels=NUM_LABELS)
        write_table(table, options.rows, seed=2)
        if options.run is None:
            subprocess.run([sys.executable, "-m", "mnar", "train", str(training), "--out", str(run)], check=True)
        print_predict_times(run, table, folder / "predictions.csv")
        if options.members:
            print_member_times(training)


if __name__ == "__main__":
    main()
