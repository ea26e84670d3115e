from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mnar.own_data import portfolio_model
from mnar.own_data.inputs import InputEncoder
from mnar.own_data.portfolio import Portfolio, members_for
from mnar.own_data.portfolio_model import PortfolioModel, read_portfolio_model, write_portfolio_model
from mnar.run import model_file
from mnar.types import DataSet
from tests.support.half_labeled import clouds

NO_ROWS, NO_LABELS = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
DATA = DataSet(NO_ROWS, NO_LABELS, NO_ROWS, NO_LABELS, ("a", "b", "c"), (0.0,) * 3, (1.0,) * 3)


def model_of_every_kind() -> PortfolioModel:
    samples = clouds((20, 12, 6), 90, distance=2.0)
    names = ("linear", "kernel", "graph", "graph_local", "boosting", "network")
    members = [member for member in members_for(samples, iterations=5) if member.name in names]
    assert len(members) == len(names)
    fitted = tuple(member.fit(samples) for member in members)
    portfolio = Portfolio(fitted, np.linspace(0.1, 0.3, len(fitted)), np.full(3, 1 / 3), "balanced_accuracy")
    return PortfolioModel(portfolio, InputEncoder(np.zeros(3), np.ones(3)))


@pytest.fixture
def model() -> PortfolioModel:
    """Members of every kind."""
    return model_of_every_kind()


@pytest.fixture
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("keep_threads")
def test_predictions_do_not_depend_on_the_number_of_threads(
    model: PortfolioModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio_model, "ROWS_AT_A_TIME", 37)
    x = np.random.default_rng(0).normal(0, 2, (500, 3)).astype(np.float32)
    torch.set_num_threads(1)
    random_state = torch.get_rng_state()
    alone = model.balanced_probs(x)
    torch.set_num_threads(3)
    np.testing.assert_array_equal(model.balanced_probs(x), alone)
    assert torch.equal(
        torch.get_rng_state(), random_state
    )  # the networks that the threads build draw no numbers from it
    assert model.balanced_probs(x[:0]).shape == (0, 3)


def test_a_prediction_does_not_depend_on_the_other_rows(model: PortfolioModel) -> None:
    x = np.random.default_rng(0).normal(0, 2, (60, 3)).astype(np.float32)
    together = model.balanced_probs(x)
    one_by_one = np.concatenate([model.balanced_probs(row[None]) for row in x])
    np.testing.assert_allclose(one_by_one, together, atol=1e-9)


# --- damaged files ---

LINEAR, KERNEL, GRAPH, TREES, NETWORK = 0, 1, 2, 4, 5  # the places of the members


@pytest.fixture(scope="module")
def stored_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model with members of every kind. For reading only."""
    folder = tmp_path_factory.mktemp("model")
    write_portfolio_model(folder, model_of_every_kind(), DATA)
    return folder / "model.safetensors"


Change = Callable[[dict[str, npt.NDArray[Any]]], object]


def changed(stored: Path, folder: Path, change: Change, **metadata: Any) -> Path:
    """Write the model into a new folder, with other arrays or other metadata."""
    arrays = load_file(stored)
    with safe_open(stored, framework="numpy") as file:
        written = json.loads(file.metadata()["mnar"])
    change(arrays)
    # with valid digests
    save_file(arrays, folder / "model.safetensors", model_file.metadata({**written, **metadata}, arrays))
    return folder


def put(name: str, place: Any, value: float) -> Change:
    """Return a change of one value of an array."""
    return lambda arrays: arrays[name].__setitem__(place, value)


def cut(name: str) -> Change:
    """Return a change that leaves one entry of the last axis, which numpy would repeat for all classes."""
    return lambda arrays: arrays.update({name: np.ascontiguousarray(arrays[name][..., :1])})


def no_change(arrays: dict[str, npt.NDArray[Any]]) -> None: ...


def test_a_stored_model_predicts_what_it_predicted_before(
    model: PortfolioModel, stored_model: Path, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(0, 2, (50, 3)).astype(np.float32)
    read = read_portfolio_model(changed(stored_model, tmp_path, no_change))
    np.testing.assert_array_equal(read.balanced_probs(x), model.balanced_probs(x))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (put("weights", 0, np.nan), "weights contains values that are not finite"),
        (put("weights", 0, -1), "a weight that is not positive"),
        (cut("weights"), "weights has shape (1,)"),
        (put("shares", 0, np.nan), "shares contains values that are not finite"),
        (put("shares", ..., 0), "shares are not class shares"),
        (cut("shares"), "shares has shape (1,)"),
        (lambda arrays: arrays.pop("shares"), "shares is missing"),
        (put("encoder.mean", 0, np.inf), "encoder.mean contains values that are not finite"),
        (put("encoder.std", 0, 0), "encoder.std is not positive"),
        (cut("encoder.mean"), "encoder.mean has shape (1,)"),
        (put(f"member{LINEAR}.weights", 0, np.nan), "member0.weights contains values that are not finite"),
        (put(f"member{LINEAR}.bias", ..., -np.inf), "does not predict a probability for each class"),
        (cut(f"member{LINEAR}.bias"), "member0.bias has shape (1,)"),
        (cut(f"member{KERNEL}.weights"), "member1.weights has shape"),
        (put(f"member{KERNEL}.gamma", 0, -1), "member1.gamma is negative"),
        (put(f"member{GRAPH}.num_neighbors", 0, 0), "member2.num_neighbors is 0"),
        (put(f"member{GRAPH}.num_neighbors", 0, 10**6), "member2.num_neighbors is 1000000"),
        (put(f"member{GRAPH}.row_probs", 0, np.nan), "member2.row_probs contains values that are not finite"),
        (put(f"member{TREES}.feature", 0, 10**9), "member4.feature contains a number that is not a feature"),
        (put(f"member{TREES}.left", 0, 10**9), "are not nodes of the tree"),
        (put(f"member{TREES}.left", 1, 0), "are not nodes of the tree"),  # a search for a leaf would never end
        (put(f"member{TREES}.roots", 0, 1), "are not the first nodes of the trees"),
        (put(f"member{TREES}.classes", 0, 7), "classes are not the classes with labels"),
        (put(f"member{NETWORK}.num_classes", 0, 10**12), "a network for other classes"),
        (put(f"member{NETWORK}.shape", 0, 10**9), "samples of another shape"),
        (put(f"member{NETWORK}.weights.head.bias", 0, np.nan), "member5.weights.head.bias contains values"),
        (cut(f"member{NETWORK}.weights.head.bias"), "size mismatch for head.bias"),
    ],
)
def test_a_damaged_array_is_named_with_the_file_and_the_command_that_writes_it_again(
    stored_model: Path, tmp_path: Path, change: Change, problem: str
) -> None:
    assert_refused(changed(stored_model, tmp_path, change), problem)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"members": []}, "members is []"),
        ({"members": ["linear", "oracle"]}, "members is ['linear', 'oracle']"),
        ({"members": 3}, "members is 3"),
        ({"members": ["kernel"] * 6}, "member0.centers is missing"),
        ({"objective": "fame"}, "objective is 'fame'"),
        ({"objective": ["accuracy"]}, "objective is ['accuracy']"),
        ({"class_names": ["a", "b"]}, "shares has shape (3,)"),
        ({"input_shape": [1, 3, 3], "mean": [0.0], "std": [1.0]}, "encoder.mean has shape (3,)"),
    ],
)
def test_damaged_metadata_are_named_with_the_file_and_the_command_that_writes_it_again(
    stored_model: Path, tmp_path: Path, metadata: dict[str, Any], problem: str
) -> None:
    assert_refused(changed(stored_model, tmp_path, no_change, **metadata), problem)


def assert_refused(folder: Path, problem: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the whole message is compared below
        read_portfolio_model(folder)
    message = str(refused.value)
    assert message.startswith(f"the model in {folder / 'model.safetensors'} is damaged (")
    assert problem in message
    assert message.endswith(f"; write it again with `mnar train --resume {folder}`")
    assert "\n" not in message
