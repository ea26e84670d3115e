"""Equality bit for bit, of whatever a checkpoint or a run folder holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnar.run import checkpoint


def assert_same(one: Any, other: Any, where: str = "state") -> None:
    assert type(one) is type(other), where
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
        assert len(one) == len(other), where
        for place, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{place}]")
    else:
        assert one == other, where


def assert_same_run(folder: Path, other: Path) -> None:
    """Parameters, buffers, optimiser, random state, metrics and what generations selected, bit for bit."""
    assert_same(checkpoint.load(folder / "state.pt")[0], checkpoint.load(other / "state.pt")[0])
    selections, expected = (
        sorted(str(path.relative_to(run)) for path in run.glob("selections/*")) for run in (folder, other)
    )
    assert selections == expected
    for name in ("config.yaml", "split.json", "metrics.jsonl", "model.safetensors", *selections):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
