"""Named configurations, one for each cell of the paper's tables, and how they become complete."""

from mnar.recipes.configure import configure
from mnar.recipes.listing import RECIPES, TITLES
from mnar.recipes.recipe import ClassScores, Recipe

__all__ = ["RECIPES", "TITLES", "ClassScores", "Recipe", "configure"]
