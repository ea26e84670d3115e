import pytest

from mnar.protocols import balanced


def test_every_class_has_its_equal_share() -> None:
    assert balanced(100, 400) == ((4,) * 100, None)


def test_gamma_u_makes_the_last_class_the_largest() -> None:
    assert balanced(3, 6, gamma_u=100, m1=1000).unlabeled == (10, 100, 1000)


@pytest.mark.parametrize(
    ("num_labels", "message"),
    [
        (42, "num_labels is 42, no multiple of 10 classes; give 40 or 50"),
        (5, "num_labels is 5 for 10 classes"),
    ],
)
def test_impossible_requests_name_value_and_remedy(num_labels: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balanced(10, num_labels)
