"""Named configurations, one for each cell of the paper's tables, and the function that completes a configuration.

`RECIPES` has every `Recipe` by name, and `TITLES` the title of every table. `ClassScores` are printed scores per class.
`configure` turns a recipe or the user's options into a `RunConfig`, and `with_given_options` replaces options of a
`RunConfig`. `no_recipe` makes the error for an unknown name.
`SCHEDULES` has every named `Schedule`, which replaces training options of a recipe.
"""

from mnar.recipes.configure import configure, with_given_options
from mnar.recipes.recipe import ClassScores, Recipe
from mnar.recipes.schedules import SCHEDULES, Schedule
from mnar.recipes.tables import RECIPES, TITLES, no_recipe

__all__ = [
    "RECIPES",
    "SCHEDULES",
    "TITLES",
    "ClassScores",
    "Recipe",
    "Schedule",
    "configure",
    "no_recipe",
    "with_given_options",
]
