"""Recipes that the paper does not have: every protocol in small, and a real case of labels missing not at random."""

from __future__ import annotations

from mnar.recipes.defaults import DATASET_DEFAULTS
from mnar.recipes.printed_table import Setting, balanced, cadr, darp, own, recipes_of
from mnar.recipes.recipe import Recipe

TITLES: dict[str, str] = {
    "digits": "Every protocol in small: digits as images",
    "tabular-digits": "Every protocol in small: digits as a table",
    "agreement": "CIFAR with human labels, kept where annotators agree",
}


def _small(table: str, dataset: str, methods: tuple[str, ...]) -> dict[str, Recipe]:
    """Every protocol of the paper on digits, which need no download; the sizes suit classes of 126 samples."""
    settings = [cadr(dataset, 20), own(dataset, 40, 10), own(dataset, 100, 40, 10)]
    settings += [darp(dataset, 100, 100), darp(dataset, 100, 100, reverse=True)]
    settings += [balanced(dataset, 40, 100), balanced(dataset, 40)]
    settings = [setting._replace(name=setting.name.removeprefix("digits-")) for setting in settings]
    return _unprinted(table, settings, methods)


def _agreement() -> dict[str, Recipe]:
    """CIFAR with human labels, where a label is kept only if annotators agree."""
    names = {"cifar10n": "cifar10n_agreement", "cifar100n": "cifar100n_agreement"}
    settings = [Setting(name, dataset, DATASET_DEFAULTS[dataset]["protocol"]) for name, dataset in names.items()]
    guidances = ("prg", "prg_last", "cadr", "simpro", "cdmad")
    return _unprinted("agreement", settings, ("supervised", "fixmatch", *(f"fixmatch+{name}" for name in guidances)))


def _unprinted(table: str, settings: list[Setting], methods: tuple[str, ...]) -> dict[str, Recipe]:
    """Every method in every setting."""
    return recipes_of(table, settings, "\n".join(f"{method} {'? ' * len(settings)}" for method in methods))


SUITES: dict[str, Recipe] = {
    **_small("digits", "digits", ("fixmatch", "fixmatch+cadr", "fixmatch+prg", "fixmatch+prg_last")),
    **_small("tabular-digits", "digits_tabular", ("vime", "vime+prg", "vime+prg_last")),
    **_agreement(),
}
