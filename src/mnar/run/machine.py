"""What environment.json says about the machine and the software of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import mnar


def machine(device: torch.device) -> dict[str, Any]:
    """Return versions, the commit, the device and the number of threads."""
    return {
        "mnar": mnar.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The git commit of a source checkout, marked when files were changed; None for an installed package."""
    commit, changes = _git("describe", "--always", "--abbrev=12"), _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if commit and changes else commit


def _git(*arguments: str) -> str | None:
    """The output of a git command in the folder of the source, or None if git or the repository is missing.

    The command takes no lock: if the run is killed meanwhile, a lock would stay and block the user's next commit.
    """
    command = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
