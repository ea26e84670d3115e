"""Train a network without writing anything to disk, and predict with its weights."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mnar.config import RunConfig
from mnar.datasets.user_files import UNLABELED
from mnar.models import Classifier, NetworkOrFactory
from mnar.run.assemble import make_augment, make_model, make_split, make_trainer
from mnar.run.collapse_record import with_smaller_rate
from mnar.run.pretraining import load_start, pretraining_config, stage_of, trained_part
from mnar.training.engine import Engine
from mnar.training.evaluation import BATCH
from mnar.training.meters import Diverged
from mnar.training.trainer import train
from mnar.types import DataSet, Selection, Split

BUILDING = threading.Lock()


def train_in_memory(
    config: RunConfig, data: DataSet, backbone: NetworkOrFactory | None = None, *, verbose: bool = False
) -> Classifier:
    """Train a model, after its first stage if the configuration has one."""
    if bool((data.train_y == UNLABELED).any()):
        rows = make_split(config, data)
    else:
        all_rows = np.arange(len(data.train_y))
        rows = Split(all_rows, all_rows)
    trainer = make_trainer(config, data, rows, backbone)
    if encoder := config.learner.options.get("encoder"):
        raise ValueError(
            f"learner.encoder is {str(encoder)!r}, but `fit` pretrains the encoder itself and loads none from a run "
            "folder; leave the option out of `settings`"
        )
    load_start(trainer, config)
    if stage_of(config) is not None:
        stage = make_trainer(pretraining_config(config, trainer.loader.num_unlabeled), data, rows, backbone)
        train(stage, PrintingRecorder("pretraining", verbose=verbose))
        trainer.start_from(stage.evaluated_model().state_dict(), prefix=trained_part(config))
    recorder = PrintingRecorder("training", verbose=verbose)
    try:
        train(trainer, recorder)
    except Diverged as error:
        if config.train.collapse == "restart":  # once, because the second configuration says "fail"
            return train_in_memory(with_smaller_rate(config), data, backbone, verbose=verbose)
        rate = min(with_smaller_rate(config).train.lr, 3e-4)
        raise Diverged(f"{error}; choose a lower learning rate, e.g. settings=['train.lr={rate:.6g}']") from error
    if recorder.collapsed_at == config.train.iterations:  # earlier collapses may have been a slow start
        text = f"the network has not learned: {recorder.seen}; choose another train.lr in settings"
        warnings.warn(text, stacklevel=4)
    return trainer.evaluated_model()


@torch.no_grad()
def network_probs(
    config: RunConfig,
    data: DataSet,
    weights: Mapping[str, npt.NDArray[Any]],
    x: Tensor,
    backbone: NetworkOrFactory | None = None,
) -> npt.NDArray[np.float64]:
    """Return the class probabilities [n, k] that a network with these weights predicts for encoded samples.

    `data` gives the shape of the samples, the classes and the moments; it needs no samples.
    """
    device = Engine(config.engine).device
    # Building a network draws random weights. One thread at a time does so, because all threads share the random state.
    with BUILDING, keep_random_state(config):
        model = make_model(config, data, backbone)
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    # In double precision a prediction does not depend on the other rows of its batch. For images this is too slow.
    dtype = torch.float32 if data.is_image else torch.float64
    model = model.to(device, dtype).eval()
    prepare = make_augment(config, data).to(device)
    logits = [model(prepare(rows.to(device), "id").to(dtype)).double() for rows in x.split(BATCH)]
    probs: npt.NDArray[np.float64] = torch.cat(logits).softmax(1).cpu().numpy()
    return probs


@contextmanager
def keep_random_state(config: RunConfig) -> Iterator[None]:
    """Restore torch's global random state at the end of the `with` block."""
    device = Engine(config.engine).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


class PrintingRecorder:
    """A `training.Recorder` that writes nothing to disk; with `verbose` it prints the loss at each evaluation."""

    stop_requested = False

    def __init__(self, stage: str, *, verbose: bool) -> None:
        self.stage, self.verbose = stage, verbose
        self.collapsed_at: int | None = None  # the last step at which the run was found not to learn
        self.seen = ""  # what was wrong then

    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None: ...
    def generation(self, number: int, selection: Selection | None) -> None: ...
    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None: ...

    def collapsed(self, step: int, what: str) -> None:
        self.collapsed_at, self.seen = step, what

    def evaluation(self, line: dict[str, Any]) -> None:
        if self.verbose:
            print(f"{self.stage}, step {line['step']:,}: loss {line['train']['loss']:.4f}", flush=True)
