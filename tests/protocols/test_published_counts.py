"""Every count vector of tests/fixtures.json against the protocol that makes it."""

import json
from pathlib import Path

import numpy as np
import pytest

from mnar.protocols import balanced, cadr, darp, own, split
from mnar.types import Counts

PUBLISHED = json.loads((Path(__file__).parents[1] / "fixtures" / "published_numbers.json").read_text())["counts"]


def per_class_of_the_unlabelled_loader(counts: Counts) -> tuple[int, ...]:
    targets = np.repeat(np.arange(10), 5000)
    rows = split(targets, counts, seed=1).unlabeled_index
    return tuple(np.bincount(targets[rows], minlength=10).tolist())


MADE = {
    **{f"cadr/cifar10/gamma{gamma}": cadr(10, gamma).labeled for gamma in (20, 50, 100)},
    "cadr/cifar100/gamma50": cadr(100, 50).labeled,
    "own/cifar10/nl40/n1_10/official(gamma=10)": own(10, 40, 10).labeled,
    "own/cifar10/nl40/n1_20/official(gamma=2155)": own(10, 40, 20).labeled,
    "own/cifar10/nl250/n1_100/official(gamma=141)": own(10, 250, 100).labeled,
    "own/cifar100/nl2500/n1_100/official(gamma=51)": own(100, 2500, 100).labeled,
    "own/cifar10/nl40/n1_10/exact(gamma=10.8597)": own(10, 40, 10, rounding="exact").labeled,
    "own/cifar10/nl40/n1_20/exact(gamma=1895.97)": own(10, 40, 20, rounding="exact").labeled,
    "own/cifar10/nl250/n1_100/exact(gamma=95.5525)": own(10, 250, 100, rounding="exact").labeled,
    "own/cifar100/nl2500/n1_100/exact(gamma=52.7907)": own(100, 2500, 100, rounding="exact").labeled,
    **{
        f"own/cifar10/M(gamma_u={gamma_u})": own(10, 40, 10, gamma_u=gamma_u).unlabeled
        for gamma_u in (2, 5, 10, 20, 50, 100, 200)
    },
    "darp/cifar10/N(gamma_l=100)": darp(10, 100, 1).labeled,
    **{f"darp/cifar10/M(gamma_u={gamma_u})": darp(10, 100, gamma_u).unlabeled for gamma_u in (1, 50, 100, 150)},
    "darp/cifar10/M(gamma_u=100R)": darp(10, 100, 100, reverse=True).unlabeled,
    **{
        f"loader_U/own/cifar10/nl40/n1_10/gamma_u{gamma_u}": per_class_of_the_unlabelled_loader(
            own(10, 40, 10, gamma_u=gamma_u)
        )
        for gamma_u in (2, 5)
    },
    **{
        f"loader_U/own/cifar10/balanced40/gamma_u{gamma_u}": per_class_of_the_unlabelled_loader(
            balanced(10, 40, gamma_u=gamma_u)
        )
        for gamma_u in (20, 100, 200)
    },
}


@pytest.mark.parametrize("vector", PUBLISHED)
def test_counts_equal_the_published_vector(vector: str) -> None:
    assert list(MADE[vector]) == PUBLISHED[vector]
