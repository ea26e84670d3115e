"""A command that torchrun starts again after an error continues the run that it had begun, and no other run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mnar import distributed
from mnar.config import RunConfig
from mnar.run import processes
from mnar.run.collapse_record import with_smaller_rate
from mnar.run.folder import RunFolder


def is_begun(folder: Path) -> bool:
    """Whether torchrun has started the command again after an error, and the run in `folder` had begun before."""
    return distributed.any_of(processes.is_restarted() and RunFolder(folder).has_config)


def check_same_run(folder: Path, config: RunConfig) -> None:
    """Refuse to continue a run with another configuration."""
    stored = RunFolder(folder).config()
    differences = stored.differences(config)
    if differences and stored.differences(with_smaller_rate(config)):
        raise ValueError(f"{folder} contains another run ({'; '.join(differences)}); choose another --out")


def check_same_own_data(folder: Path, config: RunConfig) -> None:
    """Refuse to continue a run on other data or with another method.

    The options of training are not compared: --minutes and the range test of the learning rate may choose others now.
    """
    stored = RunFolder(folder).config()
    before, now = (run.dataset.options["root"] for run in (stored, config))
    if distributed.rank() == 0 and before != now:  # on another machine, the data may have another path
        raise ValueError(f"{folder} contains a run on other data ({before}); choose another --out")
    check_same_run(folder, dataclasses.replace(config, train=stored.train))
