"""Load the handwritten digits of scikit-learn: 1,797 real images of 8x8 pixels that need no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mnar.datasets.statistics import mean_and_std
from mnar.types import DataSet

NUM_TEST = 500
TEST_SEED = 0  # all runs share one test set, whatever their own seed


def digits(root: Path | None = None) -> DataSet:
    """Return the digits as grey images. `root` is not used, because the images come with scikit-learn."""
    # Importing scikit-learn takes a second, and `mnar list` does not need it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = np.round(bunch.images[:, None] * (255 / 16)).astype(np.uint8)  # grey levels 0..16 -> 0..255
    labels = bunch.target.astype(np.int64)
    parts = train_test_split(images, labels, test_size=NUM_TEST, random_state=TEST_SEED, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part).contiguous() for part in parts)
    mean, std = mean_and_std(train_x)
    return DataSet(
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        class_names=tuple(str(name) for name in bunch.target_names),
        mean=mean,
        std=std,
    )
