"""Named schedules: "published" changes nothing, and "fast" suits every learner and data set."""

from __future__ import annotations

import dataclasses
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mnar.config import OWN_DATA, PUBLISHED, RunConfig
from mnar.datasets import DATASETS
from mnar.learners import LEARNERS
from mnar.models import MODELS
from mnar.recipes import RECIPES, SCHEDULES, configure
from mnar.recipes.schedules import FAST_BY_OPTIMIZER, FAST_ITERATIONS
from mnar.run import RunFolder, new_run, read_run
from mnar.run.pretraining import pretraining_config
from mnar.run.runner import default_folder
from mnar.training.options import TrainOptions, decay_for
from tests.support.methods import method_settings
from tests.support.tiny import TINY

CIFAR = "table1/cifar10-cadr-g20/fixmatch+prg"
PAIRS = [
    (dataset, learner)
    for dataset, learner in product(DATASETS, LEARNERS)
    if dataset != OWN_DATA and ("tables" if dataset.endswith("_tabular") else "images") in LEARNERS[learner].suits
]


def changed(one: RunConfig, other: RunConfig) -> dict[str, Any]:
    """The training options that differ, with the values of the second configuration."""
    mine, theirs = dataclasses.asdict(one.train), dataclasses.asdict(other.train)
    return {name: theirs[name] for name in mine if mine[name] != theirs[name]}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_published_schedule_is_the_recipe_byte_for_byte(recipe: str) -> None:
    plain, named = configure(recipe=recipe), configure(recipe=recipe, schedule=PUBLISHED)
    assert plain == named
    assert plain.schedule == PUBLISHED
    assert "published" not in named.to_dict().values()


def test_fast_on_cifar10_changes_length_optimiser_rate_and_average() -> None:
    published, fast = configure(recipe=CIFAR), configure(recipe=CIFAR, schedule="fast")
    assert published.train.iterations == 2**20
    muon = {"optimizer": "muon", "lr": 0.02, "weight_decay": 0.025}
    assert changed(published, fast) == {"iterations": 2**17, "schedule": "linear", **muon}
    assert fast.train.ema == 0.999  # the largest decay that "auto" gives, which is the published one
    assert fast.schedule == "fast"
    assert published.differences(fast)[-1] == "schedule: published and fast"


@pytest.mark.parametrize(("dataset", "learner"), PAIRS)
def test_fast_has_its_options_for_every_learner_and_data_set(dataset: str, learner: str) -> None:
    published, fast = (configure(dataset=dataset, learner=learner, schedule=name) for name in (PUBLISHED, "fast"))
    assert fast.train.iterations == min(published.train.iterations, FAST_ITERATIONS)
    assert (fast.train.schedule, fast.train.ema) == ("linear", decay_for(fast.train.iterations))
    uses_muon = published.train.optimizer == "sgd" and learner != "mixmatch"
    optimizer = "muon" if uses_muon else published.train.optimizer
    assert fast.train.optimizer == optimizer
    assert fast.train.lr == FAST_BY_OPTIMIZER.get(optimizer, {"lr": published.train.lr})["lr"]
    may_change = {"schedule", "ema", "optimizer", "lr", "weight_decay", "iterations"}
    assert changed(published, fast).keys() <= may_change
    assert RunConfig.from_yaml(fast.to_yaml()) == fast


@pytest.mark.parametrize("dataset", ["digits_tabular", "mnist_tabular"])
def test_fast_keeps_the_learning_rate_of_adam(dataset: str) -> None:
    published, fast = configure(dataset=dataset), configure(dataset=dataset, schedule="fast")
    assert published.train.optimizer == "adam"
    assert changed(published, fast).keys() == {"schedule", "ema"}


def test_arguments_and_settings_stand_over_the_schedule_and_the_schedule_over_the_recipe() -> None:
    settings = ["train.lr=0.05", "train.schedule=cosine_to_zero"]
    config = configure(recipe=CIFAR, schedule="fast", iterations=3600, settings=settings)
    assert (config.train.lr, config.train.schedule, config.train.iterations) == (0.05, "cosine_to_zero", 3600)
    assert config.train.ema == 1 - 18 / 3600  # matched to the length that the user chose
    assert configure(recipe=CIFAR, schedule="fast", settings=["train.ema=0.5"]).train.ema == 0.5
    assert configure(dataset="digits", schedule="fast").train.iterations == 900


def test_an_optimiser_that_the_user_chooses_keeps_its_own_learning_rate() -> None:
    config = configure(recipe=CIFAR, schedule="fast", settings=["train.optimizer=adam", "train.lr=0.002"])
    assert (config.train.optimizer, config.train.lr, config.train.schedule) == ("adam", 0.002, "linear")
    assert configure(recipe=CIFAR, schedule="fast", settings=["train.optimizer=adam"]).train.lr == TrainOptions.lr


def test_mixmatch_keeps_sgd_in_fast_as_if_the_user_had_chosen_it_and_muon_can_still_be_chosen() -> None:
    def with_settings(*settings: str) -> RunConfig:
        return configure(dataset="digits", learner="mixmatch", schedule="fast", settings=settings)

    assert with_settings() == with_settings("train.optimizer=sgd")
    muon = with_settings("train.optimizer=muon").train
    assert (muon.optimizer, muon.lr, muon.weight_decay) == ("muon", 0.02, 0.025)


def test_sgd_that_the_user_chooses_has_a_larger_learning_rate() -> None:
    config = configure(recipe=CIFAR, schedule="fast", settings=["train.optimizer=sgd"])
    assert (config.train.optimizer, config.train.lr, config.train.weight_decay) == ("sgd", 0.1, 5e-4)


@pytest.mark.parametrize("recipe", [CIFAR, "digits/cadr-g20/fixmatch"])
def test_muon_that_the_user_chooses_without_a_schedule_has_its_own_rates_and_nothing_else_changes(recipe: str) -> None:
    published, muon = configure(recipe=recipe), configure(recipe=recipe, settings=["train.optimizer=muon"])
    assert changed(published, muon) == {"optimizer": "muon", "lr": 0.02, "weight_decay": 0.025}
    assert muon.schedule == PUBLISHED
    assert FAST_BY_OPTIMIZER["muon"] == {"lr": 0.02, "weight_decay": 0.025}
    for settings in (["train.optimizer=muon", "train.lr=0.01"], ["train.lr=0.01", "train.optimizer=muon"]):
        given = configure(recipe=recipe, settings=settings).train
        assert (given.lr, given.weight_decay) == (0.01, 0.025)
    assert configure(recipe=recipe, settings=["train.optimizer=muon", "train.weight_decay=0"]).train.weight_decay == 0


def test_an_optimiser_of_the_published_recipes_keeps_the_rates_of_the_recipe() -> None:
    for recipe, optimizer in ((CIFAR, "sgd"), (CIFAR, "adam"), (CIFAR, "rmsprop"), ("tabular-digits/cadr-g20", "sgd")):
        name = next(name for name in RECIPES if name.startswith(recipe))
        published, other = configure(recipe=name), configure(recipe=name, settings=[f"train.optimizer={optimizer}"])
        assert changed(published, other).keys() <= {"optimizer"}


def test_the_weight_decay_of_a_learner_stays_with_muon_that_the_user_chooses() -> None:
    settings = ["train.optimizer=muon"]
    ups = configure(dataset="cifar10", learner="ups", settings=settings).train
    assert (ups.lr, ups.weight_decay) == (0.02, 0.0)


def test_the_weight_decay_of_a_learner_stays() -> None:
    ups, fixmatch = (configure(dataset="cifar10", learner=name, schedule="fast") for name in ("ups", "fixmatch"))
    assert (ups.train.weight_decay, fixmatch.train.weight_decay) == (0.0, 0.025)


@pytest.mark.parametrize(
    ("learner", "guidance", "leaves_out"),
    [
        ("fixmatch", "prg", True),
        ("simmatch", None, True),
        ("fixmatch", "none+cadr", False),  # its labelled loss trains the weak views
        ("mixmatch", "prg", False),  # has no such option
    ],
)
def test_fast_leaves_the_weak_views_out_of_the_backward_pass_where_nothing_trains_them(
    learner: str, guidance: str | None, leaves_out: bool
) -> None:
    config = configure(dataset="cifar10", learner=learner, guidance=guidance, schedule="fast")
    assert (config.learner.options.get("weak_gradient") is False) == leaves_out
    published = configure(dataset="cifar10", learner=learner, guidance=guidance)
    assert published.learner.options.get("weak_gradient", True) is True
    if leaves_out:
        settings = ["learner.weak_gradient=true"]
        config = configure(dataset="cifar10", learner=learner, guidance=guidance, schedule="fast", settings=settings)
        assert config.learner.options["weak_gradient"] is True


def test_fast_keeps_the_gradient_of_the_weak_views_for_a_network_that_cannot_leave_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODELS, "own", lambda input_shape, num_classes: None)
    config = configure(dataset="cifar10", schedule="fast", settings=["model.name=own"])
    assert config.learner.options.get("weak_gradient", True) is True


@pytest.mark.parametrize(("recipe", "steps"), [(CIFAR, 2**14), ("digits/cadr-g20/fixmatch", 900)])
def test_fast_pretrained_is_fast_after_a_first_stage(recipe: str, steps: int) -> None:
    fast, pretrained = (configure(recipe=recipe, schedule=name) for name in ("fast", "fast_pretrained"))
    assert changed(fast, pretrained).keys() == {"pretraining"}
    assert pretrained.train.pretraining == steps
    assert pretrained.learner == fast.learner
    shorter = configure(recipe=recipe, schedule="fast_pretrained", settings=["train.pretraining=7"])
    assert shorter.train.pretraining == 7


def test_an_unknown_schedule_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ValueError, match=r"unknown schedule 'slow'; choose from \['published', 'fast', 'fast_pretrained'\]"
    ):
        configure(dataset="digits", schedule="slow")
    assert list(SCHEDULES) == ["published", "fast", "fast_pretrained"]


def test_a_schedule_for_own_data_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"your own data do not have.*--set train\.schedule=linear"):
        configure(dataset=OWN_DATA, data=str(tmp_path), schedule="fast")


def test_configuration_and_run_remember_the_schedule(tmp_path: Path) -> None:
    config = configure(dataset="digits", schedule="fast", iterations=10, settings=TINY)
    assert RunConfig.from_yaml(config.to_yaml()) == config
    assert config.with_engine(["engine.device=cpu"]).schedule == "fast"
    assert default_folder(config).name == "digits-cadr-fixmatch-prg-fast-seed1"
    new_run(config, tmp_path / "run")
    assert RunFolder(tmp_path / "run").config() == config
    assert read_run(tmp_path / "run").schedule == "fast"
    written = (tmp_path / "run" / "config.yaml").read_text()
    assert "schedule: fast\n" in written
    assert "ema: 0.9\n" in written, "the number that was used"


@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner_trains_a_few_steps_with_fast(tmp_path: Path, learner: str) -> None:
    is_image = "images" in LEARNERS[learner].suits
    small = [setting for setting in TINY if is_image or not setting.startswith("model.")]
    named = method_settings(learner) if learner == "ups" else ()
    config = configure(
        dataset="digits" if is_image else "digits_tabular",
        learner=learner,
        schedule="fast",
        iterations=6,
        settings=[*small, *named, *(["learner.pretraining_epochs=0.1"] if learner == "vime" else [])],
    )
    new_run(config, tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.step, run.schedule) == (6, "fast")
    assert math.isfinite(run.lines[-1]["train"]["loss"])


@pytest.mark.parametrize("optimizer", ["[muon]", "{a: 1}"])
def test_an_optimiser_that_is_no_text_is_refused_with_its_name(optimizer: str) -> None:
    with pytest.raises(ValueError, match=r"train.optimizer is"):
        configure(recipe=CIFAR, schedule="fast", settings=[f"train.optimizer={optimizer}"])


def test_an_empty_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown schedule ''"):
        configure(dataset="digits", schedule="")


def test_the_average_of_pretraining_fits_its_own_length() -> None:
    settings = ["learner.pretraining_epochs=1"]
    config = configure(learner="vime", dataset="digits_tabular", schedule="fast", settings=settings)
    stage = pretraining_config(config, num_unlabeled=1297)
    assert (config.train.ema, stage.train.ema) == (1 - 18 / 1000, decay_for(stage.train.iterations))
    published = pretraining_config(configure(learner="vime", dataset="digits_tabular"), num_unlabeled=1297)
    assert published.train.ema == 0.0
