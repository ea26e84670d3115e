"""`mnar predict`: labels for new data, as a CSV file that is written block by block."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar import __version__
from mnar.datasets.user_files.sample_blocks import SampleBlock
from mnar.datasets.user_files.sample_blocks.open_samples import shards_of
from mnar.datasets.user_files.spreadsheet_cells import safe_cell
from mnar.own_data.portfolio.member import Floats
from mnar.run.file_names import MODEL
from mnar.trained.class_mix import ClassMix, Prior
from mnar.trained.labelling import (
    LabelledBlock,
    OnRows,
    Pool,
    ThisMachine,
    Workers,
    pool_fingerprints,
    refuse_output_among_shards,
    write_labels,
)
from mnar.trained.model import TrainedModel
from mnar.trained.result_file import check_output, csv_lines, result_file
from mnar.trained.training_data import files_of_run


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
    workers: Workers | None = None,
) -> Predicted:
    """Predict every sample of `source`, and write a line for each: row, name or id, label and confidence.

    top              number of classes to list, the most probable first
    probabilities    also write the probability of every class
    workers          where the samples are predicted; the default is this machine
    """
    names = model.inputs.class_names
    if not 1 <= top <= len(names):
        raise ValueError(
            f"--top is {top}; the model has {len(names)} classes, so choose a number from 1 to {len(names)}"
        )
    prior_file = Path(prior) if isinstance(prior, str | Path) else None
    check_output(out, overwrite=overwrite, inputs=[source, features, prior_file, *files_of_run(model)])
    refuse_output_among_shards(out, source, shards_of(source, model.inputs))
    workers, pool, mix = workers or ThisMachine(), Pool(source, id, features), model.class_mix(prior)
    labeller = PredictionLabeller([safe_cell(name) for name in names], mix.shares, top, probabilities)
    header = [f"{column}_{place}" for place in range(2, top + 1) for column in ("label", "confidence")]
    header += [safe_cell(f"p({name})") for name in names] if probabilities else []
    with workers.opened(model, pool):
        samples = model.open(source, id=id, features=features, over=workers.map)
        header = ["row", samples.id_name or "sample", "label", "confidence", *header]
        data = pool_fingerprints(pool, samples, workers)
        identity = command_identity("predict", model, data, mix, id=id, top=top, probabilities=probabilities)
        with result_file(out, csv_lines([header]), identity, overwrite=overwrite) as result:
            labelled = workers.labelled(model, pool, samples, result.num_rows, labeller)
            counts = write_labels(result, labelled, labeller, samples, on_rows)
    return Predicted(result.num_rows, counts, mix, samples.notes)


def command_identity(
    command: str, model: TrainedModel, data: Sequence[str], mix: ClassMix, **options: Any
) -> dict[str, Any]:
    """Return what the rows of a result file depend on, so that only the same command continues a stopped one.

    data    fingerprints of the data
    """
    checksum = 0
    with (model.run / MODEL).open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return {
        "command": command,
        "mnar": __version__,
        "model": f"{checksum:08x}",
        "data": list(data),
        "prior": None if mix.shares is None else mix.shares.tolist(),
        **options,
    }


def sample_columns(block: SampleBlock) -> list[list[str]]:
    """Return the row numbers, and the names or ids of the samples, as columns of a result file."""
    names = block.names if block.ids is None else block.ids
    return [[str(number) for number in block.row_numbers.tolist()], [safe_cell(name) for name in names]]


@dataclass(frozen=True)
class PredictionLabeller:
    """Writes the most probable classes of each sample. A sample that cannot be read has empty cells."""

    labels: Sequence[str]  # the names of the classes, as cells
    shares: Floats | None
    top: int
    probabilities: bool

    @property
    def counts_shape(self) -> tuple[int, ...]:
        return (len(self.labels),)

    def __call__(self, block: SampleBlock, probs: Floats) -> LabelledBlock:
        order = np.argsort(-probs, axis=1, kind="stable")[:, : self.top]
        columns = sample_columns(block)
        for place in range(self.top):
            best = np.take_along_axis(probs, order[:, place : place + 1], 1)
            columns += [[self.labels[c] for c in order[:, place].tolist()], [f"{p:.4f}" for p in best.ravel().tolist()]]
        if self.probabilities:
            columns += [[f"{p:.6f}" for p in of_class.tolist()] for of_class in probs.T]
        for column in columns[2:]:
            for place in block.problems:
                column[place] = ""
        readable = np.setdiff1d(np.arange(len(probs)), list(block.problems))
        counts = np.bincount(probs[readable].argmax(1), minlength=len(self.labels))
        return LabelledBlock(csv_lines(zip(*columns, strict=True)), len(block.names), counts)
