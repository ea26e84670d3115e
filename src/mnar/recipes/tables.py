"""The tables of all recipes: those of the paper, the suites of this project, and newer methods."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from mnar.recipes import paper, rivals, suites
from mnar.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {**paper.PAPER, **suites.SUITES, **rivals.RIVALS}
# Title of each table; the key is the first part of a recipe's name.
TITLES: dict[str, str] = {**paper.TITLES, **suites.TITLES, **rivals.TITLES}


def no_recipe(name: str, known: Sequence[str]) -> ValueError:
    """Return the error for an unknown recipe name; it shows the nearest known names."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or list(known[:3])
    return ValueError(f"no recipe is called {name!r}; nearest: {near} (`mnar list recipes` shows all recipes)")
