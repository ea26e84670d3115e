"""Build data, split, model, learner, guidance and trainer from a `RunConfig`.

This is the only module that builds parts from their names. Other modules use a name only to look up the options of a
part.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.augment import Augment, Standardize
from mnar.config import RunConfig
from mnar.datasets import DATASETS
from mnar.guidances import GUIDANCES, Chain, Guidance, NoGuidance
from mnar.learners import LEARNERS, Learner
from mnar.models import MODELS, Backbone, Classifier, NetworkOrFactory
from mnar.models.sync_norm import synchronise
from mnar.protocols import PROTOCOLS, hold_out, split
from mnar.training.engine import Engine
from mnar.training.loader import Loader
from mnar.training.stages import Stage, plan_stages
from mnar.training.trainer import Trainer
from mnar.types import DataSet, MissingLabels, Split, Task

NUM_CHECKED = 100  # samples that guidances and learners may inspect before training


def load_data(config: RunConfig, root: Path | None = None) -> DataSet:
    """Read the data set that the configuration names; `root` overrides its place."""
    make = DATASETS[config.dataset.name]
    options = config.dataset.options if root is None else {**config.dataset.options, "root": root}
    takes_seed = "seed" in inspect.signature(make).parameters  # a data set that draws its own test set
    return make(**options, seed=config.seed) if takes_seed else make(**options)


def make_split(config: RunConfig, data: DataSet) -> Split:
    """Choose the labelled and the unlabelled rows, as the protocol says."""
    counts = PROTOCOLS[config.protocol.name](len(data.class_names), **config.protocol.options)
    return split(data.labels, counts, seed=config.seed, **config.split)


def make_model(config: RunConfig, data: DataSet, backbone: NetworkOrFactory | None = None) -> Classifier:
    """Build the model that the configuration names, or a classifier on the user's own network."""
    shape, num_classes = tuple(data.train_x.shape[1:]), len(data.class_names)
    if backbone is not None:
        return Backbone(backbone, shape, num_classes)
    return MODELS[config.model.name](shape, num_classes, **config.model.options)


def make_augment(config: RunConfig, data: DataSet, rows: Split | None = None) -> nn.Module:
    """Build the module that makes views. A table's "marginal" view draws from the unlabelled set and needs `rows`."""
    if data.is_image:
        return Augment(data.mean, data.std, **config.augment)
    table = None if rows is None else data.train_x[torch.from_numpy(rows.unlabeled_index)]
    return Standardize(data.mean, data.std, table)


def make_trainer(config: RunConfig, data: DataSet, rows: Split, backbone: NetworkOrFactory | None = None) -> Trainer:
    """Build the trainer, and refuse combinations of parts and data that cannot work."""
    _check_data_kind(config, data)
    torch.manual_seed(config.seed)
    engine, options = Engine(config.engine), config.train
    rows, validation_index, held_out = _hold_out_labels(config, data, rows)
    task = Task(
        num_classes=len(data.class_names),
        num_unlabeled=len(rows.unlabeled_index),
        labeled_targets=data.labels[torch.from_numpy(rows.labeled_index)],
        batch_labeled=options.batch_labeled,
        batch_unlabeled=options.batch_unlabeled,
    )
    try:
        guidance = make_guidance(config, data, rows, task)
        learner = LEARNERS[config.learner.name](task, guidance, **config.learner.options)
    except MissingLabels as error:
        raise _with_class_names(error, data, options.validation) from error
    _check_learner(config, learner, rows, validation_index)
    stages = _plan_stages(config, task, learner)
    loader = Loader(
        data,
        rows,
        engine.augmentation(make_augment(config, data, rows if "marginal" in learner.views else None)),
        views=learner.views,
        labeled_view=learner.labeled_view if options.labeled_view == "auto" else options.labeled_view,
        batch_labeled=options.batch_labeled,
        batch_unlabeled=options.batch_unlabeled,
        stages=stages,
        seed=config.seed,
        device=engine.device,
        held_out=validation_index,
    )

    def fresh_model() -> Classifier:
        model = make_model(config, data, backbone)
        model.heads.update(learner.heads(model))
        if options.sync_batch_norm and distributed.world_size() > 1:
            synchronise(model)
        return model

    model = fresh_model()
    learner.prepare(model)
    return Trainer(model, learner, loader, data, options, engine, fresh_model, held_out)


def make_guidance(config: RunConfig, data: DataSet, rows: Split, task: Task) -> Guidance:
    """Build the guidance, or the chain of guidances."""
    stages = []
    for part in config.guidance.chain:
        options = dict(part.options)
        if options.get("target") == "oracle":  # the only option that looks at the true classes of the pool
            options["target"] = _true_class_counts(data, rows)
        stages.append(GUIDANCES[part.name](task, **options))
        stages[-1].num_steps = config.train.iterations
    guidance = stages[0] if len(stages) == 1 else Chain(*stages)
    augment = make_augment(config, data)
    guidance.prepare(data.train_x[:NUM_CHECKED], lambda x: augment(x, "id"))
    return guidance


def _hold_out_labels(
    config: RunConfig, data: DataSet, rows: Split
) -> tuple[Split, npt.NDArray[np.int64], tuple[Tensor, Tensor] | None]:
    """Hold out a share of the labels (`train.validation`) for early stopping.

    Return the remaining split, the held-out rows, and their samples and labels (None if the share is 0).
    """
    share = config.train.validation
    if not share:
        return rows, rows.labeled_index[:0], None
    if not LEARNERS[config.learner.name].uses_labels:
        raise ValueError(f"{config.learner.name} trains no classifier to validate; choose --set train.validation=0")
    rows, validation_index = hold_out(rows, share, seed=config.seed)
    validation_rows = torch.from_numpy(validation_index)
    return rows, validation_index, (data.train_x[validation_rows], data.labels[validation_rows])


def _check_learner(config: RunConfig, learner: Learner, rows: Split, held_out: npt.NDArray[np.int64]) -> None:
    """Refuse what the learner cannot train. `held_out` are the rows whose labels are held out for early stopping."""
    guidance, options = learner.guidance, config.train
    if learner.views and np.isin(rows.unlabeled_index, np.concatenate([rows.labeled_index, held_out])).all():
        raise ValueError(
            "every sample has a label, so there are no unlabelled samples to learn from; choose --learner supervised"
        )
    if not learner.is_guided and not isinstance(guidance, NoGuidance):
        raise ValueError(f"{config.learner.name} makes no pseudo-labels to guide; choose --guidance none")
    if options.labeled_view != "auto" and learner.labeled_view == "both":
        raise ValueError(
            f"train.labeled_view is {options.labeled_view!r}, but {config.learner.name} trains two views of each "
            "labelled sample here; set train.labeled_view=auto, or learner.labeled_strong=false"
        )
    if learner.generations > 1 and (options.pretraining or options.start is not None):
        option = "pretraining" if options.pretraining else "start"
        raise ValueError(
            f"train.{option} gives the first weights of a network, but this run trains {learner.generations} networks "
            f"one after the other, each from random weights; leave train.{option} out"
        )
    if options.iterations < learner.generations:
        section = _section_of_generations(guidance)
        raise ValueError(
            f"train.iterations is {options.iterations}, which is less than one step for each of "
            f"{learner.generations} generations; choose more steps, or fewer generations with --set "
            f"{section}.generations=2"
        )


def _with_class_names(error: MissingLabels, data: DataSet, share_held_out: float) -> ValueError:
    named = MissingLabels([data.class_names[int(number)] for number in error.classes], error.needed_by)
    if not share_held_out:
        return named
    return ValueError(f"{named}. train.validation={share_held_out:g} holds out some labels; 0 holds out none")


def _section_of_generations(guidance: Guidance) -> str:
    """The section of the configuration that has the number of generations."""
    if guidance.generations == 1:
        return "learner"
    stages = list(guidance.stages) if isinstance(guidance, Chain) else [guidance]
    position = next(number for number, stage in enumerate(stages) if stage.generations > 1)
    return "guidance" + ".preceded_by" * (len(stages) - 1 - position)  # the last stage stands first in the section


def _plan_stages(config: RunConfig, task: Task, learner: Learner) -> tuple[Stage, ...]:
    """The batch sizes of all steps. A stage whose batch is too small for the learner is refused."""
    options = config.train
    stages = plan_stages(
        options.batch_stages,
        iterations=options.iterations,
        batch_labeled=options.batch_labeled,
        batch_unlabeled=options.batch_unlabeled,
        generations=learner.generations,
    )
    smallest = min(stage.batch_unlabeled for stage in stages)
    if smallest < options.batch_unlabeled:
        try:  # the constructor knows the smallest batch that the method can use
            LEARNERS[config.learner.name](
                task._replace(batch_unlabeled=smallest), learner.guidance, **config.learner.options
            )
        except ValueError as error:
            raise ValueError(
                f"train.batch_stages has a stage with {smallest} of {options.batch_unlabeled} unlabelled samples, "
                f"which is too small: {error}"
            ) from error
    return stages


def _true_class_counts(data: DataSet, rows: Split) -> tuple[float, ...]:
    pool = data.train_y[torch.from_numpy(rows.unlabeled_index)]
    if (pool < 0).any():
        raise ValueError(
            "guidance.target is 'oracle', but the true classes of these data are unknown; choose labeled or "
            "estimate, or give the share of each class"
        )
    return tuple(torch.bincount(pool, minlength=len(data.class_names)).double().tolist())


def _check_data_kind(config: RunConfig, data: DataSet) -> None:
    kind, name = "images" if data.is_image else "tables", config.learner.name
    if kind not in LEARNERS[name].suits:
        suitable = sorted(other for other, learner in LEARNERS.items() if kind in learner.suits)
        raise ValueError(
            f"{name} is for {' or '.join(LEARNERS[name].suits)}, but {config.dataset.name} has {kind}; "
            f"choose --learner from {suitable}"
        )
    if config.train.pretraining and not data.is_image:
        raise ValueError(
            f"train.pretraining is {config.train.pretraining}, which is for images, but {config.dataset.name} has "
            "tables; choose --set train.pretraining=0, or --learner vime, which has a first stage for tables"
        )
    if config.train.labeled_view == "strong" and not data.is_image:
        raise ValueError(
            f"train.labeled_view is 'strong', but {config.dataset.name} has tables, which have no strong view; choose "
            "--set train.labeled_view=auto"
        )
