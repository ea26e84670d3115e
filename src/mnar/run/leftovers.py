"""Remove the temporary files that a killed process has left in a run folder."""

from __future__ import annotations

from pathlib import Path

from mnar.atomic_write import PART, remove_leftover
from mnar.run.checkpoint import complete_save
from mnar.run.file_names import (
    BASELINE,
    CALIBRATION,
    CHOICE,
    COLLAPSE,
    CONFIG,
    ENVIRONMENT,
    MEMBERS,
    METRICS,
    MODEL,
    PORTFOLIO,
    PRETRAINING,
    REPORT,
    SELECTIONS,
    SPLIT,
    STATE,
    TRAINING_REPORT,
)

# without predictions.csv, which every resume writes again
WRITTEN_FILES = (
    *(CONFIG, SPLIT, ENVIRONMENT, METRICS, MODEL, CALIBRATION, COLLAPSE),
    *(PORTFOLIO, CHOICE, REPORT, TRAINING_REPORT),
)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files from a run folder, and from the run folders inside it.

    The caller holds the lock of the folder. Other processes may write a report without the lock; `remove_leftover`
    keeps the file of a process that is writing. Other files are kept, even if their names end with ".part": they may
    be the rows that a stopped `mnar predict` continues with.
    """
    complete_save(folder / STATE)
    for run in (folder, folder / PRETRAINING, folder / BASELINE):
        for name in WRITTEN_FILES:
            remove_leftover(run / name)
        for part in (SELECTIONS, MEMBERS):
            for left in (run / part).glob(f"*{PART}"):
                remove_leftover(left.with_name(left.name.removesuffix(PART)))
