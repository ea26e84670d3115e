"""Recipes of methods that are newer than the paper, under DARP's protocol."""

from __future__ import annotations

from mnar.recipes.printed_table import darp, recipes_of
from mnar.recipes.recipe import Recipe

TITLES: dict[str, str] = {
    "rivals": "Newer methods under DARP's protocol: the pool is uniform, like the labels, or reversed"
}
# Steps on CIFAR-10, as published for ACR. All methods of the table train equally long. Digits keep their own length.
STEPS = 250_000


def _rivals() -> dict[str, Recipe]:
    columns = [
        column
        for dataset in ("cifar10", "digits")
        for column in (darp(dataset, 100, 1), darp(dataset, 100, 100), darp(dataset, 100, 100, reverse=True))
    ]
    text = """
fixmatch        ? ? ?     ? ? ?
fixmatch+adello ? ? ?     ? ? ?
acr             ? ? 86.3* ? ? ?
"""
    footnotes = {"*": "Best test accuracy during training; the mean of the last 20 evaluations is 85.9."}
    recipes = recipes_of("rivals", columns, text, footnotes)
    recipes |= {
        f"{name}-without-anchors": Recipe({**recipe.sections, "learner": {"name": "acr", "anchors": False}})
        for name, recipe in recipes.items()
        if name.endswith("/acr")
    }
    return {name: _with_steps(recipe) for name, recipe in recipes.items()}


def _with_steps(recipe: Recipe) -> Recipe:
    if recipe.sections["dataset"]["name"] == "digits":
        return recipe
    return recipe._replace(sections={**recipe.sections, "train": {"iterations": STEPS}})


RIVALS: dict[str, Recipe] = _rivals()
