"""Recognise what a file of annotations is, and read it."""

from __future__ import annotations

from pathlib import Path

from mnar.trained.merge.annotation import Annotations
from mnar.trained.merge.annotation_csv import read_annotation_csv
from mnar.trained.merge.label_studio_export import read_label_studio

CSV_SUFFIXES = (".csv", ".tsv", ".txt")


def read_annotations(path: Path, *, label: str | None = None, id: str | None = None) -> Annotations:
    """Read a CSV file or an export of Label Studio (.json).

    `label` is a further name of the answers, besides "label" and "choice". `id` is the column of the data that
    identifies the samples.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there are no annotations at {path}; name a CSV file or an export of Label Studio")
    suffix = path.suffix.lower()
    if suffix not in (*CSV_SUFFIXES, ".json"):
        raise ValueError(
            f"{path} is none of {', '.join(CSV_SUFFIXES)} or .json; save the annotations as a CSV file, or export them "
            "from Label Studio as JSON"
        )
    read = read_label_studio if suffix == ".json" else read_annotation_csv
    found = read(path, label=label, id=id)
    if not found.entries:
        raise ValueError(f"{path} holds no annotations; export or fill in at least one")
    return found
