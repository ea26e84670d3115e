"""Pages of several kinds, and the browser that opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from mnar.bench import Bench
from mnar.bench.result_files import write_results
from mnar.own_data.portfolio_run import PortfolioConfig, PortfolioDisplay, new_portfolio_run, read_own_data
from mnar.own_data.train import configure_own_data, train_own_data
from mnar.report import write_report
from mnar.run.reader import read_run
from mnar.run.recorder import Display
from tests.bench.benches import OTHER, RECIPE, TINY, make_up
from tests.browser.chromium import Chromium, find_chromium
from tests.report.made_up import METHODS, write_run

EVIL = "<script>alert(1)</script>"
NAMES = ("ant", EVIL, "a very long name of a class that no column of a narrow table has room for", "<b>bee</b>")
WITH_CLASSES = "precision-recall/cifar10-cadr-g50/fixmatch"  # a recipe with scores per class
OWN_DATA = ["random", "trained", "helped", "short", "errors", "samples", "next", "provenance"]  # ids, in order


class Page(NamedTuple):
    """A page, and what it must contain."""

    path: Path
    section_ids: list[str]  # of the sections, in order; empty: the page has no ids
    headings: list[str]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed; install it with `apt-get install chromium`")
    chromium = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


def write_table(path: Path) -> Path:
    """A table with four clouds, most labels of the first class, and unkind names of columns and categories."""
    rng = np.random.default_rng(0)
    lines = [f'weight,"{EVIL}",a long name of a column of numbers,colour,label']
    for c, (num_labels, num_pool) in enumerate(((40, 10), (20, 30), (9, 40), (5, 50))):
        for i in range(num_labels + num_pool):
            numbers = ",".join(f"{value:.4f}" for value in rng.normal(c, 0.7, 3))
            lines.append(f"{numbers},{rng.choice(['red', '<i>blue</i>'])},{NAMES[c] if i < num_labels else ''}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_images(folder: Path) -> Path:
    """Coloured images of 12×12 pixels with one bright corner per class."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    lines = ["path,label"]
    for c, (num_labels, num_pool) in enumerate(((40, 10), (25, 30), (12, 30), (6, 30))):
        for i in range(num_labels + num_pool):
            pixels = rng.integers(0, 120, (12, 12, 3), np.uint8)
            pixels[6 * (c // 2) :][:6, 6 * (c % 2) :][:, :6] += 110
            name = f"a_file_with_quite_a_long_name_{c}_{i:03}.png"
            Image.fromarray(pixels).save(folder / name)
            lines.append(f"{name},{NAMES[c] if i < num_labels else ''}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def portfolio_page(source: Path, folder: Path) -> Page:
    config = PortfolioConfig(str(source), fast=True)
    new_portfolio_run(config, folder, PortfolioDisplay(), read_own_data(config))
    return Page(folder / "report.html", OWN_DATA, [])


def table_run(folder: Path) -> Page:
    return portfolio_page(write_table(folder / "table.csv"), folder / "run")


def image_run(folder: Path) -> Page:
    return portfolio_page(write_images(folder / "images"), folder / "run")


def network_run(folder: Path) -> Page:
    quick = ("engine.device=cpu", "train.batch_labeled=8", "train.batch_unlabeled=8", "train.lr=0.01")
    settings = (*quick, "model.name=small_cnn", "model.width=4", "train.eval_every=4", "train.save_every=8")
    config, data = configure_own_data(
        write_images(folder / "images"),
        reading={},
        learner="fixmatch",
        guidance="prg",
        iterations=8,
        seed=1,
        settings=settings,
        on_stage=lambda what, done, total: None,
    )
    with torch.random.fork_rng(devices=[]):
        train_own_data(config, folder / "run", Display(), data)
    return Page(folder / "run/report.html", OWN_DATA, [])


def several_methods(folder: Path) -> Page:
    runs = [
        read_run(write_run(folder / f"{learner}+{guidance}", learner, guidance, class_names=NAMES, num_evaluations=8))
        for learner, guidance in METHODS
    ]
    write_report(runs, folder / "report.html", title=f"Several methods {EVIL}")
    headings = ["Learning curves", "Class transitions", "Confusion on the test set", "Runs and environment"]
    return Page(folder / "report.html", [], headings)


def bench(folder: Path) -> Page:
    made = Bench(folder, [RECIPE, OTHER, WITH_CLASSES], seeds=(1, 2), iterations=80, settings=TINY)
    for recipe in (RECIPE, OTHER):
        for seed, path in made.folders[recipe].items():
            make_up(path, made.configs[path], [0.5 + 0.01 * seed] * 40)
    write_results(made.cells(), folder)
    return Page(folder / "results.html", [], [])


MAKERS: dict[str, Callable[[Path], Page]] = {
    "table": table_run,
    "images": image_run,
    "network": network_run,
    "methods": several_methods,
    "bench": bench,
}


@pytest.fixture(scope="session")
def make_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Page]:
    """Return the function that makes the page of a kind, each kind once."""
    return cache(lambda kind: MAKERS[kind](tmp_path_factory.mktemp(kind)))
