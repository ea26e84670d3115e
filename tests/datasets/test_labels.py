import numpy as np
import pytest

from mnar.datasets.labels import class_labels


def test_whole_numbers_of_any_type_become_int64() -> None:
    for kind in (np.uint8, np.int32, np.float32):
        labels = class_labels(np.array([0, 2, 1], kind), "y", 3)
        assert labels.dtype == np.int64
        assert labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 3], r"y\[1\] is 3; .*0 to 2"),
        ([0, -1], r"y\[1\] is -1"),
        ([np.nan], r"y\[0\] is nan"),
        ([np.inf], r"y\[0\] is inf"),
        ([0, 1, 1.5], r"y\[2\] is 1.5"),
        (["a"], "y has type <U1"),
        ([[0]], r"shape \(1, 1\)"),
    ],
)
def test_the_first_row_that_is_no_label_is_named(values: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_labels(values, "y", 3)


def test_infinity_is_no_label_where_the_number_of_classes_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"y\[0\] is inf"):
        class_labels([np.inf], "y")
