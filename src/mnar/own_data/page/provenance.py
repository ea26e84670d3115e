"""Where a report comes from: version, command, data, seed and hardware."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mnar.config import RunConfig
from mnar.run.folder import RunFolder
from mnar.run.machine import machine

Origin = list[tuple[str, str]]  # names and values

OPTION_OF_READING = {"label": "--label", "id": "--id", "size": "--size", "features": "--features"}
REPEATED = {"ignore": "--ignore", "unlabeled": "--unlabeled"}


def command_line(source: str, reading: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the command of a run: `mnar train DATA`, the options of reading, and other options that have a value."""
    words = ["mnar", "train", source]
    for name, option in OPTION_OF_READING.items():
        if reading.get(name) is not None:
            words += [option, str(reading[name])]
    for name, option in REPEATED.items():
        for value in reading.get(name) or ():
            words += [option, str(value)]
    for option, value in options.items():
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, str(value)]
    return shlex.join(words)


def portfolio_origin(folder: Path, config: Mapping[str, Any], fingerprint: str | None) -> Origin:
    """Write environment.json of a portfolio run, and return its version, command, data, seed and hardware.

    config    the content of portfolio.yaml
    """
    environment = machine(torch.device("cpu"))
    RunFolder(folder).write_environment(environment)
    options = {
        "--learner": config["member"],
        "--fast": config["fast"],
        "--objective": None if config["objective"] == "balanced_accuracy" else config["objective"],
        "--minutes": config["minutes"],
        "--iterations": config["iterations"],
        "--seed": config["seed"],
        "--out": folder,
    }
    command = command_line(config["source"], config["reading"], options)
    return _origin(environment, command, config["source"], fingerprint, config["seed"])


def network_origin(folder: Path, config: RunConfig) -> Origin:
    """Return version, command, data, seed and hardware of a network run. config.yaml has all other options."""
    files = RunFolder(folder)
    environment, reading = files.environment(), dict(config.dataset.options)
    source = str(reading.pop("root"))
    options = {
        "--learner": config.learner.name,
        "--guidance": config.guidance.full_name,
        "--iterations": config.train.iterations,
        "--seed": config.seed,
        "--out": folder,
    }
    origin = _origin(
        environment, command_line(source, reading, options), source, files.split().get("data_hash"), config.seed
    )
    seconds = sum(session.get("seconds", 0.0) for session in environment["sessions"])
    return [*origin, ("Training time", f"{seconds:,.0f} seconds"), ("All options", "config.yaml beside this page")]


def _origin(environment: Mapping[str, Any], command: str, source: str, fingerprint: str | None, seed: int) -> Origin:
    commit, threads = environment.get("commit"), environment.get("threads")
    hardware = environment["device"]
    if threads is not None:
        hardware += f", {threads} {'thread' if threads == 1 else 'threads'}"
    return [
        ("Version", f"mnar {environment['mnar']}" + (f", commit {commit}" if commit else "")),
        ("Command", command),
        ("Data", source),
        ("Fingerprint of the data", fingerprint or "unknown"),
        ("Seed", str(seed)),
        ("Hardware", hardware),
        ("Software", f"Python {environment['python']}, torch {environment['torch']}"),
    ]
