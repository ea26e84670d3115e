"""What PRG changed, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mnar.config import IDLE_GUIDANCES
from mnar.report.methods import PRG, Method, by_setting
from mnar.report.tables import Spread, is_short, row
from mnar.run.reader import Floats, Run
from mnar.training.evaluation import Headline, headline_lines

SHOWN = 0.0005  # differences print as points with one decimal; smaller ones would read as zero


def what_changed(runs: Sequence[Run]) -> str:
    """What PRG did to the methods it guided; empty where no two of them differ in it alone."""
    settings = by_setting(runs)
    told = {setting.name: changes(setting.methods) for setting in settings}
    if len(settings) == 1:
        return told[settings[0].name]
    return " ".join(f"{name}: {sentences}" for name, sentences in told.items() if sentences)


def changes(methods: Sequence[Method]) -> str:
    """The same within one setting."""
    clauses: dict[str, list[str]] = {}
    for each in methods:
        unguided = [method for method in methods if _is_prg_on(method.run, each.run)]
        compared_with = [method for method in unguided if _pairs(method, each)]
        if compared_with:  # with and without tracking are the same: once is enough
            plain = min(compared_with, key=lambda method: "tracking" in method.run.added)
            clauses.setdefault(plain.name, []).append(_clause(plain, each))
    return " ".join(f"Against {name}, {'; '.join(of_it)}." for name, of_it in clauses.items())


def _pairs(plain: Method, guided: Method) -> list[tuple[Run, Run]]:
    """Their runs of the same seed that have got equally far: others differ in more than PRG."""
    of_plain = {run.config["seed"]: run for run in plain.counted}
    same_seed = [(of_plain[seed], run) for run in guided.counted if (seed := run.config["seed"]) in of_plain]
    return [(one, other) for one, other in same_seed if _have_got_equally_far(one, other)]


def _have_got_equally_far(one: Run, other: Run) -> bool:
    return one.step == other.step or (one.is_finished and other.is_finished)  # some stop early


def _clause(plain: Method, guided: Method) -> str:
    pairs = _pairs(plain, guided)
    before, after = plain._replace(runs=[one for one, _ in pairs]), guided._replace(runs=[other for _, other in pairs])
    where = [guided.name]
    if len(pairs) == 1:
        where.append("in one seed")
    elif len(pairs) < max(len(plain.counted), len(guided.counted)):
        where.append(f"in the {len(pairs)} seeds of both")
    if after.progress:
        where.append(after.progress)
    which = ""
    if any(map(is_short, [*before.runs, *after.runs])):
        which = "latest " if after.progress else "final "
        before, after = _with_the_last_alone(before), _with_the_last_alone(after)
    scores = _scores(row(before).headline, row(after).headline, which)
    return f"{' '.join(where)} {scores}, {_classes(before.runs, after.runs)}"


def _with_the_last_alone(method: Method) -> Method:
    """Of its evaluations: a median of many reaches back, in a short run, to where it had learnt little."""
    return method._replace(runs=[replace(run, lines=run.lines[-1:]) for run in method.runs])


def _is_prg_on(unguided: Run, guided: Run) -> bool:
    *before, last = _acting(guided) or [{"name": "none"}]
    is_added = last["name"] in PRG and before == _acting(unguided)
    return is_added and _all_else(guided) == _all_else(unguided)


def _acting(run: Run) -> list[dict[str, Any]]:
    return [guidance for guidance in run.guidances if guidance["name"] not in IDLE_GUIDANCES]


def _all_else(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.method.items() if not name.startswith("guidance.")}


def _scores(plain: Headline[Spread], guided: Headline[Spread], which: str) -> str:
    verb, accuracy = _moved(f"{which}test accuracy", plain.accuracy_median_last_20, guided.accuracy_median_last_20)
    other_verb, geometric_mean = _moved(f"the {which}geometric mean", plain.geometric_mean, guided.geometric_mean)
    return f"{verb} {accuracy} and {'' if other_verb == verb else other_verb + ' '}{geometric_mean}"


def _moved(what: str, before: Spread, after: Spread) -> tuple[str, str]:
    change = after.mean - before.mean
    if abs(change) < SHOWN:
        return "left", f"{what} at {100 * after.mean:.1f} %"
    spread = max(before.sd or 0.0, after.sd or 0.0)
    doubt = ", within the seeds' spread" if abs(change) < spread else ""
    numbers = f"from {100 * before.mean:.1f} to {100 * after.mean:.1f} % ({_points(change)}{doubt})"
    return "raised" if change > 0 else "lowered", f"{what} {numbers}"


def _classes(plain: Sequence[Run], guided: Sequence[Run]) -> str:
    change = _recall(guided) - _recall(plain)
    names = guided[0].split["class_names"]
    most, least = int(change.argmax()), int(change.argmin())
    gain = f"class {names[most]} gaining most recall ({_points(change[most])})"
    loss = f"class {names[least]} losing most ({_points(change[least])})"
    said = [gain if change[most] >= SHOWN else "no class gaining recall"]
    return " and ".join([*said, loss] if change[least] <= -SHOWN else said)


def _recall(runs: Sequence[Run]) -> Floats:
    """Recall per class, read as the headline is: the median of the last evaluations, averaged over seeds."""
    medians = [np.median([line["test"]["recall"] for line in headline_lines(run.lines)], axis=0) for run in runs]
    return np.asarray(np.mean(medians, axis=0))


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points".replace("-", "−")
