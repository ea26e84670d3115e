"""The interface through which the training loop hands out what it produces."""

from __future__ import annotations

from typing import Any, Protocol

from mnar.types import Selection


class Recorder(Protocol):
    """Receives what training produces.

    stepped       after every step
    progress      every `log_every` steps without an evaluation: the means of the logged values
    evaluation    a line of metrics.jsonl
    generation    the samples that join the labelled set before generation `number`
    collapsed     the run does not learn; `what` says what was seen (`train.collapse` is "warn")
    save          a checkpoint; with `must`, a failure to write it is an error
    """

    @property
    def stop_requested(self) -> bool: ...
    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None: ...
    def evaluation(self, line: dict[str, Any]) -> None: ...
    def generation(self, number: int, selection: Selection | None) -> None: ...
    def collapsed(self, step: int, what: str) -> None: ...
    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None: ...
