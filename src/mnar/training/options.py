"""Training options and engine options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Switch = bool | Literal["auto"]


@dataclass(frozen=True)
class TrainOptions:
    """Training options. The defaults are those of the published FixMatch recipe.

    iterations                       training steps, over all generations
    batch_labeled, batch_unlabeled   samples per step
    optimizer, lr, momentum, weight_decay
    schedule                         "cosine" lets the learning rate fall to 0.195 of `lr`, "constant" keeps it
    warmup                           share of the steps during which the learning rate rises linearly to `lr`; 0: none
    max_grad_norm                    a gradient with a larger norm is scaled down to this norm; 0: no limit
    ema                              decay of the moving average of the weights; the averaged model is evaluated
    validation                       share of the labels held out for early stopping; 0: none
    patience                         steps without a lower validation loss, after which training stops
    collapse                         what happens when the run does not learn (training/collapse.py): "warn" only, or
                                     "restart" once with a tenth of the learning rate, or "fail"
    log_every, eval_every, save_every    steps between two log lines, evaluations and checkpoints
    """

    iterations: int = 2**20
    batch_labeled: int = 64
    batch_unlabeled: int = 448
    optimizer: Literal["sgd", "adam", "rmsprop"] = "sgd"
    lr: float = 0.03
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.0
    max_grad_norm: float = 0.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    ema: float = 0.999
    validation: float = 0.0
    patience: int = 100
    collapse: Literal["warn", "restart", "fail"] = "warn"
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
            ("warmup", 0, 1),
            ("max_grad_norm", 0, math.inf),
        ):
            if not low <= getattr(self, name) < high:
                raise ValueError(f"train.{name} is {getattr(self, name)}; it must lie in [{low}, {high})")


@dataclass(frozen=True)
class EngineOptions:
    """How steps are executed. These options change speed and rounding, not the method.

    device        "auto", "cpu", "cuda" or "cuda:1"
    precision     "auto": bfloat16 on a GPU, float32 on a CPU
    fused         the Triton kernels of this package for batch-norm and narrow convolutions
    compile       torch.compile for augmentation and guidance, and for the model where `fused` is off
    cuda_graph    one CUDA graph for the whole step
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    fused: Switch = "auto"
    compile: Switch = "auto"
    cuda_graph: Switch = "auto"
