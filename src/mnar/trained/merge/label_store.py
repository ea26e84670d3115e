"""The interface of every kind of data that labels can be merged into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mnar.trained.merge.samples import LabeledSamples


class LabelStore(Protocol):
    """Where the labels of some data are stored."""

    samples: LabeledSamples

    def check(self, changes: Mapping[int, str], new_classes: Sequence[str]) -> None:
        """Raise an error if a label cannot be written. Nothing is changed. `changes` are by position of the sample."""

    def write(self, changes: Mapping[int, str], new_classes: Sequence[str], backup: Path | None) -> list[Path]:
        """Write the labels, and return the backups of the old state. `backup` is None: choose a free name.

        A process that is killed leaves the old or the new state, or a state that the next merge completes.
        """
