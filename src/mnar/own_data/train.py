"""Train on a user's own data: a model, a labels-only baseline, a comparison of the two, and labels for the pool."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mnar import distributed
from mnar.atomic_write import from_json, write_atomically
from mnar.config import OWN_DATA, RunConfig, complete, parse_setting
from mnar.datasets.own_data import as_data_set, own_data
from mnar.datasets.user_files import UNLABELED, read_data
from mnar.own_data.confidence import estimated_pool_shares
from mnar.own_data.defaults import default_sections
from mnar.own_data.inspection import Inspection, inspect_data
from mnar.own_data.network_predictor import NetworkPredictor
from mnar.own_data.page.network import (
    MOST_TESTED_POOL_ROWS,
    PoolPredictions,
    labels_only_test,
    network_page,
    network_short_list,
)
from mnar.own_data.portfolio.scores import Score
from mnar.own_data.predictions_file import PREDICTIONS, write_predictions_file
from mnar.recipes import configure
from mnar.report import write_own_data_report, write_run_report
from mnar.run import Display, RunFolder, check_run, load_data, new_run, read_run, resume_run
from mnar.run.calibration_file import read_calibration, write_calibration
from mnar.run.file_names import BASELINE, TRAINING_REPORT, resume_command
from mnar.run.processes import together
from mnar.run.suggest_rate import with_suggested_rate
from mnar.run.timing import iterations_within
from mnar.training.trainer import Interrupted
from mnar.types import DataSet

MIN_STANDARD_ERRORS = 2.0  # a difference of more standard errors counts as significant

OnStage = Callable[[str, int, int], None]  # called with the name of a stage, the items done and their total


class Verdict(NamedTuple):
    """Whether the unlabelled samples helped: balanced accuracies on the held-out labels, and the conclusion as text."""

    with_pool: float
    labels_alone: float
    error: float  # standard error of the difference
    num_scored: int
    text: str
    predictions: Path


def inspect_files(source: Path, out: Path, *, reading: dict[str, Any], seed: int, on_stage: OnStage) -> Inspection:
    """Read the user's data, inspect it, and write the findings as JSON to `out`."""
    data = read_data(source, **reading, progress=partial(on_stage, "reading"))
    inspection = inspect_data(data, seed=seed, progress=partial(on_stage, "estimating"))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps(inspection.to_json(), indent=1))
    return inspection


def check_replaces_findings(out: Path) -> None:
    """Refuse to write findings in the place of any other file."""
    if not os.path.lexists(out):
        return
    try:
        found = None if out.is_symlink() else from_json(out.read_text())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not found.keys() >= {"num_labeled", "num_unlabeled", "recommendation"}:
        raise FileExistsError(
            f"{out} exists and was not written by `mnar inspect`, so it is not replaced; choose another --out"
        )


def configure_own_data(
    source: Path,
    *,
    reading: dict[str, Any],
    learner: str | None,
    guidance: str | None,
    iterations: int | None,
    seed: int | None,
    settings: Sequence[str],
    on_stage: OnStage,
    minutes: float | None = None,
) -> tuple[RunConfig, DataSet]:
    """Read the user's data and choose the configuration: defaults for this kind of data, then the user's options."""

    def read() -> tuple[DataSet, str | None]:
        if minutes is not None and iterations is not None:
            raise ValueError("--minutes and --iterations both say how long to train; leave one of them out")
        of_data = {option: value for section, option, value in map(parse_setting, settings) if section == "dataset"}
        options = complete(own_data, {"root": str(source), **reading, **of_data}, "dataset", OWN_DATA)
        root, held_out = options.pop("root"), options.pop("held_out")
        files = read_data(root, **options, progress=partial(on_stage, "reading"))
        data = as_data_set(files, held_out=held_out)
        is_chosen = learner is not None or guidance is not None or any(s.startswith("guidance.") for s in settings)
        if is_chosen or files.is_labeled.all():
            return data, guidance
        found = inspect_data(files, progress=partial(on_stage, "estimating")).recommendation
        return data, None if found is None else found.guidance

    data, guidance_or_default = together(read)

    def configured(iterations: int | None) -> RunConfig:
        sections = default_sections(
            tuple(data.train_x.shape[1:]),
            int((data.train_y == UNLABELED).sum()),
            on_gpu=torch.cuda.is_available(),
            iterations=iterations,
        )
        return configure(
            dataset=OWN_DATA,
            data=str(source),
            learner=learner,
            guidance=guidance_or_default,
            iterations=iterations,
            seed=seed,
            settings=settings,
            defaults={**sections, "dataset": {"name": OWN_DATA, **reading}},
        )

    config = together(lambda: configured(iterations))
    if distributed.world_size() > 1:  # the steps below exchange tensors, so every refusal must come before them
        together(lambda: check_run(config, data))
    if minutes is not None:
        config = configured(iterations_within(config, data, minutes))
    if not any(setting.replace(" ", "").startswith("train.lr=") for setting in settings):
        config = with_suggested_rate(config, data)
    return config, data


def train_own_data(config: RunConfig, folder: Path, display: Display, data: DataSet) -> Verdict | None:
    """Train on the user's data, then train the baseline, compare, and predict a label for every unlabelled sample."""
    new_run(config, folder, display, data=data)
    return finish_own_data(folder, display, data)


def resume_own_data(
    folder: Path, display: Display, *, root: Path | None = None, settings: Sequence[str] = ()
) -> Verdict | None:
    """Continue `train_own_data` where it stopped. `root` and `settings` have the same meaning as in `resume_run`."""
    data = together(lambda: load_data(RunFolder(folder).config().with_engine(settings), root))
    resume_run(folder, display, data=data, settings=settings)
    return finish_own_data(folder, display, data, settings=settings)


def finish_own_data(folder: Path, display: Display, data: DataSet, *, settings: Sequence[str] = ()) -> Verdict | None:
    """Finish a trained run: train the labels-only baseline, predict labels for the pool, and compare the two models.

    A second call continues where the first one stopped. A run that uses only the labels (learner "supervised") needs
    no baseline, so the result is None. Of several processes, the first one predicts and compares. The result of the
    others is None.
    """
    config, baseline = RunFolder(folder).config(), RunFolder(folder / BASELINE)
    is_compared = config.learner.name != "supervised"
    if is_compared and not baseline.is_finished:
        display.note("now training the labels-only baseline, for comparison")
        sections = config.to_dict()
        baseline_sections = {
            **sections,
            "learner": {"name": "supervised"},
            "guidance": {"name": "none"},
            "train": {**sections["train"], "pretraining": 0},  # which uses the unlabelled samples
        }
        try:
            if baseline.has_config:
                resume_run(baseline.path, display, data=data, settings=settings, on_finished=write_run_report)
            else:
                baseline_config = RunConfig.from_dict(baseline_sections).with_engine(settings)
                new_run(baseline_config, baseline.path, display, data=data, on_finished=write_run_report)
        except Interrupted as error:
            stopped = str(error).partition(";")[0]
            raise Interrupted(f"{stopped}; saved. Continue with: {resume_command(folder)}") from error
    if distributed.rank() > 0:  # they have nothing left to do, and must not wait for hours
        return None
    predictions = write_predictions(folder, data, settings=settings)
    verdict = compare(folder, baseline.path) if is_compared else None
    write_pages(folder, data, predictions, verdict, settings=settings)
    return verdict


def write_pages(
    folder: Path, data: DataSet, predictions: PoolPredictions, verdict: Verdict | None, *, settings: Sequence[str] = ()
) -> None:
    """Write report.html, which answers the questions of the user, and training.html with the training curves."""
    labels_only = folder if verdict is None else folder / BASELINE
    some = np.random.default_rng(0).permutation(predictions.rows)[:MOST_TESTED_POOL_ROWS]
    labels_only_probs = _predictor(labels_only, data, settings).probs(data.train_x.numpy()[some])
    of_page: dict[str, Any] = {
        "at_random_test": labels_only_test(read_calibration(labels_only), labels_only_probs),
        "to_label": network_short_list(folder, data, predictions, _predictor(folder, data, settings).features),
    }
    if verdict is not None:
        gain, reach = verdict.with_pool - verdict.labels_alone, MIN_STANDARD_ERRORS * verdict.error
        of_page["verdict"] = verdict.text
        of_page["difference"] = None if data.test_is_trained_on else Score(gain, gain - reach, gain + reach)
    write_own_data_report(folder, network_page(folder, data, predictions, **of_page))
    write_run_report(folder, name=TRAINING_REPORT)


def compare(folder: Path, baseline: Path) -> Verdict:
    """Compare the balanced accuracy of a run with that of its baseline, on the held-out labels."""
    runs = [read_run(path) for path in (folder, baseline)]
    split = runs[0].split
    counts = np.array(split["test"], dtype=float)
    present = counts > 0
    counts = counts[present]
    recalls = np.array([run.lines[-1]["test"]["recall"] for run in runs])[:, present]
    with_pool, labels_alone = recalls.mean(1).tolist()
    smoothed = (recalls * counts + 1) / (counts + 2)  # Laplace's rule: one correct label does not prove a recall of 1
    # Both models are scored on the same labels; treating the scores as independent makes the error larger than it is.
    error = math.sqrt((smoothed * (1 - smoothed) / counts).sum()) / len(counts)
    gain, num_scored = with_pool - labels_alone, int(counts.sum())

    text = f"balanced accuracy {with_pool:.1%} with the unlabelled samples, {labels_alone:.1%} with the labels alone"
    if split["test_is_trained_on"]:
        text += ", measured on the training labels: there are too few labels to hold some out and compare fairly"
    elif gain > MIN_STANDARD_ERRORS * error:
        text += f" ({num_scored} held-out labels): the unlabelled samples helped"
    elif gain < -MIN_STANDARD_ERRORS * error:
        text += (
            f" ({num_scored} held-out labels): the unlabelled samples made the model worse; "
            f"use the model in {baseline}, or try another guidance"
        )
    else:
        text += (
            f": {num_scored} held-out labels are too few to show whether the unlabelled samples helped "
            f"(standard error {error:.1%})"
        )
    return Verdict(with_pool, labels_alone, error, num_scored, text, folder / PREDICTIONS)


def write_predictions(folder: Path, data: DataSet, *, settings: Sequence[str] = ()) -> PoolPredictions:
    """Write predictions.csv. The confidences are calibrated if there are held-out labels."""
    predictor, stored = _predictor(folder, data, settings), read_calibration(folder, len(data.class_names))
    assert stored is not None  # every run that ends writes it, also a finished run that is resumed
    rows = np.flatnonzero(data.train_y.numpy() == UNLABELED)
    probs = predictor.probs(data.train_x.numpy()[rows])
    labels = probs.argmax(1)
    shares = estimated_pool_shares(stored.probs, stored.y, probs)
    if shares is not None:
        write_calibration(folder, stored._replace(pool_shares=np.stack(shares)))
        probs = predictor.reweighted(probs, shares.for_bayes_rule())
    write_predictions_file(folder, data, rows, labels, probs[np.arange(len(labels)), labels])
    return PoolPredictions(rows, labels, probs)


def _predictor(folder: Path, data: DataSet, settings: Sequence[str]) -> NetworkPredictor:
    return NetworkPredictor.of_run(folder, RunFolder(folder).config().with_engine(settings), data)
