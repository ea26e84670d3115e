"""Self-training of scikit-learn classifiers with every guidance, on digits whose labels are missing not at random.

Prints a Markdown table: the balanced accuracy on the rows without a label, in %, mean and standard deviation.

    python benchmarks/self_training_table.py --seeds 5
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC

from mnar import self_training

GUIDANCES = ("none", "prg", "prg_last", "cadr", "simpro", "distribution_alignment", "darp")
CLASSIFIERS = {
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
    "SVC with probabilities": make_pipeline(StandardScaler(), SVC(probability=True, random_state=0)),
    "extremely randomised trees": ExtraTreesClassifier(random_state=0),
}


def balanced_accuracy(model: Any, seed: int, *, labels_only: bool = False) -> float:
    """Fit the model to digits of which the low ones keep their label more often, and score the others."""
    x, truth = load_digits(return_X_y=True)
    keeps = np.random.default_rng(seed).random(len(truth)) < 0.5 * 0.7**truth
    if labels_only:
        model.fit(x[keeps], truth[keeps])
    else:
        model.fit(x, np.where(keeps, truth, -1))
    return float(balanced_accuracy_score(truth[~keeps], model.predict(x[~keeps])))


def cell(values: npt.NDArray[np.float64]) -> str:
    return (
        f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f}" if len(values) > 1 else f"{100 * values[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    warnings.simplefilter("ignore")  # an optimiser that stops early, in some fits
    print("| method | " + " | ".join(CLASSIFIERS) + " |")
    print("| --- |" + " --- |" * len(CLASSIFIERS))

    def line(name: str, make: Any, *, labels_only: bool = False) -> None:
        cells = [
            cell(np.array([balanced_accuracy(make(classifier), seed, labels_only=labels_only) for seed in seeds]))
            for classifier in CLASSIFIERS.values()
        ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)

    line("labels alone", lambda classifier: classifier, labels_only=True)
    line("scikit-learn's SelfTrainingClassifier", SelfTrainingClassifier)
    for guidance in GUIDANCES:
        line(f'self_training, "{guidance}"', lambda classifier, name=guidance: self_training(classifier, name))


if __name__ == "__main__":
    main()
