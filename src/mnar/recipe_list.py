"""Recipes as lines of text: under the titles of their tables, with what the paper has, and its footnotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mnar.recipe import Recipe


def listing(recipes: Mapping[str, Recipe], titles: Mapping[str, str]) -> Iterator[str]:
    """`titles` are those of the tables, by the first part of a recipe's name."""
    tables: dict[str, dict[str, Recipe]] = {}
    for name, recipe in recipes.items():
        tables.setdefault(name.partition("/")[0], {})[name] = recipe
    for table, cells in tables.items():
        yield f"  {titles[table]}"
        notes = list(dict.fromkeys(recipe.note for recipe in cells.values() if recipe.note))
        for name, recipe in cells.items():
            mark = f"  [{notes.index(recipe.note) + 1}]" if recipe.note else ""
            yield f"    {name}  {_figures(recipe)}{mark}"
        yield from (f"      [{number}] {note}" for number, note in enumerate(notes, start=1))


def _figures(recipe: Recipe) -> str:
    figures = [recipe.printed] if recipe.accuracy is not None else []
    if recipe.geometric_mean is not None:
        figures.append(f"GM {recipe.printed_geometric_mean}")
    if recipe.per_class:
        figures.append(f"precision and recall after {', '.join(f'{step:,}' for step in recipe.per_class)} steps")
    return "; ".join(figures) or recipe.printed
