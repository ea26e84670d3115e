import math

import pytest

from mnar.datasets.user_files.label_values import encode_labels, is_missing, is_missing_feature, is_missing_value

WHERE = "own.csv"


@pytest.mark.parametrize("text", ["", "  ", "NaN", "nan", "NA", "n/a", "None", "NULL", "?", "-1", " -1.0 ", None])
def test_usual_texts_for_no_label_are_missing(text: str | None) -> None:
    assert is_missing(text)


@pytest.mark.parametrize("text", ["0", "-2", "1", "no", "nano", "??"])
def test_a_label_is_not_missing(text: str) -> None:
    assert not is_missing(text)


def test_a_named_class_is_not_missing_and_a_text_named_as_no_label_is() -> None:
    assert not is_missing(" None", ["None"])
    assert is_missing(" todo ", (), ["todo"])
    assert is_missing("todo", ["todo"], ["todo"]), "the value on the command line counts more than the list of classes"


class NotAvailable:
    """Like pandas.NA, which raises an error when it is compared."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __str__(self) -> str:
        return "<NA>"


@pytest.mark.parametrize("value", [None, math.nan, NotAvailable(), "", " ", "?", "nan", "NaT", -1, -1.0, "-1"])
def test_in_memory_none_nan_minus_one_and_their_texts_mean_no_label(value: object) -> None:
    assert is_missing_value(value)


@pytest.mark.parametrize("value", ["none", "NA", "n/a", "null", "None", 0, 1.0, False, "a"])
def test_in_memory_every_other_value_is_a_class(value: object) -> None:
    assert not is_missing_value(value)


@pytest.mark.parametrize(
    ("value", "unlabeled", "missing"),
    [(9, 9, True), ("9", 9, True), ("todo", "todo", True), (-1, 9, False), (-1, None, False), ("None", None, False)],
)
def test_in_memory_another_value_can_replace_minus_one(value: object, unlabeled: object, missing: bool) -> None:
    assert is_missing_value(value, unlabeled) is missing


@pytest.mark.parametrize(("text", "missing"), [("-1", False), ("None", False), ("", True), ("NaN", True), ("?", True)])
def test_a_feature_may_be_minus_one_or_none(text: str, missing: bool) -> None:
    assert is_missing_feature(text) is missing


def test_numbers_are_sorted_by_value_and_before_text() -> None:
    y, names, notes = encode_labels(["10", "9", "", "b", "2"], WHERE)
    assert names == ("2", "9", "10", "b")
    assert y.tolist() == [2, 1, -1, 3, 0]
    assert notes == []


def test_decimals_are_dropped_if_all_labels_are_whole_numbers() -> None:
    assert encode_labels(["1.0", "nan", "0.0", "1"], WHERE)[1] == ("0", "1")
    assert encode_labels(["1.0", "", "1.5"], WHERE)[1] == ("1.0", "1.5")
    assert encode_labels(["1.0", "", "a"], WHERE)[1] == ("1.0", "a")


def test_given_classes_keep_their_order_and_may_have_no_label_or_look_missing() -> None:
    y, names, notes = encode_labels(["dog", "None", None, ""], WHERE, ["emu", "dog", "None"])
    assert names == ("emu", "dog", "None")
    assert y.tolist() == [1, 2, -1, -1]
    assert notes == []


def test_surrounding_spaces_are_dropped_with_a_note() -> None:
    y, names, notes = encode_labels(["cat", "cat ", "dog", ""], WHERE)
    assert names == ("cat", "dog")
    assert y.tolist() == [0, 0, 1, -1]
    assert notes == ["own.csv: the spelling 'cat ' is taken as class 'cat', without the spaces"]


def test_classes_that_differ_in_case_or_inner_spaces_are_kept_apart_and_named() -> None:
    _, names, notes = encode_labels(["Cat", "cat", "polar bear", "Polarbear", "dog", ""], WHERE)
    assert len(names) == 5
    assert [note.split(" differ")[0] for note in notes] == [
        "own.csv: classes 'Cat', 'cat'",
        "own.csv: classes 'Polarbear', 'polar bear'",
    ]


def test_a_note_lists_texts_that_were_taken_as_no_label_but_might_be_a_class() -> None:
    _, names, notes = encode_labels(["mild", "severe", "none", "none", "nan", ""], WHERE)
    assert names == ("mild", "severe")
    assert len(notes) == 1
    assert "taken as no label: 'none' (2 rows)" in notes[0]


def test_the_user_can_name_further_texts_that_mean_no_label() -> None:
    y, names, notes = encode_labels(["Y", "N", "U", " U"], WHERE, unlabeled=["U"])
    assert names == ("N", "Y")
    assert y.tolist() == [1, 0, -1, -1]
    assert notes == []


def test_a_given_class_can_be_named_as_no_label() -> None:
    y, names, _ = encode_labels(["dog", "todo", "emu", ""], WHERE, ["emu", "todo", "dog"], unlabeled=["todo"])
    assert names == ("emu", "dog")
    assert y.tolist() == [1, -1, 0, -1]


def test_a_note_says_that_data_without_an_unlabelled_row_are_plain_supervised_learning() -> None:
    assert "plain supervised learning" in encode_labels(["a", "b"], WHERE)[2][0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["", None, "NaN"], "own.csv: no row has a label"),
        (["cat", "", "cat"], "own.csv: every label is 'cat'.*label some rows of another class"),
        (["1", "-1", "1"], "own.csv: every label is '1'.*these mean no label.*-1"),
        ([f"{i}.5" for i in range(101)], "own.csv: the labels are 101 different numbers, such as 0.5: a quantity"),
    ],
)
def test_labels_that_cannot_be_learned_from_are_an_error_with_the_remedy(
    values: list[str | None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode_labels(values, WHERE)


def test_a_hundred_and_one_whole_numbers_are_classes() -> None:
    labels = [str(i) for i in range(101)]
    _, names, notes = encode_labels([*labels, *labels], WHERE)
    assert len(names) == 101
    assert any("the 202 labels are 101 different whole numbers" in note for note in notes)


@pytest.mark.parametrize("names", [[f"row {i}" for i in range(20)], [str(i) for i in range(20)]])
def test_labels_that_all_differ_are_an_error_unless_they_are_few_or_the_classes_are_given(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"each of the 20 labels occurs once, .* looks like an id, .*--label"):
        encode_labels([*names, ""], WHERE)
    assert len(encode_labels([*names, ""], WHERE, names)[1]) == 20
    assert len(encode_labels(names[1:], WHERE)[1]) == 19
    assert len(encode_labels([*names, names[0]], WHERE)[1]) == 20


def test_a_quantity_is_an_error_even_with_few_labels() -> None:
    quantity = [f"{i / 7:.3f}" for i in range(30)]
    with pytest.raises(ValueError, match=r"30 different numbers, such as 0\.143: a quantity, .* cut the quantity"):
        encode_labels([*quantity, *quantity[:5]], WHERE)
    grades = ["1.0", "1.3", "1.7", "2.0"]
    assert encode_labels(grades * 10, WHERE)[1] == tuple(grades)


def test_a_label_outside_the_given_classes_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"own\.csv, line 7: label 'cow' is not one of cat, dog"):
        encode_labels(["cat", "cow", ""], WHERE, ["cat", "dog"], row_names=["line 4", "line 7", "line 8"])


@pytest.mark.parametrize(
    ("class_names", "message"), [(["cat", "dog", "cat "], "class 'cat' is named 2 times"), (["cat", " "], "empty name")]
)
def test_given_classes_must_be_names_that_differ(class_names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_labels(["cat", ""], WHERE, class_names)
