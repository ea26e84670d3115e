"""model.safetensors of a portfolio run: the fitted members, their weights, and how samples become their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as to_safetensors

from mnar.atomic_write import from_json, write_atomically
from mnar.own_data.inputs import ROWS_AT_A_TIME, InputEncoder
from mnar.own_data.portfolio import Portfolio
from mnar.own_data.portfolio.member import Arrays, Floats, with_shares
from mnar.own_data.portfolio.members import FITTED
from mnar.own_data.portfolio.portfolio import decided
from mnar.own_data.portfolio.threads import in_order
from mnar.own_data.portfolio_model_checks import check_combination, check_encoder, check_member
from mnar.run.file_names import MODEL, resume_command
from mnar.run.model_file import check_tensors, damaged_model, metadata, model_input, read_model_input
from mnar.types import DataSet


@dataclass(frozen=True)
class Predictions:
    """Predicted classes, and the probability of the predicted class for samples like those of the pool."""

    labels: npt.NDArray[np.int64]  # [n]
    confidences: Floats  # [n]
    decisive_probs: Floats  # [n, k] whose arg-max is the predicted class


@dataclass(frozen=True)
class PortfolioModel:
    """A portfolio that predicts encoded samples."""

    portfolio: Portfolio
    encoder: InputEncoder

    def balanced_probs(self, x: npt.NDArray[Any]) -> Floats:
        """Return probabilities as if all classes were equally frequent, [n, k].

        The samples are encoded tables as float32 [n, d], or images as uint8 [n, channels, height, width].
        """
        portfolio = self.portfolio

        def probs(start: int) -> Floats:
            return portfolio.balanced_probs(self.encoder.inputs(x[start : start + ROWS_AT_A_TIME]))

        parts = [part for _, part in in_order(probs, range(0, len(x), ROWS_AT_A_TIME), self.num_threads)]
        return np.concatenate([np.zeros((0, len(portfolio.shares))), *parts])

    @property
    def num_threads(self) -> int | None:
        """How many blocks of samples to predict at the same time; None: as many as torch has threads.

        For images it is 1: the features of one block take much memory, and torch computes them with all threads.
        """
        return None if self.encoder.images is None else 1

    def predict(self, x: npt.NDArray[Any]) -> Predictions:
        """Predict samples in the form that `balanced_probs` takes."""
        portfolio, balanced = self.portfolio, self.balanced_probs(x)
        decisive = decided(balanced, portfolio.shares, portfolio.objective)
        labels, in_pool = decisive.argmax(1), with_shares(balanced, portfolio.shares)
        return Predictions(labels, in_pool[np.arange(len(labels)), labels], decisive)


def write_portfolio_model(folder: Path, model: PortfolioModel, data: DataSet) -> None:
    """Write the model file. It contains arrays and JSON, and no code."""
    portfolio = model.portfolio
    arrays: Arrays = {"weights": portfolio.weights, "shares": portfolio.shares}
    arrays |= {f"encoder.{name}": array for name, array in model.encoder.arrays().items()}
    for number, member in enumerate(portfolio.members):
        arrays |= {f"member{number}.{name}": array for name, array in member.arrays().items()}
    described = {
        **model_input(data),
        "members": [member.kind for member in portfolio.members],
        "objective": portfolio.objective,
    }
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_atomically(folder / MODEL, to_safetensors(stored, metadata(described, stored)))


def read_portfolio_model(folder: Path) -> PortfolioModel:
    """Read the model file of a finished portfolio run."""
    path = folder / MODEL
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} is unfinished and has no model yet; finish it with `{resume_command(folder)}`"
        )
    stored = read_model_input(folder)
    assert stored is not None
    num_classes, input_shape = len(stored["class_names"]), stored["input_shape"]
    try:
        arrays = load_file(path)
        with safe_open(path, framework="numpy") as file:
            described = from_json(file.metadata()["mnar"])
        check_combination(described, arrays, num_classes)
        of_encoder = _below("encoder.", arrays)
        num_features = check_encoder(of_encoder, input_shape)
        members = []
        for number, kind in enumerate(described["members"]):
            of_member = _below(f"member{number}.", arrays)
            check_member(
                f"member{number}",
                kind,
                of_member,
                num_classes=num_classes,
                num_features=num_features,
                input_shape=input_shape,
            )
            members.append(FITTED[kind].from_arrays(of_member))
        portfolio = Portfolio(tuple(members), arrays["weights"], arrays["shares"], described["objective"])
        model = PortfolioModel(portfolio, InputEncoder.from_arrays(of_encoder))
        _check_prediction(model, input_shape, num_classes)
        check_tensors(described, arrays)
    except KeyError as error:
        raise damaged_model(folder, f"{error} is missing") from error
    except (SafetensorError, OSError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise damaged_model(folder, error) from error
    return model


def _check_prediction(model: PortfolioModel, input_shape: Sequence[int], num_classes: int) -> None:
    """Predict one sample of zeros, so that arrays that do not fit each other are found now."""
    sample = np.zeros((1, *input_shape), np.uint8 if len(input_shape) == 3 else np.float32)
    with np.errstate(all="ignore"):  # a result that is not finite is an error below, and needs no warning
        probs = model.portfolio.balanced_probs(model.encoder.inputs(sample))
    if probs.shape != (1, num_classes) or not np.isfinite(probs).all():
        raise ValueError("it does not predict a probability for each class")


def _below(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Return the arrays whose name starts with the prefix, without the prefix."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
