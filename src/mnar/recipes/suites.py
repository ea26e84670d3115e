"""Recipes that the paper does not have.

Two suites run every protocol on a small scale. A third one has human labels that are really missing not at random, a
fourth one the five pool shapes of the literature. The last two compare all guidances and all image learners on digits.
"""

from __future__ import annotations

from mnar.config import IDLE_GUIDANCES
from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.protocols.pool_shape import SHAPES
from mnar.recipes.defaults import DATASET_DEFAULTS
from mnar.recipes.printed_table import Column, balanced, cadr, darp, own, recipes_of
from mnar.recipes.recipe import Recipe

TITLES: dict[str, str] = {
    "digits": "Every protocol on a small scale: digits as images",
    "tabular-digits": "Every protocol on a small scale: digits as a table",
    "agreement": "CIFAR with human labels, kept where the annotators agree",
    "shapes": "The five pool shapes: long-tailed labels, and a pool with another class distribution",
    "guidances": "Every guidance on digits: a pool like the labels, uniform or reversed; balanced labels, skewed pool",
    "learners": "Every image learner on digits: as in its paper, with PRG, PRG^Last and smoothed PRG",
}
# The methods that are compared on the pool shapes, LEARNER or LEARNER+GUIDANCE.
SHAPE_METHODS = (
    "fixmatch",
    "fixmatch+cadr",
    "fixmatch+distribution_alignment",
    "fixmatch+simpro",
    "fixmatch+cdmad",
    "fixmatch+adello",
    "acr",
    "fixmatch+prg",
    "fixmatch+prg_last",
    "fixmatch+prg_smooth",
    "fixmatch+prg_balanced",
)


def _small(table: str, dataset: str, methods: tuple[str, ...]) -> dict[str, Recipe]:
    """Return every protocol of the paper on digits, which need no download; the sizes suit classes of 126 samples."""
    columns = [cadr(dataset, 20), own(dataset, 40, 10), own(dataset, 100, 40, 10)]
    columns += [darp(dataset, 100, 100), darp(dataset, 100, 100, reverse=True)]
    columns += [balanced(dataset, 40, 100), balanced(dataset, 40)]
    columns = [column._replace(name=column.name.removeprefix("digits-")) for column in columns]
    return _without_figures(table, columns, methods)


def _agreement() -> dict[str, Recipe]:
    """Return recipes for CIFAR with human labels, where a label is kept only if the annotators agree."""
    names = {"cifar10n": "cifar10n_agreement", "cifar100n": "cifar100n_agreement"}
    columns = [Column(name, dataset, DATASET_DEFAULTS[dataset]["protocol"]) for name, dataset in names.items()]
    guidances = ("prg", "prg_last", "cadr", "simpro", "cdmad")
    methods = ("supervised", "fixmatch", *(f"fixmatch+{name}" for name in guidances))
    return _without_figures("agreement", columns, methods)


def _pool_shapes() -> dict[str, Recipe]:
    """Return recipes for the five pool shapes; sizes and imbalance are the defaults of each data set.

    The labelled images are not part of the pool, as in SimPro's code. Otherwise the pool would have another shape:
    reversed, the first class of CIFAR-10 would have 540 images instead of 40.
    """
    columns = [_shape(dataset, shape) for dataset in ("cifar10", "cifar100", "digits") for shape in SHAPES]
    return _with_drawn_test_set(_with_exact_pool(_without_figures("shapes", columns, SHAPE_METHODS)))


def _guidances() -> dict[str, Recipe]:
    """Return FixMatch with each guidance, in the four situations that docs/choosing.md tells apart.

    Where the labels are skewed, the situations have the same labels and differ only in the pool.
    """
    columns = [_shape("digits", shape) for shape in ("consistent", "uniform", "reversed")]
    columns.append(balanced("digits", 40, 100))
    guided = tuple(f"fixmatch+{name}" for name in GUIDANCES if name not in IDLE_GUIDANCES)
    return _with_drawn_test_set(_with_exact_pool(_without_figures("guidances", columns, ("fixmatch", *guided))))


def _shape(dataset: str, shape: str) -> Column:
    return Column(f"{dataset}-{shape.replace('_', '-')}", dataset, {"name": "pool_shape", "shape": shape})


def _learners() -> dict[str, Recipe]:
    """Return every image learner as in its paper and with variants of PRG; each learner is a setting of its own."""
    recipes: dict[str, Recipe] = {}
    for name, learner in LEARNERS.items():
        if "images" in learner.suits:
            guided = [f"{name}+{guidance}" for guidance in ("prg", "prg_last", "prg_smooth")]
            methods = (name, *guided) if learner.is_guided else (name,)
            column = cadr("digits", 20)._replace(name=f"digits-{name.replace('_', '-')}")
            recipes |= _without_figures("learners", [column], methods)
    return _with_drawn_test_set(recipes)


def _with_exact_pool(recipes: dict[str, Recipe]) -> dict[str, Recipe]:
    """Leave the labelled images out of the pool, so that the pool has exactly the class counts of the protocol."""
    return {name: _with_options(recipe, "split", include_labeled=False) for name, recipe in recipes.items()}


def _with_drawn_test_set(recipes: dict[str, Recipe]) -> dict[str, Recipe]:
    """Let each seed draw its own test set on digits.

    500 test images are few. With one fixed test set, all seeds would share its chance errors.
    """
    return {
        name: _with_options(recipe, "dataset", test_set="drawn") if _is_on_digits(recipe) else recipe
        for name, recipe in recipes.items()
    }


def _is_on_digits(recipe: Recipe) -> bool:
    return bool(recipe.sections["dataset"]["name"] == "digits")


def _with_options(recipe: Recipe, section: str, **options: bool | str) -> Recipe:
    changed = {**recipe.sections.get(section, {}), **options}
    return recipe._replace(sections={**recipe.sections, section: changed})


def _without_figures(table: str, columns: list[Column], methods: tuple[str, ...]) -> dict[str, Recipe]:
    """Return every method in every column, without figures of a paper."""
    return recipes_of(table, columns, "\n".join(f"{method} {'? ' * len(columns)}" for method in methods))


SUITES: dict[str, Recipe] = {
    **_small("digits", "digits", ("fixmatch", "fixmatch+cadr", "fixmatch+prg", "fixmatch+prg_last")),
    **_small("tabular-digits", "digits_tabular", ("vime", "vime+prg", "vime+prg_last")),
    **_agreement(),
    **_pool_shapes(),
    **_guidances(),
    **_learners(),
}
