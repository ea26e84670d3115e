from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnar.report import by_setting
from mnar.report.methods import protocol_name
from mnar.run.reader import Run
from tests.report.drawn import methods_of
from tests.report.made_up import ALIGNED, run_with

CADR_20, CADR_50 = ({"name": "cadr", "gamma": gamma, "rounding": "ceil"} for gamma in (20.0, 50.0))


def run_on(dataset: str, protocol: dict[str, Any], guidance: str = "none", **options: Any) -> Run:
    run = run_with("fixmatch", guidance, accuracy=[0.5], **options)
    run.config["dataset"]["name"] = run.split["dataset"] = dataset
    run.config["protocol"] = protocol
    return run


def names(runs: list[Run]) -> dict[str, list[str]]:
    return {setting.name: [method.name for method in setting.methods] for setting in by_setting(runs)}


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        (CADR_20, "cadr γ=20"),
        ({"name": "darp", "gamma_l": 100.0, "gamma_u": 50.0, "n1": 1500, "reverse": False}, "darp γ_l=100, γ_u=50"),
        ({"name": "darp", "gamma_l": 100.0, "gamma_u": 100.0, "reverse": True}, "darp γ_l=100, γ_u=100 reversed"),
        ({"name": "own", "num_labels": 40, "n1": 10, "gamma_u": 5.0, "m1": 5000}, "own n=40, N1=10, γ_u=5"),
        ({"name": "own", "num_labels": 40, "n1": 10, "gamma_u": None}, "own n=40, N1=10"),
        ({"name": "balanced", "num_labels": 40}, "balanced n=40"),
        ({"name": "pool_shape", "shape": "middle", "gamma_l": 20.0, "gamma_u": None}, "pool_shape middle γ_l=20"),
        ({"name": "as_labeled", "num_labels": 400}, "n=400"),
        ({"name": "as_labeled"}, ""),
    ],
)
def test_a_protocol_has_a_short_name(protocol: dict[str, Any], name: str) -> None:
    assert protocol_name(run_on("digits", protocol)) == name


def test_runs_that_differ_in_their_seed_only_share_a_method() -> None:
    runs = [run_with("fixmatch", name, accuracy=[0.5], seed=seed) for seed in (1, 2) for name in ("none", "prg")]
    assert {method.name: [run.config["seed"] for run in method.runs] for method in methods_of(runs)} == {
        "fixmatch": [1, 2],
        "fixmatch + prg": [1, 2],
    }


def test_seeds_that_ran_on_different_machines_share_a_method() -> None:
    here, there = (run_with("fixmatch", "prg", accuracy=[0.5], seed=seed) for seed in (1, 2))
    here.config["engine"] = {"device": "cpu", "compile": False}
    there.config["engine"] = {"device": "cuda", "compile": True}
    there.config["dataset"]["root"] = "/mnt/data"
    assert here.method == there.method
    assert [method.runs for method in methods_of([here, there])] == [[here, there]]


def test_learners_without_guidance_come_first_with_or_without_tracking() -> None:
    runs = [run_with("fixmatch", name, accuracy=[0.5]) for name in ("prg", "tracking", "prg_last", "none")]
    assert names(runs) == {
        "cadr γ=20": ["fixmatch + tracking", "fixmatch", "fixmatch + prg", "fixmatch + prg_last"],
    }


def test_methods_with_the_same_label_are_named_with_the_options_that_differ() -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=alpha) for alpha in (1.0, 3.0)]
    assert names(runs) == {"cadr γ=20": ["fixmatch + prg (alpha=1)", "fixmatch + prg (alpha=3)"]}


def test_the_most_frequent_value_of_an_option_is_left_out_of_names() -> None:
    options = (
        {"alpha": 1.0},
        {"alpha": 3.0},
        {"alpha": 10.0},
        {"alpha": 1.0, "window": 16},
        {"alpha": 1.0, "last": True},
    )
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], **{"window": 128, **each}) for each in options]
    assert names(runs)["cadr γ=20"] == [
        "fixmatch + prg",
        "fixmatch + prg (alpha=3)",
        "fixmatch + prg (alpha=10)",
        "fixmatch + prg (window=16)",
        "fixmatch + prg (last=True)",
    ]


def test_chains_with_the_same_label_are_named_with_the_options_of_their_guidances() -> None:
    runs = [
        run_with("simmatch", "prg", accuracy=[0.5], window=other, preceded_by={**ALIGNED, "window": window})
        for window, other in ((32, 128), (64, 16))
    ]
    assert names(runs)["cadr γ=20"] == [
        "simmatch + prg (guidance.window=128, guidance.preceded_by.window=32)",
        "simmatch + prg (guidance.window=16, guidance.preceded_by.window=64)",
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            [{"steps": 2}, {"steps": 2, "last": True}, {}],
            ["fixmatch + prg", "fixmatch + prg (last=True)", "fixmatch + prg (steps=–)"],
        ),
        (
            [
                {"window": here, "preceded_by": {"name": "none", "window": before}}
                for here, before in ((1, 1), (1, 2), (2, 1))
            ],
            ["fixmatch + prg", "fixmatch + prg (guidance.preceded_by.window=2)", "fixmatch + prg (guidance.window=2)"],
        ),
        (
            [{"alpha": 1 / 3}, {"alpha": 0.333333}],
            ["fixmatch + prg (alpha=0.3333333333333333)", "fixmatch + prg (alpha=0.333333)"],
        ),
    ],
    ids=["usual value and no value", "options with the same last part", "equal to six digits"],
)
def test_names_of_different_methods_differ(options: list[dict[str, Any]], expected: list[str]) -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], **each) for each in options]
    assert names(runs)["cadr γ=20"] == expected


VALUES = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from([0.5, 1 / 3, 0.333333, "soft", "hard"])
OPTIONS = st.dictionaries(st.sampled_from(["alpha", "window", "steps"]), VALUES)
RUNS = st.tuples(OPTIONS, OPTIONS, st.sampled_from(["prg", "prg_last"]), st.sampled_from([20.0, 50.0]))


@given(st.lists(RUNS, min_size=1, max_size=8))
def test_names_of_different_methods_in_a_setting_always_differ(
    made_up: list[tuple[dict[str, Any], dict[str, Any], str, float]],
) -> None:
    runs = [
        run_on("digits", {"name": "cadr", "gamma": gamma}, guidance, **options, preceded_by={"name": "none", **before})
        for options, before, guidance, gamma in made_up
    ]
    for setting in by_setting(runs):
        different = [run for i, run in enumerate(runs) if all(run.method != other.method for other in runs[:i])]
        num_methods = sum(run.setting == setting.run.setting for run in different)
        assert len({method.name for method in setting.methods}) == len(setting.methods) == num_methods


def test_an_option_that_is_null_equals_an_option_that_is_absent() -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], seed=1), run_with("fixmatch", "prg", accuracy=[0.5], seed=2)]
    runs[0].config["guidance"]["warmup"] = None
    assert len(methods_of(runs)) == 1


def test_runs_on_one_data_set_are_grouped_by_protocol() -> None:
    runs = [run_on("cifar10", protocol, guidance) for protocol in (CADR_20, CADR_50) for guidance in ("none", "prg")]
    assert names(runs) == {"cadr γ=20": ["fixmatch", "fixmatch + prg"], "cadr γ=50": ["fixmatch", "fixmatch + prg"]}


def test_settings_on_several_data_sets_are_named_by_data_set_and_protocol() -> None:
    runs = [run_on("cifar10", CADR_20), run_on("cifar100", CADR_20), run_on("survey", {"name": "as_labeled"})]
    assert list(names(runs)) == ["cifar10, cadr γ=20", "cifar100, cadr γ=20", "survey"]


def test_settings_with_the_same_name_are_named_with_the_options_that_differ() -> None:
    runs = [run_on("cifar10", {**CADR_20, "rounding": rounding}) for rounding in ("ceil", "floor")]
    assert list(names(runs)) == ["cadr γ=20 (rounding=ceil)", "cadr γ=20 (rounding=floor)"]


def test_settings_that_differ_in_options_with_the_same_last_part_have_different_names() -> None:
    protocol = {"name": "balanced", "num_labels": 40}
    runs = [run_on("cifar10", {**protocol, "order": 1}), run_on("cifar10", protocol), run_on("cifar10", protocol)]
    runs[1].config["split"] = {"order": 1}
    assert list(names(runs)) == ["balanced n=40 (protocol.order=1)", "balanced n=40 (split.order=1)", "balanced n=40"]


def test_an_option_that_differs_only_between_settings_changes_neither_name_nor_colour() -> None:
    runs = [
        run_on("cifar10", CADR_20, "prg", window=64),
        run_on("cifar100", CADR_50),
        run_on("cifar100", CADR_50, "prg", window=128),
    ]
    (here,), (_, there) = (setting.methods for setting in by_setting(runs))
    assert here.name == there.name == "fixmatch + prg"
    assert here.colour == there.colour


def test_the_first_colours_go_to_methods_without_variants() -> None:
    variants = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=float(alpha)) for alpha in range(8)]
    methods = methods_of([*variants, run_with("fixmatch", "prg_last", accuracy=[0.5])])
    assert {method.name: method.line_style for method in methods}["fixmatch + prg_last"] == "-"
    assert sum(method.line_style == "--" for method in methods) == 2


def test_a_drawn_test_set_is_another_setting_and_runs_of_earlier_versions_have_the_fixed_one() -> None:
    before, fixed, drawn = (run_on("digits", CADR_20) for _ in range(3))
    fixed.config["dataset"]["test_set"], drawn.config["dataset"]["test_set"] = "fixed", "drawn"
    assert before.setting == fixed.setting
    assert list(names([before, fixed, drawn])) == ["cadr γ=20 (test_set=fixed)", "cadr γ=20 (test_set=drawn)"]
