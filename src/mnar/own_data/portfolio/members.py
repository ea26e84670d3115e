"""The members that the portfolio tries, the quickest first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from mnar.guidances import PRG
from mnar.own_data.portfolio.graph import Graph, fit_graph
from mnar.own_data.portfolio.kernel import Kernel, fit_kernel
from mnar.own_data.portfolio.linear import Linear, fit_linear
from mnar.own_data.portfolio.member import Fitted, Integers, Member, Samples
from mnar.own_data.portfolio.network import Network, fit_network
from mnar.own_data.portfolio.self_training import self_train
from mnar.own_data.portfolio.trees import Trees, fit_boosting, fit_forest, new_forest, stored_forest

FITTED: dict[str, type[Fitted]] = {made.kind: made for made in (Linear, Kernel, Trees, Graph, Network)}
MOST_FEATURES_OF_BOOSTING = 64  # with more features, a fit of boosting takes longer than all other members together
MOST_POOL_ROWS = 3000  # rows of the pool that self-training uses
NETWORK_STEPS = 500
# Left out for images: on Fashion-MNIST and CIFAR-10 the narrower kernels lose up to 3 points against the wide one, and
# the self-trained forest loses 10 points or more against the linear model.
NOT_FOR_IMAGES = ("kernel_smooth", "kernel_sharp", "boosting", "self_training")
FAST = ("kernel", "graph")  # the two members that `--fast` tries
NAMES = (
    "linear",
    "kernel",
    "kernel_smooth",
    "kernel_sharp",
    "graph",
    "graph_local",
    "forest",
    "boosting",
    "self_training",
    "network",
)


def members_for(
    samples: Samples, *, fast: bool = False, every: bool = False, iterations: int | None = None
) -> tuple[Member, ...]:
    """Return the members that suit these samples.

    fast          only two quick members
    every         also the members that are not tried because others are better or quicker, so that a user can name one
    iterations    number of training steps of the network; None: a number that suits the kind of data
    """
    has_pool, is_images = not samples.is_labeled.all(), samples.inputs.images is not None
    on_gpu = torch.cuda.is_available()
    if iterations is None and not (is_images and on_gpu):
        iterations = NETWORK_STEPS
    # On a CPU, FixMatch on 3,000 images takes too long for a cross-validation: 95 seconds for one fit of 400 steps.
    network_uses_pool = has_pool and (on_gpu or not is_images)
    network = partial(fit_network, uses_pool=network_uses_pool, iterations=iterations)
    # Features of images have length 1, and there are more of them than labels: a wide kernel and few neighbours suit.
    kernel = (
        partial(fit_kernel, strength=10.0, width=10.0) if is_images else partial(fit_kernel, strength=100.0, width=3.0)
    )
    near = 5 if is_images else 10
    table = [
        Member("linear", "logistic regression", fit_linear),
        Member("kernel", "kernel logistic regression", kernel),
        Member("kernel_smooth", "kernel regression, smoother", partial(fit_kernel, strength=10.0, width=3.0)),
        Member("kernel_sharp", "kernel regression, narrower kernel", partial(fit_kernel, strength=100.0, width=1.0)),
        Member("graph", "label propagation over 5 neighbours", partial(fit_graph, num_neighbors=5), uses_pool=True),
        Member(
            "graph_local",
            f"label propagation over {near} neighbours, 10 steps",
            partial(fit_graph, num_neighbors=near, num_steps=10),
            uses_pool=True,
        ),
        Member("forest", "extremely randomised trees", fit_forest),
        Member("boosting", "gradient boosting", fit_boosting),
        Member("self_training", "the forest, self-trained with PRG", fit_self_trained_forest, uses_pool=True),
        Member("network", _network_description(is_images, network_uses_pool), network, uses_pool=network_uses_pool),
    ]
    chosen = [member for member in table if has_pool or not member.uses_pool]
    if every:
        return tuple(chosen)
    if samples.inputs.features.shape[1] > MOST_FEATURES_OF_BOOSTING:
        chosen = [member for member in chosen if member.name != "boosting"]
    if is_images:
        chosen = [member for member in chosen if member.name not in NOT_FOR_IMAGES]
    if fast:
        chosen = [member for member in chosen if member.name in FAST]
    return tuple(chosen)


def named_member(name: str, members: Sequence[Member]) -> Member:
    """Return the member of this name."""
    for member in members:
        if member.name == name:
            return member
    raise ValueError(f"the member {name!r} does not suit these data; choose from {[member.name for member in members]}")


def fit_self_trained_forest(samples: Samples) -> Trees:
    """Self-train the forest on the pool, with PRG between the rounds."""
    pool = np.flatnonzero(~samples.is_labeled)
    drawn = np.random.default_rng(samples.seed).permutation(pool)[:MOST_POOL_ROWS]
    rows = np.concatenate([np.flatnonzero(samples.is_labeled), np.sort(drawn)])

    def fit(x: Any, y: Integers) -> Any:
        return new_forest(samples.seed, num_trees=60).fit(x, y)

    rounds = self_train(
        fit,
        samples.inputs.features[rows],
        samples.y[rows],
        classes=np.arange(samples.num_classes),
        guidance=PRG,
        rounds=2,
        balance=True,
        seed=samples.seed,
    )
    return stored_forest(rounds.model, rounds.train_counts)


def _network_description(is_images: bool, uses_pool: bool) -> str:
    method = "FixMatch" if is_images else "Pseudo-Label"
    return f"a neural network ({method} with SimPro)" if uses_pool else "a neural network, trained on the labels alone"
