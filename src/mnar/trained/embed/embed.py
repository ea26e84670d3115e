"""Compute the features of all samples and write them as an .npy file, in the order in which `mnar train` reads them."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mnar import __version__
from mnar.trained.embed.network import USER_ERRORS, make_network, problem_of, without_downloads
from mnar.trained.embed.outputs import features_function, rows_of
from mnar.trained.embed.record import Record, fingerprint, read_record, require_same_network, write_record
from mnar.trained.embed.samples import read_samples
from mnar.trained.embed.scaling import Scale, Scaling, channels_of, choose_scaling
from mnar.trained.result_file import ResultFile, result_file, source_fingerprint
from mnar.types import OnProgress

BATCH = 64


class Embedded(NamedTuple):
    """What `write_features` wrote."""

    num_rows: int
    num_features: int
    scaling: Scaling
    notes: tuple[str, ...]  # about the data


def write_features(
    source: Path,
    out: Path,
    *,
    model: str,
    weights: Path | None = None,
    reading: dict[str, Any] | None = None,
    batch: int = BATCH,
    scale: Scale = "auto",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    like: Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    on_reading: OnProgress | None = None,
    on_rows: OnProgress = lambda done, total: None,
) -> Embedded:
    """Compute features of the data at `source` with a network, and write them to `out`.

    model      MODULE:FACTORY, as `make_network` takes it
    weights    a file of weights for the network
    reading    options of `read_data`; the samples and their order are those of `mnar train` and `mnar predict`
    batch      samples that the network sees at a time
    scale, mean, std    as `choose_scaling` takes them
    like       an earlier file of features: the samples get its scaling, its size of images and its encoding of columns
    device     cpu, cuda, or auto: a GPU if there is one
    overwrite  replace an existing file

    The file appears when it is complete, and beside it a record of how the inputs were made; `record_path` says where.
    A stopped call continues where it stopped, if it is repeated.
    """
    reading = reading or {}
    if batch < 1:
        raise ValueError(f"the batch is {batch}; choose at least 1")
    with without_downloads(), torch.inference_mode():
        earlier = None if like is None else read_record(like)
        network = make_network(model, weights)
        made = fingerprint(network)
        if earlier is not None and like is not None:
            if reading.get("size") or scale != "auto" or mean is not None or std is not None:
                raise ValueError(
                    f"--like takes the size and the scaling of {like}; leave out --size, --scale, --mean and --std"
                )
            require_same_network(made, earlier, like)
        inputs = None if earlier is None else earlier.inputs
        x, names, notes, encoder = read_samples(Path(source), like=inputs, **reading, progress=on_reading)
        num_channels = channels_of(network, x)
        given = None if earlier is None else earlier.scaling
        scaling = choose_scaling(scale, x, num_channels, mean=mean, std=std, weights=weights, like=given)
        chosen = _device(device)
        identity = {
            "command": "features",
            "mnar": __version__,
            "model": model,
            "code": _code(model),
            "network": made,
            "data": _fingerprint_of_samples(x),
            "scaling": scaling[:2],
            "device": chosen.type,
        }
        with result_file(out, b"", identity, overwrite=overwrite) as result:
            rows = _rows(network.to(chosen), x, result.num_rows, scaling, num_channels, batch, chosen, names, on_rows)
            num_features = _write_rows(result, rows, len(x))
            result.record()  # all rows are on the disk before the earlier file goes
            out.unlink(missing_ok=True)  # an earlier file must not get the record of the new file
            write_record(out, Record(scaling, tuple(x.shape[1:]), encoder, made))
    return Embedded(len(x), num_features, scaling, notes)


def module_file(model: str) -> Path | None:
    """Return the Python file that MODULE:FACTORY names; None if MODULE is not a file."""
    path = Path(model.rpartition(":")[0])
    return path if path.suffix == ".py" else None


def _code(model: str) -> str | None:
    """Return a text that changes if the file of the network changes."""
    file = module_file(model)
    return None if file is None else source_fingerprint(file)


def _fingerprint_of_samples(x: Tensor) -> str:
    """Return a text that changes if the samples change. All of them count: a forward pass takes much longer."""
    checksum = 0
    for samples in x.split(BATCH):
        checksum = zlib.crc32(samples.contiguous().numpy(), checksum)
    return f"{tuple(x.shape)}, {checksum:08x}"


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda") and not name.startswith("cuda:"):
        raise ValueError(f"--device is {name!r}; choose cpu, cuda or auto")
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError("--device is cuda, but there is no GPU; choose --device cpu")
    return torch.device(name)


def _rows(
    network: nn.Module,
    x: Tensor,
    done: int,
    scaling: Scaling,
    num_channels: int,
    batch: int,
    device: torch.device,
    names: Sequence[str],
    on_rows: OnProgress,
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the features of each batch of samples. The first `done` samples are left out."""
    features = features_function(network)
    for start in range(done, len(x), batch):
        samples = x[start : start + batch]
        inputs = scaling.apply(samples.to(device), num_channels)
        try:
            output = features(inputs)
        except torch.OutOfMemoryError:
            raise  # the command line has a message for it
        except USER_ERRORS as error:
            raise ValueError(
                f"the network cannot take samples of shape {tuple(inputs.shape[1:])} ({problem_of(error)}); choose "
                "another network, or for images another --size"
            ) from error
        rows = rows_of(output, len(samples))
        is_finite = rows.isfinite().all(1)
        if not is_finite.all():
            wrong = names[start + int((~is_finite).nonzero()[0])]
            raise ValueError(
                f"the network returns values for {wrong} that are not finite numbers; check its weights, and how its "
                "inputs are scaled (--scale)"
            )
        on_rows(start + len(samples), len(x))
        yield rows.cpu().numpy()


def _write_rows(result: ResultFile, batches: Iterator[npt.NDArray[np.float32]], num_rows: int) -> int:
    """Write batches of rows as one .npy file, and return the number of columns.

    The rows are written one after another, and not through a memory map: on a full disk, a memory map would end the
    process without a message.
    """
    num_columns = _num_columns(Path(result.file.name)) if result.num_rows else 0
    for rows in batches:
        header = b""
        if result.num_rows == 0:
            num_columns = rows.shape[1]
            header = _header(num_rows, num_columns)
        if rows.shape[1] != num_columns:
            raise ValueError(
                f"the network returns {num_columns} features for some samples and {rows.shape[1]} for others; "
                "give the network an output that has the same shape for every sample"
            )
        result.append(header + np.ascontiguousarray(rows, "<f4").tobytes(), len(rows))
    return num_columns


def _header(num_rows: int, num_columns: int) -> bytes:
    """Return the beginning of an .npy file."""
    content = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, num_columns)}
    np.lib.format.write_array_header_1_0(content, described)
    return content.getvalue()


def _num_columns(part: Path) -> int:
    """Read the number of columns from the beginning of an .npy file."""
    with part.open("rb") as file:
        np.lib.format.read_magic(file)
        (_, num_columns), _, _ = np.lib.format.read_array_header_1_0(file)
    return int(num_columns)
