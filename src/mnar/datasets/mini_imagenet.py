"""mini-ImageNet as folders of JPEGs, decoded once and kept as arrays beside them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from mnar.datasets.locate import Layout, locate
from mnar.types import DataSet

SIDE = 84


def mini_imagenet(root: Path | None = None) -> DataSet:
    layout = Layout("mini-imagenet", ("train", "test", "classes.txt"))
    built_by = "put JPEGs into train/ID and test/ID, and a line 'ID name' for each class into classes.txt"
    train, test, classes = locate("mini_imagenet", root, layout, built_by=built_by)
    lines = [line.partition(" ") for line in classes.read_text(encoding="utf-8").splitlines()]
    names = {wnid: name for wnid, _, name in sorted(lines)}
    wnids = list(names)
    train_x, train_y = _images_and_labels(train, wnids)
    test_x, test_y = _images_and_labels(test, wnids)
    return DataSet(
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        class_names=tuple(names.values()),
        mean=(0.4779, 0.4497, 0.4018),
        std=(0.2229, 0.2181, 0.2175),
    )


def _images_and_labels(folder: Path, wnids: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    odd = set(wnids).symmetric_difference(path.name for path in folder.iterdir() if path.is_dir())
    if odd:
        raise ValueError(f"{folder} and classes.txt differ in {sorted(odd)}; each class needs a line and a folder")
    per_class = [sorted((folder / wnid).glob("*.jpg")) for wnid in wnids]
    for wnid, paths in zip(wnids, per_class, strict=True):
        if not paths:
            raise FileNotFoundError(f"{folder / wnid} has no *.jpg; get the data set again")
    images = _decoded([path for paths in per_class for path in paths], folder)
    labels = torch.repeat_interleave(torch.tensor([len(paths) for paths in per_class]))
    return torch.from_numpy(images), labels


def _decoded(paths: list[Path], folder: Path) -> npt.NDArray[np.uint8]:
    """All images, from the cache beside `folder` whose name says that it was made of these paths."""
    listing = "\n".join(f"{path.parent.name}/{path.name}" for path in paths)
    digest = hashlib.sha256(listing.encode()).hexdigest()[:12]
    cache = folder.with_name(f"{folder.name}-{digest}.npy")
    shape = (len(paths), 3, SIDE, SIDE)
    if cache.exists():
        return _read_cache(cache, shape)

    images = np.empty(shape, np.uint8)

    def decode_row(row: int) -> None:
        images[row] = decode(paths[row])

    with ThreadPoolExecutor() as pool:  # threads, because Pillow decodes outside the interpreter lock
        for _ in pool.map(decode_row, range(len(paths))):
            pass
    # a read-only or full disk costs the next start its speed, not this run
    with contextlib.suppress(OSError):
        _write_cache(cache, images)
    return images


def decode(path: Path) -> npt.NDArray[np.uint8]:
    """One image as [3, 84, 84]: the shorter side is resized to 84, then the centre is cut out."""
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except OSError as error:
        raise ValueError(f"{path} is not a whole image ({error}); get it again") from error
    if image.size != (SIDE, SIDE):
        shorter = min(image.size)
        width, height = (length * SIDE // shorter for length in image.size)
        left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
        image = image.crop((left, top, left + SIDE, top + SIDE))
    return np.asarray(image).transpose(2, 0, 1)


def _read_cache(cache: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    try:
        images: npt.NDArray[np.uint8] = np.load(cache, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{cache} is damaged ({error}); delete it, and it is made again") from error
    if images.shape != shape or images.dtype != np.uint8:
        raise ValueError(f"{cache} has shape {images.shape}, not {shape}; delete it, and it is made again")
    return images


def _write_cache(cache: Path, images: npt.NDArray[np.uint8]) -> None:
    """Under another name first: a cache that is there is whole."""
    partial = cache.with_suffix(f".{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.save(file, images)
        partial.replace(cache)
    finally:
        partial.unlink(missing_ok=True)
