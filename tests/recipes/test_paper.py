from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from mnar.config import RunConfig
from mnar.protocols import PROTOCOLS
from mnar.recipes import configure
from mnar.recipes.paper import PAPER, TITLES
from mnar.recipes.printed_table import balanced, cadr, recipes_of
from mnar.recipes.recipe import Recipe
from mnar.terminal.listing import recipe_lines
from mnar.types import Counts

NUM_CLASSES = {"cifar100": 100, "mini_imagenet": 100, "cifar10": 10, "mnist_tabular": 10}
SETTING = re.compile(
    r"(?P<data>cifar10|cifar100|mini-imagenet|mnist)-"
    r"(cadr-g(?P<gamma>\d+)|own-n(?P<own>\d+)-(?P<n1>\d+)|balanced-n(?P<balanced>\d+)|darp-l(?P<gamma_l>\d+))"
    r"(-u(?P<gamma_u>\d+))?(?P<reverse>-reversed)?"
)


def counts_of(config: RunConfig) -> Counts:
    counts = PROTOCOLS[config.protocol.name](NUM_CLASSES[config.dataset.name], **config.protocol.options)
    assert isinstance(counts, Counts)
    return counts


def protocol_named(name: str) -> dict[str, Any]:
    """The protocol and its options, read off a recipe's name."""
    named = SETTING.fullmatch(name.split("/")[1])
    assert named, name
    sizes = {option: int(named[option]) for option in ("gamma", "n1", "gamma_l", "gamma_u") if named[option]}
    if named["own"] or named["balanced"]:
        sizes["num_labels"] = int(named["own"] or named["balanced"])
    protocols = {"gamma": "cadr", "own": "own", "balanced": "balanced", "gamma_l": "darp"}
    protocol = next(protocol for group, protocol in protocols.items() if named[group])
    return {"name": protocol, **sizes, **({"reverse": True} if named["reverse"] else {})}


def test_every_cell_of_every_table_is_there() -> None:
    cells = [name for name in PAPER if not name.endswith("+prg_last-alpha-1")]
    assert Counter(name.split("/")[0] for name in cells) == {
        "table1": 12 * 8 - 4,  # CReST and DARP were not run on mini-ImageNet
        "table2": 4 * 8,
        "gm": 4 * 3,
        "tabular": 3 * 7,
        "ablation": 2 * 3 + 4 + 5 + 5 + 2,
        "fig2": 2,
        "fig4": 2,
        "fig5": 2 * 3,
        "fig6": 3 * 4 + 4 * 4,
        "da": 5 * 8,
        "gamma-u": 5 * 3,
        "precision-recall": 2,
        "ups": 2,
        "flexmatch": 3 * 8,
        "conventional": 4 * 7 - 1,  # nor CADR
    }
    assert set(TITLES) == {name.split("/")[0] for name in PAPER}


def test_prg_last_has_one_recipe_with_alpha_3_and_one_with_alpha_1() -> None:
    names = list(PAPER)
    of_readme = [name for name in names if name.endswith("+prg_last")]
    assert len(of_readme) == 57
    for name in of_readme:
        beside = names[names.index(name) + 1]
        assert beside == f"{name}-alpha-1"
        (difference,) = configure(recipe=name).differences(configure(recipe=beside))
        assert difference.startswith("guidance.alpha: 3.0")
        assert PAPER[beside]._replace(sections={}, note="") == PAPER[name]._replace(sections={}, note="")
        assert "the paper has 1" in PAPER[name].note
        assert "Alpha is 1, as in the paper" in PAPER[beside].note


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_what_the_parts_of_its_name_give_on_the_command_line(name: str) -> None:
    table, _, method = name.split("/")
    learner, _, guidance = method.partition("+")
    guidance = guidance.partition("-")[0]  # what an ablation changes is tested with the recipes
    config, protocol = configure(recipe=name), protocol_named(name)
    options = [f"protocol.{option}={value}" for option, value in protocol.items() if option != "name"]
    if config.dataset.name == "mini_imagenet" and protocol["name"] == "cadr":
        options.append("protocol.rounding=floor")
    if learner in ("simmatch", "comatch"):  # their published code aligns to uniform shares
        options.append("guidance.preceded_by.target=labeled" if guidance else "guidance.target=labeled")
    by_hand = configure(
        dataset="mnist_tabular" if table == "tabular" else SETTING.match(name.split("/")[1])["data"].replace("-", "_"),  # type: ignore[index]
        protocol=protocol["name"],
        learner=learner,
        guidance=guidance or None,
        settings=options,
    )
    differing = {difference.split(":")[0].split(".")[0] for difference in config.differences(by_hand)}
    assert differing <= ({"guidance"} if "-" in method else set())
    assert config.train.iterations == (1000 if table == "tabular" else 2**20)
    if "num_labels" in protocol:
        assert sum(counts_of(config).labeled) == protocol["num_labels"]


@pytest.mark.parametrize(
    ("method", "full_name"),
    [
        ("remixmatch", "distribution_alignment"),
        ("simmatch", "distribution_alignment"),
        ("simmatch+prg", "distribution_alignment+prg"),
        ("simmatch+prg_last", "distribution_alignment+prg_last"),
        ("fixmatch", "none"),
        ("pi_model", "none"),
    ],
)
def test_learners_with_an_alignment_of_their_own_keep_it(method: str, full_name: str) -> None:
    assert configure(recipe=f"table1/cifar100-cadr-g50/{method}").guidance.full_name == full_name


ALIGNED_TO_LABELS = [name for name in PAPER if name.split("/")[2].startswith(("simmatch", "comatch"))]


@pytest.mark.parametrize("name", ALIGNED_TO_LABELS)
def test_a_setting_gives_simmatch_and_comatch_the_uniform_target_of_their_published_code(name: str) -> None:
    option = "guidance.preceded_by.target" if "+" in name else "guidance.target"
    uniform = configure(recipe=name, settings=[f"{option}=uniform"])
    (difference,) = configure(recipe=name).differences(uniform)
    assert difference.startswith(f"{option}: labeled")
    alignment = uniform.guidance.chain[0].options
    assert alignment == {"target": "uniform", "window": 32, "ema": None, "update": "before"}
    assert "as the paper says" in PAPER[name].note


def test_24_cells_of_simmatch_with_8_more_by_alpha_and_11_of_comatch_align_to_the_labels() -> None:
    by_learner = Counter(name.split("/")[2].partition("+")[0] for name in ALIGNED_TO_LABELS)
    assert by_learner == {"simmatch": 3 * 8 + 8, "comatch": 8 + 3}
    assert {name for name, recipe in PAPER.items() if recipe.own_guidance} == set(ALIGNED_TO_LABELS)


@pytest.mark.parametrize(
    ("guidance", "place"),
    [("prg", 0), ("prg_last", 0), ("prg+distribution_alignment", 1), ("distribution_alignment", 0)],
)
@pytest.mark.parametrize("method", ["simmatch", "simmatch+prg_last"])
def test_a_recipe_keeps_its_labelled_target_with_another_guidance(method: str, guidance: str, place: int) -> None:
    chain = configure(recipe=f"table1/cifar10-cadr-g20/{method}", guidance=guidance).guidance.chain
    assert chain[place].options == {"target": "labeled", "window": 32, "ema": None, "update": "before"}


def test_another_learner_does_not_get_the_alignment_of_the_recipe() -> None:
    recipe = "table1/cifar10-cadr-g20/simmatch"
    assert configure(recipe=recipe, learner="fixmatch").guidance.full_name == "none"
    assert configure(recipe=recipe, learner="comatch").guidance.options["target"] == "uniform"
    assert configure(recipe=f"{recipe}+prg", learner="fixmatch").guidance.full_name == "prg"


@pytest.mark.parametrize(
    ("name", "accuracy", "deviation"),
    [
        ("table1/cifar10-cadr-g20/pi_model", 21.59, None),
        ("table1/mini-imagenet-cadr-g100/mixmatch", 18.30, None),
        ("table1/cifar100-cadr-g200/fixmatch+crest", 49.60, None),
        ("table1/cifar10-cadr-g20/fixmatch+prg", 94.04, 0.18),
        ("table1/cifar100-cadr-g200/fixmatch+prg", 63.41, 4.08),
        ("table1/mini-imagenet-cadr-g50/fixmatch+prg_last", 40.73, 1.27),
        ("table1/cifar10-cadr-g100/simmatch+prg", 94.59, 0.32),
        ("table2/cifar10-own-n40-20/fixmatch+prg", 77.44, 15.96),
        ("table2/mini-imagenet-own-n1000-80/fixmatch", 28.33, 0.41),
        ("tabular/mnist-own-n250-200/vime+prg_last", 23.62, 11.39),
        ("da/cifar10-own-n250-100/fixmatch+distribution_alignment", 61.8, None),
        ("da/mini-imagenet-own-n1000-40/comatch", 30.24, None),
        ("gamma-u/cifar10-balanced-n40-u100/fixmatch+cadr", 42.30, None),
        ("ups/cifar10-cadr-g20/ups+prg", 32.22, None),
        ("flexmatch/cifar100-own-n2500-200/flexmatch", 45.26, None),
        ("conventional/cifar100-balanced-n10000/fixmatch+prg_last", 77.12, 0.13),
        ("conventional/mini-imagenet-balanced-n1000/fixmatch", 39.03, 0.66),
        ("fig5/cifar10-cadr-g50/fixmatch+prg", 94.09, 0.18),
        ("fig6/cifar10-darp-l100-u50/fixmatch+darp", None, None),
    ],
)
def test_accuracies_are_the_printed_ones(name: str, accuracy: float | None, deviation: float | None) -> None:
    assert (PAPER[name].accuracy, PAPER[name].deviation) == (accuracy, deviation)


# What the paper prints beside its cells: how far each is above the plain learner of the same column, or below it.
GAINS = {
    "table1": """
fixmatch+crest     -5.16 -10.21 -8.68 -10.21 -2.52 -1.02 . .
fixmatch+darp       6.88   4.83  2.46 -11.64 -8.33 -6.47 . .
fixmatch+cadr      23.37  23.37 21.69   9.02 12.06 12.68 5.51 6.21
fixmatch+prg       37.78  28.48 22.00   8.60 13.02 12.79 20.72 18.42
fixmatch+prg_last  37.55  27.83 21.20   9.03 13.54  9.94 17.17 17.32
simmatch+prg        3.42   4.91  4.47   5.59  5.54  5.36 5.12 6.11
simmatch+prg_last   3.01   3.71  4.10   5.04  5.17  5.48 2.57 9.95
""",
    "table2": """
fixmatch+cadr     -0.18 1.42 22.49 17.39  0.31 4.78 -0.12 2.19
fixmatch+prg       6.15 0.91 24.17 21.33  0.18 8.46  3.79 7.06
fixmatch+prg_last -0.06 1.32 23.04 17.47 -0.90 2.42  3.64 4.84
""",
    "gm": """
fixmatch+cadr     33.35 39.37 32.8
fixmatch+prg      51.63 40.19 33.69
fixmatch+prg_last 51.45 39.38 32.90
""",
    "da": """
fixmatch+distribution_alignment -14.49 -28.68 -7.96 -18.92 -10.37 -9.56 -2.33 -4.78
fixmatch+prg                      6.15   0.91 24.17  21.33   0.18  8.46  3.79 7.069
fixmatch+prg_last                -0.06   1.32 23.04  17.47  -0.90  2.42  3.64 4.77
""",
    "flexmatch": """
flexmatch+prg      1.31 3.93 14.82 14.48  3.80 5.05 1.57 2.41
flexmatch+prg_last 0.17 4.89 13.81 11.67 -3.17 3.56 1.80 0.98
""",
    "conventional": """
fixmatch+cadr     5.80 -0.58 -0.10  2.85 -0.75  0.11 .
fixmatch+prg      5.83 -0.51 -0.31  2.40 -1.24 -0.33 8.31
fixmatch+prg_last 4.39 -0.50  0.06 -1.24 -1.35  0.30 9.20
""",
}
PRINTED_WRONG = {
    "table1/cifar10-cadr-g50/fixmatch+cadr",
    "table1/mini-imagenet-cadr-g100/simmatch+prg_last",
    "table2/cifar10-own-n40-20/fixmatch+cadr",
    "gm/cifar10-cadr-g50/fixmatch+prg",
    "gm/cifar10-cadr-g100/fixmatch+prg",
    "da/mini-imagenet-own-n1000-80/fixmatch+distribution_alignment",
    "flexmatch/cifar100-own-n2500-100/flexmatch+prg_last",
}


def printed_gains(table: str) -> dict[str, float]:
    """By recipe."""
    settings = list(dict.fromkeys(name.split("/")[1] for name in PAPER if name.startswith(f"{table}/")))
    rows = [line.split() for line in GAINS[table].strip().splitlines()]
    return {
        f"{table}/{setting}/{method}": float(gain)
        for method, *gains in rows
        for setting, gain in zip(settings, gains, strict=True)
        if gain != "."
    }


@pytest.mark.parametrize("table", GAINS)
def test_a_figure_is_as_far_from_the_plain_learners_as_the_gain_printed_beside_it_except_for_noted_slips(
    table: str,
) -> None:
    gains, wrong = printed_gains(table), set[str]()
    for name, printed in gains.items():
        ours, plain = PAPER[name], PAPER[name.partition("+")[0]]
        gain = (ours.accuracy or ours.geometric_mean or 0) - (plain.accuracy or plain.geometric_mean or 0)
        if abs(gain - printed) > 0.011:
            wrong.add(name)
            assert f"{printed:.2f}".lstrip("-") in ours.note
    assert wrong == {name for name in PRINTED_WRONG if name.startswith(f"{table}/")}
    guided = {n for n in PAPER if n.startswith(f"{table}/") and "+" in n and not n.endswith("-alpha-1")}
    assert gains.keys() == guided, "each has one"


@pytest.mark.parametrize(
    ("name", "accuracy", "mean", "deviation"),
    [
        ("gm/cifar10-cadr-g20/fixmatch", None, 41.90, 8.55),
        ("gm/cifar10-cadr-g100/fixmatch+prg_last", None, 93.25, 0.97),
        ("ablation/cifar10-cadr-g50/fixmatch+prg-without-sca", 91.73, 91.28, None),
        ("ablation/cifar10-cadr-g20/fixmatch+prg-steps-10", 82.60, 80.24, None),
        ("ablation/cifar10-cadr-g20/fixmatch+prg-alpha-3.0", None, None, None),
    ],
)
def test_geometric_means_are_the_printed_ones(
    name: str, accuracy: float | None, mean: float | None, deviation: float | None
) -> None:
    recipe = PAPER[name]
    printed = (recipe.accuracy, recipe.geometric_mean, recipe.geometric_mean_deviation)
    assert printed == (accuracy, mean, deviation)


def test_precision_and_recall_are_the_printed_ones() -> None:
    fixmatch, prg = (PAPER[f"precision-recall/cifar10-cadr-g50/{method}"] for method in ("fixmatch", "fixmatch+prg"))
    assert fixmatch.per_class is not None
    assert prg.per_class is not None
    for scores in (*fixmatch.per_class.values(), *prg.per_class.values()):
        assert (len(scores.precision), len(scores.recall)) == (10, 10)
    assert list(fixmatch.per_class) == list(prg.per_class) == [30_000, 90_000, 150_000]
    assert (fixmatch.per_class[30_000].precision[8], fixmatch.per_class[30_000].recall[8]) == (99.02, 0.0)
    assert (fixmatch.per_class[90_000].precision[6], fixmatch.per_class[90_000].recall[6]) == (90.23, 8.89)
    assert (prg.per_class[150_000].precision[9], prg.per_class[150_000].recall[9]) == (97.15, 96.81)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("gm/cifar10-cadr-g50/fixmatch+cadr", "table1/cifar10-cadr-g50/fixmatch+cadr"),
        ("da/cifar10-own-n40-10/fixmatch+prg", "table2/cifar10-own-n40-10/fixmatch+prg"),
        ("precision-recall/cifar10-cadr-g50/fixmatch", "table1/cifar10-cadr-g50/fixmatch"),
        ("ablation/cifar10-cadr-g20/fixmatch+prg-steps-1", "table1/cifar10-cadr-g20/fixmatch+prg"),
        ("fig4/cifar10-cadr-g20/fixmatch+prg", "table1/cifar10-cadr-g20/fixmatch+prg"),
    ],
)
def test_a_run_that_two_tables_show_is_one_configuration(first: str, second: str) -> None:
    assert configure(recipe=first) == configure(recipe=second)


@pytest.mark.parametrize(
    ("name", "part_of_the_note"),
    [
        ("table1/cifar10-cadr-g20/pi_model", "Quoted from CADR's paper"),
        ("table1/cifar100-cadr-g100/fixmatch+cadr", "another split"),
        ("table1/cifar10-cadr-g50/fixmatch+cadr", "28.18"),
        ("table1/cifar100-cadr-g50/fixmatch+prg", "59.53"),
        ("table1/mini-imagenet-cadr-g100/simmatch+prg_last", "9.95"),
        ("table1/mini-imagenet-cadr-g50/fixmatch+prg", "43.74"),
        ("table2/cifar10-own-n40-20/fixmatch+cadr", "it is a loss"),
        ("table2/cifar10-own-n250-200/fixmatch+prg", "91.65"),
        ("table2/mini-imagenet-own-n1000-80/fixmatch+prg_last", "33.10"),
        ("da/mini-imagenet-own-n1000-80/fixmatch+prg_last", "33.17"),
        ("da/mini-imagenet-own-n1000-80/fixmatch+prg", "7.069"),
        ("flexmatch/cifar100-own-n2500-100/flexmatch+prg_last", "it is a gain"),
        ("gamma-u/cifar10-balanced-n40-u50/comatch", "the text has 50, 100, 200"),
        ("precision-recall/cifar10-cadr-g50/fixmatch", "8.89"),
        ("conventional/cifar10-balanced-n40/fixmatch", "Quoted"),
        ("fig2/cifar10-balanced-n70/fixmatch", "72"),
        ("gamma-u/cifar10-balanced-n40-u20/fixmatch+prg", "4.89"),
        ("ups/cifar10-cadr-g20/ups+prg", "WRN-28-2"),
        ("tabular/mnist-cadr-g20/vime+prg", "held out"),
        ("fig6/cifar10-darp-l100-u50/fixmatch+darp", "that of the labels"),
        ("fig6/cifar10-darp-l100-u100-reversed/fixmatch", "typo"),
    ],
)
def test_a_slip_of_the_paper_is_noted_at_its_cell(name: str, part_of_the_note: str) -> None:
    assert part_of_the_note in PAPER[name].note


def test_only_figures_from_cadrs_paper_are_called_quoted() -> None:
    quoted = {name for name, recipe in PAPER.items() if "Quoted" in recipe.note}
    assert Counter(name.split("/")[0] for name in quoted) == {"table1": 52, "conventional": 12, "fig2": 1, "fig5": 3}
    assert not any(method in name for name in quoted for method in ("prg", "simmatch", "mini-imagenet-balanced"))


@pytest.mark.parametrize(
    ("name", "labeled", "unlabeled"),
    [
        ("table1/cifar10-cadr-g20/fixmatch", (20, 15, 11, 8, 6, 4, 3, 2, 2, 1), None),
        ("table2/cifar10-own-n40-10/fixmatch", (10, 8, 6, 5, 3, 3, 2, 1, 1, 1), None),
        ("flexmatch/cifar10-own-n250-100/flexmatch", (100, 60, 37, 22, 13, 8, 5, 3, 1, 1), None),
        ("da/cifar10-own-n250-200/comatch", (200, 42, 1, 1, 1, 1, 1, 1, 1, 1), None),
        ("conventional/cifar10-balanced-n250/fixmatch", (25,) * 10, None),
        (
            "gamma-u/cifar10-balanced-n40-u20/fixmatch+prg",
            (4,) * 10,
            (250, 349, 487, 679, 947, 1321, 1843, 2570, 3585, 5000),
        ),
        (
            "fig6/cifar10-own-n40-10-u5/fixmatch+prg",
            (10, 8, 6, 5, 3, 3, 2, 1, 1, 1),
            (1000, 1196, 1430, 1710, 2045, 2446, 2925, 3497, 4182, 5000),
        ),
        (
            "fig6/cifar10-darp-l100-u150/fixmatch+prg",
            (1500, 900, 540, 324, 194, 117, 70, 42, 26, 15),
            (3000, 1720, 986, 565, 324, 186, 107, 61, 35, 20),
        ),
        (
            "fig6/cifar10-darp-l100-u100-reversed/fixmatch+darp",
            (1500, 900, 540, 324, 194, 117, 70, 42, 26, 15),
            (30, 51, 84, 140, 233, 388, 647, 1079, 1799, 3000),
        ),
    ],
)
def test_splits_have_the_published_counts(
    name: str, labeled: tuple[int, ...], unlabeled: tuple[int, ...] | None
) -> None:
    assert counts_of(configure(recipe=name)) == Counts(labeled, unlabeled)


def test_labels_in_all_where_a_table_names_only_gamma() -> None:
    total = {
        setting: sum(counts_of(configure(recipe=f"table1/{setting}/fixmatch")).labeled)
        for setting in ("cifar10-cadr-g50", "cifar10-cadr-g100", "cifar100-cadr-g50", "cifar100-cadr-g100")
    }
    assert list(total.values()) == [143, 250, 1317, 2229]
    mini = counts_of(configure(recipe="table1/mini-imagenet-cadr-g50/fixmatch"))
    assert mini.labeled[:3] == (50, 48, 46), "rounded down: 50, 48.06, 46.20"


def test_a_cell_is_read_with_its_figures_and_footnotes() -> None:
    text = """
fixmatch*     12.30±0.40 56.7/8.9†
fixmatch+prg  -          ?
"""
    footnotes = {"*": "One.", "†": "Two."}
    recipes = recipes_of("t", [cadr("cifar10", 20), balanced("cifar10", 40)], text, footnotes)
    assert {name: recipe[1:] for name, recipe in recipes.items()} == {
        "t/cifar10-cadr-g20/fixmatch": (12.3, 0.4, None, None, None, "One.", None),
        "t/cifar10-balanced-n40/fixmatch": (56.7, None, 8.9, None, None, "One. Two.", None),
        "t/cifar10-balanced-n40/fixmatch+prg": (None, None, None, None, None, "", None),
    }


@pytest.mark.parametrize("text", ["fixmatch 12.3", "fixmatch 12.3 4.5 6.7", "fixmatch 1.2 3.4\nups 5.6"])
def test_a_table_with_a_cell_too_few_or_too_many_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        recipes_of("t", [cadr("cifar10", 20), cadr("cifar10", 50)], text)


def test_a_cell_that_is_no_figure_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot read the cell '94,04'"):
        recipes_of("t", [cadr("cifar10", 20)], "fixmatch 94,04")


def test_the_listing_has_titles_figures_and_each_note_once() -> None:
    cells = {
        "t/a/fixmatch": Recipe({}, 12.34, 0.56, note="One."),
        "t/a/fixmatch+prg": Recipe({}, 12.34, None, 5.67, note="Two."),
        "t/b/fixmatch": Recipe({}, note="One."),
        "u/a/fixmatch": Recipe({}, None, None, 5.67, 0.89),
    }
    assert list(recipe_lines(cells, {"t": "Table 1", "u": "Table 2"})) == [
        "  Table 1",
        "    t/a/fixmatch  12.34 ± 0.56  [1]",
        "    t/a/fixmatch+prg  12.34; GM 5.67  [2]",
        "    t/b/fixmatch  –  [1]",
        "      [1] One.",
        "      [2] Two.",
        "  Table 2",
        "    u/a/fixmatch  GM 5.67 ± 0.89",
    ]
