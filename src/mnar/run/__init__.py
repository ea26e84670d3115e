"""From a configuration to a run folder, and back.

`new_run` and `resume_run` (runner.py) and `evaluate_run` (evaluate.py) are what the commands call. assemble.py builds
the trainer from the named parts, recorder.py writes what training produces, folder.py reads and writes the files, and
reader.py reads whole runs back for reports and tables.
"""

from mnar.run.assemble import load_data, make_split, make_trainer
from mnar.run.evaluate import evaluate_run, trained_network
from mnar.run.folder import RunFolder
from mnar.run.reader import Run, find_runs, read_run, read_runs
from mnar.run.recorder import Display
from mnar.run.runner import (
    check_new_folder,
    check_run,
    default_folder,
    new_run,
    resume_run,
)

__all__ = [
    "Display",
    "Run",
    "RunFolder",
    "check_new_folder",
    "check_run",
    "default_folder",
    "evaluate_run",
    "find_runs",
    "load_data",
    "make_split",
    "make_trainer",
    "new_run",
    "read_run",
    "read_runs",
    "resume_run",
    "trained_network",
]
