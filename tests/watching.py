"""A display for tests."""

from __future__ import annotations

import os
import signal
from typing import Any

from mnar.config import RunConfig
from mnar.folder import Silent


class Watching(Silent):
    """Keeps the warnings, and sends this process a signal after the evaluation of a step."""

    def __init__(self, signal_at: int | None = None, number: int = signal.SIGTERM) -> None:
        self.signal_at, self.number = signal_at, number
        self.warnings: list[str] = []
        self.began_at: int | None = None

    def started(self, config: RunConfig, first_step: int) -> None:
        self.began_at = first_step

    def evaluation(self, line: dict[str, Any]) -> None:
        if line["step"] == self.signal_at:
            os.kill(os.getpid(), self.number)

    def warning(self, text: str) -> None:
        self.warnings.append(text)
