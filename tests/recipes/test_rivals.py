"""Recipes of methods that are newer than the paper."""

from __future__ import annotations

import pytest

from mnar.learners import LEARNERS
from mnar.protocols import PROTOCOLS
from mnar.recipes import RECIPES, configure
from mnar.recipes.rivals import RIVALS, TITLES
from mnar.types import Counts

SETTINGS = ("darp-l100-u1", "darp-l100-u100", "darp-l100-u100-reversed")


def test_every_setting_has_fixmatch_adello_and_acr_with_and_without_anchors() -> None:
    assert set(RIVALS) == {
        f"rivals/{dataset}-{setting}/{method}"
        for dataset in ("cifar10", "digits")
        for setting in SETTINGS
        for method in ("fixmatch", "fixmatch+adello", "acr", "acr-without-anchors")
    }
    assert set(TITLES) == {"rivals"}


@pytest.mark.parametrize(("method", "anchors"), [("acr", True), ("acr-without-anchors", False)])
def test_acr_trains_on_cifar10_as_published(method: str, anchors: bool) -> None:
    config = configure(recipe=f"rivals/cifar10-darp-l100-u100-reversed/{method}")
    assert config.learner.options["anchors"] is anchors
    assert (config.learner.options["threshold"], config.learner.options["strength"]) == (0.95, 2.0)
    train = config.train
    assert (train.iterations, train.batch_labeled, train.batch_unlabeled, train.lr) == (250_000, 64, 64, 0.03)
    assert config.guidance.name == "none"


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dataset", ["cifar10", "digits"])
def test_the_methods_of_a_setting_differ_in_learner_guidance_and_batch_alone(dataset: str, setting: str) -> None:
    configs = [configure(recipe=name) for name in RIVALS if name.startswith(f"rivals/{dataset}-{setting}/")]
    for config in configs[1:]:
        for difference in configs[0].differences(config):
            assert difference.startswith(("learner", "guidance", "train.batch_unlabeled")), difference


def test_every_class_has_a_label_which_acr_needs() -> None:
    for name in RIVALS:
        config = configure(recipe=name)
        counts = PROTOCOLS[config.protocol.name](10, **config.protocol.options)
        assert isinstance(counts, Counts)
        assert min(counts.labeled) >= 1
        assert config.learner.name in LEARNERS


def test_only_the_reversed_pool_of_cifar10_has_a_published_figure_with_its_meaning() -> None:
    figures = {name: recipe.accuracy for name, recipe in RIVALS.items() if recipe.accuracy is not None}
    assert figures == {"rivals/cifar10-darp-l100-u100-reversed/acr": 86.3}
    assert "mean of the last 20 evaluations is 85.9" in RECIPES[next(iter(figures))].note
