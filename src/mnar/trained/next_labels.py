"""`mnar next`: the samples of the pool whose labels would help the model most."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.atomic_write import write_atomically
from mnar.datasets.user_files import PartlyLabeled
from mnar.datasets.user_files.class_folders import read_class_folders
from mnar.datasets.user_files.columns import PARQUET, read_columns
from mnar.datasets.user_files.csv_file import csv_layout, csv_rows
from mnar.datasets.user_files.image_csv import read_image_csv
from mnar.datasets.user_files.label_values import label_names
from mnar.datasets.user_files.read_data import TABLE_SUFFIXES, kind_and_reader
from mnar.datasets.user_files.sample_blocks.open_samples import blocks_of
from mnar.datasets.user_files.spreadsheet_cells import safe_cell
from mnar.own_data.next_samples import next_samples
from mnar.own_data.portfolio.member import Floats
from mnar.own_data.portfolio.threads import in_order
from mnar.trained.label_studio import TaskSample, configuration_path, write_tasks
from mnar.trained.labelling import OnRows
from mnar.trained.model import TrainedModel
from mnar.trained.result_file import check_output
from mnar.trained.training_data import changes_since_training, files_of_run, read_training_data, require_labels
from mnar.types import OnProgress

Format = Literal["csv", "label-studio"]
FORMATS: tuple[Format, ...] = ("csv", "label-studio")
DEFAULT_BUDGET = 100
IMAGE_READERS = (read_class_folders, read_image_csv)
MOST_CANDIDATES = 100_000  # of a larger pool, a random sample is looked at


class Chosen(NamedTuple):
    """What `next_file` chose."""

    num_rows: int
    num_pool: int
    counts: npt.NDArray[np.int64]  # [k] chosen samples by predicted class
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def next_file(
    model: TrainedModel,
    out: Path,
    *,
    budget: int | None = None,
    format: Format = "csv",
    image_prefix: str = "",
    root: Path | None = None,
    seed: int = 0,
    overwrite: bool = False,
    on_rows: OnRows = lambda done, total: None,
    on_reading: OnProgress | None = None,
) -> Chosen:
    """Choose `budget` samples of the training pool, and write them for annotators, the most useful sample first.

    budget          number of samples; None: DEFAULT_BUDGET, or all samples of a smaller pool
    format          "csv": a table with an empty column `label`; "label-studio": tasks with pre-annotations as JSON, and
                    the labelling configuration beside it. `mnar merge` reads both back.
    image_prefix    Label Studio: what comes before the path of each image
    root            the place of the training data, if they have moved
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose from {', '.join(FORMATS)}")
    files = (out, configuration_path(out)) if format == "label-studio" else (out,)
    for path in files:
        check_output(path, overwrite=overwrite, inputs=files_of_run(model))
    data, source = read_training_data(model, root=root, progress=on_reading)
    require_labels(data, source)
    for path in files:
        check_output(path, overwrite=overwrite, inputs=[source])
    pool, labeled = np.flatnonzero(~data.is_labeled), np.flatnonzero(data.is_labeled)
    if len(pool) == 0:
        raise ValueError(f"every sample of {source} has a label; add samples without a label")
    budget = min(DEFAULT_BUDGET, len(pool)) if budget is None else budget
    if not 1 <= budget <= len(pool):
        raise ValueError(
            f"the budget is {budget}, but {source} has {len(pool):,} samples without a label; choose a --budget from 1 "
            f"to {len(pool)}"
        )
    candidates, notes = _candidates(pool, budget, seed)
    notes += changes_since_training(model, data, source)
    num_classes = len(data.class_names)
    equal = np.full(num_classes, 1 / num_classes) if model.predictor.can_reweight else None
    found = next_samples(
        _for_rows(data, candidates, model, lambda x: model.predictor.probs(x, equal), on_rows),
        _for_rows(data, candidates, model, model.predictor.features),
        _for_rows(data, labeled, model, model.predictor.features),
        np.bincount(data.y[labeled], minlength=num_classes),
        model.pool_shares,
        budget=budget,
        seed=seed,
        class_names=data.class_names,
    )
    rows, shares = candidates[found.rows], model.class_mix(None).shares
    ascending, probs = np.argsort(rows), np.empty((len(rows), num_classes))
    probs[ascending] = _for_rows(data, rows[ascending], model, lambda x: model.predictor.probs(x, shares))
    shows_cells = format == "label-studio" and source.suffix.lower() in TABLE_SUFFIXES
    cells = _cells(source, _row_numbers(data, rows), model.ignored) if shows_cells else {}
    samples = _task_samples(data, rows, probs, found.reasons, cells)
    out.parent.mkdir(parents=True, exist_ok=True)
    if format == "csv":
        write_atomically(out, _as_csv(samples, data.id_name))
    else:
        kind: Literal["images", "table"] = "images" if _shows_images(model, source) else "table"
        notes += _notes_on_tasks(kind, image_prefix, has_cells=bool(cells))
        names, version = model.inputs.class_names, model.run.resolve().name
        write_tasks(
            out, samples, names, model_version=version, kind=kind, image_prefix=image_prefix, id_name=data.id_name
        )
    counts = np.bincount(probs.argmax(1), minlength=num_classes)
    return Chosen(len(rows), len(pool), counts, files, tuple(notes))


def _shows_images(model: TrainedModel, source: Path) -> bool:
    """Whether the samples are images. A model that was trained with --features does not take images itself."""
    if model.inputs.image_shape is not None or model.inputs.encoder is not None:
        return model.inputs.image_shape is not None
    may_list_images = source.is_dir() or source.suffix.lower() == ".csv"
    return may_list_images and kind_and_reader(source, tuple(model.ignored), False)[1] in IMAGE_READERS


def _notes_on_tasks(kind: Literal["images", "table"], image_prefix: str, *, has_cells: bool) -> list[str]:
    """Return notes on tasks that Label Studio cannot show in full."""
    if kind == "images" and not image_prefix:
        return [
            "the tasks hold the paths of the images; Label Studio shows the images only with --image-prefix, e.g. "
            "--image-prefix '/data/local-files/?d=photos/'"
        ]
    if kind == "table" and not has_cells:
        return ["the tasks show only row numbers, because the samples are rows of numbers without names"]
    return []


def _candidates(pool: npt.NDArray[np.intp], budget: int, seed: int) -> tuple[npt.NDArray[np.intp], list[str]]:
    """Return the rows to choose from: the pool, or a random sample of a very large one."""
    most = max(MOST_CANDIDATES, 2 * budget)
    if len(pool) <= most:
        return pool, []
    drawn = np.sort(np.random.default_rng(seed).permutation(pool)[:most])
    return drawn, [f"chosen from a random sample of {most:,} of the {len(pool):,} samples without a label"]


def _for_rows(
    data: PartlyLabeled,
    rows: npt.NDArray[np.intp],
    model: TrainedModel,
    compute: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    on_rows: OnRows = lambda done, total: None,
) -> npt.NDArray[Any]:
    """Return what `compute` returns for the samples of some rows, in ascending order."""
    results, done = list[npt.NDArray[Any]](), 0
    blocks = blocks_of(data, rows, model.inputs).blocks()
    for block, result in in_order(
        lambda block: compute(block.x), blocks, model.predictor.num_threads, model.predictor.pool
    ):
        results.append(result)
        done += len(block.names)
        on_rows(done, len(rows))
    return np.concatenate(results)


def _task_samples(
    data: PartlyLabeled,
    rows: npt.NDArray[np.intp],
    probs: Floats,
    reasons: Sequence[str],
    cells: Mapping[int, Mapping[str, str]],
) -> list[TaskSample]:
    """Describe the chosen samples. `cells` are those of a table, by row number."""
    best, confidences = probs.argmax(1).tolist(), probs.max(1).tolist()
    return [
        TaskSample(
            row=number,
            sample=str(data.row_names[row]),
            suggestion=data.class_names[best[place]],
            confidence=confidences[place],
            uncertainty=1 - confidences[place],
            reason=reasons[place],
            cells=cells.get(number),
            id=None if data.ids is None else data.ids[row],
        )
        for place, (row, number) in enumerate(zip(rows.tolist(), _row_numbers(data, rows), strict=True))
    ]


def _row_numbers(data: PartlyLabeled, rows: npt.NDArray[np.intp]) -> list[int]:
    """Return the row numbers of samples in the user's file, from 1."""
    return [int(data.row_numbers[row]) if len(data.row_numbers) else row + 1 for row in rows.tolist()]


def _cells(source: Path, numbers: Sequence[int], ignored: Sequence[str]) -> Mapping[int, Mapping[str, str]]:
    """Return the cells of some rows of a table by row number and column, without the label and ignored columns."""
    wanted = set(numbers)
    if source.suffix.lower() in PARQUET:
        columns = read_columns(source)
        names, texts = columns.names, [columns.text(name) for name in columns.names]
        rows = {number: [str(cells[number - 1]) for cells in texts] for number in wanted}
    else:
        layout = csv_layout(source)
        names = layout.header
        rows = {number: cells for number, _, cells in csv_rows(layout) if number in wanted}
    hidden = {*ignored, *label_names(names)}
    return {
        number: {name: cell for name, cell in zip(names, cells, strict=True) if name not in hidden}
        for number, cells in rows.items()
    }


def _as_csv(samples: Sequence[TaskSample], id_name: str | None) -> str:
    """Return the table for annotators. They fill in the column `label`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", id_name or "sample", "label", "suggestion", "confidence", "reason"])
    for sample in samples:
        name = sample.sample if sample.id is None else sample.id
        confidence = f"{sample.confidence:.4f}"
        writer.writerow(
            [sample.row, safe_cell(name), "", safe_cell(sample.suggestion), confidence, safe_cell(sample.reason)]
        )
    return text.getvalue()
