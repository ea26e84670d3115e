"""Lists of all parts, options and recipes for `mnar list`, as lines of text with rich's markup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from rich.markup import escape

from mnar.config import SECTIONS, TABLES, options_of
from mnar.guidances import class_of
from mnar.learners import LEARNERS
from mnar.recipes import RECIPES, SCHEDULES, TITLES, Recipe, no_recipe


def listing(kind: str | None, which: str = "") -> Iterator[str]:
    """List the parts of one kind, e.g. "learners", with every option and its default.

    Without a kind, list the parts of all kinds and the tables of recipes. `which` selects parts by the beginning of
    their name or by a pattern.
    """
    kinds = {f"{section}s": (section, table) for section, table in TABLES.items()}
    kinds |= {section: (section, {"": make}) for section, make in SECTIONS.items()}
    if kind is not None and kind not in (*kinds, "recipes", "schedules"):
        raise ValueError(f"there is nothing called {kind!r} to list; choose from {[*kinds, 'recipes', 'schedules']}")
    for title, (section, table) in kinds.items():
        if kind in (None, title):
            if not (found := _begin_with(which, table)):
                raise ValueError(f"none of the {title} begins with {which!r}; choose from {[*table]}")
            yield f"[bold]{title}[/bold]  [dim]--set {section}.OPTION=VALUE[/dim]"
            for name, make in found.items():
                parameters = options_of(section, make).values()
                options = ", ".join(str(p.replace(annotation=p.empty, kind=p.KEYWORD_ONLY)) for p in parameters)
                yield f"  {name}  [dim]{escape(options)}[/dim]"
                if section in ABOUT:
                    yield f"      [dim]{escape(ABOUT[section](make))}[/dim]"
    if kind is None:
        yield "[bold]recipes[/bold]  [dim]--recipe NAME; `mnar list recipes TABLE` lists their names[/dim]"
        yield from (f"  {table}  [dim]{escape(title)}[/dim]" for table, title in TITLES.items())
    if kind in (None, "schedules"):
        if not (schedules := _begin_with(which, SCHEDULES)):
            raise ValueError(f"none of the schedules begins with {which!r}; choose from {[*SCHEDULES]}")
        yield "[bold]schedules[/bold]  [dim]--schedule NAME[/dim]"
        yield from (f"  {name}  [dim]{escape(schedule.about)}[/dim]" for name, schedule in schedules.items())
    if kind == "recipes":
        if not (recipes := _begin_with(which, RECIPES)):
            raise no_recipe(which, [*TITLES, *RECIPES])
        yield "[bold]recipes[/bold]  [dim]--recipe NAME; the paper's accuracy and geometric mean (GM), %[/dim]"
        yield from map(escape, recipe_lines(recipes, TITLES))


def _begin_with(which: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if fnmatchcase(name, f"{which}*")}


def recipe_lines(recipes: Mapping[str, Recipe], titles: Mapping[str, str]) -> Iterator[str]:
    """List recipes under the titles of their tables, with notes as footnotes.

    The key of a table's title is the first part of a recipe's name.
    """
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
    """Return the figures of a recipe as the paper prints them."""
    figures = [recipe.printed] if recipe.accuracy is not None else []
    if recipe.geometric_mean is not None:
        figures.append(f"GM {recipe.printed_geometric_mean}")
    if recipe.per_class:
        figures.append(f"precision and recall after {', '.join(f'{step:,}' for step in recipe.per_class)} steps")
    return "; ".join(figures) or recipe.printed


def _about_learner(learner: Callable[..., Any]) -> str:
    """Describe a learner: its paper, the kinds of data, the views of unlabelled samples and its default guidance."""
    views = ", ".join(learner.views) or "none"  # type: ignore[attr-defined]
    guidance, suits = learner.default_guidance, " and ".join(learner.suits)  # type: ignore[attr-defined]
    options = ", ".join(f"{option} {value}" for option, value in guidance.items() if option != "name")
    named = f"{guidance['name']} ({options})" if options else guidance["name"]
    return f"{learner.paper} · {suits} · unlabelled views: {views} · guidance by default: {named}"  # type: ignore[attr-defined]


def _about_guidance(make: Callable[..., Any]) -> str:
    """Describe a guidance: its paper, the options that its name stands for, and the learners that it serves."""
    guidance = class_of(make)
    preset = [f"{option}={value}" for option, value in getattr(make, "keywords", {}).items()]
    source = f"{guidance.paper}; {guidance.__name__} with {', '.join(preset)}" if preset else guidance.paper
    guided = [name for name, learner in LEARNERS.items() if learner.is_guided]
    served = [name for name in guided if guidance.needs <= LEARNERS[name].hooks]
    names = "every learner" if served == guided else ", ".join(served)
    return f"{source} · for {names}"


ABOUT = {"learner": _about_learner, "guidance": _about_guidance}
