"""What a run folder says about a run, read back from its files alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from mnar.config import own_guidance, settings_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    folder: Path
    config: dict[str, Any]
    split: dict[str, Any]
    environment: dict[str, Any]
    lines: list[dict[str, Any]]  # one an evaluation, in the order of training; never empty

    @property
    def label(self) -> str:
        """Learner and guidance, e.g. "fixmatch + prg_last"; a learner as its own paper has it stands alone."""
        learner, guidance = self.config["learner"]["name"], self.config["guidance"]
        own, chain = own_guidance(learner)["name"], list[str]()
        while guidance:
            chain.insert(0, guidance["name"])
            guidance = guidance.get("after")
        added = [name for place, name in enumerate(chain) if name != "none" and (place, name) != (0, own)]
        is_left_out = own not in ("none", *chain)
        return " + ".join([f"{learner} without {own}" if is_left_out else learner, *added])

    @property
    def method(self) -> dict[str, Any]:
        """All settings but the seed, {"guidance.alpha": 3, ...}; equal for runs to average over."""
        settings = settings_of(self.config)
        return {key: value for key, value in settings.items() if key != "seed" and value is not None}

    @property
    def num_classes(self) -> int:
        return len(self.split["class_names"])

    @property
    def class_order(self) -> npt.NDArray[np.intp]:
        """Classes from the most labels to the fewest."""
        return np.argsort(-np.asarray(self.split["labeled"]), kind="stable")

    def series(self, section: str, key: str) -> tuple[Floats, Floats]:
        """Steps [n] and values [n, ...] of the evaluations that recorded this value; a null is NaN."""
        recorded = [line for line in self.lines if key in line.get(section, {})]
        steps = np.array([line["step"] for line in recorded], dtype=float)
        return steps, np.array([line[section][key] for line in recorded], dtype=float)


def read_run(folder: Path) -> Run:
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder at {folder}; give the folder that `mnar train --out` wrote")
    config = yaml.safe_load(_text(folder, "config.yaml"))
    split = json.loads(_text(folder, "split.json"))
    environment = json.loads(_text(folder, "environment.json"))
    # Labels selected between generations are pseudo-labels, too, and drawn as such.
    lines = [{"pseudo": line["selection"], **line} if "selection" in line else line for line in read_metrics(folder)]
    if not lines:
        raise ValueError(f"no evaluation in metrics.jsonl of {folder} yet; train until the first (train.eval_every)")
    return Run(folder, config, split, environment, lines)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """One dict an evaluation. A last line that a crash cut off is left out; any other damage is an error."""
    path = folder / "metrics.jsonl"
    written = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = []
    for number, text in enumerate(written, start=1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError as error:
            if number < len(written):
                raise ValueError(f"line {number} of {path} is not JSON: {error}") from error
    return lines


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ only in their seed, by name: the label, and what tells equal labels apart."""
    groups: list[list[Run]] = []
    for run in runs:
        group = next((group for group in groups if group[0].method == run.method), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return {_name(group[0], [other[0] for other in groups]): group for group in groups}


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """The settings, seed aside, that are not the same in all these runs."""
    methods = [run.method for run in runs]
    names = dict.fromkeys(name for method in methods for name in method)
    return [name for name in names if any(method.get(name) != methods[0].get(name) for method in methods)]


def _name(run: Run, others: Sequence[Run]) -> str:
    namesakes = [other for other in others if other.label == run.label]
    told_apart_by = [f"{name}={run.method.get(name)}" for name in differing_settings(namesakes)]
    return f"{run.label} ({', '.join(told_apart_by)})" if told_apart_by else run.label


def _text(folder: Path, name: str) -> str:
    path = folder / name
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if not text.strip():
        state = "is empty" if path.is_file() else "is missing"
        raise ValueError(f"{name} {state} in {folder}; is this a run folder, and has its run begun?")
    return text
