"""Turn labels as the user wrote them, some of them missing, into class numbers."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import UNLABELED

# Texts that mean "missing", in lower case. The first set can mean nothing else; a class may be called "null" or "none".
ALWAYS_MISSING = frozenset({"", "nan", "<na>", "nat", "?"})
MISSING_FEATURES = ALWAYS_MISSING | {"na", "null"}
USUAL_MISSING_FEATURES = tuple(  # spellings that fast readers know; `is_missing_feature` knows all
    sorted({form for text in MISSING_FEATURES for form in (text, text.upper(), text.capitalize())} | {"NaN"})
)
MISSING_LABELS = MISSING_FEATURES | {"n/a", "none", "-1", "-1.0"}
LABEL_NAMES = ("label", "class", "target", "y")  # usual names of a label column, in lower case
WHOLE_NUMBER = re.compile(r"([+-]?\d+)(\.0+)?")
MAX_FRACTIONAL_CLASSES = 100  # a column with more different numbers, some with decimals, is a quantity
MIN_LABELS = 20  # with fewer labels, one label per class can be intended
MAX_QUANTITY_SHARE = 0.5  # so many different fractions per label are a quantity
MAX_WHOLE_CLASSES = 50  # more different whole numbers may be a quantity


def is_missing(text: str | None, class_names: Collection[str] = (), unlabeled: Collection[str] = ()) -> bool:
    """Whether the text of a label in a file means "no label".

    `unlabeled` are further texts that mean "no label". A text in `class_names` is a class, even a text such as "None".
    """
    stripped = "" if text is None else text.strip()
    return stripped in unlabeled or (stripped not in class_names and stripped.casefold() in MISSING_LABELS)


def is_missing_value(value: object, unlabeled: object = UNLABELED) -> bool:
    """Whether a label in memory means "no label". A text such as "none" is a class here, because Python has None.

    `unlabeled` is the value that means "no label"; None means that there is no such value. The same value written as
    text counts too, because numpy turns all values of a mixed list into text.
    """
    text = str(value).strip()
    if value is None or text.casefold() in ALWAYS_MISSING:  # before any comparison, which raises for pandas' NA
        return True
    return unlabeled is not None and (value == unlabeled or text == str(unlabeled))


def is_missing_feature(text: str | None) -> bool:
    """Whether the text of a feature means that the feature is missing. Unlike a label, it may be -1 or "None"."""
    return text is None or text.strip().casefold() in MISSING_FEATURES


def label_names(names: Sequence[str]) -> list[str]:
    """Return the columns that have a usual name of a label column."""
    return [name for name in names if name.casefold() in LABEL_NAMES]


def label_column(names: Sequence[str], where: str, otherwise: Sequence[str] = ()) -> str:
    """Return the column that has a usual name of a label column or, if none has, the only column in `otherwise`."""
    found = label_names(names) or otherwise
    if len(found) != 1:
        raise ValueError(f"{where}: which column is the label? Name it with --label: {', '.join(found or names)}")
    return found[0]


def encode_labels(
    values: Sequence[str | None],
    where: str,
    class_names: Sequence[str] | None = None,
    *,
    row_names: Sequence[str] | None = None,
    unlabeled: Collection[str] = (),
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], list[str]]:
    """Return the class number of each label (UNLABELED if there is none), the class names in order, and notes.

    `class_names` fixes the classes and their order; without it, the classes are the different labels, sorted. Error
    messages begin with `where`, the file and its column, and name the row if `row_names` is given. Texts in `unlabeled`
    mean "no label", even if they are in `class_names`.
    """
    known = tuple(name for name in _checked_class_names(class_names, where) if name not in unlabeled)
    texts = ["" if value is None else value.strip() for value in values]
    missing = {text for text in set(texts) if is_missing(text, known, unlabeled)}
    labels = [None if text in missing else text for text in texts]
    if class_names is None:
        labels = without_zero_decimals(labels)
        known = tuple(sorted({label for label in labels if label is not None}, key=_numbers_before_texts))

    number = {name: c for c, name in enumerate(known)}
    for row, label in enumerate(labels):
        if label is not None and label not in number:
            row_name = "" if row_names is None else f", {row_names[row]}"
            raise ValueError(
                f"{where}{row_name}: label {label!r} is not one of {', '.join(known)}; correct the label, or add "
                "it to the list of classes"
            )
    y = np.array([UNLABELED if label is None else number[label] for label in labels], np.int64)

    _check_that_classes_can_be_learned(y, known, where)
    if class_names is None:
        _check_that_labels_repeat(y, known, where)
    doubtful = {text for text in missing.difference(unlabeled) if text.casefold() not in ALWAYS_MISSING}
    doubtful_counts = Counter(text for text in texts if text in doubtful)
    return y, known, _notes(values, doubtful_counts, y, known, where)


def match_labels(
    values: Sequence[str | None],
    where: str,
    class_names: Sequence[str],
    *,
    row_names: Sequence[str],
    unlabeled: Collection[str] = (),
) -> npt.NDArray[np.int64]:
    """Return the number of each label among the classes of a trained model, or UNLABELED if there is no label.

    A label that is none of these classes is an error, which begins with `where` and names the first such row.
    """
    number = {name: c for c, name in enumerate(class_names)}
    number_of_value: dict[str | None, int] = {}
    for value in dict.fromkeys(values):
        text = "" if value is None else value.strip()
        whole = WHOLE_NUMBER.fullmatch(text)
        if is_missing(text, class_names, unlabeled):
            number_of_value[value] = UNLABELED
        elif text in number:
            number_of_value[value] = number[text]
        elif whole and whole.group(1) in number:  # many programs write 1.0 if the column has missing values
            number_of_value[value] = number[whole.group(1)]
        else:
            raise ValueError(
                f"{where}, {row_names[list(values).index(value)]}: label {text!r} is no class of the model, whose "
                f"classes are {', '.join(class_names)}; correct the label, or give --unlabeled {shlex.quote(text)} to "
                "treat it as no label"
            )
    return np.array([number_of_value[value] for value in values], np.int64)


def _checked_class_names(class_names: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the given class names without surrounding spaces; an empty name or a repeated name is an error."""
    names = tuple(name.strip() for name in class_names or ())
    for name, times in Counter(names).items():
        if not name:
            raise ValueError(f"{where}: one of the classes has an empty name; give it a name or remove it")
        if times > 1:
            raise ValueError(f"{where}: class {name!r} is named {times} times; name each class once")
    return names


def without_zero_decimals(labels: list[str | None]) -> list[str | None]:
    """Turn 1.0 into 1 if all labels are whole numbers: many programs write 1.0 when the column has missing values."""
    matches = {label: WHOLE_NUMBER.fullmatch(label) for label in set(labels) if label is not None}
    if not all(matches.values()):
        return labels
    short = {label: match.group(1) for label, match in matches.items() if match}
    return [None if label is None else short[label] for label in labels]


def _numbers_before_texts(name: str) -> tuple[bool, float, str]:
    """Return a sort key that puts numbers first, by their value, and texts after them."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def is_number(name: str) -> bool:
    """Whether the name of a class is a number."""
    return not _numbers_before_texts(name)[0]


def _check_that_classes_can_be_learned(y: npt.NDArray[np.int64], names: tuple[str, ...], where: str) -> None:
    """Raise an error if fewer than two classes have labels, or if the labels are a quantity."""
    present = np.unique(y[y != UNLABELED])
    if len(present) == 0:
        raise ValueError(f"{where}: no row has a label; fill in some of each class, or name another label column")
    if len(present) == 1:
        raise ValueError(
            f"{where}: every label is {names[present[0]]!r}, but there must be two classes or more; label some rows of "
            f"another class (these mean no label: an empty cell, {', '.join(sorted(MISSING_LABELS - {''}))})"
        )
    fractions = _fractions(names)
    num_labels = np.count_nonzero(y != UNLABELED)
    is_varied = num_labels >= MIN_LABELS and len(present) > MAX_QUANTITY_SHARE * num_labels
    if fractions and (len(names) > MAX_FRACTIONAL_CLASSES or is_varied):
        raise ValueError(
            f"{where}: the labels are {len(names)} different numbers, such as {fractions[0]}: a quantity, not "
            "classes; cut the quantity into ranges first, e.g. low, middle and high, or name another label column"
        )


def _fractions(names: tuple[str, ...]) -> list[str]:
    """Return the classes that are numbers with decimals if all classes are numbers."""
    if not all(is_number(name) for name in names):
        return []
    return [name for name in names if not float(name).is_integer()]


def _check_that_labels_repeat(y: npt.NDArray[np.int64], names: tuple[str, ...], where: str) -> None:
    """Raise an error if there are many labels and each occurs once: then the column identifies the rows."""
    num_labels = np.count_nonzero(y != UNLABELED)
    if num_labels >= MIN_LABELS and num_labels == len(names):
        raise ValueError(
            f"{where}: each of the {num_labels:,} labels occurs once, such as {names[0]!r}: this looks like an id, not "
            "like classes; name another label column with --label"
        )


def _notes(
    values: Sequence[str | None],
    doubtful_counts: Counter[str],
    y: npt.NDArray[np.int64],
    names: tuple[str, ...],
    where: str,
) -> list[str]:
    """Return notes on what was guessed about the labels. `doubtful_counts` are texts that might also be classes."""
    notes = []
    spellings = defaultdict(set)
    for value, c in set(zip(values, y.tolist(), strict=True)):
        if value is not None and c != UNLABELED and value != value.strip():
            spellings[c].add(value)
    for c, written in sorted(spellings.items()):
        notes.append(
            f"{where}: the spelling {' or '.join(map(repr, sorted(written)))} is taken as class {names[c]!r}, without "
            "the spaces"
        )

    similar = defaultdict(list)
    for name in names:
        similar["".join(name.split()).casefold()].append(name)
    notes += [
        f"{where}: classes {', '.join(map(repr, group))} differ only in case or spaces and count as different classes; "
        "write them in the same way if they are one class"
        for group in similar.values()
        if len(group) > 1
    ]
    doubtful = [f"{text!r} ({times} rows)" for text, times in sorted(doubtful_counts.items())]
    if doubtful:
        notes.append(f"{where}: texts taken as no label: {', '.join(doubtful)}; rename a text that is a class")
    num_labels = np.count_nonzero(y != UNLABELED)
    if len(names) > MAX_WHOLE_CLASSES and num_labels < MIN_LABELS * len(names) and all(map(is_number, names)):
        notes.append(
            f"{where}: the {num_labels:,} labels are {len(names)} different whole numbers, which count as classes "
            "without an order; if the numbers are a quantity, cut the quantity into ranges first"
        )
    if not np.any(y == UNLABELED):
        notes.append(f"{where}: every row has a label, so this is plain supervised learning")
    return notes
