"""What is written beside a file of features: how the inputs were made, so that new data are treated in the same way."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mnar.atomic_write import from_json, write_atomically
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.trained.embed.scaling import Scaling

FORMAT = 1


class Record(NamedTuple):
    """How the features of a file were computed."""

    scaling: Scaling
    input_shape: tuple[int, ...]  # of one sample
    encoder: TableEncoder | None  # how the columns of a table were encoded
    network: str  # the fingerprint of the network

    @property
    def inputs(self) -> ModelInputs:
        """What the network took, for the readers of new data."""
        return ModelInputs(self.input_shape, (), self.encoder)


def record_path(features: Path) -> Path:
    """Return the path of the record that belongs to a file of features."""
    return features.with_name(f"{features.name}.json")


def write_record(features: Path, record: Record) -> None:
    """Write the record beside the features."""
    content = {
        "format": FORMAT,
        "mean": record.scaling.mean,
        "std": record.scaling.std,
        "scaling": record.scaling.reason,
        "input_shape": record.input_shape,
        "encoding": None if record.encoder is None else record.encoder.to_dict(),
        "network": record.network,
    }
    write_atomically(record_path(features), json.dumps(content, indent=1) + "\n")


def read_record(features: Path) -> Record:
    """Read the record of a file of features."""
    path = record_path(features)
    if not path.is_file():
        raise FileNotFoundError(
            f"--like {features}: there is no {path}, which mnar features writes beside the features; compute the "
            "features again, or keep both files together"
        )
    try:
        content = from_json(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}")
        mean, std = (tuple(map(float, content[name])) for name in ("mean", "std"))
        encoding = content["encoding"]
        return Record(
            scaling=Scaling(mean, std, f"the scaling of {features}"),
            input_shape=tuple(map(int, content["input_shape"])),
            encoder=None if encoding is None else TableEncoder.from_dict(encoding),
            network=str(content["network"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} was not written by this version of mnar features ({type(error).__name__}: {error}); compute the "
            "features again"
        ) from error


def fingerprint(network: nn.Module) -> str:
    """Return a checksum of the names and values of the weights."""
    checksum = 0
    for name, tensor in network.state_dict().items():
        checksum = zlib.crc32(name.encode(), checksum)
        if isinstance(tensor, torch.Tensor) and not is_lazy(tensor):
            values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            checksum = zlib.crc32(values.tobytes(), checksum)
    return f"{checksum:08x}"


def require_same_network(network: str, record: Record, features: Path) -> None:
    """Raise an error if the features were computed with other weights: the columns would mean something else.

    `network` is the fingerprint of the network.
    """
    if network != record.network:
        raise ValueError(
            f"the network has other weights than the network of {features}, so that the features would not match; give "
            "the same --model and --weights, and let FACTORY draw no random weights"
        )
