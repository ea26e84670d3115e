"""split.json: the class counts of a split, and hashes by which a resumed run recognises its data."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import torch
from torch import Tensor

from mnar.config import OWN_DATA, RunConfig
from mnar.protocols import hold_out
from mnar.run.file_names import SPLIT
from mnar.run.folder import RunFolder, SplitRecord
from mnar.types import DataSet, Split


def describe_split(config: RunConfig, data: DataSet, rows: Split) -> SplitRecord:
    """Count the samples of each class in each part of the split."""

    def counts(targets: Tensor) -> list[int]:
        per_class: list[int] = torch.bincount(targets[targets >= 0], minlength=len(data.class_names)).tolist()
        return per_class

    share = config.train.validation
    held_out = hold_out(rows, share, seed=config.seed)[1] if share else rows.labeled_index[:0]
    pool = data.train_y[torch.from_numpy(rows.unlabeled_index)]
    digest = hashlib.sha256(rows.labeled_index.tobytes() + b"|" + rows.unlabeled_index.tobytes())
    is_own_data = config.dataset.name == OWN_DATA
    return {
        "dataset": Path(config.dataset.options["root"]).stem if is_own_data else config.dataset.name,
        "seed": config.seed,
        "class_names": list(data.class_names),
        "labeled": counts(data.labels[torch.from_numpy(rows.labeled_index)]),
        "unlabeled": counts(pool),
        "unknown": int((pool < 0).sum()),
        "test": counts(data.test_y),
        "test_is_trained_on": data.test_is_trained_on,
        "held_out": counts(data.labels[torch.from_numpy(held_out)]),
        "hash": digest.hexdigest(),
        "data_hash": _data_hash(data),
    }


def check_same_split(folder: RunFolder, description: SplitRecord) -> None:
    """Refuse to resume with other data than the run started with."""
    path = folder.path / SPLIT
    if path.exists():
        before = folder.split()
        if (before["hash"], before.get("data_hash")) != (description["hash"], description["data_hash"]):
            raise ValueError(
                f"the data differ from the data that the run in {folder.path} started with (the hashes in {path} "
                "differ); name the original data with --data, or start a new run"
            )


def _data_hash(data: DataSet) -> str:
    if data.fingerprint is not None:
        return data.fingerprint
    checksum = 0
    for part in (data.train_x, data.train_y, data.test_x, data.test_y, data.given_y):
        if part is not None:
            checksum = zlib.crc32(part.numpy().data, checksum)
    return f"{checksum:08x}"
