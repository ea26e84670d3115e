"""Labels as people write them, with holes, and the class numbers they stand for."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.partly_labeled import UNLABELED

SURELY_NO_VALUE = frozenset({"", "nan", "<na>", "nat", "?"})
NO_VALUE = SURELY_NO_VALUE | {"na", "null"}
NO_LABEL = NO_VALUE | {"n/a", "none", "-1", "-1.0"}
LABEL_NAMES = ("label", "class", "target", "y")  # of columns, in capitals or not
WHOLE_NUMBER = re.compile(r"([+-]?\d+)(\.0+)?")
MOST_FRACTIONS = 100  # classes that are numbers with decimals; above, it is a quantity


def is_missing(text: str | None, class_names: Collection[str] = (), unlabeled: Collection[str] = ()) -> bool:
    """Of a label in a file, as people write it; `unlabeled` is what else they write for none.

    A name in `class_names` is a class, even one such as "None".
    """
    stripped = "" if text is None else text.strip()
    return stripped in unlabeled or (stripped not in class_names and stripped.casefold() in NO_LABEL)


def is_missing_value(value: object, unlabeled: object = UNLABELED) -> bool:
    """Of a label in memory, where None and NaN are at hand to say so: a text such as "none" is a class.

    As text, `unlabeled` is as good as itself: numpy writes all of a mixed list as text. None names no value.
    """
    text = str(value).strip()
    if value is None or text.casefold() in SURELY_NO_VALUE:  # before any comparison, which pandas' NA refuses
        return True
    return unlabeled is not None and (value == unlabeled or text == str(unlabeled))


def is_missing_feature(text: str | None) -> bool:
    """A feature may well be -1 or None."""
    return text is None or text.strip().casefold() in NO_VALUE


def label_column(names: Sequence[str], where: str, otherwise: Sequence[str] = ()) -> str:
    """The one with a usual name or, if none has, the one of `otherwise`."""
    found = [name for name in names if name.casefold() in LABEL_NAMES] or otherwise
    if len(found) != 1:
        raise ValueError(f"{where}: which column is the label? Name it with --label: {', '.join(found or names)}")
    return found[0]


def encode_labels(
    values: Sequence[str | None],
    where: str,
    class_names: Sequence[str] | None = None,
    *,
    lines: Sequence[int] | None = None,
    unlabeled: Collection[str] = (),
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], list[str]]:
    """Class numbers, the classes' names in order, and notes.

    `where` is the file (and column) that errors name, `lines` the line of each value in it, and `unlabeled` what else
    means "no label", even where `class_names` has it.
    """
    known = tuple(name for name in _given(class_names, where) if name not in unlabeled)
    texts = ["" if value is None else value.strip() for value in values]
    absent = {text for text in set(texts) if is_missing(text, known, unlabeled)}
    labels = [None if text in absent else text for text in texts]
    if class_names is None:
        labels = _without_idle_decimals(labels)
        known = tuple(sorted({label for label in labels if label is not None}, key=_by_value))

    number = {name: c for c, name in enumerate(known)}
    for row, label in enumerate(labels):
        if label is not None and label not in number:
            line = "" if lines is None else f", line {lines[row]}"
            raise ValueError(
                f"{where}{line}: label {label!r} is not one of {', '.join(known)}; add it there or mend it"
            )
    y = np.array([UNLABELED if label is None else number[label] for label in labels], np.int64)

    _check_enough(y, known, where)
    doubtful = {text for text in absent.difference(unlabeled) if text.casefold() not in SURELY_NO_VALUE}
    taken_as_none = Counter(text for text in texts if text in doubtful)
    return y, known, _notes(values, taken_as_none, y, known, where)


def _given(class_names: Sequence[str] | None, where: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in class_names or ())
    for name, times in Counter(names).items():
        if not name:
            raise ValueError(f"{where}: one of the classes has an empty name; name it or remove it")
        if times > 1:
            raise ValueError(f"{where}: class {name!r} is named {times} times; name each class once")
    return names


def _without_idle_decimals(labels: list[str | None]) -> list[str | None]:
    """1.0 is 1: programs write whole numbers so when the column has holes."""
    matches = {label: WHOLE_NUMBER.fullmatch(label) for label in set(labels) if label is not None}
    if not all(matches.values()):
        return labels
    short = {label: match.group(1) for label, match in matches.items() if match}
    return [None if label is None else short[label] for label in labels]


def _by_value(name: str) -> tuple[bool, float, str]:
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def _check_enough(y: npt.NDArray[np.int64], names: tuple[str, ...], where: str) -> None:
    present = np.unique(y[y != UNLABELED])
    if len(present) == 0:
        raise ValueError(f"{where}: no row has a label; fill in some of each class, or name another label column")
    if len(present) == 1:
        raise ValueError(
            f"{where}: every label is {names[present[0]]!r}, so there is nothing to tell apart; label some rows of "
            f"another class (these mean no label: an empty cell, {', '.join(sorted(NO_LABEL - {''}))})"
        )
    if len(names) > MOST_FRACTIONS and not any(_by_value(name)[0] for name in names):
        fractions = [name for name in names if not float(name).is_integer()]
        if fractions:
            raise ValueError(
                f"{where}: {len(names)} different numbers, such as {fractions[0]}: a quantity, not classes; "
                "cut it into ranges first, or name another label column"
            )


def _notes(
    values: Sequence[str | None],
    taken_as_none: Counter[str],
    y: npt.NDArray[np.int64],
    names: tuple[str, ...],
    where: str,
) -> list[str]:
    notes = []
    spellings = defaultdict(set)
    for value, c in set(zip(values, y.tolist(), strict=True)):
        if value is not None and c != UNLABELED and value != value.strip():
            spellings[c].add(value)
    for c, written in sorted(spellings.items()):
        notes.append(
            f"{where}: {', '.join(map(repr, sorted(written)))} taken as class {names[c]!r}, without the spaces"
        )

    alike = defaultdict(list)
    for name in names:
        alike["".join(name.split()).casefold()].append(name)
    notes += [
        f"{where}: classes {', '.join(map(repr, same))} differ only in case or spaces and are kept apart; "
        "write them the same way if they are one class"
        for same in alike.values()
        if len(same) > 1
    ]
    markers = [f"{text!r} ({times} rows)" for text, times in sorted(taken_as_none.items())]
    if markers:
        notes.append(f"{where}: taken as no label: {', '.join(markers)}; rename it where it is a class")
    if not np.any(y == UNLABELED):
        notes.append(f"{where}: every row has a label, so this is plain supervised learning")
    return notes
