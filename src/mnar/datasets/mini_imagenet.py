"""Load mini-ImageNet from folders of JPEG files. The decoded images are kept in the general image cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.locate import Layout, locate
from mnar.datasets.user_files.arrays import tensor_of
from mnar.datasets.user_files.image_cache import Decoder, load_images
from mnar.datasets.user_files.image_decode import Shape, open_image
from mnar.types import DataSet

SIDE = 84


def mini_imagenet(root: Path | None = None) -> DataSet:
    """Return mini-ImageNet as RGB images of 84x84 pixels. The classes are in the order of their WordNet IDs.

    `root` is the data folder, or the folder that contains train/, test/ and classes.txt.
    """
    layout = Layout("mini-imagenet", ("train", "test", "classes.txt"))
    how_to_get = "put JPEG files into train/ID and test/ID, and one line 'ID name' per class into classes.txt"
    train, test, classes = locate("mini_imagenet", root, layout, how_to_get=how_to_get)
    lines = [line.partition(" ") for line in classes.read_text(encoding="utf-8").splitlines()]
    names = {wnid: name for wnid, _, name in sorted(lines)}
    train_paths, train_y = _paths_and_labels(train, list(names))
    test_paths, test_y = _paths_and_labels(test, list(names))
    images = _images([*train_paths, *test_paths], classes.parent)
    return DataSet(
        train_x=images[: len(train_y)],
        train_y=train_y,
        test_x=images[len(train_y) :],
        test_y=test_y,
        class_names=tuple(names.values()),
        mean=(0.4779, 0.4497, 0.4018),
        std=(0.2229, 0.2181, 0.2175),
    )


def _paths_and_labels(folder: Path, wnids: list[str]) -> tuple[list[Path], torch.Tensor]:
    """Return the image files of train/ or test/ and their class numbers, class by class."""
    differing = set(wnids).symmetric_difference(path.name for path in folder.iterdir() if path.is_dir())
    if differing:
        raise ValueError(f"{folder} and classes.txt differ in {sorted(differing)}; give each class a line and a folder")
    per_class = [sorted((folder / wnid).glob("*.jpg")) for wnid in wnids]
    for wnid, paths in zip(wnids, per_class, strict=True):
        if not paths:
            raise FileNotFoundError(f"{folder / wnid} has no *.jpg file; get a new copy of the data set")
    labels = torch.repeat_interleave(torch.tensor([len(paths) for paths in per_class]))
    return [path for paths in per_class for path in paths], labels


def _images(paths: list[Path], folder: Path) -> torch.Tensor:
    """Return all images as one memory-mapped tensor, or raise an error that names a damaged file."""
    names = [path.relative_to(folder).as_posix() for path in paths]
    images = load_images(names, root=folder, size=SIDE, decoder=Decoder("mini_imagenet", decode, num_channels=3))
    if images.problems:
        name, problem = next(iter(images.problems.items()))
        raise ValueError(f"{folder / name} is not a complete image ({problem}); get a new copy of the file")
    return tensor_of(images.x)


def decode(path: Path, shape: Shape) -> npt.NDArray[np.uint8]:
    """Return one RGB image of a square `shape`. An image that has this size already is not changed.

    The shorter side of any other image is resized (LANCZOS) to the side of the square, and the centre is cut out.
    """
    from PIL import Image

    side = shape[1]
    with open_image(path) as file:
        image = file.convert("RGB")
    if image.size != (side, side):
        shorter = min(image.size)
        width, height = (length * side // shorter for length in image.size)
        left, top = round((width - side) / 2), round((height - side) / 2)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
        image = image.crop((left, top, left + side, top + side))
    return np.asarray(image).transpose(2, 0, 1)
