from pathlib import Path

import pytest
import torch

from mnar.datasets import statistics
from mnar.datasets.statistics import mean_and_std
from tests.support.little_memory import run_with_little_memory


def test_images_have_the_moments_of_their_values_over_255() -> None:
    images = torch.randint(0, 256, (20, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = mean_and_std(images)
    values = images.double() / 255
    torch.testing.assert_close(mean, tuple(values.mean(dim=(0, 2, 3)).tolist()))
    torch.testing.assert_close(std, tuple(values.std(dim=(0, 2, 3), correction=0).tolist()))


def test_tables_have_the_moments_of_each_feature() -> None:
    table = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    assert mean_and_std(table) == ((2.0, 20.0), (1.0, 10.0))


def test_a_constant_channel_or_feature_is_only_centred() -> None:
    assert mean_and_std(torch.full((4, 1, 2, 2), 255, dtype=torch.uint8)) == ((1.0,), (1.0,))
    assert mean_and_std(torch.full((4, 1), 7.0)) == ((7.0,), (1.0,))


def test_images_read_in_chunks_have_exactly_the_moments_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (23, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    whole = mean_and_std(images)
    for rows in (1, 4, 23):
        monkeypatch.setattr(statistics, "CHUNK_BYTES", rows * images[0].nbytes)
        assert mean_and_std(images) == whole


def test_tables_read_in_chunks_have_the_moments_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # Far from zero, and drifting: sums of squares would lose all digits, means of chunks alone the drift.
    table = torch.randn(23, 4, generator=torch.Generator().manual_seed(1)) + 1e4 + torch.arange(23)[:, None]
    variance, mean = torch.var_mean(table.double(), dim=0, correction=0)
    assert mean_and_std(table) == (tuple(mean.tolist()), tuple(variance.sqrt().tolist())), "in one chunk, to the bit"
    for rows in (1, 4, 22):
        monkeypatch.setattr(statistics, "CHUNK_BYTES", rows * table[0].nbytes)
        expected = tuple(mean.tolist()), tuple(variance.sqrt().tolist())
        for got, wanted in zip(mean_and_std(table), expected, strict=True):
            assert got == pytest.approx(wanted, rel=1e-12)


def test_moments_of_a_mapped_file_take_less_memory_than_the_file(tmp_path: Path) -> None:
    run_with_little_memory("assert mean_and_std(images) == ((0.0,) * 3, (1.0,) * 3)", tmp_path)
