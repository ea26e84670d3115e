"""Runs whose portfolios contain every kind of member, and their exports. For reading only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mnar.own_data.inputs import samples_of
from mnar.own_data.portfolio import Portfolio
from mnar.own_data.portfolio.member import Fitted, Samples
from mnar.own_data.portfolio.members import members_for
from mnar.own_data.portfolio.trees import new_forest, stored_forest
from mnar.own_data.portfolio_model import PortfolioModel, read_portfolio_model, write_portfolio_model
from mnar.own_data.portfolio_run import PortfolioConfig, read_own_data, read_portfolio_config
from mnar.own_data.train import configure_own_data, train_own_data
from mnar.run import Display
from mnar.trained.export import FORMATS, Exported, Target, export_run
from tests.trained.runs import portfolio

has_onnx = find_spec("onnxruntime") is not None and find_spec("onnxscript") is not None
needs_onnx = pytest.mark.skipif(
    not has_onnx, reason="onnxruntime or onnxscript is not installed: pip install 'mnar[onnx]'"
)
ALL_FORMATS = [pytest.param(to, marks=[needs_onnx] if to == "onnx" else []) for to in FORMATS]
HOSTILE = "<script>a|b*c*\x1b[31m"  # a class name


def fitted_members(samples: Samples, names: Sequence[str]) -> list[Fitted]:
    """Fit the named members of the portfolio, with a small forest and few training steps of the network."""
    members = {member.name: member for member in members_for(samples, every=True, iterations=4)}
    fitted = [members[name].fit(samples) for name in names if name != "forest"]
    if "forest" in names:
        forest = new_forest(0, num_trees=5).fit(samples.labeled_features, samples.labels)
        fitted.append(stored_forest(forest, samples.counts))
    return fitted


def with_members(run: Path, *names: str) -> Path:
    """Replace the members of a run."""
    config: PortfolioConfig = read_portfolio_config(run)
    data, before = read_own_data(config), read_portfolio_model(run)
    samples, encoder = samples_of(data, config.seed)
    members = tuple(fitted_members(samples, names))
    weights = np.linspace(0.5, 1, len(members)) / len(members)
    chosen = Portfolio(members, weights, before.portfolio.shares, before.portfolio.objective)
    write_portfolio_model(run, PortfolioModel(chosen, encoder), data)
    return run


@pytest.fixture(scope="session")
def odd_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with missing numbers, missing and rare categories, and a class name with HTML and control codes."""
    rng = np.random.default_rng(0)
    lines = ["weight,year,colour,shop,kind"]
    for row in range(240):
        c = row % 3
        weight = "" if rng.random() < 0.1 else f"{rng.normal(c, 0.5):.4f}"
        colour = "NA" if rng.random() < 0.1 else ("red", "blue", "=green")[(c + rng.integers(2)) % 3]
        shop = f"shop {rng.integers(30) if rng.random() < 0.1 else rng.integers(3)}"
        label = (HOSTILE, "bee", "cat")[c] if rng.random() < (0.6, 0.5, 0.2)[c] else ""
        lines.append(f"{weight},{2000 + 10 * c + rng.normal():.3f},{colour},{shop},{label}")
    path = tmp_path_factory.mktemp("odd") / "odd.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def odd_run(tmp_path_factory: pytest.TempPathFactory, odd_table: Path) -> Path:
    run = portfolio(odd_table, tmp_path_factory.mktemp("runs") / "odd", reading={"label": "kind"})
    return with_members(run, "linear", "kernel", "graph", "boosting", "forest", "network")


@pytest.fixture(scope="session")
def colour_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colour images of 18 x 13 pixels, one colour per class, with noise and flat parts."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("colour") / "photos"
    folder.mkdir()
    lines = ["path,label"]
    for number in range(60):
        pixels = np.full((13, 18, 3), 255, np.uint8)
        pixels[2:11, 3:14] = rng.integers(0, 120, (9, 11, 3))
        pixels[2:11, 3:14, number % 3] = 250
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
        lines.append(f"{number:02}.png,{('red', 'green', 'blue')[number % 3] if number < 36 else ''}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def colour_run(tmp_path_factory: pytest.TempPathFactory, colour_photos: Path) -> Path:
    run = portfolio(colour_photos, tmp_path_factory.mktemp("runs") / "colour")
    return with_members(run, "kernel", "graph", "network")


@pytest.fixture(scope="session")
def features_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    path = tmp_path_factory.mktemp("features") / "features.npz"
    np.savez(path, x=x, y=np.where(rng.random(150) < 0.5, y, -1))
    return path


@pytest.fixture(scope="session")
def features_run(tmp_path_factory: pytest.TempPathFactory, features_file: Path) -> Path:
    return portfolio(features_file, tmp_path_factory.mktemp("runs") / "features")


@pytest.fixture(scope="session")
def linear_run(tmp_path_factory: pytest.TempPathFactory, features_file: Path) -> Path:
    """A run that is exported quickly."""
    return with_members(portfolio(features_file, tmp_path_factory.mktemp("runs") / "linear"), "linear")


Export = Callable[[Path, Target], Exported]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Export a run; the second call with the same run and format returns the same export."""
    done: dict[tuple[Path, Target], Exported] = {}

    def export(run: Path, to: Target) -> Exported:
        if (run, to) not in done:
            done[run, to] = export_run(run, to, tmp_path_factory.mktemp("exports") / to)
        return done[run, to]

    return export


@pytest.fixture(scope="session")
def table_network_run(tmp_path_factory: pytest.TempPathFactory, odd_table: Path) -> Path:
    """A network that was trained on a table."""
    folder = tmp_path_factory.mktemp("runs") / "table-network"
    config, data = configure_own_data(
        odd_table,
        reading={"label": "kind"},
        learner="supervised",
        guidance=None,
        iterations=20,
        seed=1,
        settings=["train.lr=0.03", "model.hidden=[16]", "engine.device=cpu"],
        on_stage=lambda *_: None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mnar.own_data.train.write_run_report", lambda *_, **__: None)
        patch.setattr("mnar.own_data.train.write_own_data_report", lambda *_, **__: None)
        train_own_data(config, folder, Display(), data)
    return folder
