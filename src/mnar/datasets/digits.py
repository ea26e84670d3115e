"""Load the handwritten digits of scikit-learn: 1,797 real images of 8x8 pixels that need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from mnar.datasets.statistics import mean_and_std
from mnar.types import DataSet

NUM_TEST = 500
FIXED_SEED = 0  # of the test set that all runs share, whatever their own seed
DRAWN_STREAM = 0x7E57  # keeps the draw of the test set apart from the other draws with the seed of the run


def digits(
    root: Path | None = None, *, test_set: Literal["fixed", "drawn"] = "fixed", seed: int = FIXED_SEED
) -> DataSet:
    """Return the digits as grey images: 1,297 to train on and 500 to test, with the class shares of all images.

    root      not used, because the images come with scikit-learn
    test_set  "fixed": all runs have the same test set; "drawn": the seed of the run draws the test set, so that the
              spread over seeds also covers the choice of the test images
    seed      seed of the run
    """
    # Importing scikit-learn takes a second, and `mnar list` does not need it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = np.round(bunch.images[:, None] * (255 / 16)).astype(np.uint8)  # grey levels 0..16 -> 0..255
    labels = bunch.target.astype(np.int64)
    draw = FIXED_SEED if test_set == "fixed" else _drawn_by(seed)
    parts = train_test_split(images, labels, test_size=NUM_TEST, random_state=draw, stratify=labels)
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


def _drawn_by(seed: int) -> np.random.RandomState:
    """Return random numbers for any seed of a run; scikit-learn itself takes only seeds below 2^32."""
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, DRAWN_STREAM])))
