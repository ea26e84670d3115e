"""model.safetensors: the model that a run hands out, in a format that can hold no code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor

from mnar import checkpoint
from mnar.folder import read_config
from mnar.run_files import MODEL, STATE
from mnar.train import Trainer
from mnar.types import DataSet


def write_model(trainer: Trainer, data: DataSet, folder: Path) -> None:
    """The model and what predicting with it needs."""
    state = trainer.handed_out().state_dict()
    weights = {name: tensor.cpu().contiguous() for name, tensor in _classifier_weights(state)}
    needs = {
        "input_shape": list(data.train_x.shape[1:]),
        "class_names": list(data.class_names),
        "mean": list(data.mean),
        "std": list(data.std),
        "encoding": data.encoding,
        "model": read_config(folder).to_dict()["model"],
    }
    # One entry: safetensors writes several in any order, and equal runs should give equal files.
    checkpoint.write_atomically(folder / MODEL, to_safetensors(weights, {"mnar": json.dumps(needs)}))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Of a finished run its model, else those in the newest checkpoint."""
    if (folder / MODEL).exists():
        return load_file(folder / MODEL)
    state, _ = checkpoint.load(folder / STATE)
    weights = dict(_classifier_weights(state["best"]["model"] if state.get("best") else state["average"]))
    if state.get("test_bias") is not None:
        weights["head.bias"] = weights["head.bias"] - state["test_bias"]
    return weights


def _classifier_weights(state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """All but the heads that were only there to train with."""
    return ((name, tensor) for name, tensor in state.items() if not name.startswith("heads."))
