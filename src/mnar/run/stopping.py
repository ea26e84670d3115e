"""Stopping a run on a signal or after a time limit: training ends after its current step and saves a checkpoint."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # kill, Ctrl-C, a closed terminal


class StopFlag:
    """Becomes set when a signal arrives or when the time limit has passed."""

    def __init__(self, until: float | None = None) -> None:
        self.was_signalled, self.until = False, until

    @property
    def is_set(self) -> bool:
        return self.was_signalled or (self.until is not None and time.monotonic() >= self.until)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.was_signalled and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C stops at once, without saving
        self.was_signalled = True


@contextmanager
def stopping_on_signals(until: float | None = None) -> Iterator[StopFlag]:
    """Turn signals into a `StopFlag`. `until` is a time of `time.monotonic()`, which no change of the clock affects."""
    flag = StopFlag(until)
    try:
        before = {number: signal.signal(number, flag) for number in STOPPING_SIGNALS}
    except ValueError:  # only the main thread may handle signals; in another thread, the caller handles them
        before = {}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
