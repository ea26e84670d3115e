"""`mnar list`."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mnar.config import SECTIONS, TABLES
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.recipes import RECIPES, TITLES
from tests.support.command import Mnar


def test_the_list_has_every_part_with_its_options(mnar: Mnar) -> None:
    listed = mnar("list")
    assert listed.code == 0
    for name in (*(name for table in TABLES.values() for name in table), *TITLES):
        assert f"  {name} " in listed.output
    assert "alpha=1.0" in listed.output
    for section, option in (
        ("train", "weight_decay=0.0005"),
        ("engine", "precision='auto'"),
        ("augment", "padding_mode='zero'"),
        ("split", "include_labeled=True"),
    ):
        assert option in listed.output
        section_only = mnar("list", section).output
        assert f"--set {section}.OPTION=VALUE" in section_only
        assert option in section_only
        assert "alpha" not in section_only
    assert not any(name in listed.output for name in RECIPES), "hundreds of lines, listed by `mnar list recipes`"


@pytest.mark.parametrize("kind", [*(f"{section}s" for section in TABLES), *SECTIONS])
def test_the_list_of_one_kind_has_only_this_kind(mnar: Mnar, kind: str) -> None:
    headings = [line for line in mnar("list", kind).output.splitlines() if not line.startswith(" ")]
    assert headings == [f"{kind}  --set {kind.removesuffix('s') if kind not in SECTIONS else kind}.OPTION=VALUE"]


def test_the_list_of_recipes_has_all_of_them_or_those_that_a_name_or_pattern_selects(mnar: Mnar) -> None:
    recipes = mnar("list", "recipes").output
    assert all(f"  {name} " in recipes for name in RECIPES)
    assert "94.04 ± 0.18" in recipes
    some = mnar("list", "recipes", "table1/*g20/fixmatch").output
    shown = [name for name in RECIPES if f"  {name} " in some]
    assert shown == [name for name in RECIPES if name.startswith("table1/") and "-g20/fixmatch" in name]
    guidances = mnar("list", "guidances", "prg").output
    assert [name for name in GUIDANCES if f"  {name} " in guidances] == [
        "prg",
        "prg_last",
        "prg_smooth",
        "prg_balanced",
    ]


def test_the_list_of_guidances_names_the_paper_and_the_learners_of_each(mnar: Mnar) -> None:
    lines = mnar("list", "guidances").output.splitlines()
    about = {line.split()[0]: below.strip() for line, below in pairwise(lines) if below.startswith(" " * 6)}
    assert set(about) == set(GUIDANCES)
    assert about["prg"] == "Duan et al., ICCV 2023 · for every learner"
    assert about["prg_last"] == "Duan et al., ICCV 2023; PRG with last=True, alpha=3.0 · for every learner"
    assert about["cadr"].startswith("Hu et al., ICLR 2022 · for pseudo_label, fixmatch, flexmatch, comatch, simmatch")
    assert "mixmatch" not in about["cadr"].replace("fixmatch", "")
    assert "mixmatch" in about["crest_plus"]
    assert "simmatch" not in about["crest_plus"]


def test_the_list_of_learners_names_paper_kinds_of_data_views_and_default_guidance(mnar: Mnar) -> None:
    lines = mnar("list", "learners").output.splitlines()
    about = {
        name: next(after for line, after in pairwise(lines) if line.startswith(f"  {name} ")).strip()
        for name in LEARNERS
    }
    assert about["supervised"].endswith("images and tables · unlabelled views: none · guidance by default: none")
    assert about["fixmatch"] == (
        "Sohn et al., NeurIPS 2020 · images · unlabelled views: weak, strong · guidance by default: none"
    )
    assert about["simmatch"] == (
        "Zheng et al., CVPR 2022 · images · unlabelled views: weak, strong · guidance by default: "
        "distribution_alignment (target uniform, window 32, update before)"
    )
    for name, learner in LEARNERS.items():
        assert about[name].startswith(f"{learner.paper} · {' and '.join(learner.suits)} · unlabelled views: ")
