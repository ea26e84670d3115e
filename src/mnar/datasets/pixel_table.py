"""Turn images into a table: one row per image, one column per pixel, and no information on which are neighbours."""

from __future__ import annotations

from torch import Tensor

from mnar.types import DataSet


def pixel_table(images: DataSet) -> DataSet:
    """Return the data set in which each image is a row of grey levels in 0..1."""
    train_x, test_x = _rows(images.train_x), _rows(images.test_x)
    num_features = train_x.shape[1]
    # Mean 0 and std 1 leave the features as they are: VIME reconstructs values in 0..1.
    return images._replace(train_x=train_x, test_x=test_x, mean=(0.0,) * num_features, std=(1.0,) * num_features)


def _rows(images: Tensor) -> Tensor:
    return images.flatten(1).float() / 255
