"""How the tests run a command that a page shows.

A command `mnar NAME ...` is run in the test's own process, in an empty folder, with the options of `SMALL` behind it:
the last value of an option wins. Other rules:

- `~/data` contains a made-up CIFAR-10, and the files of `USER_FILES` lie in the folder.
- `mnar train DATA` tries two members of the portfolio instead of all, unless the command has options of a network.
- `mnar bench` trains one cell per pattern instead of all cells.

Every other command must be listed in `NOT_RUN`, with the reason. A command that is in neither table fails the test: add
an entry here, or write the command in a form that the test can run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from mnar.bench import choose
from tests.support.own_data_files import write_images, write_table

# Options that make a command a matter of a second, by the name of the command; "" is `mnar` without a command.
FEW_STEPS = ("--iterations", "4", "--set", "engine.device=cpu")
SMALL: dict[str, tuple[str, ...]] = {
    "": (),
    "demo": ("--seeds", "1", "--iterations", "4"),
    "inspect": (),
    "cache": (),
    "train": FEW_STEPS,
    "train DATA": ("--fast",),
    "train --resume": (),  # a run keeps its options
    "eval": (),
    "report": (),
    "bench": (*FEW_STEPS, "--seeds", "1"),
    "bench --show": (),
    "list": (),
    "features": (),
    "merge": (),
    "next": (),
    "predict": (),
    "relabel": (),
    "export": (),
}
# Options that only a network has; without them, `mnar train DATA` tries a portfolio.
OF_A_NETWORK = {"--learner", "--guidance", "--set", "--tensorboard"}
# A network and batches that a CPU can train with images of 32 x 32 pixels.
SMALL_NETWORK = ("model.depth=10", "model.width=1", "train.batch_labeled=8", "train.batch_unlabeled=8")
# Commands that are not run, and why.
NOT_RUN = {
    "make demo": "takes two minutes; tests/cli/test_demo.py runs `mnar demo` with few steps",
    "make test": "would run the tests within the tests",
    "source .venv/bin/activate": "changes the shell only",
    "pip install .": "needs the network",
    "pip install .[tensorboard,hf]": "needs the network",
    "pip wheel . --no-deps --wheel-dir dist": "needs the network",
    "pip install dist/mnar-*.whl": "needs the network",
}


def _write_survey(path: Path) -> None:
    write_table(path)
    path.write_text(path.read_text().replace("kind", "vote", 1))


def _write_network(path: Path) -> None:
    path.write_text("from torch import nn\n\n\ndef make():\n    return nn.AvgPool2d(4)\n")


def _write_new_rows(path: Path) -> None:
    _write_survey(path)
    path.write_text("\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()) + "\n")


def _write_new_images(path: Path) -> None:
    write_images(path)
    (path / "labels.csv").unlink()


USER_FILES: dict[str, Callable[[Path], object]] = {
    "survey.csv": _write_survey,
    "new.csv": _write_new_rows,
    "photos": write_images,
    "new_photos": _write_new_images,
    "my_network.py": _write_network,
}


def write_user_files(folder: Path, home: Path) -> None:
    """What the commands on the pages take for granted: the user's own files, and a data set in ~/data."""
    for name, write in {**USER_FILES, "DATA": write_images}.items():
        write(folder / name)
    cifar = home / "data" / "cifar-10-batches-py"
    cifar.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 3, 32, 32), np.uint8)
    labels = np.arange(300) % 10
    np.savez(cifar / "cifar10-part0.npz", x=images, y=labels, test_x=images[:50], test_y=labels[:50])


def why_not(words: list[str]) -> str | None:
    """Why a command is not run, or None if it is."""
    return NOT_RUN.get(" ".join(words))


def in_small(words: list[str], home: Path) -> list[str]:
    """The arguments of `mnar` for a command that is run."""
    kind = _kind(words)
    if words[0] != "mnar" or kind not in SMALL:
        raise ValueError(
            f"`{' '.join(words)}` is a command that the tests do not know; add it to SMALL or, with a reason, to "
            f"NOT_RUN in {Path(__file__).name}"
        )
    arguments = [word.replace("~", str(home), 1) if word.startswith("~/") else word for word in words[1:]]
    if kind == "bench":
        cells = _cells(words)
        others = [word for word in arguments[1:] if word not in cells]
        arguments = ["bench", *(choose([cell])[0] for cell in cells), *others]
    small = [*SMALL[kind]]
    if any("cifar10" in word for word in words) and kind in ("train", "bench"):
        small += [part for setting in SMALL_NETWORK for part in ("--set", setting)]
    return [*arguments, *small]


def _kind(words: list[str]) -> str:
    name = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    if name == "train" and words[2:3] and not words[2].startswith("-") and not OF_A_NETWORK & {*words}:
        return "train DATA"
    switch = next((word for word in words if word in ("--resume", "--show")), "")
    return f"{name} {switch}".strip()


def _cells(words: list[str]) -> list[str]:
    """The arguments of `mnar bench` before its first option."""
    options = [place for place, word in enumerate(words) if word.startswith("--")]
    return words[2 : min(options, default=len(words))]
