"""People's own half-labelled data as a training set, with some labels held out to score by."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mnar.datasets.statistics import mean_and_std
from mnar.datasets.user_files import PartlyLabeled, Table, read_data
from mnar.datasets.user_files.arrays import tensor_of
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.types import DataSet

HELD_OUT = -2  # in train_y: a label that is kept from training; its sample is not unlabelled data either
FEWEST_OF_A_CLASS = 5  # labels, for one of them to be held out
FEWEST_HELD_OUT = 20  # fewer tell nothing
SEED = 0  # the same labels are held out in all runs
WHOLE_BYTES = 2**28  # up to here all of the samples go into the fingerprint; of more, some


def own_data(
    root: Path | None = None,
    *,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    unlabeled: tuple[str, ...] = (),
    size: int | None = None,
    features: Path | None = None,
    held_out: float = 0.2,
) -> DataSet:
    """`held_out` is the share of the labels to score by; see `mnar.datasets.user_files.read_data` for the others."""
    if root is None:
        raise FileNotFoundError("data set 'own_data' is a folder or a file of yours; name it: `mnar train DATA`")
    data = read_data(root, label=label, ignore=ignore, unlabeled=unlabeled, size=size, features=features)
    return as_data_set(data, held_out=held_out)


def as_data_set(data: PartlyLabeled, *, held_out: float = 0.2) -> DataSet:
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out is {held_out}; the share of the labels to score by lies in [0, 1)")
    encoder: TableEncoder | None = None
    if isinstance(data.x, Table):
        encoder = TableEncoder.fit(data.x)
        x = encoder.transform(data.x)
    else:
        x = data.x
    samples = tensor_of(x)
    mean, std = mean_and_std(samples)

    scored = held_out_rows(data.y, held_out)
    is_held_out = len(scored) > 0
    targets = data.y.copy()
    if is_held_out:
        targets[scored] = HELD_OUT
        note = f"scored on {len(scored)} labels held out, which have the labels' class mix and not the pool's"
    else:
        scored = np.flatnonzero(data.is_labeled)
        note = "scored on the labels trained on, which flatters the model"
        if held_out:
            note = f"too few labels to hold any out: {note}"
    return DataSet(
        train_x=samples,
        train_y=torch.from_numpy(targets),
        test_x=samples[torch.from_numpy(scored)],
        test_y=torch.from_numpy(data.y[scored]),
        class_names=data.class_names,
        mean=mean,
        std=std,
        encoding=None if encoder is None else encoder.to_dict(),
        fingerprint=_fingerprint(data.y, x, data.class_names),
        test_is_trained_on=not is_held_out,
        notes=(*data.notes, note),
        row_names=data.row_names,
    )


def held_out_rows(y: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """A share of the labels of each class that has enough of them; none where that would be too few."""
    rng = np.random.default_rng(SEED)
    drawn = [np.zeros(0, dtype=np.int64)]
    for label in range(int(y.max(initial=-1)) + 1):
        members = np.flatnonzero(y == label)
        num_drawn = round(share * len(members)) if len(members) >= FEWEST_OF_A_CLASS else 0
        drawn.append(rng.choice(members, num_drawn, replace=False))
    rows = np.sort(np.concatenate(drawn))
    return rows if len(rows) >= FEWEST_HELD_OUT else rows[:0]


def _fingerprint(y: npt.NDArray[np.int64], x: npt.NDArray[np.generic], class_names: tuple[str, ...]) -> str:
    some = x if x.nbytes <= WHOLE_BYTES else x[:: -(-x.nbytes // WHOLE_BYTES)]
    checksum = zlib.crc32(np.ascontiguousarray(some).data, zlib.crc32(y.data, zlib.crc32(repr(class_names).encode())))
    return f"{len(y)}-{checksum:08x}"
