"""What a training is told: steps, batches, optimiser, average, and when to look."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainOptions:
    """The published recipe."""

    iterations: int = 2**20
    batch_labeled: int = 64
    batch_unlabeled: int = 448
    optimizer: Literal["sgd", "adam", "rmsprop"] = "sgd"
    lr: float = 0.03
    schedule: Literal["cosine", "constant"] = "cosine"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    ema: float = 0.999
    validation: float = 0.0  # share of the labels held out; the model that does best on them is the one evaluated
    patience: int = 100  # steps without a better one, after which no other is looked for
    log_every: int = 50
    eval_every: int = 1000
    save_every: int = 1000

    def __post_init__(self) -> None:
        for name in (
            "iterations",
            "batch_labeled",
            "batch_unlabeled",
            "log_every",
            "eval_every",
            "save_every",
            "patience",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name} is {getattr(self, name)}; it must be at least 1")
        for name, low, high in (
            ("lr", 0, math.inf),
            ("weight_decay", 0, math.inf),
            ("momentum", 0, 1),
            ("ema", 0, 1),
            ("validation", 0, 1),
        ):
            if not low <= getattr(self, name) < high:
                raise ValueError(f"train.{name} is {getattr(self, name)}; it must lie in [{low}, {high})")
