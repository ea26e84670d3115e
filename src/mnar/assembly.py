"""RunConfig -> data, split, model, learner, guidance, trainer. The only place where parts are made by their names.

Others look them up for their options only: what reads and writes configurations (`config`, `recipes`), and what lists
the parts (`part_list`).
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.augment import Augment, Standardize
from mnar.config import RunConfig, options_of
from mnar.datasets import DATASETS
from mnar.engine import Engine
from mnar.guidances import GUIDANCES, Chain, Guidance, NoGuidance
from mnar.learners import LEARNERS
from mnar.loader import Loader
from mnar.models import MODELS, Backbone, Classifier, Network
from mnar.protocols import PROTOCOLS, hold_out, split
from mnar.recipes.defaults import pretraining
from mnar.train import Trainer
from mnar.types import DataSet, Split, Task

NUM_CHECKED = 100  # samples that are looked at before training


def load_data(config: RunConfig, root: Path | None = None) -> DataSet:
    options = config.dataset.options if root is None else {**config.dataset.options, "root": root}
    return DATASETS[config.dataset.name](**options)


def make_split(config: RunConfig, data: DataSet) -> Split:
    counts = PROTOCOLS[config.protocol.name](len(data.class_names), **config.protocol.options)
    return split(data.labels, counts, seed=config.seed, **config.split)


def make_model(config: RunConfig, data: DataSet, backbone: Network | None = None) -> Classifier:
    """The model that the configuration names, or one on somebody's own network."""
    shape, num_classes = tuple(data.train_x.shape[1:]), len(data.class_names)
    if backbone is not None:
        return Backbone(backbone, shape, num_classes)
    return MODELS[config.model.name](shape, num_classes, **config.model.options)


def make_augment(config: RunConfig, data: DataSet, rows: Split | None = None) -> nn.Module:
    """The views; with `rows`, a table also has the one that draws from all of the unlabelled set."""
    if data.is_image:
        return Augment(data.mean, data.std, **config.augment)
    table = None if rows is None else data.train_x[torch.from_numpy(rows.unlabeled_index)]
    return Standardize(data.mean, data.std, table)


def make_trainer(config: RunConfig, data: DataSet, rows: Split, backbone: Network | None = None) -> Trainer:
    if distributed.world_size() > 1:
        raise ValueError("training in several processes is not there yet; start one process")
    _check_suits(config, data)
    torch.manual_seed(config.seed)
    engine, options = Engine(config.engine), config.train
    held_out: tuple[Tensor, Tensor] | None = None
    validation_index = rows.labeled_index[:0]
    if options.validation and not LEARNERS[config.learner.name].uses_labels:
        raise ValueError(f"{config.learner.name} trains no classifier to validate; choose --set train.validation=0")
    if options.validation:
        rows, validation_index = hold_out(rows, options.validation, seed=config.seed)
        validation_rows = torch.from_numpy(validation_index)
        held_out = data.train_x[validation_rows], data.labels[validation_rows]
    task = Task(
        num_classes=len(data.class_names),
        num_unlabeled=len(rows.unlabeled_index),
        labeled_targets=data.labels[torch.from_numpy(rows.labeled_index)],
        batch_labeled=options.batch_labeled,
        batch_unlabeled=options.batch_unlabeled,
    )
    guidance = make_guidance(config, data, rows, task)
    learner = LEARNERS[config.learner.name](task, guidance, **config.learner.options)
    if learner.views and set(rows.unlabeled_index.tolist()) <= set(rows.labeled_index.tolist()):
        raise ValueError(
            "every sample has a label, so there is nothing unlabelled to learn from; choose --learner supervised"
        )
    if not learner.is_guided and not isinstance(guidance, NoGuidance):
        raise ValueError(f"{config.learner.name} makes no pseudo-labels to guide; choose --guidance none")
    if options.iterations < learner.generations:
        whose = "guidance" if guidance.generations > 1 else "learner"
        raise ValueError(
            f"train.iterations is {options.iterations}, not even a step for each of {learner.generations} generations; "
            f"choose more steps, or fewer generations with --set {whose}.generations=2"
        )
    loader = Loader(
        data,
        rows,
        engine.augmentation(make_augment(config, data, rows if "marginal" in learner.views else None)),
        views=learner.views,
        labeled_view=learner.labeled_view,
        batch_labeled=options.batch_labeled,
        batch_unlabeled=options.batch_unlabeled,
        seed=config.seed,
        device=engine.device,
        held_out=validation_index,
    )
    model = make_model(config, data, backbone)
    model.heads.update(learner.heads(model))
    learner.prepare(model)

    def renew() -> Classifier:
        fresh = make_model(config, data, backbone)
        fresh.heads.update(learner.heads(fresh))
        return fresh

    return Trainer(model, learner, loader, data, options, engine, renew, held_out)


def make_guidance(config: RunConfig, data: DataSet, rows: Split, task: Task) -> Guidance:
    stages = []
    for part in config.guidance.chain:
        options = dict(part.options)
        if options.get("target") == "oracle":  # the one choice that looks at the unlabelled classes, and says so
            pool = data.train_y[torch.from_numpy(rows.unlabeled_index)]
            if (pool < 0).any():
                raise ValueError(
                    "guidance.target is 'oracle', and nobody knows the classes of these data; choose labeled or "
                    "estimate, or give the share of each class"
                )
            options["target"] = tuple(torch.bincount(pool, minlength=task.num_classes).double().tolist())
        stages.append(GUIDANCES[part.name](task, **options))
    guidance = stages[0] if len(stages) == 1 else Chain(*stages)
    augment = make_augment(config, data)
    guidance.prepare(data.train_x[:NUM_CHECKED], lambda x: augment(x, "id"))
    return guidance


def _check_suits(config: RunConfig, data: DataSet) -> None:
    kind, name = "images" if data.is_image else "tables", config.learner.name
    if kind not in LEARNERS[name].suits:
        suitable = sorted(other for other, learner in LEARNERS.items() if kind in learner.suits)
        raise ValueError(
            f"{name} is for {' or '.join(LEARNERS[name].suits)}, and {config.dataset.name} has {kind}; "
            f"choose --learner from {suitable}"
        )


def pretraining_config(config: RunConfig, num_unlabeled: int) -> RunConfig:
    """The stage before: the same data and model, and as many rounds over the unlabelled set as the learner asks for."""
    learner, options = config.learner, config.train
    name = LEARNERS[learner.name].pretrained_by
    assert name is not None
    epochs = learner.options["pretraining_epochs"]
    steps = max(1, math.ceil(epochs * num_unlabeled / options.batch_unlabeled))
    shared = options_of("learner", LEARNERS[name])
    return RunConfig.from_dict(
        {
            **config.to_dict(),
            "learner": {"name": name, **{option: learner.options[option] for option in shared}},
            "guidance": {"name": "none"},
            "train": {**dataclasses.asdict(options), **pretraining(steps), "validation": 0.0},
        }
    )
