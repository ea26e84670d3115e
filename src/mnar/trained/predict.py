"""`mnar predict`: labels for new data, as a CSV file that is written block by block."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar import __version__
from mnar.datasets.user_files.sample_blocks import SampleBlock
from mnar.datasets.user_files.spreadsheet_cells import safe_cell
from mnar.own_data.portfolio.member import Floats
from mnar.run.file_names import MODEL
from mnar.trained.class_mix import ClassMix, Prior
from mnar.trained.model import TrainedModel
from mnar.trained.predictor import predicted_blocks
from mnar.trained.result_file import check_output, result_file, source_fingerprint
from mnar.trained.training_data import files_of_run

OnRows = Callable[[int, int | None], None]  # called with the number of finished rows and their total, if it is known


class Predicted(NamedTuple):
    """What `predict_file` did."""

    num_rows: int
    counts: npt.NDArray[np.int64]  # [k] predictions of each class, without rows of an earlier, stopped command
    mix: ClassMix
    notes: Sequence[str]


def predict_file(
    model: TrainedModel,
    source: Path,
    out: Path,
    *,
    prior: Prior | None = None,
    top: int = 1,
    probabilities: bool = False,
    id: str | None = None,
    features: Path | None = None,
    overwrite: bool = False,
    on_rows: OnRows = lambda done, total: None,
) -> Predicted:
    """Predict every sample of `source`, and write a line for each: row, name or id, label and confidence.

    top              number of classes to list, the most probable first
    probabilities    also write the probability of every class
    """
    names = model.inputs.class_names
    if not 1 <= top <= len(names):
        raise ValueError(
            f"--top is {top}; the model has {len(names)} classes, so choose a number from 1 to {len(names)}"
        )
    prior_file = Path(prior) if isinstance(prior, str | Path) else None
    check_output(out, overwrite=overwrite, inputs=[source, features, prior_file, *files_of_run(model)])
    mix, samples = model.class_mix(prior), model.open(source, id=id, features=features)
    labels = [safe_cell(name) for name in names]
    header = ["row", samples.id_name or "sample", "label", "confidence"]
    header += [f"{column}_{place}" for place in range(2, top + 1) for column in ("label", "confidence")]
    header += [safe_cell(f"p({name})") for name in names] if probabilities else []
    identity = command_identity("predict", model, [source, features], mix, id=id, top=top, probabilities=probabilities)
    counts = np.zeros(len(names), np.int64)
    with result_file(out, header, identity, overwrite=overwrite) as result:
        for block, probs in predicted_blocks(model.predictor, samples.blocks(result.num_rows), mix.shares):
            rows = _rows(block, probs, labels, top, probabilities=probabilities)
            result.write(rows, len(block.names))
            readable = np.setdiff1d(np.arange(len(probs)), list(block.problems))
            counts += np.bincount(probs[readable].argmax(1), minlength=len(names))
            on_rows(result.num_rows, samples.num_rows)
        num_rows = result.num_rows
    return Predicted(num_rows, counts, mix, samples.notes)


def command_identity(
    command: str, model: TrainedModel, sources: Sequence[Path | None], mix: ClassMix, **options: Any
) -> dict[str, Any]:
    """Return what the rows of a result file depend on, so that only the same command continues a stopped one."""
    checksum = 0
    with (model.run / MODEL).open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return {
        "command": command,
        "mnar": __version__,
        "model": f"{checksum:08x}",
        "data": [source_fingerprint(source) for source in sources if source is not None],
        "prior": None if mix.shares is None else mix.shares.tolist(),
        **options,
    }


def sample_columns(block: SampleBlock) -> list[list[str]]:
    """Return the row numbers, and the names or ids of the samples, as columns of a result file."""
    names = block.names if block.ids is None else block.ids
    return [[str(number) for number in block.row_numbers.tolist()], [safe_cell(name) for name in names]]


def _rows(
    block: SampleBlock, probs: Floats, labels: Sequence[str], top: int, *, probabilities: bool
) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row. A sample that cannot be read has empty cells."""
    order = np.argsort(-probs, axis=1, kind="stable")[:, :top]
    columns = sample_columns(block)
    for place in range(top):
        best = np.take_along_axis(probs, order[:, place : place + 1], 1)
        columns += [[labels[c] for c in order[:, place].tolist()], [f"{p:.4f}" for p in best.ravel().tolist()]]
    if probabilities:
        columns += [[f"{p:.6f}" for p in of_class.tolist()] for of_class in probs.T]
    for column in columns[2:]:
        for place in block.problems:
            column[place] = ""
    return zip(*columns, strict=True)
