"""`RunFolder`: typed reading and writing of the files in a run folder.

checkpoint.py, model_file.py and report/html.py write state.pt, model.safetensors and report.html.

config.yaml              the complete configuration
split.json               class counts of the split, and hashes that identify the split and the data
environment.json         versions, hardware and the time of each training session
metrics.jsonl            one line per evaluation
state.pt                 the newest checkpoint, and state.previous.pt the one before
selections/NN.safetensors   the samples that joined the labelled set in generation NN
calibration.npz          predictions for labels that the model was not trained on (calibration_file.py)
report.html              figures and tables
model.safetensors        the trained model; written last, so it marks a finished training. Of a network on own data,
                         own_data/train.py writes the baseline, predictions.csv and the reports after it
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from safetensors.torch import save as to_safetensors
from torch import Tensor

from mnar.atomic_write import Changed, from_json, sealed, unsealed, write_atomically
from mnar.config import RunConfig, read_yaml, with_current_names
from mnar.run.file_checks import check_config, check_environment, check_split, damaged, remedy
from mnar.run.file_names import (
    CHOICE,
    CONFIG,
    ENVIRONMENT,
    MEMBERS,
    METRICS,
    MODEL,
    PORTFOLIO,
    SELECTIONS,
    SPLIT,
)

Evaluation = dict[str, Any]  # one line of metrics.jsonl; docs/reference/run_folder.md lists its entries


class SplitRecord(TypedDict):
    """The content of split.json. Lists hold one number per class."""

    dataset: str
    seed: int
    class_names: list[str]
    labeled: list[int]
    unlabeled: list[int]
    unknown: int  # unlabelled samples whose true class is unknown
    test: list[int]
    test_is_trained_on: bool
    held_out: list[int]  # labelled samples kept back for train.validation
    hash: str
    data_hash: str


class Session(TypedDict, total=False):
    """One training session; each resume starts a new one. A session also repeats the versions and the device."""

    from_step: int
    to_step: int
    seconds: float
    images_per_second: float
    processes: int  # if there were several


class Environment(TypedDict):
    """The content of environment.json."""

    mnar: str
    commit: str | None
    python: str
    torch: str
    device: str
    threads: int
    sessions: list[Session]


class RunFolder:
    """Typed access to the files of one run. All writes are atomic, except that `append_evaluation` appends a line."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def has_config(self) -> bool:
        return (self.path / CONFIG).exists()

    @property
    def is_finished(self) -> bool:
        """Whether the trained model has been written, which happens after the last evaluation."""
        return (self.path / MODEL).exists()

    def config(self) -> RunConfig:
        """The configuration of the run."""
        if not self.has_config:
            if any((self.path / name).exists() for name in (CHOICE, MEMBERS)) and not (self.path / PORTFOLIO).exists():
                raise FileNotFoundError(
                    f"{PORTFOLIO} is missing in {self.path}, which is a run of the portfolio; restore the file, or "
                    "start a new run with another --out"
                )
            below = min(self.path.rglob(CONFIG), default=None)
            hint = f"name a run folder, such as {below.parent}" if below else "name the folder given as --out"
            raise FileNotFoundError(f"{self.path} is not a run folder: it has no {CONFIG}; {hint}")
        try:
            return RunConfig.from_yaml((self.path / CONFIG).read_text())
        except ValueError as error:
            raise ValueError(
                f"{self.path / CONFIG} is damaged or was changed: {error}; restore the original file"
            ) from error

    def sections(self) -> dict[str, Any]:
        """config.yaml without a check of the option names, so that reports can read runs of other versions."""
        path = self.path / CONFIG
        text = self._text(path)
        try:
            sections = read_yaml(text)
        except ValueError as error:
            raise damaged(path, error) from error
        if isinstance(sections, dict):
            sections = with_current_names(sections)
        check_config(path, sections)
        checked: dict[str, Any] = sections
        return checked

    def evaluations(self) -> list[Evaluation]:
        """One dict per evaluation. A last line that a crash cut off is dropped; any other damage is an error."""
        path = self.path / METRICS
        written = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        lines = []
        for number, text in enumerate(written, start=1):
            try:
                lines.append(from_json(text))
            except ValueError as error:
                if number < len(written):
                    raise ValueError(f"line {number} of {path} is not JSON: {error}; {remedy(path)}") from error
        return lines

    def split(self) -> SplitRecord:
        written = self._json(SPLIT)
        check_split(self.path / SPLIT, written)
        try:
            record: Any = unsealed(written)
        except Changed as error:
            raise damaged(self.path / SPLIT, error) from error
        checked: SplitRecord = record
        return checked

    def environment(self) -> Environment:
        environment: Environment = self._json(ENVIRONMENT)
        check_environment(self.path / ENVIRONMENT, environment)
        environment.setdefault("commit", None)  # the check allows that it is missing
        return environment

    @property
    def has_environment(self) -> bool:
        return (self.path / ENVIRONMENT).is_file()

    def saved_step(self) -> int:
        """The step up to which training was saved, by environment.json; 0 if that file is missing or damaged."""
        try:
            return int(from_json((self.path / ENVIRONMENT).read_text())["sessions"][-1]["to_step"])
        except (OSError, ValueError, LookupError, TypeError):
            return 0

    def write_config(self, config: RunConfig) -> None:
        write_atomically(self.path / CONFIG, config.to_yaml())

    def forget_beginning(self) -> None:
        """Remove the files that a run writes before its first step, so that another run can use the folder."""
        for name in (SPLIT, CONFIG):
            (self.path / name).unlink(missing_ok=True)

    def write_split(self, record: SplitRecord) -> None:
        write_atomically(self.path / SPLIT, json.dumps(sealed(record)))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        write_atomically(self.path / ENVIRONMENT, json.dumps(environment, indent=1))

    def append_evaluation(self, line: Evaluation) -> None:
        """Append a line, which survives a kill at once, and a power cut from the next `flush_evaluations` on."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def flush_evaluations(self) -> None:
        """Wait until all evaluations are on the disk.

        This takes milliseconds, so training calls it only before it saves a checkpoint. A power cut can lose the lines
        after the newest checkpoint, which a resumed run drops and repeats anyway.
        """
        with (self.path / METRICS).open("a") as file:
            os.fsync(file.fileno())

    def replace_evaluations(self, lines: Iterable[Evaluation]) -> None:
        write_atomically(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def write_selection(self, generation: int, tensors: dict[str, Tensor]) -> None:
        (self.path / SELECTIONS).mkdir(exist_ok=True)
        write_atomically(self.path / SELECTIONS / f"{generation:02}.safetensors", to_safetensors(tensors))

    def _json(self, name: str) -> Any:
        path = self.path / name
        text = self._text(path)
        try:
            return from_json(text)
        except ValueError as error:
            raise damaged(path, error) from error

    def _text(self, path: Path) -> str:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if not text.strip():
            state = "is empty" if path.is_file() else "is missing"
            raise ValueError(f"{path.name} {state} in {path.parent}; {remedy(path)}")
        return text
