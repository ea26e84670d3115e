import torch

from mnar.datasets.statistics import mean_and_std


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
