from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor
from torch._subclasses import FakeTensorMode

from mnar.augment import Augment, Standardize, randaugment, views
from mnar.augment.randaugment import KINDS, OPERATIONS, apply_operation, apply_operations, range_table
from mnar.augment.views import CUTOUT_COLORS, crop_and_flip, cutout

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
SIZES = [(32, 32), (17, 23), (40, 21), (84, 84), (2, 5)]
LAST_BELOW_ONE = 1 - 2**-24
EXTREMES = (0.0, 0.25, 0.5, 0.75, 0.8125, LAST_BELOW_ONE)
CIFAR10: dict[str, Any] = {"mean": (0.491, 0.482, 0.447), "std": (0.247, 0.244, 0.262)}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["sorted", "unsorted"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: with samples sorted by operation, as for large batches on a CPU, and without, as on a GPU."""
    monkeypatch.setattr(randaugment, "SORTS_FROM", 0 if request.param == "sorted" else sys.maxsize)


@functools.cache
def sample_images() -> list[np.ndarray]:
    return list(load_sample_images().images)


def photographs(count: int, height: int, width: int, *, grey: bool = False) -> Tensor:
    """Crops of scikit-learn's two photographs, uint8 [count, channels, height, width]."""
    rng = np.random.default_rng(height * width)
    crops = []
    for number in range(count):
        photograph = sample_images()[number % 2]
        top = rng.integers(photograph.shape[0] - height)
        left = rng.integers(photograph.shape[1] - width)
        crop = Image.fromarray(photograph[top : top + height, left : left + width])
        crops.append(from_pillow(crop.convert("L") if grey else crop))
    return torch.stack(crops)


def digits(count: int) -> Tensor:
    return torch.tensor(load_digits().images[:count] * 255 / 16).to(torch.uint8)[:, None]


def to_pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())


def from_pillow(image: Image.Image) -> Tensor:
    return torch.tensor(np.atleast_3d(np.asarray(image))).permute(2, 0, 1)


def pillow_operation(image: Image.Image, operation: str, magnitude: float) -> Image.Image:
    """The oracle: Pillow's own operation, at a magnitude in [0,1) of the range in the specification."""
    factor = 0.05 + (0.95 - 0.05) * magnitude
    share = -0.3 + 0.6 * magnitude
    affine = {
        "shear_x": (1, share, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, share, 1, 0),
        "translate_x": (1, 0, share * image.width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, share * image.height),
    }
    match operation:
        case "identity":
            return image
        case "auto_contrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "brightness" | "color" | "contrast" | "sharpness":
            return getattr(ImageEnhance, operation.capitalize())(image).enhance(factor)
        case "posterize":
            return ImageOps.posterize(image, int(4 + 4 * magnitude))
        case "solarize":
            return ImageOps.solarize(image, 256 * magnitude)
        case "rotate":
            return image.rotate(-30 + 60 * magnitude)
        case _:
            return image.transform(image.size, Image.Transform.AFFINE, affine[operation])


def largest_difference_to_pillow(images: Tensor, operation: str, magnitude: Tensor) -> int:
    code = torch.full((len(images),), OPERATIONS.index(operation))
    ours = apply_operation(images, code, magnitude)
    assert ours.dtype == torch.uint8
    theirs = torch.stack(
        [
            from_pillow(pillow_operation(to_pillow(image), operation, m))
            for image, m in zip(images, magnitude.tolist(), strict=True)
        ]
    )
    return int((ours.int() - theirs.int()).abs().max())


def magnitudes(count: int, seed: int) -> Tensor:
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    return torch.cat((torch.tensor(EXTREMES), drawn))[:count]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_each_operation_on_photographs_equals_pillow(operation: str, height: int, width: int) -> None:
    images = photographs(30, height, width)
    assert largest_difference_to_pillow(images, operation, magnitudes(30, seed=height)) == 0


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_on_grey_images_equals_pillow(operation: str) -> None:
    grey = photographs(40, 28, 28, grey=True)
    assert largest_difference_to_pillow(grey, operation, magnitudes(40, seed=1)) == 0
    assert largest_difference_to_pillow(digits(40), operation, magnitudes(40, seed=2)) == 0


@pytest.mark.parametrize("operation", GEOMETRIC)
def test_geometric_operations_equal_pillow_at_a_thousand_magnitudes(operation: str) -> None:
    images = photographs(2, 32, 32).repeat(500, 1, 1, 1)
    assert largest_difference_to_pillow(images, operation, magnitudes(1000, seed=3)) == 0


@pytest.mark.usefixtures("path")
def test_a_mixed_batch_equals_each_operation_alone() -> None:
    images, magnitude = photographs(56, 20, 20), torch.rand(56)
    operation = torch.arange(56) % len(OPERATIONS)
    one_by_one = [apply_operation(images[i : i + 1], operation[i : i + 1], magnitude[i : i + 1]) for i in range(56)]
    assert torch.equal(apply_operation(images, operation, magnitude), torch.cat(one_by_one))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("level", [0, 100, 255])
def test_flat_images_equal_pillow(operation: str, level: int) -> None:
    images = torch.full((6, 3, 20, 20), level, dtype=torch.uint8)
    images[3:, :, 4, 5] = 200  # one pixel that differs
    assert largest_difference_to_pillow(images, operation, magnitudes(6, seed=4)) == 0


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (1, 28), (3, 8), (3, 17)])
@pytest.mark.parametrize("drawn", [range(14), range(0, 14, 2), [4], [0]])
def test_sorting_samples_by_operation_changes_no_pixel(
    channels: int, side: int, drawn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = photographs(120, side, side, grey=channels == 1)
    operation = torch.tensor(drawn)[torch.randint(len(drawn), (3, 120))]  # some kinds may have no sample
    magnitude = torch.rand(3, 120)
    before = images.clone()
    found = []
    for sorts_from in (0, sys.maxsize):
        monkeypatch.setattr(randaugment, "SORTS_FROM", sorts_from)
        found.append(apply_operations(images, range_table(), operation, magnitude))
    assert torch.equal(*found)
    assert torch.equal(images, before)  # the samples of the data set stay as they are


def test_each_operation_has_one_kind() -> None:
    assert sorted(operation for kind in KINDS.values() for operation in kind) == sorted(OPERATIONS)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("padding_mode", ["zero", "reflect"])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 14)])
def test_crop_and_flip_equals_mirroring_padding_and_slicing_one_by_one(
    flip: bool, padding_mode: str, height: int, width: int
) -> None:
    padding = 3
    images, uniforms = photographs(100, height, width), torch.rand(100, 3)
    uniforms[:2] = torch.tensor([[0.0] * 3, [LAST_BELOW_ONE] * 3])
    views = crop_and_flip(images, uniforms, padding=padding, padding_mode=padding_mode, flip=flip)
    numpy_mode = {"zero": "constant", "reflect": "reflect"}[padding_mode]
    for image, (mirrored, down, right), view in zip(images.numpy(), uniforms.tolist(), views, strict=True):
        turned = image[:, :, ::-1] if flip and mirrored < 0.5 else image
        padded = np.pad(turned, ((0, 0), (padding, padding), (padding, padding)), mode=numpy_mode)
        top, left = int(down * 7), int(right * 7)  # 7 = 2 * padding + 1 places
        np.testing.assert_array_equal(view, padded[:, top : top + height, left : left + width])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (21, 40)])
@pytest.mark.parametrize("largest", [0.0, 0.5, 1.0])
def test_cutout_equals_pillow_rectangles(channels: int, height: int, width: int, largest: float) -> None:
    images, uniforms = photographs(200, height, width, grey=channels == 1), torch.rand(200, 3)
    uniforms[:3] = torch.tensor([[0.0] * 3, [LAST_BELOW_ONE] * 3, [0.5] * 3])  # the last: a side of whole pixels
    color = CUTOUT_COLORS[channels]
    views = cutout(images, uniforms, largest=largest, fill=torch.tensor(color, dtype=torch.uint8))
    for image, (share, across, down), view in zip(images, uniforms.tolist(), views, strict=True):
        side = share * largest * width
        left = int(max(0, across * width - side / 2))
        top = int(max(0, down * height - side / 2))
        painted = to_pillow(image)
        if side > 0:
            corners = (left, top, min(width, left + side), min(height, top + side))
            ImageDraw.Draw(painted).rectangle(corners, fill=color if channels == 3 else color[0])
        assert torch.equal(view, from_pillow(painted))


@pytest.mark.parametrize("order", ["strong_first", "weak_first"])
def test_a_strong_view_is_its_parts_in_the_named_order(order: str) -> None:
    images = photographs(40, 32, 32)
    views = Augment(**CIFAR10, order=order)
    torch.manual_seed(5)
    view = views(images, "strong")

    torch.manual_seed(5)
    uniforms = torch.rand(40, 12)

    def strong(part: Tensor) -> Tensor:
        for layer in range(3):
            operation = (uniforms[:, layer] * len(OPERATIONS)).long()
            part = apply_operation(part, operation, uniforms[:, 3 + layer])
        return cutout(part, uniforms[:, 6:9], fill=torch.tensor(CUTOUT_COLORS[3], dtype=torch.uint8))

    def weak(part: Tensor) -> Tensor:
        return crop_and_flip(part, uniforms[:, 9:], padding=4, padding_mode="zero", flip=True)

    parts = weak(strong(images)) if order == "strong_first" else strong(weak(images))
    torch.testing.assert_close(view, normalised(parts))


def normalised(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(CIFAR10[name]).view(3, 1, 1) for name in ("mean", "std"))
    return (images / 255 - mean) / std


def test_the_id_view_is_the_normalised_image() -> None:
    images = photographs(4, 17, 23)
    torch.testing.assert_close(Augment(**CIFAR10)(images, "id"), normalised(images))


@pytest.mark.parametrize("view", ["id", "weak", "strong", "strong2"])
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 8, 8), (1, 28, 28), (3, 17, 23)])
def test_views_are_float32_channels_last_of_the_same_shape(view: str, channels: int, height: int, width: int) -> None:
    images = photographs(6, height, width, grey=channels == 1)
    values = Augment((0.5,) * channels, (0.25,) * channels)(images, view)
    assert values.shape == images.shape
    assert values.dtype == torch.float32
    assert values.is_contiguous(memory_format=torch.channels_last)
    assert values.isfinite().all()


def test_no_operation_and_no_cutout_leave_a_strong_view_weak() -> None:
    images = photographs(20, 32, 32)
    bare = Augment(**CIFAR10, operations=0, cutout=0, padding=0, flip=False)
    assert torch.equal(bare(images, "strong"), bare(images, "id"))


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_equal_images_in_a_batch_get_different_draws(view: str) -> None:
    images = photographs(1, 32, 32).repeat(64, 1, 1, 1)
    distinct = Augment(**CIFAR10)(images, view).unique(dim=0)
    assert len(distinct) > 30


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_a_seed_repeats_a_view_and_the_next_draw_differs(view: str) -> None:
    images, views = photographs(16, 32, 32), Augment(**CIFAR10)
    torch.manual_seed(7)
    first, second = views(images, view), views(images, f"{view}2")
    torch.manual_seed(7)
    assert torch.equal(views(images, view), first)
    assert not torch.equal(first, second)


def test_operations_are_drawn_uniformly_with_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []

    def recording(images: Tensor, table: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
        drawn.append(operation)
        return apply_operations(images, table, operation, magnitude)

    monkeypatch.setattr(views, "apply_operations", recording)
    torch.manual_seed(11)
    Augment((0.5,), (0.25,))(torch.zeros(14_000, 1, 2, 2, dtype=torch.uint8), "strong")
    (operation,) = drawn
    share = torch.stack([(operation == code).double().mean(dim=1) for code in range(14)])
    again = (operation[0] == operation[1]).double().mean()
    # The standard deviation of a share is sqrt(1/14 * 13/14 / 14000) = 0.0022.
    assert (share - 1 / 14).abs().max() < 0.009
    assert abs(again - 1 / 14) < 0.009


@pytest.mark.parametrize("view", ["id", "weak", "strong"])
@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("padding_mode", ["zero", "reflect"])
def test_views_need_no_value_on_the_host(view: str, side: int, padding_mode: str) -> None:
    with FakeTensorMode():  # raises on .item(), nonzero and every other shape or branch that depends on data
        images = torch.zeros(5, 3, side, side, dtype=torch.uint8)
        values = Augment(**CIFAR10, padding_mode=padding_mode)(images, view)
    assert values.shape == images.shape


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_a_compiled_view_is_one_graph_and_equals_the_plain_one(view: str) -> None:
    images, views = photographs(8, 17, 17), Augment(**CIFAR10)
    compiled = torch.compile(views, fullgraph=True, backend="aot_eager")
    torch.manual_seed(13)
    expected = views(images, view)
    torch.manual_seed(13)
    assert torch.equal(compiled(images, view), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_compiled_operations_on_a_gpu_equal_the_cpu_to_one_level(operation: str) -> None:
    images, magnitude = photographs(448, 32, 32), torch.rand(448)
    code = torch.full((448,), OPERATIONS.index(operation))
    expected = apply_operation(images, code, magnitude)
    compiled = torch.compile(apply_operation, fullgraph=True)
    found = compiled(images.cuda(), code.cuda(), magnitude.cuda()).cpu()
    difference = (found.int() - expected.int()).abs().max()
    assert difference <= (0 if operation in GEOMETRIC else 1)


def test_buffers_are_not_part_of_the_state() -> None:
    assert not Augment(**CIFAR10).state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": -1}, r"padding is -1; expected a whole number from 0 to 10,000, e\.g\. 4"),
        ({"padding_mode": "edge"}, "padding_mode is 'edge'; choose from .*reflect"),
        ({"operations": -2}, "operations is -2; expected a whole number from 0 to 100"),
        ({"cutout": 1.5}, "cutout is 1.5; expected a number from 0 to 1"),
        ({"order": "random"}, "order is 'random'; choose from .*weak_first"),
        ({"std": (0.2, 0.0, 0.2)}, "std is .*; it must be positive in every channel"),
        ({"std": (0.2,)}, "3 means and 1 stds; give 1 of each"),
    ],
)
def test_bad_options_are_named_at_construction(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augment(**(CIFAR10 | options))


@pytest.mark.parametrize("view", ["medium", "", "2", "2weak"])
def test_an_unknown_view_is_answered_with_the_choices(view: str) -> None:
    with pytest.raises(ValueError, match=r"unknown view .*'id', 'weak', 'strong'"):
        Augment(**CIFAR10)(photographs(1, 32, 32), view)


def test_images_of_another_kind_are_refused() -> None:
    views = Augment(**CIFAR10)
    with pytest.raises(
        ValueError, match=r"the images are torch.float32 .*; they must be uint8 \[n, 3, height, width\]"
    ):
        views(torch.zeros(2, 3, 8, 8), "weak")
    with pytest.raises(ValueError, match=r"the images are torch.uint8 \[2, 1, 8, 8\]"):
        views(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "weak")


def test_reflect_padding_as_large_as_the_image_is_refused() -> None:
    views = Augment(**CIFAR10, padding=8, padding_mode="reflect")
    with pytest.raises(ValueError, match="reflect padding of 8 pixels needs larger images than 8x9"):
        views(photographs(1, 8, 9), "weak")


def table_views() -> tuple[Tensor, Standardize]:
    table = torch.arange(50.0)[:, None] + 100 * torch.arange(80.0)  # each value says its row and its column
    return table, Standardize((2.0,) * 80, (4.0,) * 80, table)


@pytest.mark.parametrize("view", ["id", "weak"])
def test_the_id_and_weak_views_of_a_table_are_its_rows_standardised(view: str) -> None:
    table, views = table_views()
    assert torch.equal(views(table[:3], view), (table[:3] - 2) / 4)


def test_a_marginal_cell_is_standardised_from_a_uniform_row_of_its_own_column() -> None:
    table, views = table_views()
    drawn = torch.stack([views(table[:30], "marginal") for _ in range(5)])
    row = drawn * 4 + 2 - 100 * torch.arange(80.0)
    counts = torch.bincount(row.long().flatten(), minlength=50)
    assert torch.equal(row, row.round())
    assert len(counts) == 50
    expected = row.numel() / 50  # 240
    assert ((counts - expected) ** 2 / expected).sum() < 49 + 4 * (2 * 49) ** 0.5  # chi-square, 49 degrees of freedom


def test_marginal_cells_of_a_row_come_from_rows_of_their_own() -> None:
    table, views = table_views()
    donor = views(table, "marginal") * 4 + 2 - 100 * torch.arange(80.0)
    same = (donor[:, :-1] == donor[:, 1:]).float().mean()
    assert same.item() == pytest.approx(1 / 50, abs=0.01)


def test_a_marginal_view_without_the_table_says_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"give the table: Standardize\(mean, std, rows\)"):
        Standardize((0.0,), (1.0,))(torch.zeros(2, 1), "marginal")


def test_a_strong_view_of_a_table_is_answered_with_the_choices() -> None:
    table, views = table_views()
    with pytest.raises(ValueError, match=r"no 'strong' view, only \['id', 'weak', 'marginal'\]"):
        views(table, "strong")


def test_a_table_is_no_part_of_the_state_and_its_views_need_no_value_on_the_host() -> None:
    with FakeTensorMode():
        table, views = table_views()
        assert not views.state_dict()
        for view in ("id", "weak", "marginal"):
            assert views(table[:3], view).shape == (3, 80)
