"""Load the model of a finished run folder. Nothing in a run folder is unpickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnar.config import OWN_DATA
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.own_data.network_predictor import NetworkPredictor
from mnar.own_data.portfolio_model import read_portfolio_model
from mnar.own_data.portfolio_run import is_portfolio_run, read_portfolio_config
from mnar.run import RunFolder
from mnar.run.calibration_file import read_calibration
from mnar.run.file_names import CONFIG, MODEL, PORTFOLIO, resume_command
from mnar.run.model_file import data_without_samples, read_model_input
from mnar.trained.model import TrainedModel
from mnar.trained.predictor import PortfolioPredictor


def load(run: str | Path, *, device: str = "auto") -> TrainedModel:
    """Load the model of a finished run.

    run       the run folder that `mnar train` wrote, of own data or of a benchmark
    device    "cpu", "cuda", or "auto": a GPU if the machine has one. It matters for networks only.
    """
    folder = _run_folder(Path(run))
    stored = read_model_input(folder)
    if stored is None:
        raise FileNotFoundError(
            f"{folder} is unfinished and has no model yet; finish it with `{resume_command(folder)}`"
        )
    encoder = None if stored["encoding"] is None else TableEncoder.from_dict(stored["encoding"])
    inputs = ModelInputs(tuple(stored["input_shape"]), tuple(stored["class_names"]), encoder)
    _check_class_names(inputs.class_names, folder)
    calibration = read_calibration(folder, len(inputs.class_names))
    if is_portfolio_run(folder):
        model = PortfolioPredictor(read_portfolio_model(folder))
        ignored = _ignored(read_portfolio_config(folder).reading)
        return TrainedModel(folder, inputs, model, calibration, ignored)
    config = RunFolder(folder).config().with_engine([f"engine.device={device}"])
    ignored = _ignored(config.dataset.options) if config.dataset.name == OWN_DATA else ()
    network = NetworkPredictor.of_run(folder, config, data_without_samples(stored))
    return TrainedModel(folder, inputs, network, calibration, ignored)


def _check_class_names(names: Sequence[str], folder: Path) -> None:
    """Refuse names that could not be told apart in a result file. A benchmark may have such names."""
    if "" in names or len(set(names)) < len(names):
        raise ValueError(
            f"two classes in {folder / MODEL} have the same name, or a class has none, so a prediction could not be "
            "told from another; give every class a name of its own and train again"
        )


def _ignored(reading: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that are no features: those that the user left out, and the label."""
    label = reading.get("label")
    return (*reading.get("ignore", ()), *([label] if label else []))


def _run_folder(run: Path) -> Path:
    """Return the folder of the run, which may be named by its model file. Refuse anything else."""
    if not run.exists():
        raise FileNotFoundError(f"there is no run at {run}; name the folder that `mnar train` wrote")
    folder = run.parent if run.name == MODEL else run
    if not folder.is_dir():
        raise ValueError(f"{run} is not a run folder; name the folder that `mnar train` wrote")
    if not (folder / CONFIG).exists() and not (folder / PORTFOLIO).exists():
        RunFolder(folder).config()  # raises an error that names a run folder below, if there is one
    return folder
