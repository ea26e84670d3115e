"""What a run continues from: its newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mnar.config import RunConfig
from mnar.run import checkpoint
from mnar.run.file_names import CONFIG, MODEL, STATE
from mnar.run.folder import RunFolder
from mnar.run.recorder import Display
from mnar.run.state_checks import load_checked
from mnar.training.trainer import Trainer


class OtherRun(Exception):
    """The checkpoint is not damaged, but it belongs to another configuration or to other data."""


def restore(
    config: RunConfig,
    folder: Path,
    display: Display,
    new_trainer: Callable[[], Trainer],
    check_data: Callable[[], None],
) -> Trainer:
    """Return a trainer with the state of the newest checkpoint that can be used; a new one before the first checkpoint.

    A checkpoint that is damaged, or that does not fit the run, is skipped with a warning. `check_data` raises a
    ValueError if the data are not those of the run.
    """
    trainer, is_new = new_trainer(), True

    def use(state: dict[str, Any]) -> None:
        nonlocal trainer, is_new
        _refuse_other_run(config, state["config"], folder, check_data)
        # a trainer that has refused a state may have loaded some of it
        trainer, is_new = trainer if is_new else new_trainer(), False
        load_checked(trainer, state)

    try:
        state, problems = checkpoint.load(folder / STATE, use)
    except OtherRun as error:
        raise ValueError(str(error)) from error
    except FileNotFoundError as error:
        first_due = min(config.train.save_every, trainer.generation_end(0))
        lines = RunFolder(folder).evaluations()
        if (folder / MODEL).exists() or (lines and lines[-1]["step"] > first_due):
            raise FileNotFoundError(
                f"{folder / STATE} is missing, although the run has got past step {first_due}, its first "
                "checkpoint; restore the file, or start a new run"
            ) from error
        check_data()
        return trainer  # the run starts again and gives the same result
    for problem in problems:
        display.warning(f"{problem}; continuing from the checkpoint of step {state['steps_done']}")
    return trainer


def _refuse_other_run(config: RunConfig, stored: str, folder: Path, check_data: Callable[[], None]) -> None:
    differences = RunConfig.from_yaml(stored).differences(config)
    if differences:
        raise OtherRun(
            f"{folder / STATE} was made with another configuration: {'; '.join(differences)} "
            f"(checkpoint and {CONFIG}); restore {CONFIG}, or start a new run"
        )
    try:
        check_data()
    except ValueError as error:
        raise OtherRun(str(error)) from error
