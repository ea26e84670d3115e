"""Turn the user's own half-labelled data into a data set, with some labels held out to score the model."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.statistics import mean_and_std
from mnar.datasets.user_files import PartlyLabeled, Table, read_data
from mnar.datasets.user_files.arrays import tensor_of
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.option_values import Range, ShareBelowOne, checked_options
from mnar.types import DataSet

HELD_OUT = -2  # in train_y: the label is held out, and the sample is not in the unlabelled pool either
MIN_LABELS_OF_CLASS = 5  # a class with fewer labels keeps all of them for training
MIN_HELD_OUT = 20  # a score on fewer labels is too uncertain, so no label is held out
SEED = 0  # all runs hold out the same labels
MAX_HASHED_BYTES = 2**28  # a checksum covers all samples up to this size, and evenly spaced samples above


@checked_options
def own_data(
    root: Path | None = None,
    *,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    unlabeled: tuple[str, ...] = (),
    size: Annotated[int, Range(1, 4096)] | None = None,
    features: Path | None = None,
    id: str | None = None,
    held_out: ShareBelowOne = 0.2,
) -> DataSet:
    """Read the user's data at `root` and return a data set.

    `held_out` is the share of the labels that is kept back from training to score the model. The other options are
    those of `mnar.datasets.user_files.read_data`.
    """
    if root is None:
        raise FileNotFoundError(
            "the data set 'own_data' needs the path of your data; give a file or a folder with `mnar train DATA`"
        )
    data = read_data(root, label=label, ignore=ignore, unlabeled=unlabeled, size=size, features=features, id=id)
    return as_data_set(data, held_out=held_out)


@checked_options
def as_data_set(data: PartlyLabeled, *, held_out: ShareBelowOne = 0.2) -> DataSet:
    """Return a data set of all samples. Its test set is the samples whose labels are held out from training.

    If there are too few labels to hold any out, or if `held_out` is 0, the test set is all labelled samples.
    """
    encoder: TableEncoder | None = None
    if isinstance(data.x, Table):
        encoder = TableEncoder.fit(data.x)
        x = encoder.transform(data.x)
    else:
        x = data.x
    samples = tensor_of(x)
    mean, std = mean_and_std(samples)

    test_rows = held_out_rows(data.y, held_out)
    has_held_out_labels = len(test_rows) > 0
    targets = data.y.copy()
    if has_held_out_labels:
        targets[test_rows] = HELD_OUT
        note = (
            f"scored on {len(test_rows)} held-out labels; their class distribution is that of the labels, "
            "not that of the unlabelled samples"
        )
    else:
        test_rows = np.flatnonzero(data.is_labeled)
        note = "scored on the same labels that the model is trained on, so the scores are too high"
        if held_out:
            note = f"too few labels to hold any out: {note}"
    return DataSet(
        train_x=samples,
        train_y=torch.from_numpy(targets),
        test_x=samples[torch.from_numpy(test_rows)],
        test_y=torch.from_numpy(data.y[test_rows]),
        class_names=data.class_names,
        mean=mean,
        std=std,
        encoding=None if encoder is None else encoder.to_dict(),
        fingerprint=_fingerprint(data.y, x, data.class_names),
        test_is_trained_on=not has_held_out_labels,
        notes=(*data.notes, note),
        row_names=data.row_names,
        row_numbers=data.row_numbers,
        ids=data.ids,
        id_name=data.id_name,
    )


def held_out_rows(y: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """Draw the rows whose labels are held out: a share of the labels of each class, in ascending order.

    A class with fewer than MIN_LABELS_OF_CLASS labels keeps all of them. If fewer than MIN_HELD_OUT labels would
    be held out in all, none is held out.
    """
    rng = np.random.default_rng(SEED)
    drawn = [np.zeros(0, dtype=np.int64)]
    for label in range(int(y.max(initial=-1)) + 1):
        members = np.flatnonzero(y == label)
        num_drawn = round(share * len(members)) if len(members) >= MIN_LABELS_OF_CLASS else 0
        drawn.append(rng.choice(members, num_drawn, replace=False))
    rows = np.sort(np.concatenate(drawn))
    return rows if len(rows) >= MIN_HELD_OUT else rows[:0]


def _fingerprint(y: npt.NDArray[np.int64], x: npt.NDArray[np.generic], class_names: tuple[str, ...]) -> str:
    """Return the number of rows and a checksum, by which a resumed run checks that its data have not changed."""
    checksum = zlib.crc32(repr(class_names).encode())
    checksum = zlib.crc32(y.data, checksum)
    return f"{len(y)}-{checksum_of_samples(x, checksum):08x}"


def checksum_of_samples(x: npt.NDArray[np.generic], checksum: int = 0) -> int:
    """Return a checksum of the samples that continues another checksum."""
    stride = max(1, -(-x.nbytes // MAX_HASHED_BYTES))  # the quotient is rounded up
    return zlib.crc32(np.ascontiguousarray(x[::stride]).data, checksum)
