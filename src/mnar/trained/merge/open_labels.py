"""Recognise what the user's data are, and open the place where their labels are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from mnar.datasets.user_files.arrays import read_arrays
from mnar.datasets.user_files.class_folders import read_class_folders
from mnar.datasets.user_files.columns import PARQUET
from mnar.datasets.user_files.huggingface import read_huggingface
from mnar.datasets.user_files.image_csv import read_image_csv
from mnar.datasets.user_files.read_data import kind_and_reader
from mnar.datasets.user_files.table import read_table
from mnar.trained.merge.class_folders import ClassFolders
from mnar.trained.merge.csv_table import CsvTable
from mnar.trained.merge.image_csv import ImageCsv
from mnar.trained.merge.label_store import LabelStore
from mnar.trained.merge.npz_file import NpzFile
from mnar.trained.merge.parquet_file import ParquetFile


def open_labels(
    source: Path,
    *,
    label: str | None = None,
    ignore: Sequence[str] = (),
    unlabeled: Sequence[str] = (),
    id: str | None = None,
) -> LabelStore:
    """Open the labels of `source`; the options are those of `read_data`.

    An option that does not apply to this kind of source is an error.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(f"no data at {source}; name the data that the model was trained on")
    kind, read = kind_and_reader(source, tuple(ignore), False)
    if read is read_huggingface:
        raise ValueError(
            f"{source} is {kind}, into which labels cannot be merged; save it as a table first, e.g. "
            "data.to_parquet('data.parquet') or data.to_csv('data.csv'), and merge into that file"
        )
    stores: dict[Any, Callable[..., LabelStore]] = {
        read_image_csv: ImageCsv,
        read_class_folders: ClassFolders,
        read_arrays: NpzFile,
        read_table: ParquetFile if source.suffix.lower() in PARQUET else CsvTable,
    }
    store = stores[read]
    options = {"label": label, "ignore": tuple(ignore), "unlabeled": tuple(unlabeled), "id": id}
    given = {name: value for name, value in options.items() if value not in (None, ())}
    accepted = signature(store).parameters
    refused = [f"--{name}" for name in given if name not in accepted]
    if refused:
        raise ValueError(f"{source} is {kind}, to which {' and '.join(refused)} cannot be applied; leave it out")
    return store(source, **given)
