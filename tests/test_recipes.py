from __future__ import annotations

from pathlib import Path

import pytest

from mnar.config import RunConfig
from mnar.datasets import DATASETS
from mnar.learners import LEARNERS
from mnar.protocols import PROTOCOLS
from mnar.recipes import DATASET_DEFAULTS, PROTOCOL_SIZES, RECIPES, configure


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_resolves_to_what_its_name_says_and_survives_yaml(name: str) -> None:
    config = configure(recipe=name)
    assert RunConfig.from_yaml(config.to_yaml()) == config
    table, task, method = name.split("/")
    learner, _, guidance = method.partition("+")
    assert table == "table1"
    assert (config.learner.name, config.guidance.name) == (learner, guidance or "none")
    dataset, protocol, gamma = task.rsplit("-", 2)
    assert (config.dataset.name, config.protocol.name) == (dataset.replace("-", "_"), protocol)
    assert config.protocol.options["gamma"] == float(gamma.removeprefix("g"))
    assert config.train.iterations == 2**20
    assert 0 < RECIPES[name].accuracy < 100


def test_the_first_cells_are_those_of_the_paper() -> None:
    prg = RECIPES["table1/cifar10-cadr-g20/fixmatch+prg"]
    assert (prg.accuracy, prg.deviation) == (94.04, 0.18)
    assert RECIPES["table1/cifar10-cadr-g20/fixmatch"].accuracy == 56.26


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_has_defaults_that_resolve_and_survive_yaml(name: str) -> None:
    assert name in DATASET_DEFAULTS
    config = configure(dataset=name)
    assert config.dataset.name == name
    assert RunConfig.from_yaml(config.to_yaml()) == config


def test_cifar10_by_default_is_the_published_recipe() -> None:
    config = configure(dataset="cifar10")
    assert (config.model.name, config.model.options["depth"], config.model.options["width"]) == ("wide_resnet", 28, 2)
    train = config.train
    assert (train.lr, train.momentum, train.weight_decay, train.ema) == (0.03, 0.9, 5e-4, 0.999)
    assert (train.batch_labeled, train.batch_unlabeled, train.iterations) == (64, 448, 2**20)
    assert config.learner.options["threshold"] == 0.95


def test_nothing_chosen_is_prg_on_digits() -> None:
    config = configure()
    assert (config.dataset.name, config.learner.name, config.guidance.name) == ("digits", "fixmatch", "prg")


def test_later_choices_win_defaults_then_recipe_then_names_then_settings() -> None:
    recipe = "table1/cifar10-cadr-g50/fixmatch"
    config = configure(recipe=recipe, guidance="prg", iterations=7, seed=3, settings=["guidance.alpha=2"])
    assert (config.protocol.options["gamma"], config.guidance.name) == (50, "prg")
    assert (config.guidance.options["alpha"], config.train.iterations, config.seed) == (2.0, 7, 3)
    settings = ["train.iterations=9", "train.iterations=11"]
    assert configure(iterations=7, settings=settings).train.iterations == 11


def test_another_part_drops_the_options_of_the_one_before() -> None:
    config = configure(dataset="digits", protocol="balanced", settings=["protocol.num_labels=40"])
    assert "gamma" not in config.protocol.options
    config = configure(dataset="digits", settings=["model.name=mlp"])
    assert config.model.options["hidden"] == (256, 256)
    assert "width" not in config.model.options


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learner_named_alone_is_meant_alone(learner: str) -> None:
    assert configure(learner=learner).guidance.name == "none"
    assert configure(learner=learner, guidance="prg").guidance.name == "prg"
    assert configure(learner=learner, settings=["guidance.name=prg_last"]).guidance.name == "prg_last"


def test_a_recipe_keeps_its_guidance_though_the_learner_is_named() -> None:
    recipe = "table1/cifar10-cadr-g20/fixmatch+prg_last"
    assert configure(recipe=recipe, learner="fixmatch").guidance.name == "prg_last"


def test_data_is_where_the_data_set_looks_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert configure(dataset="cifar10", data="some/place").dataset.options["root"] == tmp_path / "some/place"
    assert configure(dataset="cifar10", data="/other").dataset.options["root"] == Path("/other")
    assert configure(dataset="digits").dataset.options["root"] is None


NEEDED = {
    "own": ("protocol.num_labels=1000", "protocol.n1=30", "protocol.gamma_u=10"),
    "balanced": ("protocol.num_labels=1000", "protocol.gamma_u=10"),
    "darp": ("protocol.gamma_l=10", "protocol.gamma_u=10"),
}
CLASSES = {"cifar100": (100, 500), "mini_imagenet": (100, 500), "digits": (10, 126)}  # how many, and the smallest one


@pytest.mark.parametrize("protocol", NEEDED)
@pytest.mark.parametrize("dataset", PROTOCOL_SIZES)
def test_a_protocol_asks_a_data_set_for_no_more_than_it_has(dataset: str, protocol: str) -> None:
    num_classes, per_class = CLASSES[dataset]
    settings = [setting.replace("num_labels=1000", f"num_labels={10 * num_classes}") for setting in NEEDED[protocol]]
    options = configure(dataset=dataset, protocol=protocol, settings=settings).protocol.options
    counts = PROTOCOLS[protocol](num_classes, **options)
    assert counts.unlabeled is not None
    assert max(counts.labeled) <= per_class
    assert per_class / 2 < max(counts.unlabeled) <= per_class
    if protocol == "darp":
        assert counts.labeled[0] + counts.unlabeled[0] <= per_class


def test_sizes_of_a_protocol_are_cifar10s_where_nothing_smaller_is_needed_and_the_users_where_given() -> None:
    options = configure(dataset="cifar10", protocol="darp", settings=NEEDED["darp"]).protocol.options
    assert (options["n1"], options["m1"]) == (1500, 3000)
    settings = [*NEEDED["darp"], "protocol.m1=50"]
    options = configure(dataset="digits", protocol="darp", settings=settings).protocol.options
    assert (options["n1"], options["m1"]) == (40, 50)


def test_configuring_changes_no_recipe() -> None:
    before = repr(RECIPES) + repr(DATASET_DEFAULTS)
    configure(recipe="table1/cifar10-cadr-g20/fixmatch", iterations=3, data="x", settings=["protocol.gamma=5"])
    configure(dataset="digits", iterations=3, settings=["augment.padding=0"])
    assert repr(RECIPES) + repr(DATASET_DEFAULTS) == before


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown recipe .*-g20/fixmatch\+prg'.*mnar list recipes"):
        configure(recipe="table1/cifar10-cadr-g20/fixmatch+prgg")
    with pytest.raises(ValueError, match=r"unknown recipe 'zzz'.*mnar list recipes"):
        configure(recipe="zzz")
