"""Training options and engine options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mnar.option_values import (
    BatchSize,
    Factor,
    NumSteps,
    PositiveShare,
    Range,
    ShareBelowOne,
    check_fields,
)
from mnar.training.stages import check_factors

Switch = bool | Literal["auto"]
# `train.ema=auto`, see `decay_for`
AVERAGED_PARTS, SMALLEST_DECAY, LARGEST_DECAY = 18, 0.9, 0.999


@dataclass(frozen=True)
class TrainOptions:
    """Training options. The defaults are those of the published FixMatch recipe.

    iterations                       training steps, over all generations
    batch_labeled, batch_unlabeled   samples per step
    batch_stages                     factors of both batch sizes: the steps of a generation are divided into as many
                                     equal parts, and a part has the full sizes times its factor, e.g. [0.25, 0.5, 1]
    labeled_view                     view of the labelled samples: "weak" (crop and flip), "strong" (images only:
                                     RandAugment, too) or "auto", which is the view of the learner's paper
    optimizer                        "sgd" (with Nesterov momentum), "adam", "rmsprop" or "muon" (training/muon.py)
    lr                               learning rate at the start; with a warm-up, at its end
    momentum                         momentum of SGD and Muon
    weight_decay                     weight decay; normalisation layers have none
    schedule                         "cosine" lets the learning rate fall to 0.195 of `lr` (FixMatch), "cosine_to_zero"
                                     (half a cosine) and "linear" let it fall to 0, "constant" keeps it
    warmup                           share of the steps during which the learning rate rises linearly to `lr`; 0: none
    max_grad_norm                    a gradient with a larger norm is scaled down to this norm; 0: no limit
    ema                              decay of the moving average of the weights; the averaged model is evaluated.
                                     "auto" matches the decay to the length: 1 - 18 / iterations, within 0.9 and 0.999
    sync_batch_norm                  several processes only: batch norm uses the statistics of the whole batch, as one
                                     process does, and not those of the part of each process
    validation                       share of the labels held out for early stopping; 0: none
    patience                         steps without a lower validation loss, after which training stops
    collapse                         what happens when the run does not learn (training/collapse.py): "warn" only, or
                                     "restart" once with a tenth of the learning rate, or "fail"
    pretraining                      training steps of SimCLR, which trains the network without labels first; 0: none
    start                            run folder or model file with the first weights of the network, without its
                                     heads, e.g. a run of --learner simclr; None: random weights
    log_every, eval_every, save_every    steps between two log lines, evaluations and checkpoints
    """

    iterations: NumSteps = 2**20
    batch_labeled: BatchSize = 64
    batch_unlabeled: BatchSize = 448
    batch_stages: tuple[PositiveShare, ...] = (1.0,)
    labeled_view: Literal["auto", "weak", "strong"] = "auto"
    optimizer: Literal["sgd", "adam", "rmsprop", "muon"] = "sgd"
    lr: Annotated[float, Range(0, 1e30)] = 0.03  # a larger rate soon exceeds float32
    schedule: Literal["cosine", "cosine_to_zero", "linear", "constant"] = "cosine"
    warmup: ShareBelowOne = 0.0
    max_grad_norm: Factor = 0.0
    momentum: ShareBelowOne = 0.9
    weight_decay: Annotated[float, Range(0, 1000)] = 5e-4
    ema: ShareBelowOne | Literal["auto"] = 0.999
    sync_batch_norm: bool = False
    validation: ShareBelowOne = 0.0
    patience: NumSteps = 100
    collapse: Literal["warn", "restart", "fail"] = "warn"
    pretraining: Annotated[int, Range(0, 10**12)] = 0
    start: Path | None = None
    log_every: NumSteps = 50
    eval_every: NumSteps = 1000
    save_every: NumSteps = 1000

    def __post_init__(self) -> None:
        check_fields(self, "train")
        if self.ema == "auto":  # replaced by the number, so that config.yaml shows what was used
            object.__setattr__(self, "ema", decay_for(self.iterations))
        check_factors(self.batch_stages, self.batch_unlabeled)
        if self.start is not None and self.pretraining:
            raise ValueError(
                f"train.start is {str(self.start)!r} and train.pretraining is {self.pretraining}, but a network has "
                "only one start; leave one of the two options out"
            )
        if self.optimizer == "muon" and self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"train.lr is {self.lr} and train.weight_decay is {self.weight_decay}; Muon multiplies the weights by "
                "1 - lr * weight_decay in each step, which must be positive. Choose e.g. --set train.lr=0.02 --set "
                "train.weight_decay=0.025"
            )


def decay_for(iterations: int) -> float:
    """The decay of the moving average for a training of this length: the average covers about 1/18 of the steps.

    900 steps give 0.98, the decay for digits, and 18,000 or more steps 0.999, the decay of the published recipe.
    """
    return min(LARGEST_DECAY, max(SMALLEST_DECAY, 1 - AVERAGED_PARTS / iterations))


@dataclass(frozen=True)
class EngineOptions:
    """How steps are executed. These options change speed and rounding, not the method.

    device         "auto", "cpu", "cuda" or "cuda:1"
    precision      "auto": bfloat16 on a GPU, float32 on a CPU
    fused          the Triton kernels of this package for views of images, batch-norm and narrow convolutions
    compile        torch.compile for the guidance, and for views and model where `fused` is off
    cuda_graph     one CUDA graph for the whole step
    deterministic  only kernels of cuDNN and cuBLAS that give the same result every time. On a GPU, equal runs differ
                   without it
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    fused: Switch = "auto"
    compile: Switch = "auto"
    cuda_graph: Switch = "auto"
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "engine")
