"""What own data are trained with by default."""

from __future__ import annotations

from typing import Any

import pytest

from mnar.config import RunConfig
from mnar.own_data.defaults import default_sections
from mnar.recipes import configure

SHAPES = [(3, 32, 32), (1, 8, 8), (1, 3, 3), (64,), (1,)]


def configured(*size: Any, **where: Any) -> RunConfig:
    return configure(dataset="own_data", protocol="as_labeled", defaults=default_sections(*size, **where))


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_defaults_make_a_whole_configuration_of_the_steps_asked_for(shape: tuple[int, ...], on_gpu: bool) -> None:
    config = configured(shape, 1000, on_gpu=on_gpu, iterations=40)
    assert config.train.iterations == 40
    assert config.train.eval_every == 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_unlabeled", [1, 10, 100_000])
def test_an_unlabelled_batch_is_never_larger_than_the_pool(shape: tuple[int, ...], num_unlabeled: int) -> None:
    train = default_sections(shape, num_unlabeled, on_gpu=False)["train"]
    assert 1 <= train["batch_unlabeled"] <= num_unlabeled


@pytest.mark.parametrize("shape", SHAPES)
def test_without_unlabelled_samples_the_learner_is_supervised(shape: tuple[int, ...]) -> None:
    config = configured(shape, 0, on_gpu=False)
    assert (config.learner.name, config.guidance.name) == ("supervised", "none")


def test_images_are_moved_by_an_eighth_and_mirrored_in_colour_only() -> None:
    colour, grey = (default_sections(shape, 1000, on_gpu=False) for shape in [(3, 32, 32), (1, 16, 40)])
    assert colour["augment"] == {"padding": 4, "flip": True}
    assert grey["augment"] == {"padding": 2, "flip": False}


def test_networks_grow_with_the_machine_and_shrink_with_the_image() -> None:
    networks = [
        default_sections(shape, 1000, on_gpu=on_gpu)["model"]["name"]
        for shape, on_gpu in [((3, 32, 32), True), ((3, 32, 32), False), ((1, 3, 9), True)]
    ]
    assert networks == ["wide_resnet", "small_cnn", "mlp"]


@pytest.mark.parametrize("iterations", [1, 19, 200, 10**6])
def test_the_average_reaches_back_a_twentieth_of_the_training_at_most(iterations: int) -> None:
    train = default_sections((1,), 1000, on_gpu=False, iterations=iterations)["train"]
    assert 0 <= train["ema"] <= 0.999
    assert 1 / (1 - train["ema"]) <= max(1, iterations / 20) + 1e-6


def test_the_learner_named_by_a_user_brings_its_own_network() -> None:
    config = configure(
        dataset="own_data", protocol="as_labeled", learner="vime", defaults=default_sections((1,), 1000, on_gpu=False)
    )
    assert config.model.name == "encoder_mlp"


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_own_data_start_slowly_with_clipped_gradients_and_restart_after_a_collapse(
    shape: tuple[int, ...], on_gpu: bool
) -> None:
    train = configured(shape, 1000, on_gpu=on_gpu).train
    assert 0 < train.warmup <= 0.1
    assert train.max_grad_norm > 0
    assert train.collapse == "restart"


def test_benchmarks_keep_the_published_recipe() -> None:
    for dataset in ("digits", "cifar10", "mnist", "npz"):
        train = configure(dataset=dataset).train
        assert (train.warmup, train.max_grad_norm, train.collapse) == (0.0, 0.0, "warn")
