from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from mnar.config import RunConfig, default_guidance_of
from mnar.datasets import DATASETS
from mnar.learners import LEARNERS
from mnar.protocols import PROTOCOLS
from mnar.recipes import RECIPES, TITLES, configure, with_given_options
from mnar.recipes.defaults import DATASET_DEFAULTS, LEARNER_DEFAULTS, PROTOCOL_SIZES
from mnar.recipes.recipe import Recipe
from mnar.types import Counts


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_resolves_to_what_its_name_says_and_survives_yaml(name: str) -> None:
    config = configure(recipe=name)
    assert RunConfig.from_yaml(config.to_yaml()) == config
    table, _, method = name.split("/")
    assert table in TITLES
    learner, _, guidance = method.partition("+")
    learner = learner.partition("-")[0]  # acr-without-anchors is an acr
    guidance = guidance.partition("-")[0] or default_guidance_of(learner)["name"]  # prg-steps-2 is a prg
    assert (config.learner.name, config.guidance.name) == (learner, guidance)


@pytest.mark.parametrize(
    ("variant", "option", "value"),
    [
        ("without-sca", "rescale", False),
        *((f"steps-{k}", "steps", k) for k in (1, 2, 5, 10)),
        *((f"alpha-{alpha}", "alpha", alpha) for alpha in (0.1, 0.5, 1.0, 3.0, 10.0)),
        *((f"window-{window}", "window", window) for window in (16, 32, 64, 128, 256)),
        ("usage-hard", "usage", "hard"),
        ("empty-row-identity", "empty_row", "identity"),
    ],
)
def test_an_ablation_changes_the_one_option_that_it_names(variant: str, option: str, value: object) -> None:
    plain = configure(recipe="table1/cifar10-cadr-g20/fixmatch+prg")
    config = configure(recipe=f"ablation/cifar10-cadr-g20/fixmatch+prg-{variant}")
    assert config.guidance.options == {**plain.guidance.options, option: value}
    assert {name.split(":")[0] for name in plain.differences(config)} <= {f"guidance.{option}"}


def test_the_first_cells_are_those_of_the_paper() -> None:
    prg = RECIPES["table1/cifar10-cadr-g20/fixmatch+prg"]
    assert (prg.accuracy, prg.deviation) == (94.04, 0.18)
    assert RECIPES["table1/cifar10-cadr-g20/fixmatch"].accuracy == 56.26


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_has_defaults_that_resolve_and_survive_yaml(name: str) -> None:
    assert name in DATASET_DEFAULTS
    config = configure(dataset=name)
    assert config.dataset.name == name
    assert RunConfig.from_yaml(config.to_yaml()) == config


def test_cifar10_by_default_is_the_published_recipe() -> None:
    config = configure(dataset="cifar10")
    assert (config.model.name, config.model.options["depth"], config.model.options["width"]) == ("wide_resnet", 28, 2)
    train = config.train
    assert (train.lr, train.momentum, train.weight_decay, train.ema) == (0.03, 0.9, 5e-4, 0.999)
    assert (train.batch_labeled, train.batch_unlabeled, train.iterations) == (64, 448, 2**20)
    assert config.learner.options["threshold"] == 0.95


def test_the_default_run_is_fixmatch_with_prg_on_digits() -> None:
    config = configure()
    assert (config.dataset.name, config.learner.name, config.guidance.name) == ("digits", "fixmatch", "prg")


def test_later_choices_win_defaults_then_recipe_then_names_then_settings() -> None:
    recipe = "table1/cifar10-cadr-g50/fixmatch"
    config = configure(recipe=recipe, guidance="prg", iterations=7, seed=3, settings=["guidance.alpha=2"])
    assert (config.protocol.options["gamma"], config.guidance.name) == (50, "prg")
    assert (config.guidance.options["alpha"], config.train.iterations, config.seed) == (2.0, 7, 3)
    settings = ["train.iterations=9", "train.iterations=11"]
    assert configure(recipe=recipe, settings=settings).train.iterations == 11
    assert configure(iterations=7, settings=["train.iterations=7"]).train.iterations == 7
    with pytest.raises(ValueError, match=r"--iterations is 7, but --set train\.iterations is 9; leave one of them out"):
        configure(iterations=7, settings=settings)


def test_another_part_drops_the_options_of_the_one_before() -> None:
    config = configure(dataset="digits", protocol="balanced", settings=["protocol.num_labels=40"])
    assert "gamma" not in config.protocol.options
    config = configure(dataset="digits", settings=["model.name=mlp"])
    assert config.model.options["hidden"] == (256, 256)
    assert "width" not in config.model.options


ALIGNED = ("remixmatch", "comatch", "simmatch")


def guidance_of(**chosen: Any) -> dict[str, Any]:
    return configure(**chosen).guidance.to_dict()


def own_alignment(learner: str) -> dict[str, Any]:
    """What the learner's class says, with the constructor's defaults for the rest."""
    return {"ema": None, **LEARNERS[learner].default_guidance}


def test_the_learners_with_distribution_alignment_are_those_of_their_papers() -> None:
    named = {learner: LEARNERS[learner].default_guidance["name"] for learner in LEARNERS}
    assert named == {learner: "distribution_alignment" if learner in ALIGNED else "none" for learner in LEARNERS}


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_learner_named_without_a_guidance_gets_the_guidance_of_its_paper(learner: str) -> None:
    expected = own_alignment(learner) if learner in ALIGNED else {"name": "none"}
    for chosen in ({"learner": learner}, {"settings": [f"learner.name={learner}"]}):
        assert guidance_of(**chosen) == expected


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_named_guidance_acts_after_the_own_guidance_of_the_learner(learner: str) -> None:
    for name in ("prg", "prg_last"):
        for chosen in ({"guidance": name}, {"settings": [f"guidance.name={name}"]}):
            guidance = guidance_of(learner=learner, **chosen)
            assert guidance["name"] == name
            assert guidance.get("preceded_by") == (own_alignment(learner) if learner in ALIGNED else None)


@pytest.mark.parametrize("learner", LEARNERS)
def test_guidance_none_switches_off_the_default_guidance_of_a_learner(learner: str) -> None:
    assert guidance_of(learner=learner, guidance="none") == {"name": "none"}
    assert configure(learner=learner, guidance="none+prg").guidance.full_name == "none+prg", "and nothing is added"


@pytest.mark.parametrize(
    ("learner", "target", "window", "update"),
    [("fixmatch", "labeled", 128, "after"), ("simmatch", "uniform", 32, "before")],
)
def test_a_chain_is_taken_as_given_with_the_learners_own_options(
    learner: str, target: str, window: int, update: str
) -> None:
    guidance = configure(learner=learner, guidance="prg+distribution_alignment+prg_last").guidance
    assert [part.name for part in guidance.chain] == ["prg", "distribution_alignment", "prg_last"]
    assert guidance.chain[1].options == {"target": target, "window": window, "ema": None, "update": update}


@pytest.mark.parametrize("learner", ALIGNED)
def test_the_full_name_of_a_chain_given_back_is_the_same_run(learner: str) -> None:
    config = configure(learner=learner, guidance="prg")
    assert config.guidance.full_name == "distribution_alignment+prg"
    assert configure(learner=learner, guidance=config.guidance.full_name) == config


def test_a_guidance_beside_ups_leaves_empty_rows_alone_and_holds_a_whole_pass() -> None:
    options = configure(learner="ups", guidance="prg").guidance.options
    assert (options["empty_row"], options["window"]) == ("identity", 1024)
    settings = ["guidance.window=7", "guidance.empty_row=onehot"]
    options = configure(learner="ups", guidance="prg_last", settings=settings).guidance.options
    assert (options["empty_row"], options["window"], options["last"]) == ("onehot", 7, True)
    options = configure(learner="ups", guidance="prg_smooth").guidance.options
    assert (options["empty_row"], options["window"]) == ("onehot", 1024)
    assert configure(learner="ups", guidance="tracking").guidance.options["window"] == 1024


def test_crest_with_alignment_replaces_the_alignment_of_the_learner_as_crest_plus_does() -> None:
    switched_on = configure(learner="comatch", guidance="crest", settings=["guidance.align=true"]).guidance
    assert switched_on.full_name == "crest"
    assert configure(learner="comatch", guidance="crest").guidance.full_name == "distribution_alignment+crest"
    assert switched_on.options == configure(learner="comatch", guidance="crest_plus").guidance.options


@pytest.mark.parametrize(
    "options", [{"settings": ["guidance.name=null"]}, {"settings": ["guidance.name="]}, {"guidance": ""}]
)
def test_an_empty_name_is_refused_and_does_not_mean_the_default(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="unknown guidance"):
        configure(dataset="digits", **options)


def test_the_first_stage_of_vime_knows_by_itself_that_grey_levels_are_bounded() -> None:
    for dataset in ("mnist_tabular", "digits_tabular"):
        assert configure(dataset=dataset, learner="vime_self").learner.options["bounded"] is True


def test_an_encoder_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = configure(learner="vime", dataset="mnist_tabular", settings=["learner.encoder=runs/one"])
    assert config.learner.options["encoder"] == tmp_path / "runs/one"
    elsewhere = configure(learner="vime", dataset="mnist_tabular", settings=["learner.encoder=/other/one"])
    assert config.differences(elsewhere) == [], "where it lies is no part of the method"


@pytest.mark.parametrize("value", ["[1]", "{a: 1}", "3", "true"])
def test_an_encoder_that_is_no_path_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"learner\.encoder \(vime\) is .*; expected a path or null"):
        configure(learner="vime", dataset="mnist_tabular", settings=[f"learner.encoder={value}"])


def test_the_default_guidance_of_a_learner_has_the_options_of_the_learner_and_takes_settings() -> None:
    assert guidance_of(learner="simmatch", guidance="distribution_alignment") == own_alignment("simmatch")
    assert guidance_of(learner="simmatch", settings=["guidance.window=5"]) == {**own_alignment("simmatch"), "window": 5}


def test_settings_reach_into_a_chain() -> None:
    chosen = {"learner": "comatch", "guidance": "prg"}
    guidance = guidance_of(**chosen, settings=["guidance.alpha=3", "guidance.preceded_by.window=64"])
    assert (guidance["alpha"], guidance["preceded_by"]) == (3.0, {**own_alignment("comatch"), "window": 64})
    assert "preceded_by" not in guidance_of(**chosen, settings=["guidance.preceded_by=null"])
    alone = guidance_of(
        learner="fixmatch", guidance="prg", settings=["guidance.preceded_by.name=distribution_alignment"]
    )
    assert alone["preceded_by"]["name"] == "distribution_alignment"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"guidance": "prg+prq"}, r"unknown guidance 'prq'; choose from \['adello', 'cadr', .*'none', 'prg'"),
        ({"guidance": "prq+prg"}, r"unknown guidance 'prq'; choose from"),
        ({"guidance": "prg+"}, "unknown guidance ''; choose from"),
        ({"learner": "simmatch", "guidance": "prq"}, "unknown guidance 'prq'; choose from"),
        ({"learner": "fixmatch+prg"}, r"unknown learner 'fixmatch\+prg'; choose from"),
        ({"settings": ["guidance.name=[prg]"]}, r"unknown guidance \"\['prg'\]\"; choose from"),
        ({"settings": ["learner.name=3"]}, "unknown learner '3'; choose from"),
        (
            {"guidance": "prg", "settings": ["guidance.preceded_by.window=64"]},
            r"section guidance\.preceded_by needs a name",
        ),
        (
            {"guidance": "prg", "settings": ["guidance.alpha.x=3"]},
            r"guidance\.alpha \(prg\) is {'x': 3}; expected a number",
        ),
    ],
)
def test_guidances_that_cannot_be_are_refused_with_the_choices(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(**chosen)


@pytest.mark.parametrize("learner", LEARNERS)
def test_unlabelled_batches_are_in_the_learners_own_proportion_unless_given(learner: str) -> None:
    ratio = LEARNERS[learner].unlabeled_ratio
    by_default = configure(dataset="digits", learner=learner).train
    assert by_default.batch_unlabeled == ratio * by_default.batch_labeled
    train = configure(learner=learner, settings=["train.batch_labeled=10"]).train
    assert (train.batch_labeled, train.batch_unlabeled) == (10, 10 * ratio)
    for settings in (["train.batch_labeled=10", "train.batch_unlabeled=12"], ["train.batch_unlabeled=12"]):
        assert configure(learner=learner, settings=settings).train.batch_unlabeled == 12


def test_the_proportion_is_the_published_one() -> None:
    published = dict.fromkeys(("fixmatch", "flexmatch", "comatch", "simmatch"), 7)
    published |= dict.fromkeys(("pi_model", "pseudo_label", "mean_teacher", "mixmatch", "remixmatch", "ups", "acr"), 1)
    assert {name: LEARNERS[name].unlabeled_ratio for name in published} == published


def test_a_batch_size_that_is_no_number_is_refused_by_its_own_name() -> None:
    with pytest.raises(ValueError, match=r"train\.batch_labeled is 'many'; expected a whole number"):
        configure(settings=["train.batch_labeled=many"])


def test_a_learners_defaults_stand_between_those_of_the_data_set_and_the_recipe() -> None:
    mnist, ups = configure(dataset="mnist"), configure(dataset="mnist", learner="ups")
    assert (mnist.train.ema, mnist.train.weight_decay, mnist.model.options["dropout"]) == (0.999, 5e-4, 0.0)
    assert (ups.train.ema, ups.train.weight_decay, ups.model.options["dropout"]) == (0.0, 0.0, 0.3)
    assert ups.model.options["depth"] == 10, "of the data set, as nothing else says"
    settings = ["train.ema=0.5", "model.dropout=0.1"]
    changed = configure(dataset="mnist", learner="ups", settings=settings)
    assert (changed.train.ema, changed.model.options["dropout"]) == (0.5, 0.1)


def test_given_defaults_stand_between_those_of_the_data_set_and_those_of_the_learner() -> None:
    defaults = {
        "model": {"name": "mlp", "hidden": [8]},
        "learner": {"name": "pseudo_label", "threshold": 0.7},
        "guidance": {"name": "cadr"},
        "train": {"iterations": 40, "weight_decay": 0.1},
    }
    before = copy.deepcopy(defaults)
    alone = configure(dataset="digits", defaults=defaults)
    assert (alone.model.name, alone.model.options["hidden"]) == ("mlp", (8,))
    assert (alone.learner.options["threshold"], alone.guidance.full_name) == (0.7, "cadr")
    assert (alone.train.iterations, alone.train.weight_decay) == (40, 0.1)
    assert (alone.train.ema, alone.augment["padding"]) == (0.98, 1), "of the data set, as nothing else says"

    named = configure(dataset="digits", defaults=defaults, learner="ups", settings=["train.iterations=60"])
    assert (named.learner.name, named.guidance.full_name) == ("ups", "none"), "as its paper has it"
    assert "threshold" not in named.learner.options
    assert (named.train.iterations, named.train.weight_decay) == (60, 0.0)
    assert (named.model.name, named.model.options["hidden"]) == ("mlp", (8,))
    guided = configure(dataset="digits", defaults=defaults, guidance="prg", seed=5)
    assert (guided.learner.name, guided.guidance.full_name, guided.seed) == ("pseudo_label", "prg", 5)
    assert defaults == before
    of_defaults = configure(dataset="digits", defaults={"learner": {"name": "ups"}})
    assert (of_defaults.train.ema, of_defaults.train.iterations) == (0.0, 3600), "a learner's own come with it"


def test_on_digits_ups_has_generations_long_enough_to_learn() -> None:
    ups = configure(dataset="digits", learner="ups")
    assert ups.train.iterations / ups.learner.options["generations"] == 900
    changed = configure(dataset="digits", learner="ups", iterations=60, settings=["learner.generations=2"])
    assert (changed.train.iterations, changed.learner.options["generations"]) == (60, 2)
    assert changed.model.options["dropout"] == 0.1


def test_a_recipe_stands_over_a_learners_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {"dataset": {"name": "digits"}, "learner": {"name": "ups"}, "train": {"ema": 0.9}}
    monkeypatch.setitem(RECIPES, "made/up", Recipe(sections, 50.0, None))
    train = configure(recipe="made/up").train
    assert (train.ema, train.weight_decay, train.iterations) == (0.9, 0.0, 3600)


def test_a_recipe_keeps_its_guidance_though_the_learner_is_named() -> None:
    recipe = "table1/cifar10-cadr-g20/fixmatch+prg_last"
    assert configure(recipe=recipe, learner="fixmatch").guidance.name == "prg_last"


def test_data_is_where_the_data_set_looks_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert configure(dataset="cifar10", data="some/place").dataset.options["root"] == tmp_path / "some/place"
    assert configure(dataset="cifar10", data="/other").dataset.options["root"] == Path("/other")
    assert configure(dataset="digits").dataset.options["root"] is None


NEEDED = {
    "own": ("protocol.num_labels=1000", "protocol.n1=30", "protocol.gamma_u=10"),
    "balanced": ("protocol.num_labels=1000", "protocol.gamma_u=10"),
    "darp": ("protocol.gamma_l=10", "protocol.gamma_u=10"),
}
# How many, and the smallest one.
CLASSES = {"cifar100": (100, 500), "mini_imagenet": (100, 500), "digits": (10, 126), "digits_tabular": (10, 126)}


@pytest.mark.parametrize("protocol", NEEDED)
@pytest.mark.parametrize("dataset", PROTOCOL_SIZES)
def test_a_protocol_asks_a_data_set_for_no_more_than_it_has(dataset: str, protocol: str) -> None:
    num_classes, per_class = CLASSES[dataset]
    settings = [setting.replace("num_labels=1000", f"num_labels={10 * num_classes}") for setting in NEEDED[protocol]]
    options = configure(dataset=dataset, protocol=protocol, settings=settings).protocol.options
    counts = PROTOCOLS[protocol](num_classes, **options)
    assert isinstance(counts, Counts)
    assert counts.unlabeled is not None
    assert max(counts.labeled) <= per_class
    assert per_class / 2 < max(counts.unlabeled) <= per_class
    if protocol == "darp":
        assert counts.labeled[0] + counts.unlabeled[0] <= per_class


def test_protocol_sizes_fit_the_data_set_and_can_be_set_by_the_user() -> None:
    options = configure(dataset="cifar10", protocol="darp", settings=NEEDED["darp"]).protocol.options
    assert (options["n1"], options["m1"]) == (1500, 3000)
    settings = [*NEEDED["darp"], "protocol.m1=50"]
    options = configure(dataset="digits", protocol="darp", settings=settings).protocol.options
    assert (options["n1"], options["m1"]) == (40, 50)


def test_mixmatch_weighs_the_unlabelled_loss_of_cifar100_as_its_paper_does_unless_told_otherwise() -> None:
    recipe = "table1/cifar100-cadr-g50/mixmatch"
    assert configure(recipe=recipe).learner.options["unlabeled_weight"] == 150
    assert configure(dataset="cifar10", learner="mixmatch").learner.options["unlabeled_weight"] == 75
    chosen = configure(recipe=recipe, settings=["learner.unlabeled_weight=10"])
    assert chosen.learner.options["unlabeled_weight"] == 10


def test_configuring_changes_no_recipe() -> None:
    def tables() -> str:
        own = {learner: LEARNERS[learner].default_guidance for learner in LEARNERS}
        return repr([RECIPES, DATASET_DEFAULTS, LEARNER_DEFAULTS, own])

    before = tables()
    configure(recipe="table1/cifar10-cadr-g20/fixmatch", iterations=3, data="x", settings=["protocol.gamma=5"])
    configure(dataset="digits", iterations=3, settings=["augment.padding=0"])
    configure(learner="simmatch", guidance="prg", settings=["guidance.preceded_by.window=3", "train.batch_labeled=8"])
    configure(learner="ups", settings=["model.dropout=0.5", "train.ema=0.3"])
    assert tables() == before


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no recipe is called .*-g20/fixmatch\+prg'.*mnar list recipes"):
        configure(recipe="table1/cifar10-cadr-g20/fixmatch+prgg")
    with pytest.raises(ValueError, match=r"no recipe is called 'zzz'.*mnar list recipes"):
        configure(recipe="zzz")


@pytest.mark.parametrize("chain", ["cdmad", "prg+cdmad", "cdmad+prg"])
def test_a_guidance_knows_the_data_set_wherever_it_stands_in_a_chain(chain: str) -> None:
    on_digits, on_cifar10 = (configure(dataset=name, guidance=chain).guidance.chain for name in ("digits", "cifar10"))
    colours = [part.options["colour"] for parts in (on_digits, on_cifar10) for part in parts if part.name == "cdmad"]
    assert colours == ["black", "ones"]
    chosen = configure(dataset="digits", guidance="cdmad", settings=["guidance.colour=grey"]).guidance
    assert chosen.options["colour"] == "grey"


@pytest.mark.parametrize("learner", ["remixmatch", "comatch", "simmatch"])
@pytest.mark.parametrize(
    ("guidance", "full_name"),
    [
        ("prg", "distribution_alignment+prg"),
        ("prg_last", "distribution_alignment+prg_last"),
        ("prg_smooth", "distribution_alignment+prg_smooth"),
        ("prg_balanced", "prg_balanced"),
        ("crest", "distribution_alignment+crest"),
        ("crest_plus", "crest_plus"),
        ("cadr", "cadr"),
        ("darp", "darp"),
        ("simpro", "simpro"),
        ("cdmad", "cdmad"),
        ("adello", "adello"),
        ("none", "none"),
    ],
)
def test_a_guidance_that_corrects_class_shares_replaces_a_learners_own_alignment(
    learner: str, guidance: str, full_name: str
) -> None:
    assert configure(dataset="digits", learner=learner, guidance=guidance).guidance.full_name == full_name


def test_darp_on_cifar100_is_as_its_authors_run_it() -> None:
    options = configure(recipe="table1/cifar100-cadr-g50/fixmatch+darp").guidance.options
    assert (options["every"], options["iterations"]) == (100, 20)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["train.batch_labeled=32", "train.ema=auto"],
        ["learner.name=simmatch", "guidance.name=distribution_alignment+prg", "guidance.preceded_by.window=16"],
        ["train.optimizer=muon", "protocol.gamma=50", "model.depth=10"],
    ],
)
def test_the_options_with_which_a_run_was_configured_change_nothing_when_they_are_given_again(
    settings: list[str],
) -> None:
    config = configure(dataset="cifar10", schedule="fast", iterations=3600, settings=[*settings, "train.lr=0.01"])
    assert with_given_options(config, schedule="fast", iterations=3600, settings=settings) == config
    assert with_given_options(config) == config
    assert with_given_options(config, settings=["train.lr=0.01"]) == config


def test_given_options_replace_those_of_a_run_and_nothing_else() -> None:
    config = configure(dataset="cifar10", settings=["train.lr=0.01"])
    other = with_given_options(config, schedule="fast", iterations=5, settings=["protocol.gamma=7"])
    assert config.differences(other) == [
        "protocol.gamma: 20.0 and 7.0",
        "train.iterations: 1048576 and 5",
        "schedule: published and fast",
    ]
