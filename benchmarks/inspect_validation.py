"""How well `mnar inspect` knows the pool: shares and their intervals, and the test of "missing at random", truth known.

    python benchmarks/inspect_validation.py --out validation.jsonl --letter letter.npz   # letter and digits
    python benchmarks/inspect_validation.py --out validation.jsonl --table               # what is there so far

A split takes the labels of most rows away: at random; by CADR's law, class c keeping gamma^(-c/(k-1)) in a random order
of the classes; or by shares drawn from a Dirichlet distribution. Each split is a line of the file; splits that are
there already are not done again, so the same command goes on after a stop. The method was tuned on other seeds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.label_shift import Interval, missing_at_random_test, pool_shares
from mnar.own_data.inspection.probe import gradient_boosting, out_of_fold

NUM_LABELS = {"letter": 2000, "digits": 300}
NUM_PROCESSES = 2


class Job(NamedTuple):
    data: str
    skew: str
    seed: int


def cadr_like(gamma: float, num_classes: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return gamma ** -(rng.permutation(num_classes) / (num_classes - 1))


def dirichlet(num_classes: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return rng.dirichlet(np.full(num_classes, 2.0))


SKEWS: dict[str, Callable[[int, np.random.Generator], npt.NDArray[np.float64]]] = {
    "CADR, γ = 20": partial(cadr_like, 20.0),
    "CADR, γ = 3": partial(cadr_like, 3.0),
    "Dirichlet(2)": dirichlet,
}
UNBIASED = "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--letter", type=Path, help="letter.npz with X and y; without it only digits")
    parser.add_argument("--skewed", type=int, default=100, help="splits of each data set, the skews in turn")
    parser.add_argument("--unbiased", type=int, default=200)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    arguments = parser.parse_args()

    if not arguments.table:
        sources = {"digits": None} | ({"letter": arguments.letter} if arguments.letter else {})
        skews = list(SKEWS)
        jobs = [Job(data, skews[seed % len(skews)], seed) for seed in range(arguments.skewed) for data in sources]
        jobs += [Job(data, UNBIASED, seed) for seed in range(arguments.unbiased) for data in sources]
        done = {Job(line["data"], line["skew"], line["seed"]) for line in lines_of(arguments.out)}
        run([job for job in jobs if job not in done], sources, arguments.out)
    print_tables(lines_of(arguments.out))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(jobs: list[Job], sources: dict[str, Path | None], out: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # read when a new process loads its libraries: one thread for each of them
    with multiprocessing.get_context("spawn").Pool(NUM_PROCESSES) as workers, out.open("a") as file:
        for line in workers.imap_unordered(partial(figures_of, sources=sources), jobs):
            file.write(json.dumps(line) + "\n")
            file.flush()


@cache
def samples(path: Path | None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    if path is not None:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["X"], arrays["y"]
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x, y.astype(np.int64)


def figures_of(job: Job, sources: dict[str, Path | None]) -> dict[str, Any]:
    x, y = samples(sources[job.data])
    num_classes = int(y.max()) + 1
    labeled = labeled_rows(y, NUM_LABELS[job.data], job)
    pool = np.setdiff1d(np.arange(len(y)), labeled)
    truth = np.bincount(y[pool], minlength=num_classes) / len(pool)
    counts = np.bincount(y[labeled], minlength=num_classes)

    probe = out_of_fold(gradient_boosting, x[labeled], y[labeled], x[pool], num_classes=num_classes, seed=job.seed)
    line = job._asdict() | {"p_value": missing_at_random_test(probe, y[labeled], seed=job.seed).p_value}
    if job.skew == UNBIASED:
        return line
    shares = pool_shares(probe, y[labeled], seed=job.seed)
    return line | {
        "labels": counts.tolist(),
        "error_of_labeled_shares": error(counts / len(labeled), truth),
        "em": against(truth, shares.em),
        "bbse": against(truth, shares.bbse),
        "disagree": shares.disagree,
    }


def labeled_rows(y: npt.NDArray[np.int64], num_labels: int, job: Job) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng([job.seed, num_labels])
    if job.skew == UNBIASED:
        return rng.choice(len(y), num_labels, replace=False)
    held = np.bincount(y)
    weights = SKEWS[job.skew](len(held), rng)
    wanted = np.clip(np.round(num_labels * weights / weights.sum()), 1, held * 9 // 10).astype(int)
    return np.concatenate([rng.choice(np.flatnonzero(y == c), n, replace=False) for c, n in enumerate(wanted)])


def error(shares: npt.NDArray[np.float64], truth: npt.NDArray[np.float64]) -> float:
    return float(np.abs(shares - truth).mean())


def against(truth: npt.NDArray[np.float64], interval: Interval) -> dict[str, Any]:
    return {
        "error": error(interval.shares, truth),
        "covered": ((interval.low <= truth) & (truth <= interval.high)).tolist(),
        "width": float((interval.high - interval.low).mean()),
    }


def print_tables(lines: list[dict[str, Any]]) -> None:
    print(
        "| data, labels | skew | splits | error of labelled shares | EM: error | covered | width "
        "| BBSE: error | covered | width | disagree | p < 0.05 |\n" + "| --- " * 12 + "|"
    )
    for data, num_labels in NUM_LABELS.items():
        skewed = [line for line in lines if line["data"] == data and line["skew"] != UNBIASED]
        for skew in ["all", *SKEWS]:
            chosen = [line for line in skewed if skew in ("all", line["skew"])]
            if chosen:
                print(f"| {data}, {num_labels:,} | {skew} | {len(chosen)} | " + " | ".join(cells(chosen)) + " |")
    print("\nFalse alarms of the test at 5 %, labels missing at random:\n\n| data, labels | splits | p < 0.05 |")
    print("| --- | --- | --- |")
    for data, num_labels in NUM_LABELS.items():
        unbiased = [line for line in lines if line["data"] == data and line["skew"] == UNBIASED]
        if unbiased:
            print(f"| {data}, {num_labels:,} | {len(unbiased)} | {share_of_alarms(unbiased)} |")


def cells(lines: list[dict[str, Any]]) -> list[str]:
    naive = statistics.fmean(line["error_of_labeled_shares"] for line in lines)
    row = [f"{naive:.2%}"]
    for estimate in ("em", "bbse"):
        mean_error = statistics.fmean(line[estimate]["error"] for line in lines)
        covered = statistics.fmean(hit for line in lines for hit in line[estimate]["covered"])
        width = statistics.fmean(line[estimate]["width"] for line in lines)
        row += [f"{mean_error:.2%} ({naive / mean_error:.1f} × smaller)", f"{covered:.1%}", f"{width:.2%}"]
    return [*row, f"{statistics.fmean(line['disagree'] for line in lines):.0%}", share_of_alarms(lines)]


def share_of_alarms(lines: list[dict[str, Any]]) -> str:
    return f"{statistics.fmean(line['p_value'] < 0.05 for line in lines):.1%}"


if __name__ == "__main__":
    main()
