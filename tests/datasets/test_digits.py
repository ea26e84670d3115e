import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from mnar.datasets import digits
from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split
from mnar.types import DataSet

SEEDS = (0, 1, 2, 2**32, 2**63 - 1)  # scikit-learn itself refuses the last two


def image_bytes(images: Tensor) -> list[bytes]:
    return [bytes(row) for row in images.flatten(1).numpy()]


def same_data(first: DataSet, second: DataSet) -> bool:
    parts = ("train_x", "train_y", "test_x", "test_y")
    return all(torch.equal(getattr(first, part), getattr(second, part)) for part in parts)


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


def test_the_fixed_test_set_is_scikit_learns_stratified_split_with_seed_0_whatever_the_seed_of_the_run() -> None:
    source = load_digits()
    images = np.round(source.images[:, None] * (255 / 16)).astype(np.uint8)
    parts = train_test_split(images, source.target, test_size=500, random_state=0, stratify=source.target)
    train_x, test_x, train_y, test_y = map(torch.from_numpy, parts)
    for seed in SEEDS:
        data = digits(seed=seed)
        assert same_data(data, data._replace(train_x=train_x, test_x=test_x, train_y=train_y, test_y=test_y))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_test_set_is_the_same_for_the_same_seed_and_another_for_every_other_seed(seed: int) -> None:
    data = digits(test_set="drawn", seed=seed)
    assert same_data(data, digits(test_set="drawn", seed=seed))
    test_images = set(image_bytes(data.test_x))
    others = [digits(), *(digits(test_set="drawn", seed=other) for other in SEEDS if other != seed)]
    for other in others:
        # Two independent draws of 500 of 1,797 images share 139 on average, with a standard deviation of 8.5.
        assert 139 - 60 < len(test_images & set(image_bytes(other.test_x))) < 139 + 60


@pytest.mark.parametrize("seed", SEEDS)
def test_the_drawn_test_set_and_the_training_set_have_every_image_once_with_the_class_counts_of_the_fixed_ones(
    seed: int,
) -> None:
    data, fixed = digits(test_set="drawn", seed=seed), digits()
    source = image_bytes(torch.from_numpy(np.round(load_digits().data * 255 / 16).astype(np.uint8)))
    assert len(set(source)) == 1797  # no two images are equal, so that bytes identify an image
    assert sorted(image_bytes(data.train_x) + image_bytes(data.test_x)) == sorted(source)
    assert torch.bincount(data.test_y).tolist() == [50, 51, 49, 51, 50, 51, 50, 50, 48, 50]
    assert torch.equal(torch.bincount(data.test_y), torch.bincount(fixed.test_y))
    assert torch.equal(torch.bincount(data.train_y), torch.bincount(fixed.train_y))
    label_of = dict(zip(source, load_digits().target.tolist(), strict=True))
    assert [label_of[image] for image in image_bytes(data.test_x)] == data.test_y.tolist()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_labelled_and_no_unlabelled_image_of_a_run_is_in_the_test_set_that_its_seed_draws(seed: int) -> None:
    config = configure(dataset="digits", seed=seed, settings=["dataset.test_set=drawn"])
    data = load_data(config)
    assert same_data(data, digits(test_set="drawn", seed=seed))
    rows = make_split(config, data)
    used = np.union1d(rows.labeled_index, rows.unlabeled_index)
    assert set(image_bytes(data.train_x[used])).isdisjoint(image_bytes(data.test_x))


def test_the_seed_is_no_option_of_the_data_set_and_an_unknown_test_set_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ValueError, match=r"unknown option of dataset digits: 'seed'; choose from \['root', 'test_set'\]"
    ):
        configure(dataset="digits", settings=["dataset.seed=3"])
    with pytest.raises(ValueError, match=r"dataset\.test_set .* is 'random'; choose from \['fixed', 'drawn'\]"):
        configure(dataset="digits", settings=["dataset.test_set=random"])
