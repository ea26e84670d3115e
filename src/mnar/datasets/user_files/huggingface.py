"""Read a data set of the Hugging Face library `datasets`: an object, or a folder that save_to_disk has written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.arrays import label_texts, labels_of
from mnar.datasets.user_files.identifiers import identifiers
from mnar.datasets.user_files.image_cache import common_shape, height_and_width, in_parallel, unreadable_notes
from mnar.datasets.user_files.image_decode import Shape, Unreadable, decode, quiet_pillow, read_header
from mnar.datasets.user_files.image_store import KnownFile
from mnar.datasets.user_files.label_values import label_column, label_names
from mnar.datasets.user_files.leaks import leaks
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import UNLABELED, PartlyLabeled, RowNames
from mnar.datasets.user_files.table import features_like, features_of


def read_huggingface(
    source: Any,
    *,
    label: str | None = None,
    ignore: Sequence[str] = (),
    unlabeled: Collection[str] = (),
    size: int | None = None,
    id: str | None = None,
    like: ModelInputs | None = None,
) -> PartlyLabeled:
    """Read images with labels or, if no column holds images, a table with labels.

    `label` is the label column; without it, the reader chooses the only column that can hold labels. Columns in
    `ignore` are left out. None, -1 and the values in `unlabeled` mean "no label". `size` is the height and width of the
    images. `id` is a column that identifies the samples. `like` is a trained model, whose columns, classes and image
    shape the data take; then the label column may be missing.
    """
    where = "the data set"
    if isinstance(source, str | Path):
        where, source = str(source), _from_disk(Path(source))
    data = _one_split(source, where)
    ids, notes = identifiers(None if id is None else _texts(data, _existing(id, data.column_names, where)), where)
    left_out = [name for name in ignore if like is None or name in data.column_names]
    data = _without([*left_out, *([] if id is None else [id])], data, where)
    row_names = RowNames("row", range(1, len(data) + 1))
    y, classes, label_notes, label = _labels(data, label, unlabeled, like, row_names, where)
    notes += label_notes
    image = _image_column(data, where)
    if image is None:
        if size is not None:
            raise ValueError(f"{where} has no column of images, but --size applies to images only; leave out --size")
        columns = _feature_columns(data, label, where)
        if like is None:
            table, more_notes = features_of(columns)
            more_notes += leaks(table, y)
        else:
            table, more_notes = features_like(columns, like.schema), []
        return PartlyLabeled(table, y, classes, row_names, (*notes, *more_notes), row_names.numbers, ids, id)
    shape = None if like is None else like.image_shape
    x, is_readable, more_notes = _images(data, image, size, shape, row_names, where)
    kept = np.flatnonzero(is_readable)
    return PartlyLabeled(
        x=x,
        y=y[kept],
        class_names=classes,
        row_names=RowNames("row", kept + 1),
        notes=(*notes, *more_notes),
        row_numbers=kept + 1,
        ids=None if ids is None else [ids[row] for row in kept],
        id_name=id,
    )


def _labels(
    data: Any,
    label: str | None,
    unlabeled: Collection[str],
    like: ModelInputs | None,
    row_names: Sequence[str],
    where: str,
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], list[str], str | None]:
    """Return class numbers, class names, notes and the label column; data for a trained model need no such column."""
    if like is not None and label not in data.column_names and (label or not _may_be_labels(data)):
        note = f"{where}: there is no label column, so no row has a label"
        return np.full(len(data), UNLABELED, np.int64), like.class_names, [note], None
    label = _label_column(data, label, where)
    where = f"{where}, column {label!r}"
    names = getattr(data.features[label], "names", None)
    if like is None:
        return *labels_of(_column(data, label), where, names, unlabeled), label
    texts = label_texts(_column(data, label), where, names or like.counted_names, unlabeled)
    return like.labels(texts, where, row_names, unlabeled), like.class_names, [], label


def _from_disk(folder: Path) -> Any:
    """Load a folder that save_to_disk has written."""
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise ValueError(f"reading {folder} needs the package datasets: pip install 'mnar[hf]'") from error
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; name a folder that save_to_disk has written")
    try:
        return datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is not a complete data set ({error}); write it again with save_to_disk") from error


def _one_split(source: Any, where: str) -> Any:
    """Return the data set itself: the only split of a dict of splits, without a transform of the user."""
    if isinstance(source, dict):
        if len(source) != 1:
            raise ValueError(
                f"{where} has the splits {', '.join(source)}; give one of them, such as data[{next(iter(source))!r}] "
                "or the folder of one split"
            )
        (source,) = source.values()
    if not hasattr(source, "features") or not hasattr(source, "__len__"):
        raise ValueError(f"{where} is a {type(source).__name__}; give a datasets.Dataset, not a streaming data set")
    if len(source) == 0:
        raise ValueError(f"{where} has no rows; give at least one sample")
    return source.with_format(None)


def _without(ignore: Sequence[str], data: Any, where: str) -> Any:
    """Return the data set without the columns in `ignore`."""
    ignored = {_existing(name, data.column_names, where) for name in ignore}
    return data.select_columns([name for name in data.column_names if name not in ignored])


def _label_column(data: Any, label: str | None, where: str) -> str:
    """Return the label column: the one that the user named, has a usual name, or is the only one with class names."""
    names: list[str] = data.column_names
    if label is not None:
        return _existing(label, names, where)
    return label_column(names, where, _columns_of_classes(data))


def _may_be_labels(data: Any) -> list[str]:
    """Return the columns that may hold the labels."""
    return label_names(data.column_names) or _columns_of_classes(data)


def _columns_of_classes(data: Any) -> list[str]:
    """Return the columns that have class names."""
    return [name for name in data.column_names if hasattr(data.features[name], "names")]


def _image_column(data: Any, where: str) -> str | None:
    """Return the column that holds images, or None if there is none; several such columns are an error."""
    found = [name for name in data.column_names if _holds_images(data.features[name])]
    if len(found) > 1:
        raise ValueError(
            f"{where}: which column holds the images? Leave out all but one with --ignore: {', '.join(found)}"
        )
    return found[0] if found else None


def _existing(name: str, names: list[str], where: str) -> str:
    """Return the name of a column, or raise an error if there is no such column."""
    if name not in names:
        raise ValueError(f"{where} has no column {name!r}; its columns are {', '.join(names)}. Name one of these")
    return name


def _holds_images(feature: Any) -> bool:
    """Whether a column holds images, as the feature Image or as files: {"bytes": ..., "path": ...}."""
    return type(feature).__name__ == "Image" or (isinstance(feature, dict) and {"bytes", "path"} <= feature.keys())


def _column(data: Any, name: str) -> npt.NDArray[Any]:
    """Return a column as an array of objects, with one entry per row."""
    # The None at the end keeps numpy from turning a column of lists into a 2-D array.
    return np.array([*data[name], None], object)[:-1]


def _texts(data: Any, name: str) -> list[str | None]:
    """Return a column as texts, None if a cell is missing."""
    return [None if value is None else str(value) for value in _column(data, name)]


def _feature_columns(data: Any, label: str | None, where: str) -> dict[str, Any]:
    """Return all columns but the label."""
    columns: dict[str, Any] = {}
    for name in data.column_names:
        names = getattr(data.features[name], "names", None)
        if name == label:
            continue
        values = list(data[name])
        if names is not None:
            columns[name] = [None if code is None or code < 0 else names[code] for code in values]
        elif any(isinstance(value, list) for value in values):
            columns |= _columns_of_vectors(name, values, where)
        else:
            columns[name] = values
    return columns


def _columns_of_vectors(name: str, vectors: list[Any], where: str) -> dict[str, npt.NDArray[np.float64]]:
    """Split a column of lists of numbers into one column per position."""
    try:
        values = np.array(vectors, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{where}: the lists in column {name!r} are not all numbers of one length; correct the column, or leave it "
            "out with --ignore"
        ) from error
    return {f"{name}[{place}]": part for place, part in enumerate(values.reshape(len(values), -1).T)}


def _images(
    data: Any, image: str, size: int | None, fixed_shape: Shape | None, row_names: Sequence[str], where: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_], list[str]]:
    """Decode the images in memory, as `load_images` decodes files.

    `fixed_shape` replaces the shape that the images would get. Return the images that can be read, whether the image of
    each row can be read, and notes.
    """
    feature = data.features[image]
    if type(feature).__name__ == "Image":
        # The library must not decode the images: `decode` below has its own limits and reports errors row by row.
        data = data.select_columns([image]).cast_column(image, type(feature)(decode=False))

    def files() -> Iterator[Any]:
        return (data[row][image] for row in range(len(data)))

    with quiet_pillow():
        looked_at = dict(zip(row_names, in_parallel(_look_at_file, files()), strict=True))
        shape, notes = common_shape(looked_at, height_and_width(size), Path(where))
        if fixed_shape is not None:
            shape, notes = fixed_shape, []

        def image_or_problem(file: Any) -> npt.NDArray[np.uint8] | str:
            try:
                with _open(file) as opened:
                    return decode(opened, shape)
            except (Unreadable, OSError) as problem:
                return str(problem)

        x, num_decoded = np.empty((len(data), *shape), np.uint8), 0
        for name, result in zip(row_names, in_parallel(image_or_problem, files()), strict=True):
            if isinstance(result, str):
                looked_at[name] = looked_at[name]._replace(problem=result)
            else:
                x[num_decoded] = result
                num_decoded += 1
    is_readable = np.array([not file.problem for file in looked_at.values()])
    return x[:num_decoded], is_readable, [*notes, *unreadable_notes(looked_at)]


def _look_at_file(file: Any) -> KnownFile:
    """Return what the header of an image says, or the problem if it cannot be read."""
    known = KnownFile(num_bytes=0, mtime_ns=0)
    try:
        with _open(file) as opened:
            return known._replace(**read_header(opened)._asdict())
    except (Unreadable, OSError) as problem:
        return known._replace(problem=str(problem))


def _open(file: Any) -> IO[bytes]:
    """Open an image that is stored as {"bytes": ..., "path": ...}."""
    if file is None:
        raise Unreadable("no image")
    if file["bytes"] is not None:
        return BytesIO(file["bytes"])
    path = Path(file["path"])
    if not path.is_file():  # opening a pipe could wait for ever
        raise Unreadable(f"{path} is not a file")
    return path.open("rb")
