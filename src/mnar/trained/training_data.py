"""Read the data that a run was trained on again, in the form that its model takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mnar.config import OWN_DATA, RunConfig
from mnar.datasets.user_files import UNLABELED, PartlyLabeled, Table, read_data, read_data_like
from mnar.datasets.user_files.partly_labeled import RowNames
from mnar.own_data.portfolio_run import is_portfolio_run, read_portfolio_config
from mnar.run import RunFolder, load_data
from mnar.run.assemble import make_split
from mnar.run.file_names import CONFIG
from mnar.trained.model import TrainedModel
from mnar.types import OnProgress


def files_of_run(model: TrainedModel) -> list[Path]:
    """Return the training data and the files in the run folder, except tables that a user may replace."""
    sources = [Path(read_portfolio_config(model.run).source)] if is_portfolio_run(model.run) else []
    if not sources and (root := RunFolder(model.run).config().dataset.options.get("root")) is not None:
        sources = [Path(root)]
    return [*sources, *(path for path in model.run.iterdir() if path.is_file() and path.suffix.lower() != ".csv")]


def read_training_data(
    model: TrainedModel, *, root: Path | None = None, progress: OnProgress | None = None
) -> tuple[PartlyLabeled, Path]:
    """Return the samples, encoded for the model, with the labels that the user's file has now, and their place.

    root        the place of the data, if they have moved

    Of a benchmark, only the labelled and unlabelled rows of the split are returned, and the true classes of unlabelled
    rows are left out; the place is the configuration, which says what they are.
    """
    if is_portfolio_run(model.run):
        portfolio = read_portfolio_config(model.run)
        source = root or Path(portfolio.source)
        return _own_data(model, source, portfolio.reading, progress), source
    config = RunFolder(model.run).config()
    if config.dataset.name == OWN_DATA:
        options = {name: value for name, value in config.dataset.options.items() if name != "held_out"}
        stored = Path(options.pop("root"))
        source = root or stored
        return _own_data(model, source, {name: value for name, value in options.items() if value}, progress), source
    return _benchmark(config, root), model.run / CONFIG


def changes_since_training(model: TrainedModel, data: PartlyLabeled, place: Path) -> list[str]:
    """Return a note if the user's data have other numbers of rows or labels than in training."""
    if model.calibration is None:
        return []
    now = np.bincount(data.y[data.is_labeled], minlength=len(data.class_names))
    held_out = np.zeros_like(now)
    if not is_portfolio_run(model.run):  # a network is not trained on its held-out labels
        if RunFolder(model.run).config().dataset.name != OWN_DATA:
            return []
        held_out = np.bincount(model.calibration.y, minlength=len(now))
    before = model.calibration.num_labels + held_out
    if (now == before).all():
        return []
    return [
        f"{place} has {now.sum():,} labels now, and had {before.sum():,} when the model was trained; train again to "
        "use all of them"
    ]


def require_labels(data: PartlyLabeled, place: Path) -> None:
    """Raise an error if no sample has a label, e.g. because the label column was renamed."""
    if not data.is_labeled.any():
        raise ValueError(
            f"no sample of {place} has a label, although the run was trained with labels; restore the label column, or "
            "name the training data with --data"
        )


def _own_data(
    model: TrainedModel, source: Path, reading: Mapping[str, Any], progress: OnProgress | None
) -> PartlyLabeled:
    """Read the user's data. Images are read as in training, so that their cache is used again."""
    inputs = model.inputs
    if inputs.encoder is None:
        data = read_data(source, **reading, progress=progress)
        is_of_run = data.class_names == inputs.class_names
        if is_of_run and not isinstance(data.x, Table) and data.x.shape[1:] == inputs.input_shape:
            return data
    encoding = None if inputs.encoder is None else inputs.encoder.to_dict()
    options = {name: value for name, value in reading.items() if name != "size"}
    return read_data_like(
        source,
        input_shape=inputs.input_shape,
        class_names=inputs.class_names,
        encoding=encoding,
        **options,
        progress=progress,
    )


def _benchmark(config: RunConfig, root: Path | None) -> PartlyLabeled:
    data = load_data(config, root)
    split = make_split(config, data)
    labeled = torch.from_numpy(split.labeled_index)
    y = torch.full_like(data.labels, UNLABELED)
    y[labeled] = data.labels[labeled]
    rows = np.union1d(split.labeled_index, split.unlabeled_index)
    numbers = rows + 1
    return PartlyLabeled(
        data.train_x[torch.from_numpy(rows)].numpy(),
        y.numpy()[rows],
        data.class_names,
        RowNames("row", numbers),
        row_numbers=numbers,
    )
