"""Checkpoints: a run resumes to the result that it would have had without the damage, or says what is damaged."""

from __future__ import annotations

import io
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import mnar.run
from mnar.recipes import configure
from mnar.training.trainer import Interrupted
from tests.fuzz.reader import Reader, draw_no_report
from tests.fuzz.tokens import STATE_TOKENS, VALUES
from tests.fuzz.zip_archive import mutated_archive
from tests.support.forked_command import run_forked
from tests.support.killing import in_a_child, was_killed
from tests.support.tiny import TINY
from tests.support.watching import Watching

STATES = ("state.pt", "state.previous.pt")
RESULTS = ("model.safetensors", "metrics.jsonl")
SETTINGS = (*TINY, "train.eval_every=2", "train.save_every=1", "guidance.name=prg")
RESUME = ("train", "--resume", "run")


class CheckpointFile(Reader):
    name = "checkpoint"
    first_commands = (RESUME,)

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        assert not was_killed(in_a_child(self._stop_a_run))
        straight = Path(shutil.copytree(originals / "run", originals / "straight/run")).parent
        ended = run_forked(RESUME, straight, draw_no_report)
        assert ended.exit_code == 0, ended.errors
        self.right = {name: (straight / "run" / name).read_bytes() for name in RESULTS}

    def _stop_a_run(self) -> None:
        """Train to step 2 of 4, with checkpoints of the steps 1 and 2."""
        torch.set_num_threads(1)
        config = configure(dataset="digits", iterations=4, settings=SETTINGS)
        with suppress(Interrupted):
            mnar.run.new_run(config, self.originals / "run", Watching(signal_at=2))

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        run = Path(shutil.copytree(self.originals / "run", folder / "run"))
        damaged = rng.choice([STATES[:1], STATES[:1], STATES])
        for name in damaged:
            content = (run / name).read_bytes()
            if rng.random() < 0.3:
                content = _with_another_state(content, rng)
            else:
                content = mutated_archive(content, rng, STATE_TOKENS)
            (run / name).write_bytes(content)
        return list(RESUME)

    def stop_early(self) -> None:
        draw_no_report()

    def difference(self, folder: Path) -> str | None:
        changed = [name for name, content in self.right.items() if (folder / "run" / name).read_bytes() != content]
        return f"{', '.join(changed)} differ from those of the undamaged run" if changed else None


def _with_another_state(content: bytes, rng: random.Random) -> bytes:
    """A checkpoint in which an entry is missing, or has another value or shape."""
    state: Any = torch.load(io.BytesIO(content), weights_only=True)
    place, key = rng.choice(list(_entries(state)))
    change = rng.choice(["drop", "value", "shape", "type", "whole"])
    if change == "drop":
        del place[key]
    elif change == "value":
        place[key] = rng.choice(VALUES)
    elif change == "shape" and isinstance(place[key], torch.Tensor):
        place[key] = rng.choice([place[key].flatten()[:1], place[key][None], torch.zeros(0), place[key].double()])
    elif change == "type":
        place[key] = rng.choice([str(place[key]), [place[key]], {"x": place[key]}, torch.zeros(3)])
    else:
        state = rng.choice([None, [], [state], {}, {"x": state}, 3, "text", torch.zeros(2)])
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _entries(state: Any, depth: int = 4) -> list[tuple[Any, Any]]:
    """The mappings in a state with each of their keys, and the lists with each of their places."""
    keys = list(state) if isinstance(state, dict) else range(len(state)) if isinstance(state, list) else ()
    found = [(state, key) for key in keys]
    return found + [entry for key in keys if depth for entry in _entries(state[key], depth - 1)]
