from pathlib import Path

import numpy as np
import pytest
import torch

from mnar.datasets.mnist_tabular import mnist_tabular
from tests.datasets.test_mnist import IMAGES, LABELS, write


@pytest.mark.parametrize("gzipped", [False, True])
def test_rows_are_the_pixels_that_were_written_over_255(tmp_path: Path, gzipped: bool) -> None:
    write(tmp_path / "MNIST/raw", gzipped=gzipped)
    data = mnist_tabular(tmp_path)
    for rows, images in ((data.train_x, IMAGES["train"]), (data.test_x, IMAGES["t10k"])):
        assert rows.dtype == torch.float32
        np.testing.assert_allclose(rows, images.reshape(len(images), 784) / 255, rtol=1e-6)
    assert data.train_y.tolist() == LABELS["train"].tolist()
    assert data.test_y.tolist() == LABELS["t10k"].tolist()
    assert not data.is_image


def test_mean_and_std_leave_the_features_as_they_are(tmp_path: Path) -> None:
    write(tmp_path)
    data = mnist_tabular(tmp_path)
    assert data.mean == (0.0,) * 784
    assert data.std == (1.0,) * 784


def test_missing_files_name_the_option(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--data"):
        mnist_tabular(tmp_path)
