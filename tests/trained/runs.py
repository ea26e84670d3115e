"""Finished runs of every kind, shared by the tests of what is done with a trained model. For reading only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mnar.own_data import portfolio_run
from mnar.own_data.portfolio_run import PortfolioConfig, PortfolioDisplay, new_portfolio_run, read_own_data
from mnar.own_data.train import configure_own_data, train_own_data
from mnar.run import Display
from tests.support.own_data_files import write_images, write_table

NUM_LABELS = (40, 35, 30, 25, 20, 15, 12, 10, 8, 6)  # of the digits 0 to 9


def portfolio(source: Path, folder: Path, **options: object) -> Path:
    """Train a quick portfolio without its report."""
    config = PortfolioConfig(str(source), **{"fast": True, **options})  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio_run, "write_own_data_report", lambda folder, page: None)
        new_portfolio_run(config, folder, PortfolioDisplay(), read_own_data(config))
    return folder


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as an .npz file; the true classes of all rows are in `truth`."""
    digits, rng = load_digits(), np.random.default_rng(0)
    y = np.full(len(digits.target), -1)
    for c, count in enumerate(NUM_LABELS):
        y[rng.permutation(np.flatnonzero(digits.target == c))[:count]] = c
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, x=(digits.images * 15).astype(np.uint8), y=y, truth=digits.target)
    return path


@pytest.fixture(scope="session")
def network_run(tmp_path_factory: pytest.TempPathFactory, digits_file: Path) -> Path:
    """A network that was trained on own images."""
    folder = tmp_path_factory.mktemp("runs") / "network"
    config, data = configure_own_data(
        digits_file,
        reading={},
        learner="fixmatch",
        guidance=None,
        iterations=60,
        seed=1,
        settings=["train.lr=0.03"],
        on_stage=lambda *_: None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnar.own_data.train.write_run_report", lambda *_, **__: None)
        train_own_data(config, folder, Display(), data)
    return folder


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory, digits_file: Path) -> Path:
    """A portfolio that was trained on own images."""
    return portfolio(digits_file, tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="session")
def table_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "animals.csv")


@pytest.fixture(scope="session")
def table_run(tmp_path_factory: pytest.TempPathFactory, table_file: Path) -> Path:
    """A portfolio that was trained on a table with numbers and words."""
    return portfolio(table_file, tmp_path_factory.mktemp("runs") / "table", reading={"label": "kind"})


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "photos")


@pytest.fixture(scope="session")
def photos_run(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A portfolio that was trained on a folder of images with a CSV file."""
    return portfolio(photos, tmp_path_factory.mktemp("runs") / "photos")
