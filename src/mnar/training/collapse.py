"""Recognise a run that does not learn: its loss explodes, or its model cannot rank even the labels it is trained on.

A model that predicts one class for every sample is no proof yet: with skewed labels, training normally starts so. A
collapsed model also lacks any *ranking*: its logit of a class is not higher for the samples of that class than for
other samples. `separation` measures the ranking on the training labels, which a healthy network fits within a few
dozen steps, whatever the learner, the guidance and the class distribution are (`benchmarks/collapse.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mnar.learners import Learner
from mnar.models import Classifier
from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.models.convolution import Convolution
from mnar.training.engine import Engine
from mnar.training.loader import Loader
from mnar.training.meters import Diverged, Meters
from mnar.training.options import TrainOptions

CHECKED_AT = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)  # shares of the steps of a generation
NUM_PROBED = 512  # training labels that a check predicts, at most

# Thresholds. A guess at random has the loss log(k) with k classes. The comments say what about 100 healthy runs
# reached on digits, tables and photographs.
EXPLODED = 10.0  # times log(k): a loss so large counts as an explosion on its own; healthy: 1.1 at most
TOO_LARGE = 1.35  # times log(k): together with a poor ranking, a loss so large counts as an explosion
POOR_RANKING = 0.85  # healthy after 5 % of the steps: 0.59 to 1, with a loss of at most 1.1 log(k)
NO_RANKING, NO_RANKING_LATE = 0.55, 0.6  # from 10 % and from 50 % of the steps; healthy: 0.68 or more
FEWEST_STEPS = {"explosion": 5, "poor ranking": 8, "no ranking": 20, "no ranking late": 100}  # before a verdict


class Collapsed(Diverged):
    """The run does not learn. The message says what was seen."""


class Checked(Protocol):
    """What a check reads of a `Trainer`."""

    model: Classifier
    learner: Learner
    loader: Loader
    meters: Meters
    engine: Engine
    options: TrainOptions

    @property
    def bounds(self) -> tuple[int, int]: ...


class Signs(NamedTuple):
    """What a check measures on the training labels, with the current model."""

    accuracy: float
    largest_class: float  # share of the most frequent label, which is the accuracy of a model that knows nothing
    top_prediction: float  # share of the most frequent prediction
    separation: float  # 0.5: the model knows nothing; 1: it ranks all samples correctly; NaN: only one class


def what_is_wrong(trainer: Checked, step: int) -> str | None:
    """Check at a few steps whether the run learns. The check changes nothing.

    A run that does not learn ends with `Collapsed`. With `train.collapse=warn`, the result says what is wrong as a
    clause. It is None if the run is healthy or no check is due.
    """
    learner, loader, engine = trainer.learner, trainer.loader, trainer.engine
    began, end = trainer.bounds
    if not is_due(step - began, end - began) or not learner.uses_labels:
        return None
    means = trainer.meters.means()
    # Other learners add losses of other kinds, so that their sum cannot be compared with a guess at random.
    loss = means.get("loss/labeled", None if learner.views else means["loss"])
    # To compile the augmentation for this batch size would take longer than the check.
    with torch.compiler.set_stance("force_eager") if engine.compiles_views else nullcontext():
        x, y = loader.labeled_samples(NUM_PROBED)
    signs = signs_of(trainer.model, x, y, engine.inference)
    num_classes = learner.task.num_classes
    problem = verdict(signs, loss, num_classes=num_classes, step=step - began, num_steps=end - began)
    if problem and trainer.options.collapse != "warn":
        raise Collapsed(problem)
    return problem


def is_due(step: int, num_steps: int) -> bool:
    """Whether a run (or a generation) of `num_steps` steps is checked after this step."""
    return step in {math.ceil(share * num_steps) for share in CHECKED_AT}


def verdict(signs: Signs, loss: float | None, *, num_classes: int, step: int, num_steps: int) -> str | None:
    """Return what is wrong with a run that has these signs and this mean labelled loss, or None."""
    guess = math.log(max(num_classes, 2))
    if loss is not None:
        exploded = loss > EXPLODED * guess and step >= FEWEST_STEPS["explosion"]
        rising = loss > TOO_LARGE * guess and step >= FEWEST_STEPS["poor ranking"]
        if exploded or (rising and signs.separation < POOR_RANKING):
            return f"the loss on the labels is {loss:.3g}, where guessing at random would give {guess:.2g}"
    is_late = step >= num_steps / 2 and step >= FEWEST_STEPS["no ranking late"]
    is_early = step >= num_steps * CHECKED_AT[1] and step >= FEWEST_STEPS["no ranking"]
    if (is_early and signs.separation < NO_RANKING) or (is_late and signs.separation < NO_RANKING_LATE):
        return (
            f"the model is right for {signs.accuracy:.0%} of the labels that it is trained on and predicts one class "
            f"for {signs.top_prediction:.0%} of them, where the largest class has {signs.largest_class:.0%}"
        )
    return None


@torch.no_grad()
def signs_of(model: Classifier, x: Tensor, y: Tensor, inference: Callable[[Classifier], nn.Module]) -> Signs:
    """Predict training samples with a copy of the model, and measure the signs. No random number is drawn.

    `inference` makes a network of the copy (`Engine.inference`). Batch norm uses the statistics of these samples,
    because running statistics lag behind in the first steps.
    """
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
        if isinstance(module, BatchNormLeakyReLU | Convolution):
            module.fused = False  # a kernel for this batch size would have to be compiled first
    logits = inference(model)(x).float().cpu()
    y, predicted = y.cpu(), logits.argmax(1)
    return Signs(
        accuracy=float((predicted == y).float().mean()),
        largest_class=float(torch.bincount(y).max() / len(y)),
        top_prediction=float(torch.bincount(predicted).max() / len(y)),
        separation=separation(logits, y),
    )


def separation(logits: Tensor, y: Tensor) -> float:
    """The mean area under the ROC curve of the classes in `y`, each against all other samples; NaN for one class."""
    areas = []
    for label in y.unique().tolist():
        inside, outside = logits[y == label, label], logits[y != label, label]
        if len(outside):
            higher, equal = (op(inside[:, None], outside).double().mean() for op in (torch.gt, torch.eq))
            areas.append(higher + equal / 2)
    return float(torch.stack(areas).mean()) if areas else math.nan
