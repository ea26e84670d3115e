"""One image file, of whatever kind, as an upright array of one size, grey or RGB."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.image_files import KINDS

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 89_000_000
LONGEST_SIDE = 20_000
ORIENTATION = 0x0112  # the EXIF tag; from 5 on, height and width change places
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")  # some versions of Pillow open 16-bit PNG files as I
GREY = ("1", "L", "LA", *SIXTEEN_BITS)


class Unreadable(ValueError):
    """Why a file gives no image, in a few words."""


class Header(NamedTuple):
    height: int  # upright
    width: int
    grey: bool


def read_header(file: IO[bytes]) -> Header:
    with _opened(file) as image:
        width, height = image.size
        # Only where EXIF is known to be there: to look for it, Pillow would decode a PNG file to its end. (TIFF files
        # have none in `info`; Pillow gives their size upright.)
        if "exif" in image.info and image.getexif().get(ORIENTATION, 1) >= 5:
            width, height = height, width
        return Header(height, width, image.mode in GREY)


def decode(file: IO[bytes] | Path, *, grey: bool, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """The first frame as [1 or 3, *size]: upright, on white where transparent, then the largest centred part that fits.

    16-bit grey keeps its range: 0 to 65,535 become 0 to 255.
    """
    from PIL import ImageOps

    height, width = size
    with _opened(file) as image:
        # A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, never at less than twice what is wanted.
        image.draft(None, (2 * max(size), 2 * max(size)))
        flat = _on_white(_in_eight_bits(ImageOps.exif_transpose(image)), "L" if grey else "RGB")
        fitted = flat if flat.size == (width, height) else ImageOps.fit(flat, (width, height))  # bicubic, antialiased
        pixels: npt.NDArray[np.uint8] = np.asarray(fitted)
        return pixels[None] if grey else pixels.transpose(2, 0, 1)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warnings about odd files: what cannot be read is said once, at the end. For the main thread only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


@contextmanager
def _opened(file: IO[bytes] | Path) -> Iterator[Image.Image]:
    from PIL import Image, UnidentifiedImageError

    too_large = f"more than {MOST_PIXELS // 1_000_000} megapixels"
    try:
        with Image.open(file, formats=tuple(KINDS)) as image:
            if max(image.size) > LONGEST_SIDE:
                raise Unreadable(f"a side over {LONGEST_SIDE:,} pixels")
            if image.width * image.height > MOST_PIXELS:
                raise Unreadable(too_large)
            yield image
    except Unreadable:
        raise
    except Image.DecompressionBombError as error:
        raise Unreadable(too_large) from error
    except UnidentifiedImageError as error:
        raise Unreadable(f"none of {', '.join(KINDS)}") from error
    except Exception as error:  # Pillow raises many kinds for a damaged file; all mean the same here
        raise Unreadable(str(error) or type(error).__name__) from error


def _in_eight_bits(image: Image.Image) -> Image.Image:
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
    from PIL import Image

    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        opaque = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), opaque)
    return image.convert(mode)
