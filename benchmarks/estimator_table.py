"""MNARClassifier beside scikit-learn's classifiers on a table whose labels are missing not at random.

    python benchmarks/estimator_table.py letter.npz                       # 260 labels, 5 seeds
    python benchmarks/estimator_table.py letter.npz --labels 520 --gamma 1 --methods MNARClassifier LabelSpreading
    python benchmarks/estimator_table.py letter.npz --labels 520 --alike --guidances none cadr simpro

The file holds X and y, all labelled. A fifth of the rows is for testing; of the others, class c keeps labels in
proportion to gamma^(-c / (k - 1)), but one at least, and the rest is the pool. With --alike these others are thinned in
the same proportion first, so that the pool is mixed as the labels are; the rows for testing are not. With --guidances,
MNARClassifier is compared with itself. All get standardised columns.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from mnar.protocols.long_tail import long_tail
from mnar.sklearn_api.classifier import MNARClassifier


class Method(NamedTuple):
    make: Callable[[int], Any]  # of a seed
    uses_pool: bool


def boosting(seed: int) -> Any:
    return HistGradientBoostingClassifier(random_state=seed)


def perceptron(seed: int) -> Any:
    return MLPClassifier((256, 256), random_state=seed)


METHODS = {
    "MNARClassifier": Method(lambda seed: MNARClassifier(random_state=seed), True),
    "MNARClassifier, one network": Method(lambda seed: MNARClassifier(guidance="cadr", random_state=seed), True),
    "MNARClassifier, supervised": Method(lambda seed: MNARClassifier("supervised", random_state=seed), True),
    "HistGradientBoosting": Method(boosting, False),
    "MLPClassifier": Method(perceptron, False),
    # the other kernel, rbf, holds a matrix of rows × rows
    "LabelSpreading(knn)": Method(lambda seed: LabelSpreading(kernel="knn", n_neighbors=7), True),
    "SelfTraining(HistGradientBoosting)": Method(lambda seed: SelfTrainingClassifier(boosting(seed)), True),
}


def label_counts(num_classes: int, num_labels: int, gamma: float) -> npt.NDArray[np.int64]:
    """As near to the proportions as whole numbers come, 1 at least."""
    sizes = np.array(long_tail(num_classes, 1.0, gamma))
    wanted = num_labels * sizes / sizes.sum()
    counts = np.maximum(1, np.floor(wanted).astype(np.int64))
    for _ in range(num_labels - counts.sum()):
        counts[np.argmax(wanted - counts)] += 1
    for _ in range(counts.sum() - num_labels):
        counts[np.argmax(counts - wanted - (counts == 1) * num_labels)] -= 1
    return counts


def guided(guidance: str) -> Method:
    return Method(lambda seed: MNARClassifier(guidance=guidance, random_state=seed), True)


def thinned(classes: npt.NDArray[np.int64], gamma: float) -> npt.NDArray[np.int64]:
    """Rows of which class c has gamma^(-c / (k - 1)) of what it had."""
    shares = long_tail(int(classes.max()) + 1, 1.0, gamma)
    members = [np.flatnonzero(classes == c) for c in range(len(shares))]
    return np.concatenate([rows[: round(share * len(rows))] for rows, share in zip(members, shares, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--labels", type=int, default=260)
    parser.add_argument("--gamma", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--guidances", nargs="+", help="of MNARClassifier, instead of methods")
    parser.add_argument("--alike", action="store_true", help="the pool as skewed as the labels")
    arguments = parser.parse_args()
    with np.load(arguments.data) as arrays:
        x, truth = arrays["X"].astype(np.float64), np.unique(arrays["y"], return_inverse=True)[1]

    print("| method | balanced accuracy on the pool, % | on the test part, % | fit, CPU s |\n| --- | --- | --- | --- |")
    warnings.simplefilter("ignore", ConvergenceWarning)
    methods = {name: METHODS[name] for name in arguments.methods}
    if arguments.guidances:
        methods = {f"MNARClassifier, {guidance}": guided(guidance) for guidance in arguments.guidances}
    for name, method in methods.items():
        scores = []
        for seed in arguments.seeds:
            rng = np.random.default_rng(seed)
            test, train = np.split(rng.permutation(len(x)), [len(x) // 5])
            if arguments.alike:
                train = train[thinned(truth[train], arguments.gamma)]
            y = np.full(len(train), -1)
            for c, count in enumerate(label_counts(int(truth.max()) + 1, arguments.labels, arguments.gamma)):
                y[rng.choice(np.flatnonzero(truth[train] == c), count, replace=False)] = c
            scale = StandardScaler().fit(x[train])
            inputs, tests = scale.transform(x[train]), scale.transform(x[test])
            seen = np.arange(len(y)) if method.uses_pool else np.flatnonzero(y != -1)
            began = time.process_time()
            model = method.make(seed).fit(inputs[seen], y[seen])
            seconds = time.process_time() - began
            pool = y == -1
            scores.append(
                (
                    100 * balanced_accuracy_score(truth[train][pool], model.predict(inputs[pool])),
                    100 * balanced_accuracy_score(truth[test], model.predict(tests)),
                    seconds,
                )
            )
        on_pool, on_test, seconds = zip(*scores, strict=True)
        cells = [f"{statistics.mean(s):.1f} ± {statistics.stdev(s):.1f}" for s in (on_pool, on_test)]
        print(f"| {name} | {' | '.join(cells)} | {statistics.mean(seconds):.0f} |", flush=True)


if __name__ == "__main__":
    main()
