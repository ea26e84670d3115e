"""The Triton kernel for views against `Augment` in plain PyTorch: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mnar.augment import Augment
from mnar.augment.randaugment import OPERATIONS, apply_operation
from tests.support.triton_kernels import DEVICE, ON_GPU

pytest.importorskip("triton")
fused_views = pytest.importorskip("mnar.augment.fused_views")

LAST_BELOW_ONE = 1 - 2**-24
EXTREMES = (0.0, 0.25, 0.5, 0.8125, LAST_BELOW_ONE)
COUNT = 448 if ON_GPU else 8  # the interpreter takes milliseconds per image
# 8x8 and 12x20 have fewer pixels than levels; a channel of 33x40 takes more than one tile.
SIZES = [(32, 32), (8, 8), (12, 20), (33, 40)]


class GivenUniforms(Augment):
    """Views from given uniform numbers instead of random ones."""

    uniforms: Tensor

    def draw(self, kind: str, count: int, device: torch.device) -> Tensor:
        return self.uniforms


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def images(count: int, channels: int, height: int, width: int) -> Tensor:
    """Uneven slopes with noise, so that histograms, extremes and borders differ between images and channels."""
    shape = (count, channels, 1, 1)
    down, across = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)
    slope = torch.rand(shape) * 150 * down + torch.rand(shape) * 150 * across**2
    noise = torch.rand(shape) * 60 * torch.rand(count, channels, height, width)
    made = (torch.rand(shape) * 80 + slope + noise).clamp(0, 255).to(torch.uint8)
    made[0], made[1, :, 1:] = 100, 255  # a flat image, and one of few levels
    return made.to(DEVICE)


def augment_of(channels: int, **options: Any) -> GivenUniforms:
    mean, std = (0.491, 0.482, 0.447)[:channels], (0.247, 0.244, 0.262)[:channels]
    return GivenUniforms(mean, std, **options).to(DEVICE)


def differing(augment: Augment, batch: Tensor, kind: str) -> int:
    """The number of values that differ at all between the kernel and plain PyTorch, from the same generator state."""
    torch.manual_seed(1)
    expected = augment(batch, kind)
    torch.manual_seed(1)
    found = fused_views.FusedViews(augment).launch(batch, kind)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    return int((found != expected).sum())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_equals_plain_pytorch(operation: str, height: int, width: int, channels: int) -> None:
    code = OPERATIONS.index(operation)
    augment = augment_of(channels, operations=1, cutout=0, padding=0, flip=False)
    augment.uniforms = torch.rand(COUNT, 8, device=DEVICE)
    augment.uniforms[:, 0] = (code + 0.5) / len(OPERATIONS)
    augment.uniforms[: len(EXTREMES), 1] = torch.tensor(EXTREMES)
    batch = images(COUNT, channels, height, width)
    assert differing(augment, batch, "strong") == 0
    changed = apply_operation(batch, torch.full((COUNT,), code, device=DEVICE), augment.uniforms[:, 1])
    never_changes = operation == "identity" or (operation == "color" and channels == 1)
    no_equalize = operation == "equalize" and height * width < 256
    assert torch.equal(changed, batch) == (never_changes or no_equalize)


@pytest.mark.parametrize("order", ["strong_first", "weak_first"])
@pytest.mark.parametrize("padding_mode", ["zero", "reflect"])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 32, 32), (1, 8, 8), (3, 12, 20)])
def test_a_strong_view_equals_plain_pytorch(
    order: str, padding_mode: str, flip: bool, channels: int, height: int, width: int
) -> None:
    augment = augment_of(channels, order=order, padding_mode=padding_mode, flip=flip, cutout=0.3)
    augment.uniforms = torch.rand(COUNT, 12, device=DEVICE)
    augment.uniforms[:3] = torch.tensor([0.0, 0.5, LAST_BELOW_ONE])[:, None]
    assert differing(augment, images(COUNT, channels, height, width), "strong") == 0


@pytest.mark.parametrize("padding_mode", ["zero", "reflect"])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 32, 32), (1, 8, 8), (3, 12, 20)])
def test_a_weak_view_equals_plain_pytorch(
    padding_mode: str, flip: bool, channels: int, height: int, width: int
) -> None:
    augment = augment_of(channels, padding_mode=padding_mode, flip=flip)
    augment.uniforms = torch.rand(COUNT, 3, device=DEVICE)
    augment.uniforms[:3] = torch.tensor([0.0, 0.5, LAST_BELOW_ONE])[:, None]
    assert differing(augment, images(COUNT, channels, height, width), "weak") == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_the_id_view_equals_plain_pytorch(channels: int) -> None:
    assert differing(augment_of(channels), images(COUNT, channels, 12, 20), "id") == 0


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_a_seed_gives_the_same_draws_as_plain_pytorch(kind: str) -> None:
    augment = Augment((0.5,) * 3, (0.25,) * 3, operations=2).to(DEVICE)
    batch = images(COUNT, 3, 17, 23)
    assert differing(augment, batch, kind) == 0
    after_kernel = torch.rand(5, device=DEVICE)
    torch.manual_seed(1)
    augment(batch, kind)
    assert torch.equal(torch.rand(5, device=DEVICE), after_kernel)


def test_strided_and_empty_batches_equal_plain_pytorch() -> None:
    augment, batch = Augment((0.5,) * 3, (0.25,) * 3).to(DEVICE), images(2 * COUNT, 3, 12, 20)
    assert differing(augment, batch[::2].transpose(2, 3), "strong") == 0
    assert differing(augment, batch[:0], "strong") == 0


def test_images_on_the_cpu_are_left_to_augment() -> None:
    augment, batch = Augment((0.5,), (0.25,)), images(COUNT, 1, 8, 8).cpu()
    torch.manual_seed(4)
    expected = augment(batch, "weak2")
    torch.manual_seed(4)
    assert torch.equal(fused_views.FusedViews(augment)(batch, "weak2"), expected)


def test_unsuitable_images_and_views_are_refused_as_by_augment() -> None:
    views = fused_views.FusedViews(Augment((0.5,), (0.25,), padding=8, padding_mode="reflect").to(DEVICE))
    with pytest.raises(ValueError, match=r"they must be uint8 \[n, 1, height, width\]"):
        views(torch.zeros(2, 1, 9, 9, device=DEVICE), "weak")
    with pytest.raises(ValueError, match=r"unknown view 'soft'"):
        views(torch.zeros(2, 1, 9, 9, dtype=torch.uint8, device=DEVICE), "soft")
    with pytest.raises(ValueError, match="reflect padding of 8 pixels needs larger images than 8x9"):
        views(torch.zeros(2, 1, 8, 9, dtype=torch.uint8, device=DEVICE), "weak")


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 32, 32), (3, 84, 84), (1, 28, 28), (3, 128, 128)])
@pytest.mark.parametrize("order", ["strong_first", "weak_first"])
def test_a_thousand_strong_views_on_a_gpu_equal_plain_pytorch(
    order: str, channels: int, height: int, width: int
) -> None:
    augment = Augment((0.5,) * channels, (0.25,) * channels, order=order).to(DEVICE)
    assert differing(augment, images(1000, channels, height, width), "strong") == 0


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_captured_view_draws_anew_at_each_replay() -> None:
    views = fused_views.FusedViews(Augment((0.5,) * 3, (0.25,) * 3).to(DEVICE))
    batch = images(64, 3, 32, 32)
    views(batch, "strong")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view = views(batch, "strong")
    graph.replay()
    first = view.clone()
    graph.replay()
    assert not torch.equal(view, first)
    assert view.isfinite().all()
