from __future__ import annotations

import struct
import warnings
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, PngImagePlugin

from mnar.datasets.user_files.image_decode import FORMATS, Header, Unreadable, decode, quiet_pillow, read_header

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (5, 7, 3), np.uint8)
GREY = RNG.integers(0, 256, (5, 7), np.uint8)
ALPHA = RNG.integers(0, 256, (5, 7), np.uint8)
ON_WHITE = np.rint(GREY * (ALPHA / 255) + 255 * (1 - ALPHA / 255))
# How a viewer turns the stored pixels, by EXIF orientation: the standard defines where row 0 and column 0 belong.
UPRIGHT = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels),
}


def saved(folder: Path, image: Image.Image, suffix: str = ".png", **options: Any) -> Path:
    image.save(folder / f"image{suffix}", **options)
    return folder / f"image{suffix}"


def header_of(path: Path) -> Header:
    with path.open("rb") as file:
        return read_header(file)


def rgb_of(path: Path) -> npt.NDArray[np.uint8]:
    return decode(path, (3, *header_of(path)[:2])).transpose(1, 2, 0)


def grey_of(path: Path) -> npt.NDArray[np.uint8]:
    assert header_of(path).grey
    return decode(path, (1, *header_of(path)[:2]))[0]


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".ppm"])
def test_lossless_rgb_of_every_format_is_kept_to_the_bit(tmp_path: Path, suffix: str) -> None:
    path = saved(tmp_path, Image.fromarray(RGB), suffix)
    assert header_of(path) == Header(5, 7, grey=False)
    assert np.array_equal(rgb_of(path), RGB)


@pytest.mark.parametrize(("suffix", "options"), [(".jpg", {}), (".webp", {"lossless": True}), (".gif", {})])
def test_other_formats_equal_pillows_pixels(tmp_path: Path, suffix: str, options: dict[str, Any]) -> None:
    path = saved(tmp_path, Image.fromarray(RGB), suffix, **options)
    with Image.open(path) as image:
        assert np.array_equal(rgb_of(path), np.asarray(image.convert("RGB")))


def test_grey_stays_grey_and_has_three_equal_channels_as_rgb(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(GREY))
    assert np.array_equal(grey_of(path), GREY)
    assert np.array_equal(rgb_of(path), np.stack([GREY] * 3, axis=-1))


def test_black_and_white_is_0_and_255(tmp_path: Path) -> None:
    assert np.array_equal(grey_of(saved(tmp_path, Image.fromarray(GREY > 99))), np.where(GREY > 99, 255, 0))


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_16_bit_grey_is_divided_by_257(tmp_path: Path, suffix: str) -> None:
    values = RNG.integers(0, 65_536, (5, 7)).astype(np.uint16)
    values[0, :2] = 0, 65_535
    path = saved(tmp_path, Image.fromarray(values), suffix)
    assert np.array_equal(grey_of(path), np.rint(values / 257))


def test_rgba_is_laid_on_white(tmp_path: Path) -> None:
    pixels = np.dstack([GREY, GREY, GREY, ALPHA])
    path = saved(tmp_path, Image.fromarray(pixels))
    assert not header_of(path).grey
    assert np.abs(rgb_of(path) - ON_WHITE[..., None]).max() <= 1


def test_grey_with_transparency_is_laid_on_white_and_stays_grey(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]))
    assert np.abs(grey_of(path) - ON_WHITE).max() <= 1


def test_the_transparent_colour_of_a_palette_is_white(tmp_path: Path) -> None:
    image = Image.new("P", (7, 5), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((2, 3), 0)
    expected = np.broadcast_to(np.uint8([200, 100, 50]), (5, 7, 3)).copy()
    expected[3, 2] = 10, 20, 30
    assert np.array_equal(rgb_of(saved(tmp_path, image)), expected)
    expected[3, 2] = 255
    assert np.array_equal(rgb_of(saved(tmp_path, image, transparency=0)), expected)


def test_the_transparent_colour_of_an_rgb_png_is_white(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(RGB), transparency=tuple(RGB[2, 3].tolist()))
    expected = RGB.copy()
    expected[2, 3] = 255
    assert np.array_equal(rgb_of(path), expected)


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.new("CMYK", (7, 5), (0, 255, 255, 0)), ".tif")
    assert np.array_equal(rgb_of(path), np.broadcast_to([255, 0, 0], (5, 7, 3)))


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp"])
def test_exif_orientation_gives_the_literally_turned_array(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"lossless": True} if suffix == ".webp" else {}
    path = saved(tmp_path, Image.fromarray(RGB), suffix, exif=exif, **options)
    expected = UPRIGHT[orientation](RGB)
    assert header_of(path)[:2] == expected.shape[:2]
    assert np.array_equal(rgb_of(path), expected)


def test_a_turned_photograph_in_jpeg_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    halves = np.zeros((32, 64), np.uint8)
    halves[:, :32] = 255  # the left half in the file, the top half when upright
    path = saved(tmp_path, Image.fromarray(halves), ".jpg", exif=exif)
    upright = grey_of(path)
    assert upright.shape == (64, 32)
    assert upright[:32].min() > 250
    assert upright[32:].max() < 5


def test_16_bit_images_are_turned_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path, Image.fromarray(GREY.astype(np.uint16) * 257), exif=exif)
    assert np.array_equal(grey_of(path), np.rot90(GREY, -1))


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp", ".tif"])
def test_the_first_frame_of_an_animation_is_decoded(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (7, 5), colour) for colour in ("red", "blue")]
    options: dict[str, Any] = {"lossless": True} if suffix == ".webp" else {}
    path = saved(tmp_path, frames[0], suffix, save_all=True, append_images=frames[1:], **options)
    with Image.open(path) as image:
        assert getattr(image, "n_frames", 1) == 2
    assert np.array_equal(rgb_of(path), np.broadcast_to([255, 0, 0], (5, 7, 3)))


def test_resizing_is_to_resize_the_shorter_side_and_cut_out_the_centre(tmp_path: Path) -> None:
    image = Image.fromarray(RNG.integers(0, 256, (40, 80, 3), np.uint8))
    path = saved(tmp_path, image)
    expected = image.resize((32, 16), Image.Resampling.BICUBIC).crop((8, 0, 24, 16))
    assert np.array_equal(decode(path, (3, 16, 16)).transpose(1, 2, 0), np.asarray(expected))
    tall = image.resize((64, 32), Image.Resampling.BICUBIC).crop((24, 0, 40, 32))
    assert np.array_equal(decode(path, (3, 32, 16)).transpose(1, 2, 0), np.asarray(tall))


def test_a_large_jpeg_decoded_at_a_fraction_of_its_size_looks_the_same(tmp_path: Path) -> None:
    image = Image.fromarray(RNG.integers(0, 256, (6, 8, 3), np.uint8)).resize((1200, 900), Image.Resampling.BICUBIC)
    path = saved(tmp_path, image, ".jpg", quality=95)
    expected = np.asarray(image.resize((64, 48), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(decode(path, (3, 48, 64)).transpose(1, 2, 0) - expected).mean() < 2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif", ".webp", ".gif"])
def test_a_truncated_file_is_unreadable(tmp_path: Path, suffix: str, share: float) -> None:
    path = saved(tmp_path, Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)), suffix)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(Unreadable):
        decode(path, (3, 64, 64))


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"II*\0"])
def test_a_file_that_is_no_image_is_unreadable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(Unreadable):
        header_of(tmp_path / "a.png")


def test_formats_whose_readers_start_other_programs_are_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(RGB), ".eps").rename(tmp_path / "a.png")
    with pytest.raises(Unreadable, match=", ".join(FORMATS)):
        header_of(path)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_without_a_known_range_are_unreadable(tmp_path: Path, mode: str) -> None:
    path = saved(tmp_path, Image.new(mode, (7, 5), 70_000), ".tif")
    with pytest.raises(Unreadable, match="save it with 8 or 16 bits"):
        decode(path, (1, 5, 7))


def png_that_claims(width: int, height: int) -> bytes:
    """Return a PNG file of 50 bytes whose header claims this size."""
    file = BytesIO(b"\x89PNG\r\n\x1a\n")
    file.seek(0, SEEK_END)
    PngImagePlugin.putchunk(file, b"IHDR", struct.pack(">II5B", width, height, 8, 2, 0, 0, 0))
    PngImagePlugin.putchunk(file, b"IDAT", b"")
    return file.getvalue()


@pytest.mark.parametrize(
    ("width", "height", "limit"),
    [
        (30_000, 10, "a side over 20,000 pixels"),
        (20_001, 1, "a side over 20,000 pixels"),
        (9_000, 10_000, "more than 89 megapixels"),  # Pillow warns
        (19_000, 19_000, "more than 89 megapixels"),  # Pillow refuses
    ],
)
def test_images_above_a_limit_are_unreadable_with_the_limit_and_without_a_warning(
    tmp_path: Path, width: int, height: int, limit: str
) -> None:
    (tmp_path / "a.png").write_bytes(png_that_claims(width, height))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quiet_pillow(), pytest.raises(Unreadable, match=limit):
            header_of(tmp_path / "a.png")


def test_images_at_the_limits_are_readable(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png_that_claims(20_000, 4_450))
    assert header_of(tmp_path / "a.png") == Header(4_450, 20_000, grey=False)
