"""The samples of the user's data as the merge sees them, and how an annotation finds its sample."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mnar.datasets.user_files.label_values import is_missing, without_zero_decimals
from mnar.trained.merge.annotation import Annotation

Cells = Mapping[int, Mapping[str, str]]  # by row number: the cells of the row


@dataclass(frozen=True)
class LabeledSamples:
    """All samples of a source, with their labels."""

    where: str  # the source; messages begin with it
    row_numbers: Sequence[int]  # from 1, without a header; 0: the sample has no row
    names: Sequence[str]
    labels: Sequence[str]  # "": no label
    class_names: tuple[str, ...]  # includes classes that have no label yet
    ids: Sequence[str] | None = None
    names_identify: bool = False  # the names are paths, and not just other words for the row numbers
    former_names: Mapping[str, str] = field(default_factory=dict)  # names before an earlier merge, and those of now
    unlabeled: Collection[str] = ()  # further texts that mean "no label"
    cells_of: Callable[[Collection[int]], Cells] = lambda rows: {}  # the cells of rows, if it is a table of text


class Found(NamedTuple):
    """The sample that an annotation belongs to, or why there is none."""

    place: int | None  # position in the samples
    problem: str = ""
    is_moved: bool = False  # another row of the data than the annotation says


def plain_labels(
    texts: Sequence[str | None], class_names: Sequence[str] | None, unlabeled: Collection[str]
) -> tuple[list[str], tuple[str, ...]]:
    """Return the labels as `mnar train` reads them, "" if there is none, and the names of the classes.

    `class_names` fixes the classes, if the data have a list of them.
    """
    known = tuple(class_names or ())
    stripped = ["" if text is None else text.strip() for text in texts]
    missing = {text for text in set(stripped) if is_missing(text, known, unlabeled)}
    labels = [None if text in missing else text for text in stripped]
    if class_names is None:
        labels = without_zero_decimals(labels)
    present = sorted({label for label in labels if label is not None} - {*known})
    return ["" if label is None else label for label in labels], (*known, *present)


def find_samples(samples: LabeledSamples, annotations: Sequence[Annotation]) -> list[Found]:
    """Return the sample of each annotation.

    A path or an id that occurs once decides. Otherwise the row number decides, and the name, the id and the cells that
    the annotation has must agree with the row: if they do not, the data have changed since the annotator got them.
    """
    names = {samples.former_names.get(text, text) for a in annotations if (text := a.sample) is not None}
    by_name = _places(samples.names, names)
    by_id = _places(samples.ids or (), {a.id for a in annotations if a.id is not None})
    by_row = {row: place for place, row in enumerate(samples.row_numbers) if row}
    cells = samples.cells_of({a.row for a in annotations if a.row and a.cells})
    return [_find(samples, a, by_name, by_id, by_row, cells) for a in annotations]


def _find(
    samples: LabeledSamples,
    a: Annotation,
    by_name: Mapping[str, list[int]],
    by_id: Mapping[str, list[int]],
    by_row: Mapping[int, int],
    cells: Cells,
) -> Found:
    name = None if a.sample is None else samples.former_names.get(a.sample, a.sample)
    with_id = by_id.get(a.id, []) if a.id is not None and samples.ids is not None else None
    with_name = by_name.get(name, []) if name is not None else None
    decisive = with_id if with_id is not None else with_name if samples.names_identify or not a.row else None
    if decisive is not None and len(decisive) == 1:
        place = decisive[0]
        return Found(place, is_moved=bool(a.row) and samples.row_numbers[place] != a.row)
    if not a.row:
        return Found(None, f"{len(decisive)} samples have this name" if decisive else "there is no such sample")
    place_or_none = by_row.get(a.row)
    if place_or_none is None:
        return Found(None, f"{samples.where} has no sample in row {a.row}")
    if decisive is not None and place_or_none not in decisive:
        its_name = samples.names[place_or_none] if samples.ids is None else samples.ids[place_or_none]
        return Found(None, f"row {a.row} of {samples.where} is {its_name!r}")
    if with_name is not None and place_or_none not in with_name:
        return Found(None, f"row {a.row} of {samples.where} is {samples.names[place_or_none]!r}")
    changed = [
        column
        for column, cell in (a.cells or {}).items()
        if column in cells.get(a.row, {}) and cells[a.row][column].strip() != str(cell).strip()
    ]
    if changed:
        return Found(None, f"row {a.row} of {samples.where} has other cells in {', '.join(changed[:3])}")
    return Found(place_or_none)


def _places(texts: Sequence[str], wanted: Collection[str]) -> dict[str, list[int]]:
    """Return the positions at which each wanted text occurs."""
    places: dict[str, list[int]] = {}
    for place, text in enumerate(texts) if wanted else ():
        if text in wanted:
            places.setdefault(text, []).append(place)
    return places
