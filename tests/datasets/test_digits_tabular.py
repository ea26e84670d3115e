import torch
from sklearn.datasets import load_digits

from mnar.datasets import digits, digits_tabular


def test_rows_are_the_pixels_of_digits_over_255_with_the_same_labels() -> None:
    table, images = digits_tabular(None), digits(None)
    for rows, pixels in ((table.train_x, images.train_x), (table.test_x, images.test_x)):
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows * 255, pixels.reshape(len(pixels), 64).float())
    assert torch.equal(table.train_y, images.train_y)
    assert torch.equal(table.test_y, images.test_y)
    assert table.class_names == images.class_names
    assert not table.is_image


def test_grey_levels_are_scikit_learns_sixteenths_to_within_half_a_255th() -> None:
    table = digits_tabular(None)
    rows = torch.cat([table.train_x, table.test_x])
    source = torch.from_numpy(load_digits().data / 16).float()
    distance = torch.cdist(rows, source, p=torch.inf, compute_mode="donot_use_mm_for_euclid_dist")
    assert distance.amin(1).max() <= 0.5 / 255 + 1e-6
    assert (rows.min().item(), rows.max().item()) == (0.0, 1.0)


def test_mean_and_std_leave_the_features_as_they_are() -> None:
    table = digits_tabular(None)
    assert table.mean == (0.0,) * 64
    assert table.std == (1.0,) * 64
