"""The small network keeps every position of small images and pools those of large ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mnar.config import RunConfig
from mnar.models import SmallCNN
from mnar.recipes import configure
from tests.support.equality import assert_same


def network_of_version_0_2_0(channels: int, width: int) -> nn.Sequential:
    """The layers for 8x8 digits as they were before larger images got more of them."""

    def block(before: int, after: int, *pool: nn.Module) -> list[nn.Module]:
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        return [convolution, *pool, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

    first, second = block(channels, width, nn.MaxPool2d(2)), block(width, 2 * width, nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, *block(2 * width, 4 * width))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16), (1, 9, 12)])
def test_small_images_have_the_weights_and_logits_of_the_former_network(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(5)
    model = SmallCNN(shape, 7, width=4)
    torch.manual_seed(5)
    head = nn.Linear(16 * (shape[1] // 4) * (shape[2] // 4), 7)
    layers = network_of_version_0_2_0(shape[0], 4)
    assert_same(dict(model.layers.state_dict()), dict(layers.state_dict()))
    assert_same(dict(model.head.state_dict()), dict(head.state_dict()))
    x = torch.randn(3, *shape)
    torch.testing.assert_close(model(x), head(layers(x).permute(0, 2, 3, 1).flatten(1)))


@pytest.mark.parametrize("side", [8, 16, 17, 28, 32, 64, 96, 128])
def test_the_head_has_at_most_sixteen_positions(side: int) -> None:
    model = SmallCNN((3, side, side), 9)
    assert model.head.in_features <= 64 * 16
    assert model(torch.randn(2, 3, side, side)).shape == (2, 9)


@pytest.mark.parametrize(("positions", "sides"), [(0, (8, 12)), (1, (1, 1)), (2, (2, 2)), (10, (8, 10))])
def test_positions_limit_the_sides_of_the_last_feature_maps(positions: int, sides: tuple[int, int]) -> None:
    model = SmallCNN((1, 64, 96), 5, width=2, positions=positions)
    assert model.num_features == 8 * sides[0] * sides[1]
    assert model.features(torch.randn(2, 1, 64, 96)).shape == (2, model.num_features)


def test_with_group_norm_a_prediction_in_training_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3, 32, 32)
    by_group, by_batch = (SmallCNN((3, 32, 32), 4, norm=norm).train() for norm in ("group", "batch"))
    torch.testing.assert_close(by_group(x)[:2], by_group(x[:2]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(by_batch(x)[:2], by_batch(x[:2]), rtol=1e-2)


@pytest.mark.parametrize("options", [{"positions": -1}, {"stages": -2}])
def test_negative_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"is -[12]; expected a whole number from 0 to"):
        SmallCNN((1, 64, 64), 3, **options)


def test_an_image_too_small_for_its_stages_is_refused() -> None:
    with pytest.raises(ValueError, match=r"images of 16x16 pixels or more, got \(1, 8, 8\)"):
        SmallCNN((1, 8, 8), 3, stages=4)


def test_the_configuration_of_an_older_run_keeps_the_network_that_it_was_trained_with() -> None:
    config = configure(dataset="digits")
    assert RunConfig.from_yaml(config.to_yaml()) == config
    of_version_0_2_0 = "".join(
        line for line in config.to_yaml().splitlines(True) if line.split(":")[0].strip() not in ("stages", "positions")
    )
    options = RunConfig.from_yaml(of_version_0_2_0).model.options
    assert SmallCNN((3, 64, 64), 9, **options).head.in_features == 16_384
