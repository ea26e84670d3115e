"""Which labels are missing where people must agree: CIFAR-10N and CIFAR-100N, class by class.

    python benchmarks/human_labels.py --data DIR                                 # cifar10n_agreement, 400 labels
    python benchmarks/human_labels.py --data DIR --dataset cifar100n_agreement   # 800 labels

kept        of a class's images, those with a label that people agree on
wrong       of these, those with the label of another class
pool        the class's share of all images, labelled or not
labels      its share of the labels kept, by the class that people named
few         how many labels it has of the few hundred that a run is given: mean over seeds, fewest and most
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split

NUM_SHOWN = 10  # classes, where there are many: those kept least often, and those kept most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    choices = ["cifar10n_agreement", "cifar100n_agreement"]
    parser.add_argument("--dataset", default=choices[0], choices=choices)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()

    config = configure(dataset=arguments.dataset, data=arguments.data)
    data = load_data(config, Path(arguments.data))
    truth, given, num_classes = data.train_y.numpy(), data.labels.numpy(), len(data.class_names)
    is_kept = given >= 0
    is_wrong = is_kept & (given != truth)

    def counts(labels: np.ndarray) -> np.ndarray:
        return np.bincount(labels, minlength=num_classes)

    images, kept, named = counts(truth), counts(truth[is_kept]), counts(given[is_kept])
    wrong = counts(truth[is_wrong])
    draws = []
    for seed in range(1, arguments.seeds + 1):
        rows = make_split(configure(dataset=arguments.dataset, data=arguments.data, seed=seed), data).labeled_index
        draws.append((counts(given[rows]), np.mean(given[rows] != truth[rows])))
    few, few_wrong = np.stack([classes for classes, _ in draws]), [share for _, share in draws]

    print(f"{len(truth):,} images, {is_kept.sum():,} with a label ({is_kept.mean():.1%}), {is_wrong.sum():,} wrong")
    print(f"of {few[0].sum()} labels, {arguments.seeds} seeds: {np.mean(few_wrong):.2%} wrong ", end="")
    print(f"({min(few_wrong):.2%} to {max(few_wrong):.2%}); largest class over smallest ", end="")
    print(f"{np.mean(few.max(axis=1) / few.min(axis=1)):.1f}, and {named.max() / named.min():.1f} in all that are kept")
    print(f"\n{'class':16}{'kept':>8}{'wrong':>8}{'pool':>8}{'labels':>8}   few")
    order = np.argsort(kept / images, kind="stable")
    for position, c in enumerate(order):
        if NUM_SHOWN <= position < num_classes - NUM_SHOWN:
            print("...") if position == NUM_SHOWN else None
            continue
        shares = (kept[c] / images[c], wrong[c] / kept[c], images[c] / images.sum(), named[c] / named.sum())
        print(f"{data.class_names[c]:16}" + "".join(f"{share:8.1%}" for share in shares), end="   ")
        print(f"{few[:, c].mean():.1f} ({few[:, c].min()} to {few[:, c].max()})")


if __name__ == "__main__":
    main()
