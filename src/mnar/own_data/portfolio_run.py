"""A run of the portfolio on the user's own data: a run folder that a stopped run continues in.

The folder contains
    portfolio.yaml       the options, and a fingerprint of the data
    members/NAME.npz     the cross-validation of each member that has finished; a resumed run reads them
    choice.json          what was tried, what was chosen, and why
    calibration.npz      the predictions of the chosen model for labels that it was not fitted to, and the class shares
    predictions.csv      a label and a confidence for every sample without a label
    report.html
    model.safetensors    the chosen members, fitted to all labels; written last, so it marks a finished run
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from mnar.atomic_write import from_json, write_atomically
from mnar.config import read_yaml
from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files import UNLABELED, read_data
from mnar.option_values import shown
from mnar.own_data.inputs import InputEncoder, label_counts, samples_of
from mnar.own_data.page.portfolio import own_data_page, portfolio_short_list
from mnar.own_data.page.provenance import portfolio_origin
from mnar.own_data.portfolio import Choice, Objective, fit_portfolio, members_for
from mnar.own_data.portfolio.cross_validation import Tried
from mnar.own_data.portfolio.member import Integers, Member, Samples
from mnar.own_data.portfolio.members import named_member
from mnar.own_data.portfolio.portfolio import TriedMember, decided
from mnar.own_data.portfolio.verdict import disagreement, verdict_text
from mnar.own_data.portfolio_model import PortfolioModel, read_portfolio_model, write_portfolio_model
from mnar.own_data.portfolio_option_checks import check_portfolio_options, check_stored_options
from mnar.own_data.predictions_file import PREDICTIONS, write_predictions_file
from mnar.report import write_own_data_report
from mnar.run.calibration_file import CalibrationData, read_calibration, write_calibration
from mnar.run.file_names import CALIBRATION, CHOICE, MEMBERS, PORTFOLIO, resume_command
from mnar.run.lock import locked
from mnar.run.model_checks import in_one_line
from mnar.run.other_data import read_other_data
from mnar.run.sealed_npz import read_sealed_npz, write_sealed_npz
from mnar.run.stopping import StopFlag, stopping_on_signals
from mnar.training.evaluation import count_pairs
from mnar.training.metrics import Predictions as ScoredPredictions
from mnar.training.metrics import all_scores
from mnar.training.trainer import Interrupted
from mnar.types import DataSet, OnProgress

UNREADABLE = (OSError, ValueError, KeyError, TypeError)  # raised for a missing or damaged file
LARGEST_SEED = 2**31 - 1  # scikit-learn takes 32 bits, and a repeat of the cross-validation adds its number
MINUTES_FOR_TABLES, MINUTES_FOR_IMAGES = 2.5, 8.0


@dataclass(frozen=True)
class PortfolioConfig:
    """The options of a portfolio run.

    source        path of the user's data
    reading       options of `read_data`
    member        the name of the only member to try; None: all that suit the data
    fast          try only two quick members
    objective     what the predictions maximise
    minutes       time limit of the cross-validation; None: a limit that suits the kind of data
    iterations    training steps of the network; None: a number that suits the kind of data
    """

    source: str
    reading: dict[str, Any] = field(default_factory=dict)
    member: str | None = None
    fast: bool = False
    objective: Objective = "balanced_accuracy"
    minutes: float | None = None
    iterations: int | None = None
    seed: int = 1
    fingerprint: str | None = None  # of the data; a resumed run checks it

    def __post_init__(self) -> None:
        check_portfolio_options(self.objective, self.minutes, self.iterations)
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"seed is {shown(self.seed)}; choose one from 0 to {LARGEST_SEED}")


@dataclass(frozen=True)
class Outcome:
    """What a finished run says to the user."""

    choice: Choice
    verdict: str  # whole sentences
    warnings: tuple[str, ...]
    predictions: Path


class PortfolioDisplay:
    """Shows the progress of a portfolio run. This base class shows nothing."""

    def started(self, members: Sequence[Member], data: DataSet, minutes: float) -> None: ...
    def fold_done(self, name: str, done: int, total: int) -> None: ...
    def tried(self, member: TriedMember) -> None: ...
    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...


def is_portfolio_run(folder: Path) -> bool:
    """Return whether the folder belongs to a portfolio run."""
    return (folder / PORTFOLIO).exists()


def portfolio_folder(config: PortfolioConfig) -> Path:
    """Return the default folder of a run, runs/DATA-portfolio-seedN."""
    return Path("runs") / f"{Path(config.source).resolve().stem}-{config.member or 'portfolio'}-seed{config.seed}"


def read_own_data(config: PortfolioConfig, progress: OnProgress | None = None) -> DataSet:
    """Read the data of a run. No label is held out, because the cross-validation scores the members."""
    files = read_data(Path(config.source), **config.reading, progress=progress)
    # without the note of `as_data_set` that the scores are too high, which is not true of a cross-validation
    return as_data_set(files, held_out=0.0)._replace(notes=files.notes)


def new_portfolio_run(config: PortfolioConfig, folder: Path, display: PortfolioDisplay, data: DataSet) -> Outcome:
    """Try the members, choose, and write the model and the predictions into a new folder."""
    check_trainable(data, Path(config.source))
    prepared = _prepare(config, data)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if is_portfolio_run(folder):
            raise FileExistsError(
                f"{folder} already contains a run; continue it with `{resume_command(folder)}`, or choose another --out"
            )
        # an absolute path, so that --resume works from any folder
        stored = {**asdict(config), "source": str(Path(config.source).resolve()), "fingerprint": data.fingerprint}
        write_atomically(folder / PORTFOLIO, yaml.safe_dump(stored, sort_keys=False))
        for note in data.notes:
            display.note(note)
        return _run(folder, config, display, data, prepared)


def resume_portfolio_run(folder: Path, display: PortfolioDisplay, *, root: Path | None = None) -> Outcome:
    """Continue a stopped run. Members whose cross-validation has finished are not tried again."""
    config = read_portfolio_config(folder)
    if root is not None:
        config = PortfolioConfig(**{**asdict(config), "source": str(root)})
    data = read_own_data(config)
    if config.fingerprint != data.fingerprint:
        raise ValueError(
            f"{config.source} has changed since the run in {folder} was started; restore the file, or start a new run"
        )
    prepared = _prepare(config, data)
    with locked(folder):
        return _run(folder, config, display, data, prepared)


def read_portfolio_config(folder: Path) -> PortfolioConfig:
    """Read and check portfolio.yaml."""
    path = folder / PORTFOLIO
    try:
        stored = read_yaml(path.read_text())
        check_stored_options(stored)
        return PortfolioConfig(**stored)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({in_one_line(error)}); restore the file, or start a new run") from error


def evaluate_portfolio_run(
    folder: Path, *, root: Path | None = None, reading: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Compute every metric of the model: on other data at `root`, or on its own labels by cross-validation.

    Other data are read with the encoding of the run, and all their labelled samples are scored.
    """
    config, model = read_portfolio_config(folder), read_portfolio_model(folder)
    if root is None:
        stored = read_calibration(folder, len(model.portfolio.shares))
        try:
            if stored is None:
                raise FileNotFoundError(CALIBRATION)
            names = from_json((folder / CHOICE).read_text())["class_names"]
            is_texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
            if not is_texts or len(names) != len(model.portfolio.shares):
                raise ValueError(f"class_names in {CHOICE} are not the classes of the model")
        except UNREADABLE as error:
            raise ValueError(
                f"{CALIBRATION} or {CHOICE} in {folder} is missing or damaged ({error}); write it again with "
                f"`{resume_command(folder)}`"
            ) from error
        y, probs = stored.y, decided(stored.probs, model.portfolio.shares, model.portfolio.objective)
        notes = ["scored by cross-validation on the labels; their class distribution is that of the labels"]
    else:
        data = read_other_data(folder, root, config.reading, reading)
        y, probs = data.test_y.numpy(), model.predict(data.test_x.numpy()).decisive_probs
        names, notes = list(data.class_names), list(data.notes)
    targets, predicted = torch.from_numpy(y), torch.from_numpy(probs)
    confusion = count_pairs(targets, predicted.argmax(1), len(names), len(names))
    scores = all_scores(ScoredPredictions(confusion.double(), predicted, targets))
    return {**scores, "confusion": confusion.tolist(), "class_names": names, "notes": notes}


def check_trainable(data: DataSet, source: Path) -> None:
    """Refuse data without labels of at least two classes."""
    labels = data.train_y[data.train_y != UNLABELED]
    found = labels.unique().tolist()
    if len(found) < 2:
        problem = f"every label is of class {data.class_names[found[0]]!r}" if found else "no sample has a label"
        raise ValueError(f"{problem} in {source}; label samples of at least two classes")


class _Prepared(NamedTuple):
    """What a run needs. Options that do not suit the data are refused here, before anything is written."""

    samples: Samples
    encoder: InputEncoder
    members: tuple[Member, ...]


def _prepare(config: PortfolioConfig, data: DataSet) -> _Prepared:
    samples, encoder = samples_of(data, config.seed)
    members = members_for(samples, fast=config.fast, every=config.member is not None, iterations=config.iterations)
    if config.member is not None:
        members = (named_member(config.member, members),)
    return _Prepared(samples, encoder, members)


def _run(
    folder: Path, config: PortfolioConfig, display: PortfolioDisplay, data: DataSet, prepared: _Prepared
) -> Outcome:
    samples, encoder, members = prepared
    if len(samples.y) < len(data.train_y):
        display.note(
            f"the members are fitted to a random sample of {len(samples.y):,} of {len(data.train_y):,} samples"
        )
    minutes = config.minutes or (MINUTES_FOR_IMAGES if data.is_image else MINUTES_FOR_TABLES)
    display.started(members, data, minutes)
    with stopping_on_signals() as stop:
        watcher = _Keeper(folder, display, stop)
        portfolio = fit_portfolio(
            samples,
            members,
            objective=config.objective,
            seconds=60 * minutes,
            watcher=watcher,
            test_at_random=True,
        )
    assert portfolio.choice is not None
    model = PortfolioModel(portfolio, encoder)
    pool = np.flatnonzero(data.train_y.numpy() == UNLABELED)
    predictions = model.predict(data.train_x.numpy()[pool])
    choice = portfolio.choice
    verdict = verdict_text(choice, label_counts(data), data.class_names)
    warnings = disagreement(choice, predictions.labels, data.class_names)
    write_calibration(folder, _calibration_data(choice, label_counts(data)))
    write_predictions_file(folder, data, pool, predictions.labels, predictions.confidences)
    _write_choice(folder, choice, verdict, warnings, data)
    origin = portfolio_origin(folder, asdict(config), data.fingerprint)
    to_label = portfolio_short_list(data, samples, choice, pool, predictions)
    page = own_data_page(
        config.source,
        data,
        choice,
        verdict,
        warnings,
        pool,
        predictions,
        folder=folder,
        origin=origin,
        to_label=to_label,
    )
    write_own_data_report(folder, page)
    write_portfolio_model(folder, model, data)  # last: a run with a model is finished
    return Outcome(choice, verdict, warnings, folder / PREDICTIONS)


class _Keeper:
    """Keeps the results of the members in the folder, and passes on what happens to the display."""

    def __init__(self, folder: Path, display: PortfolioDisplay, stop: StopFlag) -> None:
        self.folder, self.display, self.stop = folder, display, stop

    def started(self, members: Sequence[Member]) -> None: ...

    def fold_done(self, name: str, done: int, total: int) -> None:
        self.display.fold_done(name, done, total)
        if self.stop.is_set:
            raise Interrupted(
                f"stopped while trying {name}; the finished members are saved. "
                f"Continue with: {resume_command(self.folder)}"
            )

    def tried(self, member: TriedMember) -> None:
        self.display.tried(member)

    def load(self, name: str) -> Tried | None:
        path = self.folder / MEMBERS / f"{name}.npz"
        try:
            stored = read_sealed_npz(path, needs_digest=True)
            return Tried(
                name,
                bool(stored["uses_pool"]),
                float(stored["seconds"]),
                stored["probs_labeled"],
                stored["probs_pool"],
            )
        except FileNotFoundError:
            return None
        except UNREADABLE:
            self.display.warning(f"{path} is damaged; the member {name} is tried again")
            return None

    def keep(self, tried: Tried) -> None:
        (self.folder / MEMBERS).mkdir(exist_ok=True)
        arrays = {name: value for name, value in vars(tried).items() if name != "name"}
        write_sealed_npz(self.folder / MEMBERS / f"{tried.name}.npz", arrays)


def _calibration_data(choice: Choice, num_labels: Integers) -> CalibrationData:
    """Return what calibration.npz stores."""
    cross = choice.cross_validated
    shares = None if choice.shares is None else np.stack(choice.shares)
    return CalibrationData(cross.y, cross.balanced_probs, num_labels, cross.repeats, shares)


def _write_choice(folder: Path, choice: Choice, verdict: str, warnings: Sequence[str], data: DataSet) -> None:
    fields = {name: value for name, value in vars(choice).items() if name != "cross_validated"}
    content = {
        "verdict": verdict,
        "warnings": list(warnings),
        "class_names": list(data.class_names),
        "chosen": list(choice.names),
        **fields,
    }
    write_atomically(folder / CHOICE, json.dumps(_plain(content), indent=1))


def _plain(value: Any) -> Any:
    """Convert named tuples to dicts and numpy values to numbers, so that JSON can store them; NaN becomes null."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
