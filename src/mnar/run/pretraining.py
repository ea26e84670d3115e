"""What a network is before its training: random, the result of another run, or that of a first stage without labels.

The first stage is a run of its own, in the folder `pretraining` of the run.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError

from mnar.config import RunConfig, options_of
from mnar.learners import LEARNERS, SimCLR
from mnar.run.file_names import MODEL
from mnar.run.model_file import read_tensors
from mnar.training.options import decay_for
from mnar.training.trainer import Trainer

# How the names of the weights begin that are loaded. The first stage of VIME trains only the encoder.
NETWORK, ENCODER = "", "encoder."
WHAT = {NETWORK: "network", ENCODER: "encoder"}


def stage_of(config: RunConfig) -> str | None:
    """The learner of the first stage that belongs to the run; None if there is no first stage."""
    if _is_vime(config):
        return None if config.learner.options["encoder"] else LEARNERS[config.learner.name].pretrained_by
    return "simclr" if config.train.pretraining else None


def pretraining_config(config: RunConfig, num_unlabeled: int) -> RunConfig:
    """The configuration of the first stage, with the data, the model and the optimiser of the run."""
    stage = stage_of(config)
    assert stage is not None
    of_stage = _vime_stage(config, num_unlabeled) if _is_vime(config) else _simclr_stage(config, num_unlabeled)
    options = config.train
    # An average that fits the length of the training fits the length of this stage, too (train.ema=auto).
    ema = "auto" if options.ema == decay_for(options.iterations) else options.ema
    return RunConfig.from_dict(
        {
            **config.to_dict(),
            "learner": {"name": stage, **of_stage.learner},
            "guidance": {"name": "none"},
            "train": {
                **dataclasses.asdict(options),
                "ema": ema,
                **LEARNERS[stage].pretraining_options,
                "validation": 0.0,
                "batch_stages": (1.0,),  # the number of steps was counted for full batches
                "pretraining": 0,
                "start": None,
                **of_stage.train,
            },
        }
    )


class _Stage(NamedTuple):
    """The options in which a first stage differs from the run."""

    learner: dict[str, Any]
    train: dict[str, Any]


def _is_vime(config: RunConfig) -> bool:
    """Whether the learner itself has two stages."""
    return LEARNERS[config.learner.name].pretrained_by is not None


def _vime_stage(config: RunConfig, num_unlabeled: int) -> _Stage:
    """VIME has every option of its first stage, and gives the length in passes over the unlabelled set."""
    options = config.learner.options
    of_stage = options_of("learner", LEARNERS[str(stage_of(config))])
    steps = max(1, math.ceil(options["pretraining_epochs"] * num_unlabeled / config.train.batch_unlabeled))
    # There is nothing to score before the end.
    return _Stage({option: options[option] for option in of_stage}, {"iterations": steps, "eval_every": steps})


def _simclr_stage(config: RunConfig, num_unlabeled: int) -> _Stage:
    """A contrastive loss compares the images of a batch, so it needs many of them."""
    options = config.train
    enough = SimCLR.unlabeled_ratio * options.batch_labeled
    batch = min(max(options.batch_unlabeled, enough), num_unlabeled)
    return _Stage({}, {"iterations": options.pretraining, "batch_unlabeled": batch, "labeled_view": "auto"})


def load_start(trainer: Trainer, config: RunConfig) -> None:
    """Load the weights that the configuration names; do nothing if it names none."""
    encoder, start = config.learner.options.get("encoder"), config.train.start
    remedy = "to the folder of a finished {} with the same model options, or leave the option out"
    if encoder is not None:
        _load(trainer, encoder, ENCODER, "set learner.encoder " + remedy.format("run of vime_self"))
    if start is not None:
        _load(trainer, start, NETWORK, "set train.start " + remedy.format("run"))


def load_stage(trainer: Trainer, config: RunConfig, stage: Path) -> None:
    """Load what the first stage in the folder `stage` has trained."""
    remedy = f"delete the folder {stage} and continue the run, which then trains this stage again"
    _load(trainer, stage, trained_part(config), remedy)


def trained_part(config: RunConfig) -> str:
    """How the names of those weights begin that the first stage of a run trains."""
    return ENCODER if _is_vime(config) else NETWORK


def _load(trainer: Trainer, source: Path, prefix: str, remedy: str) -> None:
    path, what = source / MODEL if source.is_dir() else source, WHAT[prefix]
    if not path.exists():
        raise FileNotFoundError(f"no {what} at {path}; {remedy}")
    try:
        trainer.start_from(read_tensors(path), prefix=prefix)
    except (SafetensorError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the {what} in {path} is damaged or does not fit the model ({reason}); {remedy}") from error
