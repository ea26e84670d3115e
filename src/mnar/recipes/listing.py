"""All recipes: the paper's, and those that it does not have."""

from __future__ import annotations

from mnar.recipes import paper, suites
from mnar.recipes.recipe import Recipe

RECIPES: dict[str, Recipe] = {**paper.PAPER, **suites.SUITES}
TITLES: dict[str, str] = {**paper.TITLES, **suites.TITLES}  # of the tables, by the first part of a recipe's name
