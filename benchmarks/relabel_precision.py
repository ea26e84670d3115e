"""Compare the precision that the decisions of `mnar relabel` promise with the real precision of accepted labels.

    python benchmarks/relabel_precision.py --data DIR --sets digits,letter --seeds 5 --jobs 2 --out relabel.jsonl
    python benchmarks/relabel_precision.py --summary relabel.jsonl

`digits` comes with scikit-learn. `letter` is DIR/letter.npz with the arrays X and y; any other table in this form works
too. The labels always have a skewed class distribution: it falls geometrically, over the classes in random order, by a
factor of 20 in all. There are four kinds of pools, and every kind is drawn with several seeds:

    rest        all other rows: every row of the table keeps its label with a probability that depends on its class
    uniform     the pool has equal classes
    reversed    the pool is skewed the other way round
    other       the pool is skewed by a factor of 20 as well, over the classes in another random order
    alike       the pool is skewed like the labels, so labels are missing at random; not part of the default

The benchmark fits the portfolio as `mnar train` does, decides on every row of the pool, and compares the decisions with
the true classes. A split that is already in the output file is not run again. With --cache the predictions are kept,
so that another precision or another rule can be tried quickly.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from multiprocessing import Pool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

WAYS = ["rest", "uniform", "reversed", "other"]
NUM_LABELS = {"digits": 300}
MANY_CLASSES_NUM_LABELS = 600  # for tables with more than 20 classes
GAMMA = 20.0  # largest over smallest class of a skewed distribution
FEWEST_LABELS, FEWEST_POOL_ROWS = 3, 8  # of a class
POOL_SAMPLE = 5000  # rows of the pool that the thresholds are chosen on
FEWEST_ACCEPTED = 20  # accepted labels of a class whose precision is compared with the promise
HEADER = (
    "| table | pool | seed | labels | effective labels | pool rows | expected % | real % | difference | accepted "
    "| worst class | accuracy % |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)
Array = npt.NDArray[Any]


class Split(NamedTuple):
    """The predictions of one split."""

    y: Array  # [m] the labels, once per repeat of the cross-validation
    balanced_probs: Array  # [m, k] by models that were not fitted to the label
    num_labels: Array  # [k]
    shares: Array  # [k] estimated class shares of the pool
    truth: Array  # [n] true classes of the pool
    pool_probs: Array  # [n, k] balanced
    seconds: float


class Case(NamedTuple):
    """What one process needs to run a split."""

    name: str
    way: str
    seed: int
    data: Path | None
    cache: Path | None
    fast: bool
    precision: float


def read_table(name: str, data: Path | None) -> tuple[Array, Array]:
    """Return the features and the classes of a table."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return x.astype(np.float64), y.astype(np.int64)
    if data is None or not (data / f"{name}.npz").exists():
        raise SystemExit(f"there is no {name}.npz in {data}; name the folder of the table with --data")
    with np.load(data / f"{name}.npz", allow_pickle=False) as arrays:
        return arrays["X"].astype(np.float64), arrays["y"].astype(np.int64)


def draw(y: Array, way: str, num_labels: int, seed: int) -> tuple[Array, Array]:
    """Return the rows that keep their label, and the rows of the pool."""
    rng = np.random.default_rng(5000 + seed)
    num_classes = int(y.max()) + 1
    order, other = rng.permutation(num_classes), rng.permutation(num_classes)
    rows_of = [rng.permutation(np.flatnonzero(y == c)) for c in range(num_classes)]
    sizes = np.array([len(rows) for rows in rows_of])
    falling = GAMMA ** (-np.arange(num_classes) / (num_classes - 1))
    falling /= falling.sum()
    mixes = {way: np.empty(num_classes) for way in ("alike", "reversed", "other")}
    mixes["alike"][order], mixes["reversed"][order], mixes["other"][other] = falling, falling[::-1], falling
    mixes["uniform"] = np.full(num_classes, 1 / num_classes)
    counts = np.round(mixes["alike"] * num_labels).astype(int)
    counts = np.minimum(np.maximum(counts, FEWEST_LABELS), sizes // 2)
    left = sizes - counts
    if way == "rest":
        totals = left
    else:
        totals = np.floor(mixes[way] * (left / mixes[way]).min()).astype(int)
        totals = np.minimum(np.maximum(totals, FEWEST_POOL_ROWS), left)
    labeled = np.concatenate([rows[:count] for rows, count in zip(rows_of, counts, strict=True)])
    parts = zip(rows_of, counts, totals, strict=True)
    pool = np.concatenate([rows[count : count + total] for rows, count, total in parts])
    return rng.permutation(labeled), rng.permutation(pool)


def predictions(case: Case) -> Split:
    """Fit the portfolio to one split, and predict the labels that were held out and the pool."""
    from mnar.datasets.own_data import as_data_set
    from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table
    from mnar.own_data.inputs import samples_of
    from mnar.own_data.portfolio import fit_portfolio, members_for
    from mnar.own_data.portfolio.portfolio import Silent

    name, way, seed = case[:3]
    x, y = read_table(name, case.data)
    num_classes = int(y.max()) + 1
    num_labels = NUM_LABELS.get(name, MANY_CLASSES_NUM_LABELS if num_classes > 20 else 300)
    labeled, pool = draw(y, way, num_labels, seed)
    start = time.monotonic()
    rows = np.concatenate([labeled, pool])
    partly = np.concatenate([y[labeled], np.full(len(pool), -1)])
    table = PartlyLabeled(Table.of_numbers(x[rows]), partly, tuple(map(str, range(num_classes))), [])
    samples, _ = samples_of(as_data_set(table, held_out=0.0), seed)
    portfolio = fit_portfolio(samples, members_for(samples, fast=case.fast), watcher=Silent())
    choice = portfolio.choice
    assert choice is not None
    pool_probs = portfolio.balanced_probs(samples.inputs.rows(np.flatnonzero(samples.y < 0)))
    # With the default objective, the decisive probabilities of the cross-validation are the balanced ones.
    held_out = choice.cross_validated
    seconds = time.monotonic() - start
    return Split(held_out.y, held_out.probs, samples.counts, portfolio.shares, y[pool], pool_probs, seconds)


def cached_predictions(case: Case) -> Split:
    """Return the predictions of a split, from the cache if it has them."""
    if case.cache is None:
        return predictions(case)
    path = case.cache / f"{case.name}-{case.way}-{case.seed}-{'fast' if case.fast else 'full'}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as stored:
            return Split(**{field: stored[field] for field in Split._fields})
    split = predictions(case)
    case.cache.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{field: np.asarray(value) for field, value in split._asdict().items()})
    return split


def run_case(case: Case) -> dict[str, Any]:
    """Decide on the pool of one split, and compare the promise with the true classes."""
    from threadpoolctl import threadpool_limits

    from mnar.own_data.decisions import ACCEPT, REJECT, fit_decisions

    warnings.simplefilter("ignore")
    with threadpool_limits(limits=1):
        split = cached_predictions(case)
        pool_sample = np.random.default_rng(case.seed).permutation(len(split.truth))[:POOL_SAMPLE]
        decisions = fit_decisions(
            split.balanced_probs,
            split.y,
            split.shares,
            precision=case.precision,
            num_labels=split.num_labels,
            pool_probs=split.pool_probs[pool_sample],
        )
        decided = decisions.decide(split.pool_probs)
    is_right, accepted = decided.labels == split.truth, decided.codes == ACCEPT
    num_classes = len(split.shares)
    num_accepted = np.bincount(decided.labels[accepted], minlength=num_classes)
    num_right = np.bincount(decided.labels[accepted], is_right[accepted], minlength=num_classes)
    compared = num_accepted >= FEWEST_ACCEPTED
    per_class = decisions.expected_precision[compared] - num_right[compared] / num_accepted[compared]
    rejected = decided.codes == REJECT
    return {
        "table": case.name,
        "way": case.way,
        "seed": case.seed,
        "members": "fast" if case.fast else "full",
        "precision": case.precision,
        "expected": _or_none(decisions.expected_overall(num_accepted)),
        "real": float(is_right[accepted].mean()) if accepted.any() else None,
        "accepted": float(accepted.mean()),
        "rejected": float(rejected.mean()),
        "real_of_rejected": float(is_right[rejected].mean()) if rejected.any() else None,
        "accuracy": float(is_right.mean()),
        "promises": int(decisions.promises.sum()),
        "num_classes": num_classes,
        "num_labels": int(split.num_labels.sum()),
        "num_pool": len(split.truth),
        "effective_labels": decisions.effective_labels,
        "worst_class": float(per_class[np.abs(per_class).argmax()]) if compared.any() else None,
        "mean_class": float(np.abs(per_class).mean()) if compared.any() else None,
        "seconds": float(split.seconds),
    }


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value


def line_of(result: dict[str, Any]) -> str:
    """Return the result of a split as a line of a table."""
    name = f"| {result['table']} | {result['way']} | {result['seed']} "
    counts = f"| {result['num_labels']} | {result['effective_labels']:.0f} | {result['num_pool']} "
    if result["expected"] is None:
        return f"{name}{counts}| no promise | | | 0 % | | {100 * result['accuracy']:.1f} |"
    difference = 100 * (result["expected"] - result["real"])
    worst = "" if result["worst_class"] is None else f"{100 * result['worst_class']:+.1f}"
    return (
        f"{name}{counts}| {100 * result['expected']:.1f} | {100 * result['real']:.1f} | {difference:+.1f} "
        f"| {100 * result['accepted']:.0f} % | {worst} | {100 * result['accuracy']:.1f} |"
    )


def summary(path: Path) -> str:
    """Return all results as tables, one for each precision and set of members, and the mean differences."""
    results = [json.loads(line) for line in path.read_text().splitlines()]
    text = []
    for members, precision in sorted({(r["members"], r["precision"]) for r in results}):
        chosen = [r for r in results if (r["members"], r["precision"]) == (members, precision)]
        chosen.sort(key=lambda r: (r["table"], [*WAYS, "alike"].index(r["way"]), r["seed"]))
        text += [f"\nmembers: {members}, stated precision {precision:.1%}\n", HEADER, *map(line_of, chosen), ""]
        for table in [*sorted({r["table"] for r in chosen}), "all"]:
            of_table = [r for r in chosen if table in (r["table"], "all") and r["expected"] is not None]
            if not of_table:
                continue
            differences = 100 * np.array([r["expected"] - r["real"] for r in of_table])
            sizes = np.abs(differences)
            classes = [100 * r["mean_class"] for r in of_table if r["mean_class"] is not None]
            real, accepted = (100 * np.mean([r[key] for r in of_table]) for key in ("real", "accepted"))
            text.append(
                f"{table}: {len(of_table)} splits with a promise. Expected minus real precision: mean "
                f"{differences.mean():+.1f} points, mean absolute {sizes.mean():.1f}, median {np.median(sizes):.1f}, "
                f"largest {differences[sizes.argmax()]:+.1f}, within 3 points in {(sizes <= 3).sum()} splits. Real "
                f"precision {real:.1f} %, accepted {accepted:.0f} %. Mean absolute difference of a class: "
                f"{np.mean(classes):.1f}."
            )
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables; digits needs none")
    parser.add_argument("--sets", default="digits,letter", help="tables, separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="kinds of pools, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="number of draws of each kind of pool")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--precision", type=float, default=0.95)
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, default=True, help="two quick members, or all")
    parser.add_argument("--full", dest="fast", action="store_false", help="the same as --no-fast")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes, with one thread each")
    parser.add_argument("--cache", type=Path, help="folder that keeps the predictions of the splits")
    parser.add_argument("--out", type=Path, default=Path("relabel_precision.jsonl"))
    parser.add_argument("--summary", type=Path, help="print the tables of an output file, and run nothing")
    options = parser.parse_args()
    if options.summary:
        print(summary(options.summary))
        return
    members = "fast" if options.fast else "full"
    done = set()
    if options.out.exists():
        keys = ("table", "way", "seed", "members", "precision")
        done = {tuple(json.loads(line)[key] for key in keys) for line in options.out.open()}
    cases = [
        Case(table, way, seed, options.data, options.cache, options.fast, options.precision)
        for table in reversed(options.sets.split(","))  # the larger table first, so that no process ends much later
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for way in options.ways.split(",")
        if (table, way, seed, members, options.precision) not in done
    ]
    print(HEADER, flush=True)
    with Pool(options.jobs) as pool, options.out.open("a") as file:
        for result in pool.imap_unordered(run_case, cases):
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(line_of(result), flush=True)
    print(summary(options.out))


if __name__ == "__main__":
    main()
