"""model.safetensors: the trained model of a run, in a file format that cannot contain code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor

from mnar.atomic_write import Changed, digest_of, from_json, sealed, unsealed, write_atomically
from mnar.run import checkpoint
from mnar.run.file_names import MODEL, STATE, resume_command
from mnar.run.folder import RunFolder
from mnar.run.model_checks import check_model_input, in_one_line
from mnar.training.trainer import Trainer
from mnar.types import DataSet

WEIGHTS_DIGEST = "weights_digest"  # the entry of the metadata that has the digest of all tensors


class ModelInput(TypedDict):
    """What a prediction needs besides the weights: how samples become the model's input, and the class names."""

    input_shape: list[int]  # of one sample
    class_names: list[str]
    mean: list[float]
    std: list[float]
    encoding: dict[str, Any] | None  # tables: `TableEncoder.to_dict`


def model_input(data: DataSet) -> ModelInput:
    """What a model file says about the samples of the data set that the model was trained on."""
    return {
        "input_shape": list(data.train_x.shape[1:]),
        "class_names": list(data.class_names),
        "mean": list(data.mean),
        "std": list(data.std),
        "encoding": data.encoding,
    }


def data_without_samples(stored: ModelInput) -> DataSet:
    """Return a data set without samples, with the shape, the classes and the moments that a model file stores."""
    shape = tuple(stored["input_shape"])
    no_samples = torch.zeros((0, *shape), dtype=torch.uint8 if len(shape) == 3 else torch.float32)
    no_labels = torch.zeros(0, dtype=torch.int64)
    names, mean, std = tuple(stored["class_names"]), tuple(stored["mean"]), tuple(stored["std"])
    return DataSet(no_samples, no_labels, no_samples, no_labels, names, mean, std)


def write_model(trainer: Trainer, data: DataSet, folder: Path) -> None:
    """Write the weights of the evaluated model, and in the metadata what a prediction needs besides the weights."""
    state = trainer.evaluated_model().state_dict()
    weights = {name: tensor.cpu().contiguous() for name, tensor in _classifier_weights(state)}
    described = {**model_input(data), "model": RunFolder(folder).config().to_dict()["model"]}
    write_atomically(folder / MODEL, to_safetensors(weights, metadata(described, weights)))


def metadata(described: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a model file: a description, the digest of the tensors, and the digest of both."""
    # A single entry: safetensors writes several entries in random order, and equal runs must give equal files.
    return {"mnar": json.dumps(sealed({**described, WEIGHTS_DIGEST: digest_of({**tensors})}))}


def check_tensors(described: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Raise `Changed` if the tensors of a model file are not those that were written with the description.

    Earlier versions wrote no digest, so their tensors cannot be checked.
    """
    if described.get(WEIGHTS_DIGEST) not in (None, digest_of({**tensors})):
        raise Changed("its tensors are not those that were written, because their digest does not match")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read and check the tensors of a model file. Metadata of other programs are ignored."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        written = (file.metadata() or {}).get("mnar", "{}")
    try:
        check_tensors(unsealed(from_json(written)), tensors)
    except (ValueError, TypeError, AttributeError) as error:
        raise Changed(str(error)) from error
    return tensors


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a finished run's model, or of the averaged model in the newest checkpoint."""
    if (folder / MODEL).exists():
        try:
            return read_tensors(folder / MODEL)
        except Changed as error:
            raise damaged_model(folder, error) from error
    state, _ = checkpoint.load(folder / STATE)
    weights = dict(_classifier_weights(state["best"]["model"] if state.get("best") else state["average"]))
    if state.get("test_bias") is not None:
        weights["head.bias"] = weights["head.bias"] - state["test_bias"]
    return weights


def read_model_input(folder: Path) -> ModelInput | None:
    """What the model of a finished run needs besides its weights, checked; None if the run is unfinished."""
    if not (folder / MODEL).exists():
        return None
    try:
        with safe_open(folder / MODEL, framework="pt") as file:
            stored: ModelInput = from_json(file.metadata()["mnar"])
        check_model_input(stored, sorted(ModelInput.__required_keys__))
        unsealed(stored)
    except (TypeError, KeyError) as error:  # a file without metadata, or with those of another program
        raise damaged_model(folder, "the file was not written by mnar") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged_model(folder, error) from error
    return stored


def damaged_model(folder: Path, problem: object) -> ValueError:
    """The error for a model file that cannot be used, with the command that writes the file again."""
    return ValueError(
        f"the model in {folder / MODEL} is damaged ({in_one_line(problem)}); write it again with "
        f"`{resume_command(folder)}`"
    )


def _classifier_weights(state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """All weights except those of the extra heads, which only training uses."""
    return ((name, tensor) for name, tensor in state.items() if not name.startswith("heads."))
