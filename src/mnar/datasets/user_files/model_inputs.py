"""What a trained model takes as input and what it predicts, so that new data can be read in the same form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.image_decode import Shape
from mnar.datasets.user_files.label_values import is_number, match_labels
from mnar.datasets.user_files.partly_labeled import Table
from mnar.datasets.user_files.table_encoder import TableEncoder


@dataclass(frozen=True)
class ModelInputs:
    """The inputs and the classes of a trained model."""

    input_shape: tuple[int, ...]  # of one sample: (features,) or (channels, height, width)
    class_names: tuple[str, ...]
    encoder: TableEncoder | None = None  # how the columns of a table become features

    @property
    def image_shape(self) -> Shape | None:
        """The shape of an image, or None if the model takes features."""
        if len(self.input_shape) != 3:
            return None
        channels, height, width = self.input_shape
        return channels, height, width

    @property
    def schema(self) -> Table:
        """The columns that the model takes, as a table without rows; without columns if it takes no table."""
        return Table.of_numbers(np.empty((0, 0))) if self.encoder is None else self.encoder.schema

    @property
    def in_words(self) -> str:
        """What one sample is, for messages."""
        if self.image_shape is not None:
            return "images of {} × {} pixels".format(*self.input_shape[1:])
        return "the columns of a table" if self.encoder is not None else f"{self.input_shape[0]} features per sample"

    @property
    def counted_names(self) -> tuple[str, ...] | None:
        """The class names if none of them is a number: then a label that is a number counts the classes from 0."""
        return None if any(is_number(name) for name in self.class_names) else self.class_names

    def labels(
        self, values: Sequence[str | None], where: str, row_names: Sequence[str], unlabeled: Collection[str]
    ) -> npt.NDArray[np.int64]:
        """Return the class numbers of labels; `match_labels` explains the arguments."""
        return match_labels(values, where, self.class_names, row_names=row_names, unlabeled=unlabeled)
