"""split.json: what was labelled and what was not, and sums by which a resumed run knows its data again."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnar import checkpoint
from mnar.config import RunConfig
from mnar.protocols import hold_out
from mnar.run_files import SPLIT
from mnar.types import DataSet, Split


def describe_split(config: RunConfig, data: DataSet, rows: Split) -> dict[str, Any]:
    def counts(targets: Tensor) -> list[int]:
        per_class: list[int] = torch.bincount(targets[targets >= 0], minlength=len(data.class_names)).tolist()
        return per_class

    share = config.train.validation
    held_out = hold_out(rows, share, seed=config.seed)[1] if share else rows.labeled_index[:0]
    pool = data.train_y[torch.from_numpy(rows.unlabeled_index)]
    digest = hashlib.sha256(rows.labeled_index.tobytes() + b"|" + rows.unlabeled_index.tobytes())
    return {
        "dataset": Path(config.dataset.options["root"]).stem if config.dataset.name == "own" else config.dataset.name,
        "seed": config.seed,
        "class_names": list(data.class_names),
        "labeled": counts(data.labels[torch.from_numpy(rows.labeled_index)]),
        "unlabeled": counts(pool),
        "unknown": int((pool < 0).sum()),  # of the unlabelled ones: nobody knows their class
        "test": counts(data.test_y),
        "test_is_trained_on": data.test_is_trained_on,
        "held_out": counts(data.labels[torch.from_numpy(held_out)]),  # of the labelled ones, for train.validation
        "hash": digest.hexdigest(),
        "data_hash": _data_hash(data),
    }


def check_same_split(folder: Path, description: dict[str, Any]) -> None:
    path = folder / SPLIT
    if path.exists():
        try:
            before = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}; remove it, and it is made again") from error
        if any(before.get(key) != description[key] for key in ("hash", "data_hash")):
            raise ValueError(
                f"this is not the data that the run in {folder} began with (its hashes in {path} differ); "
                "name that data with --data, or begin a new run"
            )
    checkpoint.write_atomically(path, json.dumps(description))


def _data_hash(data: DataSet) -> str:
    if data.fingerprint is not None:
        return data.fingerprint
    checksum = 0
    for part in (data.train_x, data.train_y, data.test_x, data.test_y, data.given_y):
        if part is not None:
            checksum = zlib.crc32(part.numpy().data, checksum)
    return f"{checksum:08x}"
