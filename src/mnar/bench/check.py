"""Find the runs of a bench that cannot start, before the first run is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import torch

from mnar.config import RunConfig
from mnar.run import check_run, load_data
from mnar.run.file_names import CONFIG
from mnar.training.options import EngineOptions


def refused_runs(configs: Mapping[Path, RunConfig], *, trains_here: bool = True) -> dict[Path, Exception]:
    """The runs that would fail before their first step, by folder, with the error. Each recipe is tried once.

    `new_run` makes the same checks. In a bench they would take a process for each seed, and hours could pass before the
    process of the last recipe finds an error. Runs that exist already have passed the checks. With a
    launcher for a cluster, this machine does not train, and it may lack the GPU of the workers.
    """
    new = {path: config for path, config in configs.items() if not (path / CONFIG).exists()}
    recipes = {path.parent: config for path, config in new.items()}  # the seeds of a recipe differ in nothing else
    errors: dict[Path, Exception] = {}
    by_data = sorted(recipes.items(), key=lambda item: str(item[1].dataset))
    for _, group in groupby(by_data, key=lambda item: str(item[1].dataset)):  # a data set is read once
        errors |= _refused_recipes(dict(group), trains_here)
    return {path: errors[path.parent] for path in new if path.parent in errors}


def _refused_recipes(recipes: Mapping[Path, RunConfig], trains_here: bool) -> dict[Path, Exception]:
    """The recipes on one data set that cannot be trained, by folder."""
    try:
        data = load_data(next(iter(recipes.values())))
    except Exception as error:  # e.g. a missing file or a damaged file
        return dict.fromkeys(recipes, error)
    errors: dict[Path, Exception] = {}
    for folder, config in recipes.items():
        # Only the processes of the runs use a GPU, so that they have all of its memory.
        is_for_workers = torch.cuda.is_available() or not trains_here
        engine = EngineOptions(device="cpu") if is_for_workers else config.engine
        try:
            check_run(replace(config, engine=engine), data)
        except Exception as error:  # any error would also end the run; it must not end the other runs
            errors[folder] = error
    return errors
