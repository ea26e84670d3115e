"""The inputs of the portfolio: standardised tables, features of images, and samples of very large data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files import UNLABELED, PartlyLabeled, Table, read_data
from mnar.own_data import inputs
from mnar.own_data.inputs import InputEncoder, label_counts, samples_of
from mnar.types import DataSet
from tests.support.own_data_files import write_images


def table_of(x: np.ndarray, y: np.ndarray) -> DataSet:
    names = [f"row {row}" for row in range(len(y))]
    classes = tuple(map(str, range(y.max() + 1)))
    return as_data_set(PartlyLabeled(Table.of_numbers(x), y, classes, names, ()), held_out=0.0)


@pytest.fixture(scope="module")
def table() -> DataSet:
    rng = np.random.default_rng(0)
    y = np.where(np.arange(300) < 100, np.arange(300) % 2, UNLABELED)
    x = rng.normal(5.0, 3.0, (300, 4))
    x[0, 1] = 1e6
    return table_of(x, y)


def test_columns_have_mean_zero_and_deviation_one_and_outliers_are_clipped(table: DataSet) -> None:
    samples, _ = samples_of(table, 0)
    features = samples.inputs.features
    assert features.dtype == np.float32
    ordinary = [0, 2, 3]
    np.testing.assert_allclose(features[:, ordinary].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(features[:, ordinary].std(0), 1, atol=1e-5)
    assert features[0, 1] == inputs.MAX_DEVIATIONS
    np.testing.assert_array_equal(samples.y, table.train_y.numpy())


def test_new_rows_get_the_moments_of_the_training_rows(table: DataSet) -> None:
    samples, encoder = samples_of(table, 0)
    shifted = table.train_x.numpy() + 2 * np.array(table.std, np.float32)
    difference = encoder.inputs(shifted).features - samples.inputs.features
    np.testing.assert_allclose(difference[:, [0, 2, 3]], 2, atol=1e-4)


@pytest.mark.parametrize("kind", ["table", "images"])
def test_an_encoder_made_from_its_arrays_gives_the_same_inputs(table: DataSet, tmp_path: Path, kind: str) -> None:
    data = table if kind == "table" else as_data_set(read_data(write_images(tmp_path / "animals")), held_out=0.0)
    samples, encoder = samples_of(data, 3)
    again = InputEncoder.from_arrays(encoder.arrays()).inputs(data.train_x.numpy())
    np.testing.assert_array_equal(again.features, samples.inputs.features)
    assert (again.images is not None) == (kind == "images")


def test_very_large_data_are_sampled_with_the_class_mix_of_the_labels_and_no_class_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inputs, "MOST_LABELED", 60)
    monkeypatch.setattr(inputs, "MOST_POOL", 40)
    y = np.repeat([0, 1, 2, UNLABELED], [600, 200, 7, 1000])
    x = np.arange(len(y), dtype=float)[:, None]
    data = table_of(x, y)
    samples, _ = samples_of(data, 0)
    assert samples.counts.sum() == 60
    np.testing.assert_allclose(samples.counts, [0.74 * 55, 0.25 * 55, 5], atol=8)
    assert samples.counts[2] == 5
    assert label_counts(data).tolist() == [600, 200, 7], "all labels count, also those that are not drawn"
    assert (~samples.is_labeled).sum() == 40
    # each row keeps its own label: the column is the number of the row
    rows = samples.inputs.features[:, 0] * data.std[0] + data.mean[0]
    nearest = np.abs(rows[:, None] - data.train_x[:, 0].numpy()).argmin(1)
    np.testing.assert_array_equal(y[nearest], samples.y)
    np.testing.assert_array_equal(samples_of(data, 0)[0].y, samples.y)
    other = samples_of(data, 1)[0].inputs.features
    assert not torch.equal(torch.from_numpy(other), torch.from_numpy(samples.inputs.features))
