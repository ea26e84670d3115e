"""A run folder: who may write to it, and the recorder that fills it while a run goes on."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from safetensors.torch import save as to_safetensors

import mnar
from mnar import checkpoint
from mnar.config import IDLE_GUIDANCES, RunConfig
from mnar.evaluate import health_warnings
from mnar.report.shapes import check_evaluations
from mnar.run_files import (
    CONFIG,
    ENVIRONMENT,
    LOCK,
    METRICS,
    MODEL,
    SELECTIONS,
    STATE,
    check_complete,
    read_metrics,
    resume_command,
)
from mnar.train import Trainer
from mnar.types import Selection

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # asked to, Ctrl-C, the terminal went away


class Display(Protocol):
    """Where a run says how it is getting on."""

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, rate: float, means: dict[str, float], share: list[float]) -> None: ...
    def evaluation(self, line: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...


class Silent:
    """A display for nobody."""

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, rate: float, means: dict[str, float], share: list[float]) -> None: ...
    def evaluation(self, line: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...


class InUse(FileExistsError):
    """Another process writes to this folder now."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, even after kill -9."""
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise InUse(
                f"{folder} is in use by process {file.read().strip() or '?'}; wait for it, or choose another --out"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def read_config(folder: Path) -> RunConfig:
    if not (folder / CONFIG).exists():
        below = min(folder.rglob(CONFIG), default=None)
        remedy = f"name one, such as {below.parent}" if below else "name the folder given as --out"
        raise FileNotFoundError(f"{folder} is not a run folder: it has no {CONFIG}; {remedy}")
    try:
        return RunConfig.from_yaml((folder / CONFIG).read_text())
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG} is damaged or was changed: {error}; put it back as it was") from error


def forget_metrics_after(folder: Path, step: int, due: Iterable[int]) -> list[dict[str, Any]]:
    """Drop what was measured after the checkpoint that a run goes on from; it will be measured again."""
    lines = read_metrics(folder)
    check_evaluations(folder / METRICS, lines)
    kept = [line for line in lines if line["step"] <= step]
    check_complete(folder, kept, due, f"the checkpoint is of step {step}")
    if len(kept) < len(lines):
        (folder / MODEL).unlink(missing_ok=True)  # where it is, all evaluations are
    checkpoint.write_atomically(folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept))
    return kept


class StopFlag:
    """Set by a signal, or once the time is up, so that training ends after the step it is in."""

    def __init__(self, until: float | None = None) -> None:
        self.was_asked, self.until = False, until

    @property
    def is_set(self) -> bool:
        return self.was_asked or (self.until is not None and time.monotonic() >= self.until)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.was_asked and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: now
        self.was_asked = True


@contextmanager
def stopping_on_signals(until: float | None = None) -> Iterator[StopFlag]:
    """`until` is a time of `time.monotonic()`, which no clock that is set can change."""
    flag = StopFlag(until)
    try:
        before = {number: signal.signal(number, flag) for number in STOPPING_SIGNALS}
    except ValueError:  # not the main thread: signals are somebody else's business
        before = {}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RunRecorder:
    """Keeps what training produces in the run folder (a `train.Recorder`)."""

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        class_names: tuple[str, ...],
        first_step: int,
        display: Display,
        stop: StopFlag,
    ) -> None:
        self.folder, self.class_names, self.display, self.stop = folder, class_names, display, stop
        self.iterations, self.images_per_step = trainer.options.iterations, trainer.images_per_step
        self.num_generations = trainer.learner.generations
        self.first_step = first_step
        self.saved_step = self.last_step = first_step
        every, is_over = trainer.options.eval_every, trainer.is_over(first_step)
        due = [*range(every, first_step + 1, every), *([first_step] if is_over else [])]
        self.lines = forget_metrics_after(folder, first_step, due)
        config = read_config(folder)
        self.config = config.to_yaml()
        self.guided = any(part.name not in IDLE_GUIDANCES for part in config.guidance.chain)
        self.began = time.monotonic()
        self.machine = _machine(trainer.engine.device)
        self.earlier_sessions = _sessions(folder)
        self._write_environment(first_step)
        self.warned: dict[str, str] = {}

    @property
    def stop_requested(self) -> bool:
        return self.stop.is_set

    def stepped(self, step: int) -> None:
        self.display.stepped(step)

    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None:
        self.last_step = step
        self.display.progress(step, self._rate(step), means, pseudo_label_share)

    def evaluation(self, line: dict[str, Any]) -> None:
        try:
            with (self.folder / METRICS).open("a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(f"{self._failure('record', line['step'], error)}; {self._remedy}") from error
        self.lines.append(line)
        share = line["pseudo"]["share"] if "pseudo" in line else []
        self.progress(line["step"], line["train"], share)
        self.display.evaluation(line)
        warnings = health_warnings(self.lines, self.iterations, self.class_names, guided=self.guided)
        for kind, text in warnings.items():
            if kind not in self.warned:  # once, not at every evaluation
                self.display.warning(text)
        self.warned = warnings

    def generation(self, number: int, selection: Selection | None) -> None:
        """Keep who joins the labelled set in generation `number`, and as what."""
        begins = f"generation {number + 1} of {self.num_generations} begins"
        if selection is None:
            self.display.note(begins)
            return
        counts = torch.bincount(selection.labels.cpu(), minlength=len(self.class_names)).tolist()
        self.display.note(f"{begins}: {sum(counts):,} samples were labelled, per class {' '.join(map(str, counts))}")
        if not any(counts):
            self.display.warning("no sample was sure enough to be labelled; see the thresholds of the learner")
        tensors = {
            name: tensor.cpu().contiguous() for name, tensor in selection._asdict().items() if tensor is not None
        }
        folder = self.folder / SELECTIONS
        try:
            folder.mkdir(exist_ok=True)
            checkpoint.write_atomically(folder / f"{number:02}.safetensors", to_safetensors(tensors))
        except OSError as error:
            raise OSError(f"could not keep the selection of {self.folder} ({error}); {self._remedy}") from error

    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None:
        """Write a checkpoint. If that fails, the one before stays; a run goes on unless it `must` be saved now."""
        try:
            checkpoint.save(self.folder / STATE, {**state, "config": self.config})
        except OSError as error:
            failure = self._failure("save", step, error)
            if must:
                raise OSError(f"{failure}; {self._remedy}") from error
            self.display.warning(f"{failure}; training goes on and will try again")
            return
        self.saved_step = step
        with suppress(OSError):  # how fast it went is no reason to stop
            self._write_environment(step)

    def _failure(self, action: str, step: int, error: OSError) -> str:
        kept = f"the checkpoint of step {self.saved_step} is kept" if self.saved_step else "no checkpoint is there yet"
        return f"could not {action} step {step} in {self.folder} ({error.strerror or error}); {kept}"

    @property
    def _remedy(self) -> str:
        return f"free some space and go on with `{resume_command(self.folder)}`"

    def _rate(self, step: int) -> float:
        """Images a second in this session."""
        return (step - self.first_step) * self.images_per_step / max(time.monotonic() - self.began, 1e-9)

    def _write_environment(self, step: int) -> None:
        """Wall-clock figures live here and not in metrics.jsonl, which is the same for a run however often resumed."""
        session = {
            **self.machine,
            "from_step": self.first_step,
            "to_step": step,
            "seconds": round(time.monotonic() - self.began, 3),
            "images_per_second": round(self._rate(step), 1),
        }
        environment = {**self.machine, "sessions": [*self.earlier_sessions, session]}
        checkpoint.write_atomically(self.folder / ENVIRONMENT, json.dumps(environment, indent=1))


def _sessions(folder: Path) -> list[dict[str, Any]]:
    path = folder / ENVIRONMENT
    try:
        sessions: list[dict[str, Any]] = json.loads(path.read_text())["sessions"] if path.exists() else []
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, and the run can go on") from error
    return sessions


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "mnar": mnar.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of a source checkout, with a mark when it has been changed; None for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
