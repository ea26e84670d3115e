"""The suites: every protocol of the paper on a small scale, on data that need no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mnar.bench.cell import first_like
from mnar.config import RunConfig
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.protocols import PROTOCOLS
from mnar.protocols.pool_shape import SHAPES
from mnar.recipes import RECIPES, configure
from mnar.recipes.paper import PAPER
from mnar.recipes.paper import TITLES as PAPER_TITLES
from mnar.recipes.rivals import RIVALS
from mnar.recipes.suites import SHAPE_METHODS, SUITES, TITLES
from mnar.run import new_run
from mnar.run.assemble import load_data, make_split
from mnar.run.folder import RunFolder
from mnar.types import Counts

DIGITS = [name for name in SUITES if name.startswith("digits/")]
TABULAR = [name for name in SUITES if name.startswith("tabular-digits/")]
SMALL = [*DIGITS, *TABULAR]
SETTINGS = tuple(dict.fromkeys(name.split("/")[1] for name in SMALL))


def kind_of(config: RunConfig) -> tuple[object, ...]:
    """What tells one protocol of the paper from another, whatever its sizes."""
    options = config.protocol.options
    return config.protocol.name, options.get("gamma_u") is not None, options.get("reverse", False)


def test_the_suites_have_every_protocol_of_the_paper() -> None:
    of_the_paper = {kind_of(configure(recipe=name)) for name in PAPER}
    for names in (DIGITS, TABULAR):
        assert {kind_of(configure(recipe=name)) for name in names} >= of_the_paper


def test_every_setting_has_every_method_and_no_figure_of_the_paper() -> None:
    images = ("fixmatch", "fixmatch+cadr", "fixmatch+prg", "fixmatch+prg_last")
    tables = ("vime", "vime+prg", "vime+prg_last")
    assert [f"digits/{setting}/{method}" for setting in SETTINGS for method in images] == DIGITS
    assert [f"tabular-digits/{setting}/{method}" for setting in SETTINGS for method in tables] == TABULAR
    assert {SUITES[name].printed for name in SMALL} == {"–"}
    assert {name.split("/")[0] for name in SUITES} == set(TITLES)


def test_a_suite_takes_no_name_from_the_paper() -> None:
    assert not SUITES.keys() & PAPER.keys()
    assert not TITLES.keys() & PAPER_TITLES.keys()
    assert len(RECIPES) == len(SUITES) + len(PAPER) + len(RIVALS)


@pytest.mark.parametrize("table", ["digits", "tabular-digits"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_classes_hold_all_that_a_setting_asks_for(table: str, setting: str) -> None:
    config = configure(recipe=next(name for name in SMALL if name.startswith(f"{table}/{setting}/")))
    counts, data = PROTOCOLS[config.protocol.name](10, **config.protocol.options), load_data(config)
    rows = make_split(config, data)
    assert isinstance(counts, Counts)
    drawn = np.bincount(data.train_y[rows.labeled_index].numpy(), minlength=10)
    assert tuple(drawn) == counts.labeled
    assert max(counts.labeled) == counts.labeled[0]
    if counts.unlabeled is not None:
        pool = np.bincount(data.train_y[rows.unlabeled_index].numpy(), minlength=10)
        assert tuple(pool - drawn) == counts.unlabeled, "and none was capped"


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("table", "learner"), [("digits", "fixmatch"), ("tabular-digits", "vime")])
def test_the_methods_of_a_setting_differ_in_their_guidance_alone(table: str, learner: str, setting: str) -> None:
    plain, *guided = (configure(recipe=name) for name in SMALL if name.startswith(f"{table}/{setting}/"))
    assert (plain.learner.name, plain.guidance.name) == (learner, "none")
    for config in guided:
        assert all(difference.startswith("guidance") for difference in plain.differences(config))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("digits/darp-l100-u100-reversed/fixmatch+prg", []),
        ("shapes/digits-head-tail/fixmatch+prg", []),
        ("tabular-digits/darp-l100-u100-reversed/vime+prg", ["learner.pretraining_epochs=1"]),
    ],
)
def test_the_smallest_pool_is_enough_for_every_step(name: str, settings: list[str], tmp_path: Path) -> None:
    new_run(configure(recipe=name, iterations=3, settings=settings), tmp_path / "run")
    assert RunFolder(tmp_path / "run").evaluations()[-1]["step"] == 3


def test_every_pool_shape_has_every_method_on_three_data_sets() -> None:
    shapes = ["consistent", "uniform", "reversed", "middle", "head-tail"]
    settings = [f"{dataset}-{shape}" for dataset in ("cifar10", "cifar100", "digits") for shape in shapes]
    names = [name for name in SUITES if name.startswith("shapes/")]
    assert names == [f"shapes/{setting}/{method}" for setting in settings for method in SHAPE_METHODS]
    assert {SUITES[name].printed for name in names} == {"–"}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_pool_of_a_shape_on_digits_has_exactly_its_counts_and_no_labelled_row(shape: str) -> None:
    config = configure(recipe=f"shapes/digits-{shape.replace('_', '-')}/fixmatch+prg")
    counts, data = PROTOCOLS["pool_shape"](10, **config.protocol.options), load_data(config)
    rows = make_split(config, data)
    assert isinstance(counts, Counts)
    assert config.protocol.options["shape"] == shape
    assert counts.labeled == (20, 14, 10, 7, 5, 3, 2, 1, 1, 1)
    assert tuple(np.bincount(data.train_y[rows.labeled_index].numpy())) == counts.labeled
    assert tuple(np.bincount(data.train_y[rows.unlabeled_index].numpy())) == counts.unlabeled
    assert np.intersect1d(rows.labeled_index, rows.unlabeled_index).size == 0


def test_every_guidance_is_compared_with_fixmatch_alone_in_four_situations() -> None:
    situations = ["digits-consistent", "digits-uniform", "digits-reversed", "digits-balanced-n40-u100"]
    guided = [f"fixmatch+{name}" for name in GUIDANCES if name not in ("none", "tracking")]
    names = [name for name in SUITES if name.startswith("guidances/")]
    assert names == [f"guidances/{situation}/{method}" for situation in situations for method in ["fixmatch", *guided]]
    assert {SUITES[name].printed for name in names} == {"–"}
    for situation in situations:
        assert configure(recipe=f"guidances/{situation}/fixmatch").guidance.name == "none"


def test_a_guidance_on_a_pool_shape_is_the_same_run_in_both_suites() -> None:
    both = "digits-reversed/fixmatch+prg"
    assert configure(recipe=f"guidances/{both}") == configure(recipe=f"shapes/{both}")
    assert first_like(f"guidances/{both}") == f"shapes/{both}"


def test_the_pool_with_balanced_labels_is_long_tailed_and_has_no_labelled_row() -> None:
    config = configure(recipe="guidances/digits-balanced-n40-u100/fixmatch")
    data = load_data(config)
    rows = make_split(config, data)
    assert np.bincount(data.train_y[rows.labeled_index].numpy()).tolist() == [4] * 10
    pool = np.bincount(data.train_y[rows.unlabeled_index].numpy()).tolist()
    assert (pool[0], pool[-1], pool) == (1, 100, sorted(pool))
    assert np.intersect1d(rows.labeled_index, rows.unlabeled_index).size == 0


def test_every_image_learner_is_compared_with_itself_under_prg_prg_last_and_smoothed_prg() -> None:
    learners = {name: learner for name, learner in LEARNERS.items() if "images" in learner.suits}
    expected = {
        f"learners/digits-{name.replace('_', '-')}/{method}"
        for name, learner in learners.items()
        for method in [name, *(f"{name}+{prg}" for prg in ("prg", "prg_last", "prg_smooth") if learner.is_guided)]
    }
    assert {name for name in SUITES if name.startswith("learners/")} == expected
    assert {"learners/digits-pi-model/pi_model+prg", "learners/digits-supervised/supervised"} <= expected
    for name in expected:
        learner, _, guidance = name.split("/")[2].partition("+")
        wanted = configure(
            dataset="digits", learner=learner, guidance=guidance or None, settings=["dataset.test_set=drawn"]
        )
        assert configure(recipe=name) == wanted


def test_the_seed_draws_the_test_set_on_digits_where_suites_compare_methods_and_nowhere_else() -> None:
    drawn = {name for name in RECIPES if configure(recipe=name).dataset.options.get("test_set") == "drawn"}
    assert drawn == {name for name in SUITES if name.startswith(("shapes/digits-", "guidances/", "learners/"))}
