"""Recipes that the paper does not have.

Two suites run every protocol on a small scale. A third one has human labels that are really missing not at random, and
a fourth one the five pool shapes of the literature.
"""

from __future__ import annotations

from mnar.protocols.pool_shape import SHAPES
from mnar.recipes.defaults import DATASET_DEFAULTS
from mnar.recipes.printed_table import Column, balanced, cadr, darp, own, recipes_of
from mnar.recipes.recipe import Recipe

TITLES: dict[str, str] = {
    "digits": "Every protocol on a small scale: digits as images",
    "tabular-digits": "Every protocol on a small scale: digits as a table",
    "agreement": "CIFAR with human labels, kept where the annotators agree",
    "shapes": "The five pool shapes: long-tailed labels, and a pool with another class distribution",
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
    columns = [
        Column(f"{dataset}-{shape.replace('_', '-')}", dataset, {"name": "pool_shape", "shape": shape})
        for dataset in ("cifar10", "cifar100", "digits")
        for shape in SHAPES
    ]
    recipes = _without_figures("shapes", columns, SHAPE_METHODS)
    only_additional = {"split": {"include_labeled": False}}
    return {name: recipe._replace(sections={**recipe.sections, **only_additional}) for name, recipe in recipes.items()}


def _without_figures(table: str, columns: list[Column], methods: tuple[str, ...]) -> dict[str, Recipe]:
    """Return every method in every column, without figures of a paper."""
    return recipes_of(table, columns, "\n".join(f"{method} {'? ' * len(columns)}" for method in methods))


SUITES: dict[str, Recipe] = {
    **_small("digits", "digits", ("fixmatch", "fixmatch+cadr", "fixmatch+prg", "fixmatch+prg_last")),
    **_small("tabular-digits", "digits_tabular", ("vime", "vime+prg", "vime+prg_last")),
    **_agreement(),
    **_pool_shapes(),
}
