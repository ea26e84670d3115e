"""Checks of a checkpoint against its run, so that a state that does not fit is refused with the name of the entry.

`checkpoint.load` has checked that all entries are there. torch checks the names and the shapes of model and learner
when it loads them. The checks here are for entries that torch would take as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mnar.training.trainer import Trainer


def load_checked(trainer: Trainer, state: dict[str, Any]) -> None:
    """Load a checkpoint into a new trainer. Raises a ValueError that says which entry does not fit the run.

    After an error, the trainer must not be used, because it may have loaded some of the entries.
    """
    _check_steps(trainer, state)
    for part, module in (("model", trainer.model), ("average", trainer.average.model)):
        _check_types(part, module, state[part])
    _check_optimizer(trainer.optimizer, state["optimizer"])
    _check_meters(trainer.meters.state_dict(), state["meters"])
    if selection := state.get("loader", {}).get("selection"):
        _check_selection(trainer, selection)
    if trainer.best is not None:
        _check_best(state.get("best"))
    try:
        trainer.load_state_dict(state)
    except torch.OutOfMemoryError:
        raise
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from error
    except (TypeError, AttributeError, LookupError, RuntimeError) as error:
        raise ValueError(str(error)) from error


def _check_steps(trainer: Trainer, state: dict[str, Any]) -> None:
    steps, generation = state["steps_done"], state.get("generation", 0)
    if isinstance(steps, bool) or not 0 <= steps <= trainer.options.iterations:
        raise ValueError(f"steps_done is {steps}, not a number from 0 to {trainer.options.iterations}")
    if type(generation) is not int or not 0 <= generation < trainer.learner.generations:
        raise ValueError(f"generation is {generation!r}, not a number from 0 to {trainer.learner.generations - 1}")
    began, end = trainer.generation_end(generation - 1), trainer.generation_end(generation)
    if not began <= steps <= end:
        raise ValueError(f"steps_done is {steps}, but generation {generation} has the steps {began} to {end}")


def _check_types(part: str, module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Refuse whole numbers in place of floats and the reverse, which torch would convert."""
    for name, mine in module.state_dict().items():
        tensor = saved.get(name)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{part}.{name} is {'missing' if tensor is None else 'no tensor'}")
        if tensor.is_floating_point() != mine.is_floating_point():
            raise ValueError(f"{part}.{name} has the type {tensor.dtype}, not {mine.dtype}")


def _check_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    groups = optimizer.param_groups
    sizes, wanted = [len(group["params"]) for group in saved["param_groups"]], [len(g["params"]) for g in groups]
    if sizes != wanted:
        raise ValueError(f"optimizer.param_groups have {sizes} parameters, not {wanted}")
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = dict(zip(numbers, (p for group in groups for p in group["params"]), strict=True))
    for number, entries in saved["state"].items():
        if number not in parameters or not isinstance(entries, dict):
            raise ValueError(f"optimizer.state has an entry {number!r} that belongs to no parameter")
        for name, value in entries.items():
            # a momentum is like its parameter, and a counter is one number
            if isinstance(value, Tensor) and value.shape not in (parameters[number].shape, ()):
                raise ValueError(f"optimizer.state.{number}.{name} has the shape {tuple(value.shape)}")


def _check_meters(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    _check_shapes("meters", saved, {"sums": (len(saved["names"]),), **_shapes(mine, "num_steps", "pseudo_confusion")})


def _check_best(saved: Any) -> None:
    if not isinstance(saved, dict) or not isinstance(saved.get("model"), dict):
        raise ValueError("best is missing, although the run stops early (train.validation)")
    _check_shapes("best", saved, {"loss": (), "waited": ()})


def _check_selection(trainer: Trainer, saved: Any) -> None:
    if not isinstance(saved, dict) or not all(isinstance(saved.get(name), Tensor) for name in ("rows", "labels")):
        raise ValueError("loader.selection has no rows and labels")
    num_rows, num_classes = trainer.loader.num_unlabeled, trainer.learner.task.num_classes
    _check_shapes("loader.selection", saved, {"labels": (saved["rows"].numel(),), "rows": (saved["rows"].numel(),)})
    limits = {"rows": num_rows, "labels": num_classes, "pool": num_rows}
    for name, limit in limits.items():
        numbers = saved.get(name)
        if numbers is not None and not _are_below(numbers, limit):
            raise ValueError(f"loader.selection.{name} has other values than numbers from 0 to {limit - 1}")
    if saved.get("negative") is not None:
        _check_shapes("loader.selection", saved, {"negative": (num_rows, num_classes)})


def _are_below(numbers: Any, limit: int) -> bool:
    is_list = isinstance(numbers, Tensor) and numbers.ndim == 1 and numbers.dtype == torch.int64
    return is_list and bool(((numbers >= 0) & (numbers < limit)).all())


def _check_shapes(part: str, saved: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in wanted.items():
        value = saved.get(name)
        if not isinstance(value, Tensor) or value.shape != shape:
            found = f"has the shape {tuple(value.shape)}" if isinstance(value, Tensor) else "is no tensor"
            raise ValueError(f"{part}.{name} {found}, not {shape}")


def _shapes(tensors: Mapping[str, Tensor], *names: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensors[name].shape) for name in names}
