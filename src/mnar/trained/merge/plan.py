"""Decide what a merge changes, before anything is written: each annotation is merged, skipped or reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from mnar.datasets.user_files.label_values import WHOLE_NUMBER, is_missing
from mnar.trained.label_studio import choice_text
from mnar.trained.merge.annotation import Annotation
from mnar.trained.merge.new_classes import check_new_class
from mnar.trained.merge.samples import LabeledSamples, find_samples

MOST_LISTED = 5  # in an error message


class Outcome(NamedTuple):
    """What happens to the label of one sample."""

    row: int | None
    sample: str
    outcome: str  # "merged", "unchanged", "cancelled", "empty", "conflict", "disagreement" or "missing"
    label: str  # of the annotators; several labels are separated by " | "
    existing: str = ""  # the label in the data
    detail: str = ""


@dataclass
class Plan:
    """The changes of a merge, and what is reported."""

    changes: dict[int, str] = field(default_factory=dict)  # by position of the sample: its new label
    outcomes: list[Outcome] = field(default_factory=list)  # one per sample, and one per annotation without a sample
    new_classes: list[str] = field(default_factory=list)
    num_moved: int = 0  # samples that were found in another row than the annotations say
    num_repeated: int = 0  # annotations of a sample that another annotation has labelled too

    def with_outcome(self, outcome: str) -> list[Outcome]:
        """Return the samples to which this happened."""
        return [entry for entry in self.outcomes if entry.outcome == outcome]


def plan_merge(
    annotations: Sequence[Annotation],
    samples: LabeledSamples,
    *,
    overwrite: bool = False,
    majority: bool = False,
    ignore_missing: bool = False,
    new_classes: bool = False,
) -> Plan:
    """Compare annotations with the samples.

    overwrite       replace existing labels that differ
    majority        merge the label that more than half of the annotators gave, if they disagree
    ignore_missing  leave out annotations for samples that are not there, instead of an error
    new_classes     allow classes that the data do not have yet, instead of an error
    """
    plan = Plan()
    found = find_samples(samples, annotations)
    of_sample: dict[int, list[Annotation]] = {}
    moved: set[int] = set()
    for annotation, match in zip(annotations, found, strict=True):
        if match.place is None:
            plan.outcomes.append(_without_sample(annotation, match.problem))
            continue
        of_sample.setdefault(match.place, []).append(annotation)
        moved |= {match.place} if match.is_moved else set()
    if not ignore_missing:
        _refuse_missing(plan, annotations, samples)
    classes = _Classes(samples)
    for place, entries in of_sample.items():
        _plan_sample(plan, samples, place, entries, classes, overwrite=overwrite, majority=majority)
    # only classes that a change needs: a label that is not merged needs no new class
    added = dict.fromkeys(label for label in plan.changes.values() if label not in samples.class_names)
    if added and not new_classes:
        raise ValueError(_unknown_classes_message(list(added), annotations, samples))
    for label in added:
        check_new_class(label, _first_with(label, annotations))
    plan.new_classes, plan.num_moved = list(added), len(moved)
    plan.num_repeated = sum(len(entries) - 1 for entries in of_sample.values())
    return plan


def _plan_sample(
    plan: Plan,
    samples: LabeledSamples,
    place: int,
    entries: Sequence[Annotation],
    classes: _Classes,
    *,
    overwrite: bool,
    majority: bool,
) -> None:
    """Decide about one sample, and add the decision to the plan."""
    existing = samples.labels[place]
    labels = [classes.label(entry.label) for entry in entries if not entry.is_cancelled]
    votes = Counter(label for label in labels if label)
    outcome, label = "", ""
    if not votes:
        outcome = "empty" if labels else "cancelled"
    elif len(votes) == 1:
        label = next(iter(votes))
    else:
        winner, num_votes = votes.most_common(1)[0]
        if majority and num_votes > votes.total() / 2:
            label = winner
        else:
            outcome, label = "disagreement", " | ".join(votes)
    if not outcome:
        outcome = "merged" if not existing or (overwrite and label != existing) else "conflict"
        outcome = "unchanged" if label == existing else outcome
    if outcome == "merged":
        plan.changes[place] = label
    row, name = samples.row_numbers[place] or None, samples.names[place]
    plan.outcomes.append(Outcome(row, name, outcome, label, existing))


def _without_sample(annotation: Annotation, problem: str) -> Outcome:
    """Return the outcome of an annotation whose sample was not found. Without a label, it does not matter."""
    name = annotation.id if annotation.id is not None else annotation.sample or ""
    if annotation.is_cancelled or is_missing(annotation.label):
        return Outcome(annotation.row, name, "cancelled" if annotation.is_cancelled else "empty", "", detail=problem)
    return Outcome(annotation.row, name, "missing", annotation.label, detail=problem)


def _refuse_missing(plan: Plan, annotations: Sequence[Annotation], samples: LabeledSamples) -> None:
    """Raise an error if a sample that was labelled is not there."""
    missing = plan.with_outcome("missing")
    if not missing:
        return
    listed = "; ".join(
        f"{Annotation('', '', row=entry.row, sample=entry.sample).sample_in_words} ({entry.detail})"
        for entry in missing[:MOST_LISTED]
    )
    more = f"; and {len(missing) - MOST_LISTED:,} more" if len(missing) > MOST_LISTED else ""
    raise ValueError(
        f"{len(missing):,} of {len(annotations):,} annotations are for samples that are not in {samples.where}: "
        f"{listed}{more}. Nothing was changed. Name the data that the annotators got, or leave these annotations out "
        "with --ignore-missing"
    )


class _Classes:
    """The classes of the data, by each way in which an annotation may write them."""

    def __init__(self, samples: LabeledSamples) -> None:
        self.samples = samples
        self.name_of: Mapping[str, str] = {
            **{choice_text(name): name for name in samples.class_names},
            **{name: name for name in samples.class_names},
        }

    def label(self, text: str) -> str:
        """Return the class that an annotation means, "" if it means "no label"."""
        if is_missing(text, self.samples.class_names, self.samples.unlabeled):
            return ""
        whole = WHOLE_NUMBER.fullmatch(text)
        if text not in self.name_of and whole and whole.group(1) in self.name_of:  # a spreadsheet may write 3 as 3.0
            return self.name_of[whole.group(1)]
        return self.name_of.get(text, text)


def _first_with(label: str, annotations: Sequence[Annotation]) -> str:
    """Return where the first annotation with this label stands."""
    return next((a.where for a in annotations if a.label.strip() == label), "in the annotations")


def _unknown_classes_message(added: list[str], annotations: Sequence[Annotation], samples: LabeledSamples) -> str:
    """Return the error for classes that the data do not have, with classes of a similar name."""
    described = []
    for label in added[:MOST_LISTED]:
        folded = {name.casefold(): name for name in samples.class_names}
        near = [folded[name] for name in get_close_matches(label.casefold(), folded, n=2)]
        hint = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
        described.append(f"{label!r} ({_first_with(label, annotations)}{hint})")
    more = f" and {len(added) - MOST_LISTED} more" if len(added) > MOST_LISTED else ""
    known = ", ".join(samples.class_names[:20]) or "none"
    return (
        f"the annotations have classes that {samples.where} does not have: {'; '.join(described)}{more}. Its classes "
        f"are {known}. Nothing was changed. Correct the annotations, or allow new classes with --new-classes"
    )
