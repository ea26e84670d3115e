"""Evaluate the model of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from mnar.config import RunConfig
from mnar.run.assemble import make_augment, make_model
from mnar.run.file_names import CONFIG, MODEL, STATE, resume_command
from mnar.run.folder import RunFolder
from mnar.run.model_checks import in_one_line
from mnar.run.model_file import read_weights
from mnar.run.other_data import check_fits, data_to_score
from mnar.training.engine import Engine
from mnar.training.evaluation import predictions_on
from mnar.training.metrics import all_scores
from mnar.types import DataSet


def evaluate_run(
    folder: Path,
    *,
    root: Path | None = None,
    settings: Sequence[str] = (),
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute every metric of the model that a run evaluates and saves, on the test set, even if the run is unfinished.

    root        benchmarks: the place of the data, if they have moved. Own data: any data of the same kind. Other data
                than those of the run are read with the encoding of the run, and all their labelled samples are scored
    settings    as in `resume_run`
    reading     own data: options of `read_data` for the data at `root`, which replace those of the run

    The result also has the confusion matrix, the class names, and the notes on own data ("notes", the last one says
    which labels are scored).
    """
    config = RunFolder(folder).config().with_engine(settings)
    data, engine = data_to_score(folder, config, root, reading), Engine(config.engine)
    network, prepare = trained_network(folder, config, data, engine)
    test_y, num_classes = data.test_y.to(engine.device), len(data.class_names)
    predictions = predictions_on(network, data.test_x, test_y, prepare, num_classes=num_classes)
    confusion = predictions.confusion.long().tolist()
    names, notes = list(data.class_names), list(data.notes)
    return {**all_scores(predictions), "confusion": confusion, "class_names": names, "notes": notes}


def trained_network(
    folder: Path, config: RunConfig, data: DataSet, engine: Engine
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The model that a run evaluates and saves, and the function that turns samples into its input."""
    check_fits(folder, data)
    try:
        model, weights = make_model(config, data), read_weights(folder)
        model.load_state_dict(weights)
        for name, tensor in weights.items():
            if not tensor.isfinite().all():
                raise RuntimeError(f"the tensor {name} contains values that are not finite numbers")
    except FileNotFoundError as error:
        remedy = f"train it further with `{resume_command(folder)}`"
        raise FileNotFoundError(f"{folder} has no model and no checkpoint yet; {remedy}") from error
    except (SafetensorError, RuntimeError) as error:
        path = folder / (MODEL if (folder / MODEL).exists() else STATE)
        raise ValueError(
            f"the model in {path} is damaged, or does not fit the model in {CONFIG} ({in_one_line(error)}); write it "
            f"again with `{resume_command(folder)}`"
        ) from error
    augment = make_augment(config, data).to(engine.device)
    return engine.inference(engine.place(model).eval()), lambda x: augment(x.to(engine.device), "id")
