"""Read the data on which the model of a run is scored, also other data than those that the run was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mnar.config import OWN_DATA, RunConfig
from mnar.datasets.user_files import read_data_like
from mnar.datasets.user_files.arrays import tensor_of
from mnar.run.assemble import load_data
from mnar.run.file_names import resume_command
from mnar.run.folder import RunFolder
from mnar.run.model_file import ModelInput, read_model_input
from mnar.types import DataSet

# Options of the data set `own_data` that also apply to other data. The others concern the run's own rows.
SHARED_OPTIONS = ("label", "ignore", "unlabeled")


def data_to_score(
    folder: Path, config: RunConfig, root: Path | None, reading: Mapping[str, Any] | None = None
) -> DataSet:
    """The data of the run with its test set, or, for a run on own data, the other data at `root`."""
    if config.dataset.name != OWN_DATA:
        if reading:
            names = ", ".join(f"--{name}" for name in reading)
            raise ValueError(f"{names} can only be used with a run on your own data; leave it out")
        return load_data(config, root)
    model, fingerprint = read_model_input(folder), RunFolder(folder).split().get("data_hash")
    if root is None:
        data, place = load_data(config), config.dataset.options["root"]
        if not is_data_of_run(data, model, fingerprint):
            raise ValueError(
                f"{place} has changed since the run in {folder} was trained, so its held-out labels cannot be found; "
                f"restore the file, or score all labelled samples of the present file with --data {place}"
            )
        return data
    with suppress(ValueError):  # other data need not have all that the run's own data have
        if not reading and is_data_of_run(moved := load_data(config, root), model, fingerprint):
            return moved
    return read_other_data(folder, root, config.dataset.options, reading)


def read_other_data(
    folder: Path, source: Path, options: Mapping[str, Any], reading: Mapping[str, Any] | None = None
) -> DataSet:
    """Read `source` with the encoding, the classes and the image size of the finished run in `folder`.

    options    the options with which the run read its own data
    reading    options for this source, which replace those of the run

    The test set is all labelled samples of the source. Nothing is fitted to them.
    """
    model = read_model_input(folder)
    if model is None:
        raise FileNotFoundError(
            f"{folder} is unfinished, so it has no stored encoding for other data yet; finish it with "
            f"`{resume_command(folder)}`, or leave out --data"
        )
    shared = {name: options[name] for name in SHARED_OPTIONS if options.get(name)}
    data = read_data_like(
        source,
        input_shape=model["input_shape"],
        class_names=model["class_names"],
        encoding=model["encoding"],
        **{**shared, **(reading or {})},
    )
    labeled = np.flatnonzero(data.is_labeled)
    if not len(labeled):
        raise ValueError(
            f"no sample of {source} has a label, so there is nothing to score; name the label column with --label, or "
            "give data with labels"
        )
    samples, rows = tensor_of(np.asarray(data.x)), torch.from_numpy(labeled)
    note = f"scored on all {len(labeled):,} labelled samples of {source}, also those that are in the training data"
    return DataSet(
        train_x=samples,
        train_y=torch.from_numpy(data.y),
        test_x=samples[rows],
        test_y=torch.from_numpy(data.y[labeled]),
        class_names=tuple(model["class_names"]),
        mean=tuple(model["mean"]),
        std=tuple(model["std"]),
        encoding=model["encoding"],
        notes=(*data.notes, note),
        row_names=data.row_names,
    )


def is_data_of_run(data: DataSet, model: ModelInput | None, fingerprint: str | None) -> bool:
    """Whether these are the data that a run was trained on; `fingerprint` is that in its split.json.

    A column times ten has the same fingerprint, because the fingerprint is that of standardised columns. Its encoding
    differs. An unfinished run has no model to compare the encoding with, and an older run no fingerprint.
    """
    has_same_encoding = model is None or _is_equal_up_to_rounding(data.encoding, model["encoding"])
    return has_same_encoding and fingerprint in (None, data.fingerprint)


def _is_equal_up_to_rounding(one: Any, other: Any) -> bool:
    """Whether two encodings are equal, as nested dicts and lists; means may differ a little between machines."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal_up_to_rounding(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal_up_to_rounding, one, other))
    return bool(one == other)


def check_fits(folder: Path, data: DataSet) -> None:
    """Raise an error that says what differs if the model of a finished run cannot predict these data."""
    model = read_model_input(folder)
    if model is None:
        return
    problem = _other_classes(model, data.class_names) or _other_shape(model, tuple(data.train_x.shape[1:]))
    if problem:
        raise ValueError(
            f"the data do not fit the model in {folder}: {problem}; name the data of the run with --data, or train a "
            "new run on these data"
        )


def _other_classes(model: ModelInput, class_names: Sequence[str]) -> str | None:
    known, found = model["class_names"], list(class_names)
    if known == found:
        return None
    missing = [name for name in known if name not in found]
    unknown = [name for name in found if name not in known]
    parts = [f"the model knows {len(known)} classes, and the data have {len(found)}"]
    parts += [f"the data lack {_listed(missing)}"] if missing else []
    parts += [f"the model does not know {_listed(unknown)}"] if unknown else []
    return ", ".join(parts if missing or unknown else [*parts, "in another order"])


def _other_shape(model: ModelInput, shape: tuple[int, ...]) -> str | None:
    known = tuple(model["input_shape"])
    return None if known == shape else f"the model takes {_in_words(known)}, and the data have {_in_words(shape)}"


def _in_words(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        channels, height, width = shape
        return f"images of {height} × {width} pixels with {channels} channel{'s' if channels > 1 else ''}"
    return f"{shape[0]} features (encoded columns)"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more
