from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from mnar.config import (
    SECTIONS,
    SUPPLIED,
    TABLES,
    Choice,
    RunConfig,
    complete,
    convert,
    guidance_chain,
    options_of,
    parse_setting,
    settings_of,
    with_current_names,
)
from mnar.training.options import EngineOptions, TrainOptions

GIVEN: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "protocol": {"name": "cadr", "gamma": 20},
    "model": {"name": "small_cnn"},
    "learner": {"name": "fixmatch"},
    "guidance": {"name": "prg"},
}
CHAINED: dict[str, Any] = {"name": "prg", "preceded_by": {"name": "distribution_alignment", "target": "uniform"}}
PARTS: dict[str, Callable[..., Any]] = {
    f"{section} {name}": make for section, table in TABLES.items() for name, make in table.items()
} | SECTIONS


@pytest.mark.parametrize(
    ("value", "hint", "converted"),
    [
        ("1e-3", float, 1e-3),  # YAML reads it as text
        (3, float, 3.0),
        (True, bool, True),
        ("zero", str, "zero"),
        (None, int | None, None),
        (4, int | None, 4),
        (2.5, float | None, 2.5),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([], tuple[int, ...], ()),
        ("soft", Literal["soft", "hard"], "soft"),
        ("auto", bool | Literal["auto"], "auto"),
        (False, bool | Literal["auto"], False),
        ("some/data", Path | None, Path("some/data")),
        (None, Path | None, None),
    ],
)
def test_a_value_is_converted_to_the_annotated_type(value: Any, hint: Any, converted: Any) -> None:
    result = convert(value, hint, "here")
    assert result == converted
    assert type(result) is type(converted)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("many", int, "whole number"),
        (2.5, int, "whole number"),
        (True, int, "whole number"),
        (True, float, "a number"),
        ("high", float, "a number"),
        ("nan", float, "a number"),
        (math.nan, float, "a number"),
        ("yes", bool, "true or false"),
        (1, bool, "true or false"),
        ("mild", Literal["soft", "hard"], r"\['soft', 'hard'\]"),
        ([1, "b"], tuple[int, ...], "whole number"),
        (3, tuple[int, ...], "a list of whole numbers"),
        ("maybe", bool | Literal["auto"], "auto"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_expected_type(value: Any, hint: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"guidance.alpha is .*{expected}"):
        convert(value, hint, "guidance.alpha")


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_option_is_annotated_and_its_default_has_the_annotated_type(part: str) -> None:
    make, (section, _, name) = PARTS[part], part.partition(" ")
    parameters = options_of(section, make)
    required = {option: p for option, p in parameters.items() if p.default is inspect.Parameter.empty}
    given = {option: "middle" if option == "shape" else 5 for option in required}
    options = complete(make, given, section, name)
    assert set(options) == set(parameters)
    assert complete(make, options, section, name) == options


@pytest.mark.parametrize(
    ("setting", "parsed"),
    [
        ("guidance.alpha=3", ("guidance", "alpha", 3)),
        ("train.lr=1e-3", ("train", "lr", "1e-3")),
        ("engine.compile=false", ("engine", "compile", False)),
        ("model.hidden=[16, 8]", ("model", "hidden", [16, 8])),
        ("protocol.gamma_u=null", ("protocol", "gamma_u", None)),
        ("guidance.preceded_by.window=64", ("guidance", "preceded_by.window", 64)),
        (" augment.padding = 2", ("augment", "padding", 2)),
        ("dataset.root=a=b", ("dataset", "root", "a=b")),
    ],
)
def test_settings_are_read_as_yaml(setting: str, parsed: tuple[str, str, Any]) -> None:
    assert parse_setting(setting) == parsed


@pytest.mark.parametrize("setting", ["alpha=3", "guidance.alpha", "guidance.=3", ".alpha=3", "", "="])
def test_a_setting_of_another_form_is_refused_with_the_expected_form(setting: str) -> None:
    with pytest.raises(ValueError, match=r"SECTION\.OPTION=VALUE"):
        parse_setting(setting)


def test_a_setting_of_an_unknown_section_is_refused_with_the_known_sections() -> None:
    with pytest.raises(ValueError, match=r"unknown section 'optimizer'.*'train'"):
        parse_setting("optimizer.lr=3")


@pytest.mark.parametrize("value", ["!!bool x", "!!int ''", "2020-99-99", "[" * 3000, "9" * 5000, "!!timestamp x", "\0"])
def test_a_value_on_which_the_yaml_reader_stumbles_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(ValueError, match=r"guidance\.alpha=.*is not YAML \(.*\); correct the text") as refused:
        parse_setting(f"guidance.alpha={value}")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_configuration_that_contains_itself_is_refused() -> None:
    text = RunConfig.from_dict(GIVEN).to_yaml()
    endless = re.sub(r"guidance:\n", "guidance: &again\n  preceded_by: *again\n", text)
    assert endless != text
    with pytest.raises(ValueError, match="nested too deeply"):
        RunConfig.from_yaml(endless)


def test_a_setting_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'guidance\.alpha=\[3' is not YAML"):
        parse_setting("guidance.alpha=[3")


def test_options_that_are_left_out_have_the_default_of_the_constructor() -> None:
    config = RunConfig.from_dict(GIVEN)
    assert config.guidance.options["window"] == 128
    assert config.train == TrainOptions()
    assert config.engine == EngineOptions()
    assert config.split == {"include_labeled": True}
    assert config.seed == 1


def test_a_preset_has_its_own_defaults_which_can_be_changed() -> None:
    preset = RunConfig.from_dict({**GIVEN, "guidance": {"name": "prg_last"}}).guidance
    assert (preset.options["last"], preset.options["alpha"]) == (True, 3.0)
    changed = RunConfig.from_dict({**GIVEN, "guidance": {"name": "prg_last", "alpha": 1}}).guidance
    assert (changed.options["last"], changed.options["alpha"]) == (True, 1.0)


def test_a_parameter_that_the_assembler_supplies_is_not_an_option() -> None:
    of_fixmatch = {"threshold", "unlabeled_weight", "targets", "strong_views", "labeled_strong", "weak_gradient"}
    assert set(options_of("learner", TABLES["learner"]["fixmatch"])) == of_fixmatch
    assert set(options_of("protocol", TABLES["protocol"]["cadr"])) == {"gamma", "rounding"}
    assert set(options_of("split", SECTIONS["split"])) == {"include_labeled"}
    assert {"mean", "std"}.isdisjoint(options_of("augment", SECTIONS["augment"]))


def test_a_parameter_that_is_supplied_in_one_section_can_be_an_option_in_another() -> None:
    def seeded(task: object, seed: int = 3) -> None: ...

    assert set(options_of("guidance", seeded)) == {"seed"}
    assert set(SUPPLIED) == {*TABLES, *SECTIONS}


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("learner", {"name": "fixmatsch"}, r"unknown learner 'fixmatsch'; choose from \[.*'fixmatch'"),
        ("guidance", {"name": "prq"}, r"unknown guidance 'prq'; choose from \[.*'prg'"),
        ("dataset", {"name": "svhn"}, r"unknown dataset 'svhn'; choose from \[.*'digits'"),
        ("model", {"name": "vit"}, r"unknown model 'vit'; choose from \[.*'wide_resnet'"),
        ("protocol", {"name": "fair"}, r"unknown protocol 'fair'; choose from \[.*'cadr'"),
        ("guidance", {"name": "prg", "beta": 2}, r"unknown option of guidance prg: 'beta'; choose from \['alpha'"),
        ("train", {"learning_rate": 1}, r"unknown option of train: 'learning_rate'; choose from \[.*'lr'"),
        ("protocol", {"name": "cadr"}, r"protocol cadr needs the option gamma; .*--set protocol\.gamma=VALUE"),
        ("learner", {"threshold": 0.5}, r"section learner needs a name; choose from"),
        ("learner", "fixmatch", r"section learner needs a name; choose from"),
        ("learner", None, r"section learner needs a name; choose from"),
        *((section, 3, f"section {section} is 3; it must be a mapping from options to values") for section in SECTIONS),
        ("learner", {"name": ["fixmatch"]}, r"unknown learner \['fixmatch'\]; choose from"),
        ("guidance", {**CHAINED, "preceded_by": {"name": "prq"}}, r"unknown guidance 'prq'; choose from \[.*'prg'"),
        (
            "guidance",
            {**CHAINED, "preceded_by": {"window": 64}},
            r"section guidance\.preceded_by needs a name; choose from",
        ),
        ("guidance", {**CHAINED, "preceded_by": "prg"}, r"section guidance\.preceded_by needs a name; choose from"),
        (
            "guidance",
            {**CHAINED, "preceded_by": {"name": "distribution_alignment", "alpha": 3}},
            r"unknown option of guidance distribution_alignment: 'alpha'; choose from \[.*'window'",
        ),
        (
            "learner",
            {"name": "fixmatch", "preceded_by": {"name": "ups"}},
            "unknown option of learner fixmatch: 'preceded_by'",
        ),
        ("train", None, "section train is None; it must be a mapping"),
        ("engine", ["cpu"], r"section engine is \['cpu'\]; it must be a mapping"),
        ("train", {"iterations": 0}, r"train\.iterations is 0; expected a whole number from 1 to"),
        ("train", {"lr": -0.1}, r"train\.lr is -0\.1; expected a number from 0 to 1e\+30, e\.g\. 0\.03"),
        ("train", {"momentum": 1.0}, r"train\.momentum is 1\.0; expected a number of at least 0 and below 1"),
        ("train", {"ema": "often"}, r"train\.ema is 'often'; expected a number of at least 0 and below 1 or 'auto'"),
        ("schedule", 3, "schedule is 3; expected text"),
        ("seed", -1, "seed is -1; expected a whole number from 0 to"),
        ("seed", "one", "seed is 'one'; expected a whole number"),
        ("colour", {}, r"unknown section: 'colour'; choose from \[.*'train'"),
    ],
)
def test_a_wrong_section_is_refused_with_a_remedy(section: str, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.from_dict({**GIVEN, section: given})


def test_the_error_about_a_missing_section_names_it() -> None:
    with pytest.raises(ValueError, match="no section 'model'"):
        RunConfig.from_dict({name: given for name, given in GIVEN.items() if name != "model"})


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "nonsense", "a: [1, 2"])
def test_a_text_that_is_not_a_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the configuration is not (a )?YAML"):
        RunConfig.from_yaml(text)


def test_differences_name_options_with_both_values_but_no_engine_options_and_paths() -> None:
    mine = RunConfig.from_dict(GIVEN)
    other = RunConfig.from_dict(
        {
            **GIVEN,
            "dataset": {"name": "digits", "root": "elsewhere"},
            "guidance": {"name": "prg", "alpha": 3},
            "train": {"lr": 0.01},
            "engine": {"device": "cpu"},
        }
    )
    assert mine.differences(other) == ["guidance.alpha: 1.0 and 3.0", "train.lr: 0.03 and 0.01"]
    assert mine.differences(mine) == []


def test_a_chain_of_guidances_is_completed_named_in_the_order_of_action_and_restored_from_yaml() -> None:
    config = RunConfig.from_dict({**GIVEN, "guidance": {"name": "prg_last", "preceded_by": CHAINED}})
    alignment, prg, last = config.guidance.chain
    assert (alignment.name, prg.name, last.name) == ("distribution_alignment", "prg", "prg_last")
    assert config.guidance.full_name == "distribution_alignment+prg+prg_last"
    assert (alignment.options["target"], alignment.options["window"]) == ("uniform", 128)
    assert (prg.options["alpha"], last.options["alpha"]) == (1.0, 3.0)
    assert RunConfig.from_yaml(config.to_yaml()) == config


def test_differences_within_a_chain_are_named_with_their_place_in_the_chain() -> None:
    mine, wider, alone = (
        RunConfig.from_dict({**GIVEN, "guidance": guidance})
        for guidance in (CHAINED, {**CHAINED, "preceded_by": {**CHAINED["preceded_by"], "window": 64}}, {"name": "prg"})
    )
    assert mine.differences(wider) == ["guidance.preceded_by.window: 128 and 64"]
    assert "guidance.preceded_by.name: distribution_alignment and None" in mine.differences(alone)


def test_preceded_by_null_is_the_same_as_no_preceding_guidance() -> None:
    alone, null = (
        RunConfig.from_dict({**GIVEN, "guidance": g}) for g in ({"name": "prg"}, {**CHAINED, "preceded_by": None})
    )
    assert alone == null
    assert alone.guidance.full_name == "prg"
    assert "preceded_by" not in alone.to_dict()["guidance"]


def test_settings_are_flat_and_without_engine_options_and_paths() -> None:
    sections = {
        "dataset": {"name": "npz", "root": "here"},
        "model": {"name": "mlp", "hidden": [16, 8]},
        "engine": {"device": "cuda"},
        "seed": 3,
    }
    assert settings_of(sections) == {"dataset.name": "npz", "model.name": "mlp", "model.hidden": [16, 8], "seed": 3}


def test_with_engine_changes_engine_options_only() -> None:
    config = RunConfig.from_dict({**GIVEN, "engine": {"device": "cuda", "compile": True}})
    moved = config.with_engine(["engine.device=cpu", "engine.precision=float32"])
    assert moved.engine == EngineOptions(device="cpu", precision="float32", compile=True)
    assert dataclasses.replace(moved, engine=config.engine) == config
    assert config.engine.device == "cuda", "the original configuration is unchanged"
    assert config.with_engine([]) == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.lr=0.01", r"--set train\.lr=0\.01 would change the run; start a new run, or change only engine"),
        ("dataset.root=there", "would change the run"),
        ("engine.speed=3", r"unknown option of engine: 'speed'; choose from \['compile'"),
        ("engine.compile=often", r"engine\.compile is 'often'"),
        ("device=cpu", r"SECTION\.OPTION=VALUE"),
    ],
)
def test_with_engine_refuses_other_options(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunConfig.from_dict(GIVEN).with_engine(["engine.device=cpu", setting])


def test_a_choice_has_its_options_separate_from_its_name() -> None:
    assert RunConfig.from_dict(GIVEN).protocol == Choice("cadr", {"gamma": 20.0, "rounding": "ceil"})


def test_the_types_of_options_are_restored_from_yaml() -> None:
    given = {**GIVEN, "model": {"name": "mlp", "hidden": [16, 8]}, "dataset": {"name": "digits", "root": "here"}}
    config = RunConfig.from_dict(given)
    again = RunConfig.from_yaml(config.to_yaml())
    assert again == config
    assert again.model.options["hidden"] == (16, 8)
    assert again.dataset.options["root"] == Path("here")


def test_sections_of_version_0_1_0_get_the_current_names() -> None:
    old = {
        "dataset": {"name": "own", "root": "animals.csv"},
        "protocol": {"name": "found"},
        "guidance": {"name": "prg_last", "after": {"name": "prg", "after": {"name": "distribution_alignment"}}},
        "seed": 3,
    }
    assert with_current_names(old) == {
        "dataset": {"name": "own_data", "root": "animals.csv"},
        "protocol": {"name": "as_labeled"},
        "guidance": {
            "name": "prg_last",
            "preceded_by": {"name": "prg", "preceded_by": {"name": "distribution_alignment"}},
        },
        "seed": 3,
    }
    assert with_current_names(GIVEN) == GIVEN
    own_protocol = {"protocol": {"name": "own", "num_labels": 40}}
    assert with_current_names(own_protocol) == own_protocol, "the protocol `own` keeps its name"


def test_the_sections_of_a_chain_are_in_the_order_of_action() -> None:
    assert guidance_chain({**CHAINED, "alpha": 3}) == [CHAINED["preceded_by"], {"name": "prg", "alpha": 3}]
    assert guidance_chain({"name": "none", "preceded_by": None}) == [{"name": "none"}]
