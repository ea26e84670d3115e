"""Turn encoded samples into the inputs of the portfolio, and in the same way any samples that are predicted later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files import UNLABELED
from mnar.own_data.inspection.inspection import sample_rows
from mnar.own_data.portfolio.image_features import ImageEncoder
from mnar.own_data.portfolio.member import Arrays, Features, Floats, Inputs, Integers, Samples
from mnar.types import DataSet

MAX_DEVIATIONS = 10.0  # a standardised feature is clipped here, e.g. the column of a rare category
ROWS_AT_A_TIME = 8192
MOST_LABELED, MOST_POOL = 20_000, 20_000  # rows that the members are fitted to; all rows are predicted


@dataclass(frozen=True)
class InputEncoder:
    """Standardises tables, and computes features of images."""

    mean: Floats
    std: Floats
    images: ImageEncoder | None = None

    @classmethod
    def fit(cls, data: DataSet, rows: npt.NDArray[np.int64], seed: int) -> Self:
        """Learn from these rows of the data set."""
        mean, std = np.array(data.mean), np.array(data.std)
        return cls(mean, std, ImageEncoder.fit(data.train_x.numpy()[rows], seed=seed) if data.is_image else None)

    def inputs(self, x: npt.NDArray[Any]) -> Inputs:
        """Return the inputs of samples: tables as float32 [n, d], images as uint8 [n, channels, height, width]."""
        if self.images is not None:
            return Inputs(self.images.transform(x), x)
        features: Features = np.clip((x - self.mean) / self.std, -MAX_DEVIATIONS, MAX_DEVIATIONS).astype(np.float32)
        return Inputs(features)

    def arrays(self) -> Arrays:
        of_images = {} if self.images is None else self.images.arrays()
        return {"mean": self.mean, "std": self.std, **{f"images.{name}": array for name, array in of_images.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        of_images = {name.removeprefix("images."): a for name, a in arrays.items() if name.startswith("images.")}
        return cls(arrays["mean"], arrays["std"], ImageEncoder.from_arrays(of_images) if of_images else None)


def samples_of(data: DataSet, seed: int) -> tuple[Samples, InputEncoder]:
    """Return the samples that the members are fitted to, and the encoder. Very large data are sampled at random."""
    y, rows = data.train_y.numpy(), fitted_rows(data, seed)
    encoder = InputEncoder.fit(data, rows, seed)
    inputs = encoder.inputs(data.train_x.numpy()[rows])._replace(training_rows=np.arange(len(rows)))
    return Samples(inputs, y[rows], len(data.class_names), seed), encoder


def fitted_rows(data: DataSet, seed: int) -> npt.NDArray[np.int64]:
    """Return the rows that the members are fitted to: all rows, or a random sample of very large data.

    The sampled labels keep their class mix, except for a few further labels of very rare classes.
    """
    y = data.train_y.numpy()
    rng = np.random.default_rng(seed)
    labeled, pool = np.flatnonzero(y != UNLABELED), np.flatnonzero(y == UNLABELED)
    return np.sort(np.concatenate([sample_rows(labeled, MOST_LABELED, rng, y), sample_rows(pool, MOST_POOL, rng)]))


def label_counts(data: DataSet) -> Integers:
    """Return the number of labels of each class, [k], including labels that the members are not fitted to."""
    y = data.train_y.numpy()
    return np.bincount(y[y != UNLABELED], minlength=len(data.class_names))
