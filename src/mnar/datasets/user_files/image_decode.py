"""Decode one image file of any supported format into an upright array of a given shape, grey or RGB."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.image_files import FORMATS

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 89_000_000
MAX_SIDE = 20_000
ORIENTATION = 0x0112  # the EXIF tag; its values from 5 on swap height and width
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")  # some versions of Pillow open 16-bit PNG files as I
GREY = ("1", "L", "LA", *SIXTEEN_BITS)

Shape = tuple[int, int, int]  # channels (1: grey, 3: RGB), height, width


class Unreadable(ValueError):
    """The file contains no image that can be read. The message says why, in a few words."""


class Header(NamedTuple):
    """What the header of an image file says about the image."""

    height: int  # of the upright image
    width: int
    grey: bool


def read_header(file: IO[bytes]) -> Header:
    """Return size and kind of an image without decoding its pixels."""
    with open_image(file) as image:
        width, height = image.size
        # Only if `info` shows that there is EXIF data: to look for it, Pillow would decode a PNG file to its end.
        # (TIFF files have no EXIF data in `info`; Pillow gives their upright size.)
        if "exif" in image.info and image.getexif().get(ORIENTATION, 1) >= 5:
            width, height = height, width
        return Header(height, width, image.mode in GREY)


def decode(file: IO[bytes] | Path, shape: Shape) -> npt.NDArray[np.uint8]:
    """Return the first frame of an image as an array of `shape`.

    The image is turned upright and laid on white where it is transparent. Then it is resized to cover the height and
    the width, and its centre is cut out. 16-bit grey keeps its range: 0 to 65,535 become 0 to 255.
    """
    from PIL import ImageOps

    num_channels, height, width = shape
    with open_image(file) as image:
        # A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, but at least at twice the wanted size.
        at_least = 2 * max(height, width)
        image.draft(None, (at_least, at_least))
        flat = _on_white(_in_eight_bits(ImageOps.exif_transpose(image)), "L" if num_channels == 1 else "RGB")
        fitted = flat if flat.size == (width, height) else ImageOps.fit(flat, (width, height))  # bicubic, antialiased
        pixels: npt.NDArray[np.uint8] = np.asarray(fitted)
        return pixels[None] if num_channels == 1 else pixels.transpose(2, 0, 1)


def resized(images: npt.NDArray[np.uint8], shape: Shape) -> npt.NDArray[np.uint8]:
    """Return images [n, channels, height, width] with another shape, made as `decode` makes it."""
    from PIL import Image, ImageOps

    if images.shape[1:] == shape:
        return images
    num_channels, height, width = shape
    result = np.empty((len(images), *shape), np.uint8)
    for row, pixels in enumerate(images):
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        image = image.convert("L" if num_channels == 1 else "RGB")
        fitted = np.asarray(image if image.size == (width, height) else ImageOps.fit(image, (width, height)))
        result[row] = fitted[None] if num_channels == 1 else fitted.transpose(2, 0, 1)
    return result


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Suppress Pillow's warnings about odd files: a note lists the unreadable ones. Use it in the main thread only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


@contextmanager
def open_image(file: IO[bytes] | Path) -> Iterator[Image.Image]:
    """Open an image with Pillow. Every failure to open or decode it, and every image over a limit, is `Unreadable`."""
    from PIL import Image, UnidentifiedImageError

    too_large = f"more than {MAX_PIXELS // 1_000_000} megapixels"
    try:
        with Image.open(file, formats=tuple(FORMATS)) as image:
            if max(image.size) > MAX_SIDE:
                raise Unreadable(f"a side over {MAX_SIDE:,} pixels")
            if image.width * image.height > MAX_PIXELS:
                raise Unreadable(too_large)
            yield image
    except Unreadable:
        raise
    except Image.DecompressionBombError as error:
        raise Unreadable(too_large) from error
    except UnidentifiedImageError as error:
        raise Unreadable(f"none of {', '.join(FORMATS)}") from error
    except Exception as error:  # Pillow raises exceptions of many types for a damaged file
        raise Unreadable(str(error) or type(error).__name__) from error


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """Return an image of 16 bits per pixel with 8 bits; other images are returned as they are."""
    from PIL import Image

    if image.mode == "F":
        raise Unreadable("pixels that are fractions; save it with 8 or 16 bits")
    if image.mode not in SIXTEEN_BITS:
        return image
    pixels = np.asarray(image).astype(np.int32)
    if pixels.min() < 0 or pixels.max() > 65_535:
        raise Unreadable("pixels of 32 bits; save it with 8 or 16 bits")
    return Image.fromarray(((pixels + 128) // 257).astype(np.uint8))


def _on_white(image: Image.Image, mode: str) -> Image.Image:
    """Return the image in `mode` (L or RGB), laid on white if it has transparent parts."""
    from PIL import Image

    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), opaque)
    return image.convert(mode)
