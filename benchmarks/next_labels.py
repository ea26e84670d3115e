"""Compare `next_samples` with random choice and with uncertainty sampling: number of labels against balanced accuracy.

    python benchmarks/next_labels.py --data DIR --seeds 5 --rounds 5 --jobs 2 --out next_labels.jsonl

DIR is a folder with `letter.npz` (arrays X and y), or with other tables that `--sets` names; the digits come with
scikit-learn. A random third of the rows is the test set, and no method ever labels a row of it. The first labels are
skewed: the class counts fall geometrically, over the classes in random order, by a factor of 20 in all. All other rows
are the pool, in which the classes are as frequent as in the data; `--pool skewed` makes the pool as skewed as the
labels. In each round a model is fitted as `mnar train --fast` does, the model is scored on the test set, and the method
chooses rows whose true class is added to the labels. All methods start from the same labels.

    next           as `mnar next` chooses
    random         random rows; three times as many rounds, to see when random choice reaches the same accuracy
    uncertainty    the rows whose largest probability is smallest
    margin         the rows whose two largest probabilities differ least

A case that is already in the output file is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
GAMMA = 20.0  # largest over smallest number of first labels of a class
LABELS_PER_CLASS = 5  # mean number of first labels of a class
BUDGET_PER_CLASS = 3  # default number of new labels in a round, per class
LONGER = 3  # times as many rounds of random choice
SETS = ("digits", "letter")
KEY = ("set", "method", "seed", "rounds", "budget", "pool")


class State(NamedTuple):
    """What a method knows when it chooses."""

    probs: Array  # [n, k] of the pool, as if all classes were equally frequent; their arg-max is the prediction
    features: Array  # [n, d] of the pool
    labeled_features: Array  # [m, d]
    num_labels: Array  # [k]
    shares: Any  # estimated class shares of the pool, with intervals
    budget: int
    seed: int


def choose_next(state: State) -> Array:
    """Choose as `mnar next` does."""
    from mnar.own_data.next_samples import next_samples

    known = (state.probs, state.features, state.labeled_features, state.num_labels, state.shares)
    return next_samples(*known, budget=state.budget, seed=state.seed).rows


def choose_random(state: State) -> Array:
    """Choose at random."""
    return np.random.default_rng(state.seed).permutation(len(state.features))[: state.budget]


def choose_uncertain(state: State) -> Array:
    """Choose the rows whose largest probability is smallest."""
    return np.argsort(state.probs.max(1), kind="stable")[: state.budget]


def choose_contested(state: State) -> Array:
    """Choose the rows whose two largest probabilities differ least."""
    largest = np.sort(state.probs, 1)
    return np.argsort(largest[:, -1] - largest[:, -2], kind="stable")[: state.budget]


METHODS: dict[str, Callable[[State], Array]] = {
    "next": choose_next,
    "random": choose_random,
    "uncertainty": choose_uncertain,
    "margin": choose_contested,
}


def read_set(name: str, data: Path | None) -> tuple[Array, Array]:
    """Return the features and the classes of a data set."""
    if name == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.data, digits.target
    if data is None or not (data / f"{name}.npz").exists():
        raise SystemExit(f"no {name}.npz in {data}; name the folder that contains it with --data")
    with np.load(data / f"{name}.npz", allow_pickle=False) as arrays:
        return arrays["X"].astype(np.float64), arrays["y"].astype(np.int64)


def draw(y: Array, seed: int, *, is_skewed: bool = False) -> tuple[Array, Array, Array]:
    """Return the rows of the first labels, of the pool and of the test set."""
    rng = np.random.default_rng(seed)
    num_classes = int(y.max()) + 1
    shuffled = rng.permutation(len(y))
    test, train = shuffled[: len(y) // 3], shuffled[len(y) // 3 :]
    falling = GAMMA ** (-np.arange(num_classes) / (num_classes - 1))
    counts = np.maximum(np.round(falling / falling.mean() * LABELS_PER_CLASS).astype(int), 1)
    order = rng.permutation(num_classes)
    labeled = np.concatenate([train[y[train] == c][:count] for c, count in zip(order, counts, strict=True)])
    pool = np.setdiff1d(train, labeled)
    if is_skewed:
        rows_of = [rng.permutation(pool[y[pool] == c]) for c in order]
        pool = np.concatenate([r[: math.ceil(share * len(r))] for r, share in zip(rows_of, falling, strict=True)])
    return labeled, pool, test


def rounds_of(
    x: Array,
    y: Array,
    choose: Callable[[State], Array],
    *,
    rounds: int,
    budget: int,
    seed: int,
    is_skewed: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the number of labels and the scores of each round, starting with the first labels."""
    import torch
    from sklearn.metrics import balanced_accuracy_score

    from mnar.datasets.own_data import as_data_set
    from mnar.datasets.user_files.partly_labeled import PartlyLabeled, Table
    from mnar.datasets.user_files.table_encoder import TableEncoder
    from mnar.own_data.inputs import samples_of
    from mnar.own_data.portfolio import fit_portfolio, members_for

    labeled, pool, test = draw(y, seed, is_skewed=is_skewed)
    num_classes = int(y.max()) + 1
    classes = tuple(map(str, range(num_classes)))
    train = np.concatenate([labeled, pool])
    is_labeled = np.arange(len(train)) < len(labeled)
    data = as_data_set(PartlyLabeled(Table.of_numbers(x[train]), np.where(is_labeled, y[train], -1), classes, []))
    assert data.encoding is not None
    test_x = TableEncoder.from_dict(data.encoding).transform(Table.of_numbers(x[test]))
    shared = dict[str, Any]()  # the nearest neighbours do not depend on the labels
    for number in range(rounds + 1):
        data = data._replace(train_y=torch.from_numpy(np.where(is_labeled, y[train], -1)))
        samples, encoder = samples_of(data, seed)
        samples = replace(samples, shared=shared)
        portfolio = fit_portfolio(samples, members_for(samples, fast=True))
        assert portfolio.choice is not None
        assert portfolio.choice.shares is not None
        scored = portfolio.probs(encoder.inputs(test_x)).argmax(1)
        truth = np.bincount(y[train][~is_labeled], minlength=num_classes) / np.count_nonzero(~is_labeled)
        yield {
            "labels": int(is_labeled.sum()),
            "balanced_accuracy": 100 * float(balanced_accuracy_score(y[test], scored)),
            "share_error": 50 * float(np.abs(portfolio.choice.shares.shares - truth).sum()),
            "fewest_labels": int(samples.counts.min()),
        }
        in_pool = np.flatnonzero(~is_labeled)
        if number == rounds or len(in_pool) <= budget:  # a model needs a pool
            return
        features = samples.inputs.features
        chosen = choose(
            State(
                probs=portfolio.probs(samples.inputs.rows(in_pool)),
                features=features[in_pool],
                labeled_features=features[is_labeled],
                num_labels=samples.counts,
                shares=portfolio.choice.shares,
                budget=budget,
                seed=1000 * seed + number,
            )
        )
        is_labeled[in_pool[chosen]] = True


def run_case(case: tuple[str, str, int, int, int, str, Path | None]) -> dict[str, Any]:
    """Run all rounds of one method on one draw of the labels."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, method, seed, rounds, budget, kind, data = case
    x, y = read_set(name, data)
    budget = budget or BUDGET_PER_CLASS * (int(y.max()) + 1)
    start = time.monotonic()
    options = {"rounds": rounds, "budget": budget, "seed": seed, "is_skewed": kind == "skewed"}
    results = list(rounds_of(x, y, METHODS[method], **options))
    seconds = time.monotonic() - start
    return {**dict(zip(KEY, case, strict=False)), "results": results, "seconds": seconds}


def summary(lines: list[dict[str, Any]]) -> str:
    """Return one table per set: mean and standard deviation over the seeds, and the labels that each method needs."""
    text = []
    for name in dict.fromkeys(line["set"] for line in lines):
        results = defaultdict(list)
        for line in lines:
            if line["set"] == name:
                results[line["method"]].append(line["results"])
        longest = max((runs[0] for runs in results.values()), key=len)
        text += [
            "",
            f"{name}: balanced accuracy on the test set, mean ± standard deviation over the seeds",
            "",
            f"| labels | {' | '.join(results)} |",
            "| ---: |" + " ---: |" * len(results),
        ]
        for i, result in enumerate(longest):
            cells = [
                _mean_and_sd([run[i]["balanced_accuracy"] for run in runs if i < len(run)]) for runs in results.values()
            ]
            text.append(f"| {result['labels']} | {' | '.join(cells)} |")
        text += ["", f"{name}: sum of the positive errors of the estimated class shares, in percent of the pool", ""]
        for method, runs in results.items():
            errors = np.mean([[result["share_error"] for result in rounds] for rounds in zip(*runs, strict=False)], 1)
            text.append(f"    {method:12} " + " ".join(f"{error:5.1f}" for error in errors))
        text.append("")
        curves = {method: _curve(runs) for method, runs in results.items()}
        if "next" in curves:
            text += [_labels_needed(curves, method) for method in curves if method != "next"]
    return "\n".join(text)


def _mean_and_sd(values: list[float]) -> str:
    sd = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return f"{np.mean(values):.1f} ± {sd:.1f}" if values else ""


def _curve(runs: list[list[dict[str, Any]]]) -> tuple[Array, Array]:
    """Return the numbers of labels, and the best mean accuracy so far."""
    by_round = list(zip(*runs, strict=False))
    accuracies = np.mean([[result["balanced_accuracy"] for result in results] for results in by_round], 1)
    return np.array([results[0]["labels"] for results in by_round]), np.maximum.accumulate(accuracies)


def _labels_needed(curves: dict[str, tuple[Array, Array]], method: str) -> str:
    """Say how many labels `next` and another method need for the same accuracy, by linear interpolation."""
    (labels, ours), (their_labels, theirs) = curves["next"], curves[method]
    target = min(ours[-1], theirs[-1])
    needed = [np.interp(target, accuracies, counts) for counts, accuracies in (curves["next"], curves[method])]
    text = f"{target:.1f} %: `next` needs {needed[0]:.0f} labels, {method} needs {needed[1]:.0f}."
    if ours[-1] > theirs[-1]:
        text += f" `next` reaches {ours[-1]:.1f} % with {labels[-1]} labels, {method} not with {their_labels[-1]}."
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with letter.npz; the digits need none")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=0, help="new labels per round; default: 3 per class")
    parser.add_argument("--pool", default="even", choices=("even", "skewed"), help="class distribution of the pool")
    parser.add_argument("--jobs", type=int, default=1, help="processes, with one thread each")
    parser.add_argument("--out", type=Path, default=Path("next_labels.jsonl"))
    options = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # the new processes read this before they import numpy
    rounds_by_method = {method: options.rounds * (LONGER if method == "random" else 1) for method in METHODS}
    cases = [
        (name, method, seed, rounds_by_method[method], options.budget, options.pool, options.data)
        for name in options.sets.split(",")
        for seed in range(options.seeds)
        for method in options.methods.split(",")
    ]
    lines = [json.loads(line) for line in options.out.open()] if options.out.exists() else []
    done = {tuple(line[key] for key in KEY): line for line in lines}
    # The longest cases first, so that no process waits for the last case alone.
    todo = sorted((case for case in cases if case[:-1] not in done), key=lambda case: (case[0] == "digits", -case[3]))
    with get_context("spawn").Pool(options.jobs) as pool, options.out.open("a") as file:
        for result in pool.imap_unordered(run_case, todo):
            file.write(json.dumps(result) + "\n")
            file.flush()
            done[tuple(result[key] for key in KEY)] = result
            last = result["results"][-1]
            print(
                f"{result['set']} {result['method']} seed {result['seed']}: {last['balanced_accuracy']:.1f} % "
                f"with {last['labels']} labels ({result['seconds']:.0f} s)",
                flush=True,
            )
    print(summary([done[case[:-1]] for case in cases]))


if __name__ == "__main__":
    main()
