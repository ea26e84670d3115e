"""Choose the learning rate of a run with a range test (training/rate_test.py)."""

from __future__ import annotations

import dataclasses

import torch

from mnar.config import RunConfig
from mnar.run.assemble import make_split, make_trainer
from mnar.training.options import TrainOptions
from mnar.training.rate_test import suggested_rate
from mnar.types import DataSet

NUM_STEPS, FEWEST_STEPS = 75, 30  # of a range test
SHARE_OF_TRAINING = 0.05  # of the samples that the training will process, at most


def with_suggested_rate(config: RunConfig, data: DataSet) -> RunConfig:
    """Return the configuration with the learning rate that a range test on the labelled samples suggests.

    The configuration stays as it is if the training is too short for a range test (it may take a twentieth of the
    training), or if the learner trains on an encoder that another stage has to train first. The random state stays as
    it was. Every call with the same configuration and data gives the same rate on the same machine.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        rows = make_split(config, data)
        trainer = make_trainer(config, data, rows)
        num_steps = num_test_steps(config.train, trainer.loader.images_until(config.train.iterations))
        if num_steps < FEWEST_STEPS or trainer.learner.pretrained_by is not None or not trainer.learner.uses_labels:
            return config
        rate = suggested_rate(make_trainer(labels_only(config), data, rows), num_steps)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, lr=rate))


def num_test_steps(options: TrainOptions, num_samples: int) -> int:
    """The number of steps of the range test: at most 75, and at most 5 % of the `num_samples` of the training."""
    within_share = SHARE_OF_TRAINING * num_samples / options.batch_labeled
    return min(NUM_STEPS, int(within_share))


def labels_only(config: RunConfig) -> RunConfig:
    """The same network and optimiser, trained on the labels alone with a constant learning rate."""
    train = dataclasses.asdict(config.train) | {
        "schedule": "constant",
        "warmup": 0.0,
        "validation": 0.0,
        "batch_stages": (1.0,),
    }
    engine = dataclasses.asdict(config.engine) | {"compile": False, "cuda_graph": False}  # not worth it for 75 steps
    sections = {**config.to_dict(), "learner": {"name": "supervised"}, "guidance": {"name": "none"}}
    return RunConfig.from_dict({**sections, "train": train, "engine": engine})
