import numpy as np
import torch
from sklearn.datasets import load_digits

from mnar.datasets import digits


def test_all_1797_images_are_there_once_scaled_from_16_to_255() -> None:
    data = digits(None)
    assert data.train_x.shape == (1297, 1, 8, 8)
    assert data.test_x.shape == (500, 1, 8, 8)
    assert data.train_x.dtype == torch.uint8
    assert data.train_x.max() == 255
    rows = torch.cat([data.train_x, data.test_x]).flatten(1).numpy()
    source = np.round(load_digits().data * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, source))
    assert data.class_names == tuple("0123456789")


def test_labels_still_belong_to_their_images() -> None:
    data = digits(None)
    source = load_digits()
    label_of = {
        bytes(row): label
        for row, label in zip(np.round(source.data * 255 / 16).astype(np.uint8), source.target, strict=True)
    }
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert [label_of[bytes(row)] for row in x.flatten(1).numpy()] == y.tolist()


def test_the_test_set_is_stratified_and_the_same_every_time() -> None:
    first, again = digits(None), digits(None)
    assert torch.equal(first.test_x, again.test_x)
    shares = torch.bincount(first.test_y, minlength=10)
    everything = shares + torch.bincount(first.train_y, minlength=10)
    assert (shares - everything * 500 / 1797).abs().max() < 1


def test_mean_and_std_whiten_the_training_part() -> None:
    data = digits(None)
    whitened = (data.train_x / 255 - data.mean[0]) / data.std[0]
    torch.testing.assert_close(whitened.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(whitened.std(correction=0), torch.tensor(1.0))


def test_a_data_set_holds_images_until_they_are_rows_of_numbers() -> None:
    data = digits(None)
    assert data.is_image
    assert not data._replace(train_x=data.train_x.flatten(1).float()).is_image
