"""Small pictures inside the page."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

LONGER_SIDE = 96  # pixels; larger images would make the page heavy
MOST_BYTES_OF_PNG = 4096  # a photo of 96 pixels takes 20 kB as PNG and 3 kB as JPEG, small drawings are smaller as PNG


def thumbnail(image: npt.NDArray[np.uint8]) -> str:
    """Return the image as the data URI of a small PNG or JPEG file."""
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise ValueError(
            f"a picture has shape {pixels.shape} and type {pixels.dtype}; give uint8 pixels as [h, w] or [c, h, w]"
        )
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.thumbnail((LONGER_SIDE, LONGER_SIDE))
    kind, content = "png", _encoded(picture, format="PNG")
    if len(content) > MOST_BYTES_OF_PNG:
        kind, content = "jpeg", _encoded(picture, format="JPEG", quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _encoded(picture: Image.Image, **how: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, **how)
    return buffer.getvalue()
