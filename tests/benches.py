"""For the tests of benches: a pool that starts no process, a clock that obeys, and runs that nobody trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from mnar.config import RunConfig

RECIPE, OTHER = "digits/cadr-g20/fixmatch", "digits/cadr-g20/fixmatch+prg"
TINY = (
    "engine.device=cpu",
    "model.width=4",
    "train.batch_labeled=16",
    "train.batch_unlabeled=32",
    "train.log_every=5",
    "train.eval_every=2",
    "train.save_every=3",
)
SELDOM_SAVED = (*TINY, "train.eval_every=10", "train.save_every=50")


class Here(Executor):
    """A pool whose only worker is this process: another takes seconds to start."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class Clock:
    """Stands in for the module `time`; it moves by `tick` whenever somebody looks at it, and while they sleep."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 1000.0, tick

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make_up(
    folder: Path,
    config: RunConfig,
    accuracies: Sequence[float],
    *,
    is_done: bool = True,
    steps: Sequence[int] = (),
    scores: Sequence[dict[str, Any]] = (),
    seconds: float = 60.0,
    images_per_second: float = 1000.0,
) -> None:
    """A run folder with these evaluations, every `eval_every` steps if not at `steps`; GM is half the accuracy."""
    folder.mkdir(parents=True, exist_ok=True)
    every = config.train.eval_every
    steps = steps or [every * (i + 1) for i in range(len(accuracies))]
    scores = scores or [{}] * len(accuracies)
    lines = [
        {"step": step, "test": {"accuracy": accuracy, "geometric_mean": accuracy / 2, **more}, "train": {}}
        for step, accuracy, more in zip(steps, accuracies, scores, strict=True)
    ]
    session = {"seconds": seconds, "images_per_second": images_per_second}
    (folder / "config.yaml").write_text(config.to_yaml())
    (folder / "split.json").write_text(json.dumps({"dataset": config.dataset.name, "class_names": list("0123456789")}))
    (folder / "environment.json").write_text(
        json.dumps({"device": "a machine", "commit": "c0ffee", "sessions": [session]})
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if is_done:
        (folder / "model.safetensors").write_bytes(b"")
