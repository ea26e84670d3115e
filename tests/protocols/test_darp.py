import pytest

from mnar.protocols import darp


def test_reverse_turns_the_unlabelled_counts_and_leaves_the_labels_long_tailed() -> None:
    forward, reverse = darp(10, 100, 50), darp(10, 100, 50, reverse=True)
    assert reverse.labeled == forward.labeled
    assert reverse.labeled[0] == 1500
    assert reverse.unlabeled == forward.unlabeled[::-1]


def test_n1_and_m1_scale_the_counts_to_cifar100() -> None:
    counts = darp(100, 10, 5, n1=150, m1=300)
    assert (counts.labeled[0], counts.labeled[-1]) == (150, 15)
    assert (counts.unlabeled[0], counts.unlabeled[-1]) == (300, 60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma_l": 0, "gamma_u": 1}, "gamma_l is 0; expected a number from 1 to"),
        ({"gamma_l": 1, "gamma_u": 0.5}, "gamma_u is 0.5; expected a number from 1 to"),
        ({"gamma_l": 1, "gamma_u": 1, "n1": 0}, "n1 is 0; expected a whole number from 1 to"),
        ({"gamma_l": 1, "gamma_u": 1, "m1": -1}, "m1 is -1; expected a whole number from 1 to"),
    ],
)
def test_impossible_requests_name_value_and_remedy(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        darp(10, **options)
