"""Named configurations, one for each cell of the paper's tables, and how they become complete."""

from mnar.recipes.configure import configure
from mnar.recipes.recipe import ClassScores, Recipe
from mnar.recipes.tables import RECIPES, TITLES, no_recipe

__all__ = ["RECIPES", "TITLES", "ClassScores", "Recipe", "configure", "no_recipe"]
