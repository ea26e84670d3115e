"""All recipes: the paper's, and those that it does not have."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from mnar.recipes import paper, suites
from mnar.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {**paper.PAPER, **suites.SUITES}
TITLES: dict[str, str] = {**paper.TITLES, **suites.TITLES}  # of the tables, by the first part of a recipe's name


def no_recipe(name: str, known: Sequence[str]) -> ValueError:
    """What to say of a name that is not among those known."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or list(known[:3])
    return ValueError(f"no recipe is called {name!r}; nearest: {near} (`mnar list recipes` has all)")
