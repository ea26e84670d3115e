"""A display and a recorder for tests."""

from __future__ import annotations

import io
import math
import os
import signal
from pathlib import Path
from typing import Any

import torch

from mnar.config import RunConfig
from mnar.run.recorder import Display
from mnar.types import Selection


class Watching(Display):
    """Keeps the warnings, and sends this process a signal after the evaluation of a step."""

    def __init__(self, signal_at: int | None = None, number: int = signal.SIGTERM) -> None:
        self.signal_at, self.number = signal_at, number
        self.warnings: list[str] = []
        self.began_at: int | None = None

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None:
        self.began_at = first_step

    def evaluation(self, line: dict[str, Any]) -> None:
        if line["step"] == self.signal_at:
            os.kill(os.getpid(), self.number)

    def warning(self, text: str) -> None:
        self.warnings.append(text)


class Notes:
    """A recorder that keeps everything in memory, and asks to stop after a number of steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.steps_to_go = stop_after
        self.num_steps = 0
        self.progressed: list[int] = []
        self.lines: list[dict[str, Any]] = []
        self.saved: dict[int, bytes] = {}
        self.demanded: list[int] = []
        self.selections: dict[int, Selection | None] = {}
        self.collapses: dict[int, str] = {}

    @property
    def stop_requested(self) -> bool:
        if self.steps_to_go is None:
            return False
        self.steps_to_go -= 1
        return self.steps_to_go == 0

    def stepped(self, step: int) -> None:
        self.num_steps += 1

    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None:
        assert math.isfinite(means["loss"])
        self.progressed.append(step)

    def evaluation(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def generation(self, number: int, selection: Selection | None) -> None:
        self.selections[number] = selection

    def collapsed(self, step: int, what: str) -> None:
        self.collapses[step] = what

    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None:
        content = io.BytesIO()
        torch.save(state, content)
        self.saved[step] = content.getvalue()
        if must:
            self.demanded.append(step)


def loaded(state: bytes) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    return content
