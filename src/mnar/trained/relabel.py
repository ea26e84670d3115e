"""`mnar relabel`: labels for a pool, each with a decision: accept it, review it, or reject it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.sample_blocks import SampleBlock, SampleBlocks, evenly_spread
from mnar.datasets.user_files.sample_blocks.open_samples import blocks_of, shards_of
from mnar.datasets.user_files.spreadsheet_cells import safe_cell
from mnar.own_data.confidence import estimated_pool_shares
from mnar.own_data.decisions import DECISIONS, Decisions, fit_decisions
from mnar.own_data.portfolio.member import Floats, with_shares
from mnar.run.calibration_file import CalibrationData
from mnar.run.file_names import resume_command
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
from mnar.trained.predict import command_identity, sample_columns
from mnar.trained.result_file import check_output, csv_lines, result_file
from mnar.trained.training_data import changes_since_training, files_of_run, read_training_data, require_labels
from mnar.types import OnProgress

HEADER = ["label", "confidence", "second", "margin", "decision"]
UNREADABLE = "unreadable"  # instead of a decision, for an image that cannot be read
MOST_IN_SAMPLE = (
    8192  # samples from which the confidences of a pool, and the class mix of a further pool, are estimated
)


class Relabeled(NamedTuple):
    """What `relabel_file` did."""

    num_rows: int
    counts: npt.NDArray[np.int64]  # [k, decisions], without rows of an earlier, stopped command
    decisions: Decisions
    mix: ClassMix
    notes: Sequence[str]


def relabel_file(
    model: TrainedModel,
    out: Path,
    *,
    source: Path | None = None,
    root: Path | None = None,
    precision: float = 0.95,
    prior: Prior | None = None,
    id: str | None = None,
    features: Path | None = None,
    overwrite: bool = False,
    on_rows: OnRows = lambda done, total: None,
    on_reading: OnProgress | None = None,
    workers: Workers | None = None,
) -> Relabeled:
    """Label the training pool of a run, or the further pool at `source`, and write a line for each sample.

    root         the place of the training data, if they have moved
    precision    the share of right labels that is wanted among the accepted labels of each class
    workers      where the samples of a further pool are labelled; the default is this machine
    """
    prior_file = Path(prior) if isinstance(prior, str | Path) else None
    check_output(out, overwrite=overwrite, inputs=[source, features, prior_file, *files_of_run(model)])
    if source is not None:
        refuse_output_among_shards(out, source, shards_of(source, model.inputs))
    held_out, workers = _held_out(model), workers or ThisMachine()
    further = None if source is None else Pool(source, id, features)
    equal = np.full(len(model.inputs.class_names), 1 / len(model.inputs.class_names))
    balanced = model.predictor.held_out_probs(held_out.probs, held_out.y, equal)
    with _opened_pool(model, further, root, on_reading, workers) as (pool, samples):
        check_output(out, overwrite=overwrite, inputs=[pool.source])
        of_sample = model.predictor.probs(evenly_spread(samples, MOST_IN_SAMPLE), equal)
        if prior is not None or (source is None and model.pool_shares is not None):
            mix = model.class_mix(prior)
        else:
            # the estimate compares predictions that one and the same calibration has changed
            mix = _estimated_mix(model.predictor.reweighted(held_out.probs, equal), of_sample, held_out)
        assert mix.shares is not None
        decisions = fit_decisions(
            balanced,
            held_out.y,
            mix.shares,
            precision=precision,
            num_labels=np.bincount(held_out.y, minlength=len(equal)) // held_out.repeats,
            pool_probs=of_sample,
        )
        labeller = DecisionLabeller([safe_cell(name) for name in model.inputs.class_names], equal, decisions)
        header = ["row", samples.id_name or "sample", *HEADER]
        data = pool_fingerprints(pool, samples, workers)
        identity = command_identity("relabel", model, data, mix, id=id, precision=precision)
        with result_file(out, csv_lines([header]), identity, overwrite=overwrite) as result:
            labelled = workers.labelled(model, pool, samples, result.num_rows, labeller)
            counts = write_labels(result, labelled, labeller, samples, on_rows)
    return Relabeled(result.num_rows, counts, decisions, mix, samples.notes)


def _held_out(model: TrainedModel) -> CalibrationData:
    """Return the predictions for labels that the model was not trained on, which every promise needs."""
    if model.calibration is None:
        raise ValueError(
            f"the run in {model.run} was trained by an older version, which did not store the predictions that a "
            f"promised precision needs; write them with `{resume_command(model.run)}`"
        )
    if len(np.unique(model.calibration.y)) < 2:
        raise ValueError(
            f"the run in {model.run} has too few labels that its model was not trained on, so no precision can be "
            "promised; train with more labels, or use `mnar predict`"
        )
    return model.calibration


@contextmanager
def _opened_pool(
    model: TrainedModel, further: Pool | None, root: Path | None, on_reading: OnProgress | None, workers: Workers
) -> Iterator[tuple[Pool, SampleBlocks]]:
    """Open a further pool, or the training pool, with the file or folder that tells whether its samples have changed.

    The training pool is read as a whole, so it is labelled on this machine.
    """
    if further is not None:
        with workers.opened(model, further):
            yield further, model.open(further.source, id=further.id, features=further.features, over=workers.map)
        return
    data, place = read_training_data(model, root=root, progress=on_reading)
    require_labels(data, place)
    rows = np.flatnonzero(~data.is_labeled)
    if len(rows) == 0:
        raise ValueError(f"every sample of {place} has a label, so there is no pool; name another one with --pool")
    samples = blocks_of(data, rows, model.inputs)
    samples.notes += [*data.notes, *changes_since_training(model, data, place)]
    yield Pool(place), samples


def _estimated_mix(balanced: Floats, of_sample: Floats, held_out: CalibrationData) -> ClassMix:
    """Estimate the class mix of a further pool, as training does for its pool.

    balanced     [m, k] balanced probabilities of the held-out labels
    of_sample    [n, k] balanced probabilities of a sample of the pool
    """
    one_repeat = slice(len(held_out.y) // held_out.repeats)
    y = held_out.y[one_repeat]
    labeled_mix = np.bincount(y, minlength=balanced.shape[1]) / len(y)
    estimate = estimated_pool_shares(
        with_shares(balanced[one_repeat], labeled_mix), y, with_shares(of_sample, labeled_mix)
    )
    assert estimate is not None  # `_held_out` has checked that two classes have labels
    return ClassMix(estimate.for_bayes_rule(), "the class mix that was estimated from these samples")


@dataclass(frozen=True)
class DecisionLabeller:
    """Writes the label of each sample with its decision. A sample that cannot be read is called unreadable."""

    labels: Sequence[str]  # the names of the classes, as cells
    shares: Floats  # equal classes: the decisions apply the class mix
    decisions: Decisions

    @property
    def counts_shape(self) -> tuple[int, ...]:
        return len(self.labels), len(DECISIONS)

    def __call__(self, block: SampleBlock, probs: Floats) -> LabelledBlock:
        decided = self.decisions.decide(probs)
        columns = [
            *sample_columns(block),
            [self.labels[label] for label in decided.labels.tolist()],
            [f"{confidence:.4f}" for confidence in decided.confidences.tolist()],
            [self.labels[label] for label in decided.second.tolist()],
            [f"{margin:.4f}" for margin in decided.margins.tolist()],
            [DECISIONS[code] for code in decided.codes.tolist()],
        ]
        for place in block.problems:
            for column in columns[2:-1]:
                column[place] = ""
            columns[-1][place] = UNREADABLE
        counts = np.zeros(self.counts_shape, np.int64)
        readable = np.setdiff1d(np.arange(len(decided.labels)), list(block.problems))
        np.add.at(counts, (decided.labels[readable], decided.codes[readable]), 1)
        return LabelledBlock(csv_lines(zip(*columns, strict=True)), len(block.names), counts)
