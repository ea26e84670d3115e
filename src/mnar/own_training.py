"""Somebody's own data: looked at, trained on beside their labels alone, and labelled."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mnar import checkpoint
from mnar.assembly import load_data
from mnar.config import RunConfig, complete, parse_setting
from mnar.datasets.own import as_data_set, own
from mnar.engine import Engine
from mnar.evaluate import BATCH
from mnar.folder import Display, read_config
from mnar.inputs import UNLABELED, read_data
from mnar.inspect import Inspection, inspect_data
from mnar.own_defaults import own_sections
from mnar.recipes import configure
from mnar.report import read_run
from mnar.run import is_own, new_run, resume_run, trained_network
from mnar.run_files import CONFIG, MODEL, resume_command
from mnar.train import Interrupted
from mnar.types import DataSet

SUPERVISED = "supervised"  # the folder, within a run's, of the same without its unlabelled samples
PREDICTIONS = "predictions.csv"
CLEARLY = 2.0  # standard errors

OnProgress = Callable[[str, int, int], None]  # what is being done, so many done of so many


class Verdict(NamedTuple):
    """Balanced accuracies on the labels held out, and what they say."""

    with_pool: float
    labels_alone: float
    error: float  # standard, of their difference
    num_scored: int
    text: str
    predictions: Path


def inspect_own(source: Path, out: Path, *, reading: dict[str, Any], seed: int, on_progress: OnProgress) -> Inspection:
    data = read_data(source, **reading, progress=partial(on_progress, "reading"))
    inspection = inspect_data(data, seed=seed, progress=partial(on_progress, "looking"))
    out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(out, json.dumps(inspection.to_json(), indent=1))
    return inspection


def configure_own(
    source: Path,
    *,
    reading: dict[str, Any],
    learner: str | None,
    guidance: str | None,
    iterations: int | None,
    seed: int | None,
    settings: Sequence[str],
    on_progress: OnProgress,
) -> tuple[RunConfig, DataSet]:
    """The defaults for data of this kind and size, and over them what was chosen; and the data, as they were read."""
    set_otherwise = {option: value for section, option, value in map(parse_setting, settings) if section == "dataset"}
    options = complete(own, {"root": str(source), **reading, **set_otherwise}, "dataset own")
    root, held_out = options.pop("root"), options.pop("held_out")
    data = as_data_set(read_data(root, **options, progress=partial(on_progress, "reading")), held_out=held_out)
    sections = own_sections(
        tuple(data.train_x.shape[1:]),
        int((data.train_y == UNLABELED).sum()),
        on_gpu=torch.cuda.is_available(),
        iterations=iterations,
    )
    places = {name: str(Path(value).resolve()) for name, value in reading.items() if name == "features"}
    config = configure(
        dataset="own",
        data=str(source),
        learner=learner,
        guidance=guidance,
        iterations=iterations,
        seed=seed,
        settings=settings,
        defaults={**sections, "dataset": {"name": "own", **reading, **places}},
    )
    return config, data


def train_and_finish(
    config: RunConfig, folder: Path, display: Display, *, data: DataSet | None = None
) -> Verdict | None:
    """A new run and, on own data, what comes after it; `data` as in `new_run`."""
    if not is_own(config):
        new_run(config, folder, display)
        return None
    data = load_data(config) if data is None else data
    new_run(config, folder, display, data=data)
    return finish_own(folder, display, data)


def resume_and_finish(
    folder: Path, display: Display, *, root: Path | None = None, settings: Sequence[str] = ()
) -> Verdict | None:
    """The same from where it stopped; `root` and `settings` as in `resume_run`."""
    config = read_config(folder).with_engine(settings)
    data = load_data(config, root)
    resume_run(folder, display, data=data, settings=settings)
    return finish_own(folder, display, data, settings=settings) if is_own(config) else None


def finish_own(folder: Path, display: Display, data: DataSet, *, settings: Sequence[str] = ()) -> Verdict | None:
    """After a run: train the same on its labels alone, compare, and label the rest. Called again, it goes on.

    A run on labels alone has nothing to be compared with. `settings` are as in `resume_run`.
    """
    config, baseline = read_config(folder), folder / SUPERVISED
    is_compared = config.learner.name != "supervised"
    if is_compared and not (baseline / MODEL).exists():
        display.note("now the same network on the labels alone, to compare")
        alone = {**config.to_dict(), "learner": {"name": "supervised"}, "guidance": {"name": "none"}}
        try:
            if (baseline / CONFIG).exists():
                resume_run(baseline, display, data=data, settings=settings)
            else:
                new_run(RunConfig.from_dict(alone).with_engine(settings), baseline, display, data=data)
        except Interrupted as error:
            stopped = str(error).partition(";")[0]
            raise Interrupted(f"{stopped}; saved. Go on with: {resume_command(folder)}") from error
    write_predictions(folder, data, settings=settings)
    return compare(folder, baseline) if is_compared else None


def compare(folder: Path, baseline: Path) -> Verdict:
    runs = [read_run(path) for path in (folder, baseline)]
    split = runs[0].split
    counts = np.array(split["test"], dtype=float)
    present = counts > 0
    counts = counts[present]
    recalls = np.array([run.lines[-1]["test"]["recall"] for run in runs])[:, present]
    with_pool, labels_alone = recalls.mean(1).tolist()
    likely = (recalls * counts + 1) / (counts + 2)  # Laplace's rule: one label that is right is no proof for all
    error = math.sqrt((likely * (1 - likely) / counts).sum()) / len(counts)
    gain, num_scored = with_pool - labels_alone, int(counts.sum())

    text = f"balanced accuracy {with_pool:.1%} with the unlabelled samples, {labels_alone:.1%} without"
    if split["test_is_trained_on"]:
        text += ", on the labels trained on: there are too few to hold some out and tell whether they helped"
    elif gain > CLEARLY * error:
        text += f" ({num_scored} labels held out): they helped"
    elif gain < -CLEARLY * error:
        text += f" ({num_scored} labels held out): they did harm; take the model in {baseline}, or another guidance"
    else:
        text += f": they did not help, or not so much that {num_scored} held-out labels could show it (± {error:.1%})"
    return Verdict(with_pool, labels_alone, error, num_scored, text, folder / PREDICTIONS)


@torch.no_grad()
def write_predictions(folder: Path, data: DataSet, *, settings: Sequence[str] = ()) -> None:
    """A class and a confidence for every sample without a label."""
    config = read_config(folder).with_engine(settings)
    network, prepare = trained_network(folder, config, data, Engine(config.engine))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["sample", "label", "confidence"])
    for rows in torch.nonzero(data.train_y == UNLABELED).flatten().split(BATCH):
        probs = network(prepare(data.train_x[rows])).float().softmax(1)
        for row, confidence, label in zip(rows.tolist(), *(part.tolist() for part in probs.max(1)), strict=True):
            writer.writerow([data.row_names[row], data.class_names[label], f"{confidence:.4f}"])
    checkpoint.write_atomically(folder / PREDICTIONS, text.getvalue())
