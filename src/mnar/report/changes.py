"""What PRG changed: every method with PRG beside the same method without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mnar.config import IDLE_GUIDANCES
from mnar.report.methods import ABSENT, PRG, Method, by_setting
from mnar.report.tables import Spread, is_short, row
from mnar.run.reader import Floats, Run
from mnar.training.headline import Headline, headline_lines, headline_name
from mnar.training.metrics import headline_metrics

SMALLEST_SHOWN = 0.0005  # changes are printed in points with one decimal; smaller ones would read as zero


class Change(NamedTuple):
    """One row of the table: a method with PRG and the same method without it, on the seeds that both have."""

    setting: str
    guided: str
    plain: str
    num_seeds: int
    scores: tuple[str, ...]  # one for each headline metric: before, after and the difference
    recalls: str  # the classes that gain and lose most
    is_final_only: bool  # whether the scores are those of the last evaluation, because the runs are short

    @property
    def cells(self) -> tuple[str, ...]:
        """The row under `change_headings`."""
        return (self.guided, self.plain, str(self.num_seeds), *self.scores, self.recalls)


def change_headings() -> tuple[str, ...]:
    return (
        "with PRG",
        "without",
        "seeds",
        *(f"{metric.title}, %" for metric in headline_metrics()),
        "recall per class",
    )


def compared_evaluations(rows: Sequence[Change]) -> str:
    """Which evaluations the scores of these rows come from, as text."""
    num_final = sum(row.is_final_only for row in rows)
    if num_final == len(rows):
        return "the last evaluation"
    median = "the median of the last evaluations"
    return f"the last evaluation of short runs, {median} of the others" if num_final else median


def changes_in(runs: Sequence[Run]) -> list[Change]:
    """One row for each method with PRG that has a counterpart without PRG, setting by setting."""
    return [
        change._replace(setting=setting.name) for setting in by_setting(runs) for change in changes(setting.methods)
    ]


def changes(methods: Sequence[Method]) -> list[Change]:
    """The rows of the methods of one setting."""
    rows = []
    for guided in methods:
        unguided = [method for method in methods if _differ_in_prg_only(method.run, guided.run)]
        compared_with = [method for method in unguided if _pairs(method, guided)]
        if compared_with:  # a learner with and without tracking gives the same result, so one of them is enough
            plain = min(compared_with, key=lambda method: "tracking" in method.run.added)
            rows.append(_change(plain, guided))
    return rows


def _pairs(plain: Method, guided: Method) -> list[tuple[Run, Run]]:
    """The runs of both methods with equal seeds that have reached the same step."""
    of_plain = {run.config["seed"]: run for run in plain.counted}
    same_seed = [(of_plain[seed], run) for run in guided.counted if (seed := run.config["seed"]) in of_plain]
    return [(one, other) for one, other in same_seed if _are_equally_far(one, other)]


def _are_equally_far(one: Run, other: Run) -> bool:
    return one.step == other.step or (one.is_finished and other.is_finished)  # some runs stop early


def _change(plain: Method, guided: Method) -> Change:
    pairs = _pairs(plain, guided)
    before, after = plain._replace(runs=[one for one, _ in pairs]), guided._replace(runs=[other for _, other in pairs])
    # In a short run, the median of many evaluations reaches back to where the model had learnt little.
    is_final_only = any(map(is_short, [*before.runs, *after.runs]))
    if is_final_only:
        before, after = _with_last_evaluation_only(before), _with_last_evaluation_only(after)
    figures_before, figures_after = row(before).headline, row(after).headline
    names = [headline_name(metric.name) for metric in headline_metrics()]
    scores = tuple(_moved(figures_before, figures_after, name) for name in names)
    recalls = _extremes(before.runs, after.runs)
    label = f"{guided.name}, {after.progress}" if after.progress else guided.name
    return Change("", label, plain.name, len(pairs), scores, recalls, is_final_only)


def _with_last_evaluation_only(method: Method) -> Method:
    return method._replace(runs=[replace(run, lines=run.lines[-1:]) for run in method.runs])


def _differ_in_prg_only(unguided: Run, guided: Run) -> bool:
    *before, last = _acting(guided) or [{"name": "none"}]
    is_added = last["name"] in PRG and before == _acting(unguided)
    return is_added and _other_options(guided) == _other_options(unguided)


def _acting(run: Run) -> list[dict[str, Any]]:
    return [guidance for guidance in run.guidances if guidance["name"] not in IDLE_GUIDANCES]


def _other_options(run: Run) -> dict[str, Any]:
    options = {name: value for name, value in run.method.items() if not name.startswith("guidance.")}
    if options.get("learner.consistency") == "auto":  # VIME's loss depends on whether there is a guidance
        options["learner.consistency"] = "ce" if _acting(run) else "var"
    return options


def _moved(figures_before: Headline[Spread], figures_after: Headline[Spread], name: str) -> str:
    """E.g. "87.8 → 93.9 (+6.1)", with a remark if the change is smaller than the deviation between seeds."""
    if name not in figures_before or name not in figures_after:
        return ABSENT  # an older run that did not record the metric
    before, after = figures_before[name], figures_after[name]
    change = after.mean - before.mean
    is_within = abs(change) < max(before.sd or 0.0, after.sd or 0.0)
    remark = ", within the spread" if is_within else ""
    return f"{100 * before.mean:.1f} → {100 * after.mean:.1f} ({_points(change)}{remark})"


def _extremes(plain: Sequence[Run], guided: Sequence[Run]) -> str:
    change = _recall(guided) - _recall(plain)
    names = guided[0].split["class_names"]
    most, least = int(change.argmax()), int(change.argmin())
    gain = f"{names[most]} {_points(change[most])}" if change[most] >= SMALLEST_SHOWN else "no class gains"
    loss = f"{names[least]} {_points(change[least])}" if change[least] <= -SMALLEST_SHOWN else "no class loses"
    return f"{gain}, {loss}"


def _recall(runs: Sequence[Run]) -> Floats:
    """The recall of each class: the median over the headline evaluations, averaged over seeds."""
    medians = [np.median([line["test"]["recall"] for line in headline_lines(run.lines)], axis=0) for run in runs]
    return np.asarray(np.mean(medians, axis=0))


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")
