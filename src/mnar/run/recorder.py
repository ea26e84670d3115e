"""`RunRecorder` writes what training produces into the run folder; a `Display` shows the same to the user."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from mnar import distributed
from mnar.config import IDLE_GUIDANCES, OWN_DATA, RunConfig
from mnar.run import checkpoint
from mnar.run.collapse_record import record_collapse
from mnar.run.file_checks import check_complete, check_evaluations
from mnar.run.file_names import METRICS, MODEL, STATE, resume_command
from mnar.run.folder import Evaluation, RunFolder
from mnar.run.machine import machine
from mnar.run.stopping import StopFlag
from mnar.run.timing import Estimate
from mnar.training.headline import health_warnings
from mnar.training.trainer import Trainer
from mnar.types import Selection


class Display:
    """Shows the progress of a run. This base class shows nothing; a subclass overrides the methods that it needs."""

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None: ...
    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, rate: float, means: dict[str, float], share: list[float]) -> None: ...
    def evaluation(self, line: Evaluation) -> None: ...
    def estimate(self, seconds: float) -> None: ...
    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...


class RunRecorder:
    """Writes evaluations, selections, checkpoints and timings to the run folder (a `training.Recorder`)."""

    def __init__(
        self,
        folder: Path,
        trainer: Trainer,
        class_names: tuple[str, ...],
        first_step: int,
        display: Display,
        stop: StopFlag,
    ) -> None:
        self.folder, self.files = folder, RunFolder(folder)
        self.class_names, self.display, self.stop = class_names, display, stop
        self.iterations, self.images_until = trainer.options.iterations, trainer.loader.images_until
        self.num_generations = trainer.learner.generations
        self.first_step = first_step
        self.saved_step = self.last_step = first_step
        every, is_over = trainer.options.eval_every, trainer.is_over(first_step)
        due = chain(range(every, first_step + 1, every), [first_step] if is_over else [])
        self.lines = drop_metrics_after(self.files, first_step, due, len(class_names))
        config = self.files.config()
        self.config = config.to_yaml()
        self.guided = any(part.name not in IDLE_GUIDANCES for part in config.guidance.chain)
        self.began = time.monotonic()
        self.machine = machine(trainer.engine.device)
        self.earlier_sessions = self.files.environment()["sessions"] if self.files.has_environment else []
        self._write_environment(first_step)
        self.warned: dict[str, str] = {}
        self.lr, self.is_collapsed = config.train.lr, False
        # Only runs on own data can be shortened by --minutes. A GPU works asynchronously, so only log steps are timed.
        is_own_data = config.dataset.name == OWN_DATA
        self.estimate = Estimate(self.iterations, first_step, trainer.loader.images_until) if is_own_data else None
        self.times_every_step = trainer.engine.device.type == "cpu"

    @property
    def stop_requested(self) -> bool:
        return self.stop.is_set

    def stepped(self, step: int) -> None:
        self.display.stepped(step)
        if self.times_every_step:
            self._estimate(step)

    def _estimate(self, step: int) -> None:
        """Show the estimated time of the whole run, once."""
        if self.estimate is not None and (seconds := self.estimate.seconds_left(step)) is not None:
            self.display.estimate(seconds)
            self.estimate = None

    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None:
        self.last_step = step
        self._estimate(step)
        self.display.progress(step, self._rate(step), means, pseudo_label_share)

    def evaluation(self, line: Evaluation) -> None:
        try:
            self.files.append_evaluation(line)
        except OSError as error:
            raise OSError(f"{self._failure('record', line['step'], error)}; {self._remedy}") from error
        self.lines.append(line)
        share = line["pseudo"]["share"] if "pseudo" in line else []
        self.progress(line["step"], line["train"], share)
        self.display.evaluation(line)
        if self.is_collapsed:
            return  # advice about pseudo-labels would be wrong: the model has not even learnt the labels
        warnings = health_warnings(self.lines, self.iterations, self.class_names, guided=self.guided)
        for kind, text in warnings.items():
            if kind not in self.warned:  # warn once, not at every evaluation
                self.display.warning(text)
        self.warned = warnings

    def collapsed(self, step: int, what: str) -> None:
        """Warn that the run does not learn, and write this to collapse.json."""
        if not self.is_collapsed:
            self.display.warning(
                f"{what} after step {step} of {self.iterations}, so the run does not learn; its scores mean nothing. "
                f"Try a lower learning rate (--set train.lr={self.lr / 10:.3g})"
            )
        self.is_collapsed = True
        with suppress(OSError):  # the warning was shown; a full disk stops the run at the next evaluation
            record_collapse(self.folder, {"step": step, "lr": self.lr, "seen": what, "action": "warned"})

    def generation(self, number: int, selection: Selection | None) -> None:
        """Write which samples join the labelled set in generation `number`, and with which labels."""
        begins = f"generation {number + 1} of {self.num_generations} begins"
        if selection is None:
            self.display.note(begins)
            return
        counts = torch.bincount(selection.labels.cpu(), minlength=len(self.class_names)).tolist()
        self.display.note(f"{begins}: {sum(counts):,} samples were labelled, per class {' '.join(map(str, counts))}")
        if not any(counts):
            self.display.warning(
                "no sample was selected, so the labels are those of the first generation; lower the thresholds of the "
                "learner, if it has any"
            )
        tensors = {
            name: tensor.cpu().contiguous() for name, tensor in selection._asdict().items() if tensor is not None
        }
        try:
            self.files.write_selection(number, tensors)
        except OSError as error:
            raise OSError(f"could not write the selection of {self.folder} ({error}); {self._remedy}") from error

    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None:
        """Write a checkpoint. After a failure the previous checkpoint stays, and training continues unless `must`."""
        try:
            self.files.flush_evaluations()  # first, because a checkpoint needs all evaluations before it
            checkpoint.save(self.folder / STATE, {**state, "config": self.config})
        except OSError as error:
            failure = self._failure("save", step, error)
            if must:
                raise OSError(f"{failure}; {self._remedy}") from error
            self.display.warning(f"{failure}; training continues and will try again")
            return
        self.saved_step = step
        with suppress(OSError):  # missing timings are no reason to stop
            self._write_environment(step)

    def _failure(self, action: str, step: int, error: OSError) -> str:
        kept = f"the checkpoint of step {self.saved_step} is kept" if self.saved_step else "there is no checkpoint yet"
        return f"could not {action} step {step} in {self.folder} ({error.strerror or error}); {kept}"

    @property
    def _remedy(self) -> str:
        return f"free some disk space and continue with `{resume_command(self.folder)}`"

    def _rate(self, step: int) -> float:
        """Images per second since this session began."""
        images = self.images_until(step) - self.images_until(self.first_step)
        return images / max(time.monotonic() - self.began, 1e-9)

    def _write_environment(self, step: int) -> None:
        """Timings go here and not into metrics.jsonl, which is the same however often a run was resumed."""
        session = {
            **self.machine,
            "from_step": self.first_step,
            "to_step": step,
            "seconds": round(time.monotonic() - self.began, 3),
            "images_per_second": round(self._rate(step), 1),
        }
        if distributed.world_size() > 1:
            session["processes"] = distributed.world_size()
        self.files.write_environment({**self.machine, "sessions": [*self.earlier_sessions, session]})


class Follower:
    """The recorder of every process but the first. It writes nothing; a signal to its process stops the training."""

    def __init__(self, first_step: int, stop: StopFlag) -> None:
        self.stop = stop
        self.saved_step = self.last_step = first_step

    @property
    def stop_requested(self) -> bool:
        return self.stop.is_set

    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None: ...
    def evaluation(self, line: Evaluation) -> None: ...
    def generation(self, number: int, selection: Selection | None) -> None: ...
    def collapsed(self, step: int, what: str) -> None: ...

    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None:
        self.saved_step = step


def drop_metrics_after(files: RunFolder, step: int, due: Iterable[int], num_classes: int) -> list[Evaluation]:
    """Drop the evaluations after the checkpoint that a run resumes from; training will repeat them."""
    lines = files.evaluations()
    check_evaluations(files.path / METRICS, lines, num_classes)
    kept = [line for line in lines if line["step"] <= step]
    check_complete(files.path, kept, due, f"the checkpoint is of step {step}")
    if len(kept) < len(lines):
        (files.path / MODEL).unlink(missing_ok=True)  # the model marks a folder with all evaluations
    files.replace_evaluations(kept)
    return kept
