"""Pools that are one file, and the same rows as a folder of shards."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import numpy as np

SHARDS = 5


def csv_pool(table_file: Path, folder: Path, *, copies: int = 1) -> tuple[Path, Path]:
    """Write the rows of a table without labels as pool.csv and as the shards pool/part-0.csv, ..."""
    header, *lines = [line.rpartition(",")[0] for line in table_file.read_text().splitlines()]
    lines *= copies
    whole, shards = folder / "pool.csv", folder / "pool"
    whole.write_text("\n".join([header, *lines]) + "\n")
    shards.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(len(lines)), SHARDS)):
        (shards / f"part-{number}.csv").write_text("\n".join([header, *(lines[row] for row in rows)]) + "\n")
    return whole, shards


def parquet_pool(table_file: Path, folder: Path, *, copies: int = 1) -> tuple[Path, Path]:
    """Write the same as parquet files."""
    csv, parquet = import_module("pyarrow.csv"), import_module("pyarrow.parquet")
    paths = csv_pool(table_file, folder, copies=copies)
    for path in (paths[0], *paths[1].iterdir()):
        parquet.write_table(csv.read_csv(path), path.with_suffix(".parquet"), row_group_size=10_000)
        path.unlink()
    return paths[0].with_suffix(".parquet"), paths[1]


def array_pool(digits_file: Path, folder: Path, kind: str) -> tuple[Path, Path]:
    """Write the images of digits as pool.npz or pool.npy, and as shards of this kind."""
    with np.load(digits_file) as stored:
        x = stored["x"]
    whole, shards = folder / f"pool.{kind}", folder / "pool"
    shards.mkdir()
    for path, rows in [
        (whole, x),
        *((shards / f"part-{i}.{kind}", part) for i, part in enumerate(np.array_split(x, SHARDS))),
    ]:
        if kind == "npz":
            np.savez(path, x=rows)
        else:
            np.save(path, rows)
    return whole, shards


def image_pool(photos: Path, folder: Path) -> Path:
    """Copy images into sub-folders, without their labels; one of them is damaged."""
    pool = folder / "images"
    for number, path in enumerate(sorted(photos.glob("*.png"))):
        place = pool / f"shard-{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    (pool / "shard-1" / "damaged.png").write_bytes(b"no image")
    return pool
