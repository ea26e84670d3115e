"""Blocks of new images: files in a folder, files that a CSV lists, or any list of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.image_cache import in_parallel
from mnar.datasets.user_files.image_csv import listed_images
from mnar.datasets.user_files.image_decode import Shape, Unreadable, decode, quiet_pillow
from mnar.datasets.user_files.image_files import FORMATS, images_under
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.sample_blocks.blocks import ROWS_PER_BLOCK, Blocks, SampleBlock

MOST_FILES_IN_NOTE = 5


class ImageBlocks:
    """Blocks of image files. Each image is decoded and resized to the shape of the model when its block is read."""

    can_start_anywhere = True

    def __init__(
        self,
        paths: Sequence[Path],
        like: ModelInputs,
        *,
        names: Sequence[str] | None = None,
        row_numbers: Sequence[int] | None = None,
        ids: Sequence[str] | None = None,
        id_name: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        if like.image_shape is None:
            raise ValueError(f"{paths[0]} is an image, but the model takes {like.in_words}; give data of this kind")
        self.shape: Shape = like.image_shape
        self.paths = paths
        self.names = [str(path) for path in paths] if names is None else names
        self.row_numbers = np.arange(1, len(paths) + 1) if row_numbers is None else np.array(row_numbers, np.int64)
        self.ids, self.id_name = ids, id_name
        self.num_rows: int | None = len(paths)
        self.notes = list(notes)

    def blocks(self, first_row: int = 0) -> Blocks:
        unreadable: list[str] = []
        try:
            for start in range(first_row, len(self.paths), ROWS_PER_BLOCK):
                rows = slice(start, start + ROWS_PER_BLOCK)
                x, problems = self._decoded(self.paths[rows])
                unreadable += [f"{self.names[start + place]} ({problem})" for place, problem in problems.items()]
                ids = None if self.ids is None else self.ids[rows]
                yield SampleBlock(x, self.names[rows], self.row_numbers[rows], ids, problems)
        finally:  # also if the caller takes only some of the blocks
            self.notes += _note_on(unreadable)

    def every_nth(self, every: int, first: int = 0) -> npt.NDArray[Any]:
        x, problems = self._decoded(self.paths[first::every])
        return np.delete(x, list(problems), axis=0)

    def _decoded(self, paths: Sequence[Path]) -> tuple[npt.NDArray[np.uint8], dict[int, str]]:
        """Return the images, 0 for those that cannot be read, and the problems by position."""

        def image_or_problem(path: Path) -> npt.NDArray[np.uint8] | str:
            try:
                return decode(path, self.shape)
            except Unreadable as error:
                return str(error)

        x, problems = np.zeros((len(paths), *self.shape), np.uint8), {}
        with quiet_pillow():
            for place, result in enumerate(in_parallel(image_or_problem, paths)):
                if isinstance(result, str):
                    problems[place] = result
                else:
                    x[place] = result
        return x, problems


def open_images(source: Path, like: ModelInputs, *, id: str | None = None) -> ImageBlocks:
    """Find the images of a folder, with or without a CSV file, of a CSV file, or a single image file."""
    if source.is_file() and source.suffix.lower() in (".csv", ".tsv", ".txt"):
        return _from_csv(source, like, id)
    if source.is_file():
        return ImageBlocks([source], like)
    if any(path.suffix.lower() == ".csv" for path in source.iterdir()):
        return _from_csv(source, like, id)
    if id is not None:
        raise ValueError(f"{source} has no CSV file with a column {id!r}; leave out --id")
    paths = images_under(source)
    if not paths:
        raise FileNotFoundError(f"{source} holds no images ({', '.join(FORMATS)}); name the folder that does")
    return ImageBlocks([source / path for path in paths], like, names=paths)


def _note_on(unreadable: Sequence[str]) -> list[str]:
    if not unreadable:
        return []
    more = f" and {len(unreadable) - MOST_FILES_IN_NOTE:,} more" if len(unreadable) > MOST_FILES_IN_NOTE else ""
    listed = ", ".join(unreadable[:MOST_FILES_IN_NOTE])
    return [f"{len(unreadable):,} images cannot be read and have no label: {listed}{more}; replace the files"]


def _from_csv(source: Path, like: ModelInputs, id: str | None) -> ImageBlocks:
    listed = listed_images(source, id=id)
    return ImageBlocks(
        [listed.folder / path for path in listed.paths],
        like,
        names=listed.paths,
        row_numbers=listed.row_numbers,
        ids=listed.ids,
        id_name=id,
        notes=listed.notes,
    )
