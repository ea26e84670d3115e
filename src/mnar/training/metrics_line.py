"""Evaluate the model of a training run. The result is one line of metrics.jsonl."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from mnar.learners import Learner
from mnar.models import Classifier
from mnar.training.early_stopping import BestSoFar, evaluating
from mnar.training.engine import Engine
from mnar.training.evaluation import as_lists, predictions_on, pseudo_label_scores, selection_scores
from mnar.training.loader import Loader
from mnar.training.meters import Meters
from mnar.training.metrics import Predictions, recorded_scores
from mnar.training.options import TrainOptions

NUM_SNAPSHOTS = 20  # evaluations that write matrices to metrics.jsonl; with 100 classes, more would make it large
MOST_CLASSES_OF_A_MATRIX = 500  # above, 20 snapshots of three matrices would have more than 40 MB


class Evaluated(Protocol):
    """What an evaluation reads of a `Trainer`."""

    learner: Learner
    loader: Loader
    meters: Meters
    engine: Engine
    options: TrainOptions
    best: BestSoFar | None
    generation: int
    test_x: Tensor
    test_y: Tensor

    @property
    def records_pseudo_labels(self) -> bool: ...
    def evaluated_model(self) -> Classifier: ...


def metrics_line(trainer: Evaluated, step: int, *, is_last: bool = False) -> dict[str, Any]:
    """Evaluate the model of a trainer and reset its meters. The result is one line of metrics.jsonl."""
    learner, loader, meters, best = trainer.learner, trainer.loader, trainer.meters, trainer.best
    means = meters.means()  # first, because it fails if training has diverged
    num_classes, predictions = learner.task.num_classes, predict_test_set(trainer)
    line = {
        "step": step,
        "images": loader.images_until(step),
        "test": recorded_scores(predictions),
        "train": means,
    }
    matrices = {"test_confusion": predictions.confusion}
    if best is not None:
        line["validation"] = {"loss": best.loss.item(), "steps_since": int(best.waited), "is_over": is_last}
    if learner.generations > 1:
        line["generation"] = trainer.generation
    if loader.selection is not None:
        line["selection"] = selection_scores(loader.selection, loader.unlabeled_targets, num_classes)
    if trainer.records_pseudo_labels:
        line["pseudo"] = pseudo_label_scores(meters.pseudo_confusion.cpu())
        matrices["pseudo_confusion"] = meters.pseudo_confusion[:num_classes]
    if estimates := learner.guidance.estimates():
        line["guidance"] = {name: values.tolist() for name, values in estimates.items()}
    matrices |= learner.guidance.matrices()
    is_snapshot = is_last or _records_matrices(step, trainer.options.eval_every, trainer.options.iterations)
    if num_classes <= MOST_CLASSES_OF_A_MATRIX and is_snapshot:
        line["matrices"] = {name: as_lists(matrix) for name, matrix in matrices.items()}
    meters.reset()
    return line


def predict_test_set(trainer: Evaluated) -> Predictions:
    """The predictions of the evaluated model for the test set."""
    model = trainer.evaluated_model()
    with evaluating(model):
        return predictions_on(
            trainer.engine.inference(model),
            trainer.test_x,
            trainer.test_y,
            lambda x: trainer.loader.augment(x, "id"),
            num_classes=trainer.learner.task.num_classes,
        )


def _records_matrices(step: int, eval_every: int, num_steps: int) -> bool:
    """Whether the evaluation of a step is one of the `NUM_SNAPSHOTS` that write matrices."""
    return NUM_SNAPSHOTS * step // num_steps > NUM_SNAPSHOTS * (step - eval_every) // num_steps
