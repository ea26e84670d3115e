"""Try several members on half-labelled samples, choose among them by cross-validation, and combine the chosen ones.

1. Every member predicts labels that it was not fitted to (cross_validation.py).
2. The weights of the members minimise the log-loss of these predictions (combination.py): once for the members that
   use the labels alone, and once for all members.
3. The better of the two combinations is chosen (scores.py). If the pool did harm, the chosen model does not use it.
4. The chosen members are fitted again, to all labels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from mnar.own_data.inspection.label_shift import AtRandomTest, Interval, missing_at_random_test, pool_shares
from mnar.own_data.inspection.probe import OutOfFold
from mnar.own_data.portfolio.combination import combine, combined_weights, logs, out_of_fold_combination
from mnar.own_data.portfolio.cross_validation import (
    FAILURES,
    Folds,
    LeftOut,
    Tried,
    cross_validate,
    first_loss,
    make_folds,
)
from mnar.own_data.portfolio.member import Fitted, Floats, Inputs, Member, Samples, with_shares
from mnar.own_data.portfolio.scores import (
    Comparison,
    CrossValidated,
    Score,
    class_scores,
    compare,
    cross_validated,
    recalls,
    weighted_score,
)
from mnar.own_data.portfolio.threads import one_thread

Objective = Literal["balanced_accuracy", "accuracy"]
OBJECTIVES: tuple[Objective, ...] = ("balanced_accuracy", "accuracy")


class TriedMember(NamedTuple):
    """One line of the table of members."""

    name: str
    description: str
    uses_pool: bool
    weight: float  # in the chosen combination; 0: not chosen
    balanced_accuracy: Score | None  # None: the member was left out
    accuracy: Score | None  # on the pool
    seconds: float
    remark: str = ""  # why the member was left out


@dataclass(frozen=True)
class Choice:
    """What the portfolio chose, and why."""

    objective: Objective
    members: tuple[TriedMember, ...]
    uses_pool: bool
    balanced_accuracy: Score  # of the chosen combination, estimated by cross-validation
    accuracy: Score  # on the pool
    comparison: Comparison | None  # with the labels alone; None: there is no pool, or no member that uses it
    shares: Interval | None  # estimated class shares of the pool; None: there is no pool
    cross_validated: CrossValidated
    recalls: dict[str, list[Score | None]]  # per class, of the chosen combination and of the labels alone
    reason: str
    at_random: AtRandomTest | None = None  # whether labels are missing at random; None: not tested

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the chosen members, the largest weight first."""
        chosen = [member for member in self.members if member.weight > 0]
        return tuple(member.name for member in sorted(chosen, key=lambda member: -member.weight))


@dataclass(frozen=True)
class Portfolio:
    """The chosen members, fitted to all labels."""

    members: tuple[Fitted, ...]
    weights: Floats  # [members]
    shares: Floats  # [k] estimated class shares of the pool
    objective: Objective
    choice: Choice | None = field(default=None, compare=False)  # None: the portfolio was read from a file

    def balanced_probs(self, inputs: Inputs) -> Floats:
        """Return probabilities as if all classes were equally frequent, [n, k]."""
        inputs = inputs._replace(shared={})
        return combine(np.stack([logs(member.probs(inputs)) for member in self.members]), self.weights)

    def pool_probs(self, inputs: Inputs) -> Floats:
        """Return probabilities for samples with the class distribution of the pool, [n, k]."""
        return with_shares(self.balanced_probs(inputs), self.shares)

    def probs(self, inputs: Inputs) -> Floats:
        """Return the probabilities whose arg-max is the prediction."""
        return decided(self.balanced_probs(inputs), self.shares, self.objective)


class Watcher(Protocol):
    """Is told how the choice goes on, and may keep the result of a member to use it again after a stop."""

    def started(self, members: Sequence[Member]) -> None: ...
    def fold_done(self, name: str, done: int, total: int) -> None: ...
    def tried(self, member: TriedMember) -> None: ...
    def load(self, name: str) -> Tried | None: ...
    def keep(self, tried: Tried) -> None: ...


class Silent:
    """A watcher that shows and keeps nothing."""

    def started(self, members: Sequence[Member]) -> None: ...
    def fold_done(self, name: str, done: int, total: int) -> None: ...
    def tried(self, member: TriedMember) -> None: ...
    def load(self, name: str) -> Tried | None:
        return None

    def keep(self, tried: Tried) -> None: ...


def fit_portfolio(
    samples: Samples,
    members: Sequence[Member],
    *,
    objective: Objective = "balanced_accuracy",
    seconds: float = np.inf,
    watcher: Watcher | None = None,
    test_at_random: bool = False,
) -> Portfolio:
    """Choose among the members and fit the chosen ones.

    objective         what the predictions maximise: "balanced_accuracy", where every class counts the same, or
                      "accuracy" on the pool
    seconds           members that would need longer than this in all are left out
    test_at_random    also test whether labels are missing at random, which takes about a second
    """
    watcher, until = watcher or Silent(), time.monotonic() + seconds
    folds = make_folds(samples)
    with nullcontext() if samples.inputs.images is not None else one_thread():
        tried, left_out = try_all(members, samples, folds, until, watcher)
        choice, weights = choose(tried, left_out, members, samples, folds, objective)
        if test_at_random:
            choice = replace(choice, at_random=_at_random_test(tried[int(weights.argmax())], samples, folds))
        by_name = {member.name: member for member in members}
        chosen = [(by_name[t.name], weight) for t, weight in zip(tried, weights, strict=True) if weight > 0]
        fitted = tuple(_fitted_to_all(member, samples) for member, _ in chosen)
    shares = _known_shares(choice.shares, samples)
    return Portfolio(fitted, np.array([weight for _, weight in chosen]), shares, objective, choice)


def _fitted_to_all(member: Member, samples: Samples) -> Fitted:
    """Fit a chosen member to all labels. The cross-validation has fitted it before, so an error is unlikely."""
    try:
        return member.fit(samples)
    except FAILURES as error:
        raise ValueError(
            f"the member {member.name} could not be fitted to all labels ({error}); name another one with --learner"
        ) from error


def decided(balanced_probs: Floats, shares: Floats, objective: Objective) -> Floats:
    """Return the probabilities whose arg-max maximises the objective."""
    return with_shares(balanced_probs, shares) if objective == "accuracy" else balanced_probs


def choose(
    tried: list[Tried],
    left_out: dict[str, str],
    members: Sequence[Member],
    samples: Samples,
    folds: Folds,
    objective: Objective,
) -> tuple[Choice, Floats]:
    """Return the choice, and the weight of each tried member."""
    if not tried:
        reasons = "; ".join(f"{name} {reason}" for name, reason in left_out.items())
        raise ValueError(f"no member of the portfolio could be fitted: {reasons}. Give it more time or more labels")
    num_classes = samples.num_classes
    equal = np.where(samples.counts > 0, 1.0, 0.0) / np.count_nonzero(samples.counts)
    all_members = np.ones(len(tried), bool)
    of_labels = np.array([not t.uses_pool for t in tried])
    has_pool = len(folds.pool) > 0
    with_pool = out_of_fold_combination(tried, folds, equal)
    comparison, alone, uses = None, with_pool, all_members
    if has_pool and of_labels.any() and not of_labels.all():
        alone = out_of_fold_combination([t for t in tried if not t.uses_pool], folds, equal)
        comparison = compare(with_pool, alone, folds.y)
        if comparison.ratio.value < 1:  # the labels alone predict better
            uses = of_labels
    chosen = [t for t, is_used in zip(tried, uses, strict=True) if is_used]
    weights = np.zeros(len(tried))
    weights[uses] = combined_weights(chosen, folds, equal)
    combined = with_pool if uses is all_members else alone

    shares = _estimated_shares(chosen, weights[uses], combined, samples, folds) if has_pool else None
    pool_mix = _known_shares(shares, samples)

    def scores(probs: Floats) -> tuple[Score, Score, list[Score | None]]:
        predicted = _decided_probs(probs, pool_mix, objective).argmax(2)
        values, variances = recalls(predicted, folds.y, num_classes)
        of_classes = class_scores(values, variances)
        return weighted_score(values, variances, equal), weighted_score(values, variances, pool_mix), of_classes

    balanced_accuracy, accuracy, chosen_recalls = scores(combined)
    results = {t.name: (t, weight, scores(t.probs_labeled)) for t, weight in zip(tried, weights, strict=True)}
    lines = []
    for member in members:
        if member.name in results:
            t, weight, (b, a, _) = results[member.name]
            line = TriedMember(member.name, member.description, member.uses_pool, float(weight), b, a, t.seconds)
        else:
            remark = f"left out: {left_out[member.name]}"
            line = TriedMember(member.name, member.description, member.uses_pool, 0.0, None, None, 0.0, remark)
        lines.append(line)
    labels_recalls = {} if comparison is None else {"labels alone": scores(alone)[2]}
    choice = Choice(
        objective=objective,
        members=tuple(lines),
        uses_pool=any(t.uses_pool and weight > 0 for t, weight in zip(tried, weights, strict=True)),
        balanced_accuracy=balanced_accuracy,
        accuracy=accuracy,
        comparison=comparison,
        shares=shares,
        cross_validated=cross_validated(combined, _decided_probs(combined, pool_mix, objective), folds.y, pool_mix),
        recalls={"chosen": chosen_recalls, **labels_recalls},
        reason=_reason(lines, comparison),
    )
    return choice, weights


def try_all(
    members: Sequence[Member], samples: Samples, folds: Folds, until: float, watcher: Watcher
) -> tuple[list[Tried], dict[str, str]]:
    """Cross-validate the members in turn. Return the results, and the reason for each member that is left out."""
    watcher.started(members)
    results, left_out, best_first_loss = list[Tried](), dict[str, str](), np.inf
    for member in members:

        def on_fold(done: int, total: int, name: str = member.name) -> None:
            watcher.fold_done(name, done, total)

        try:
            result = watcher.load(member.name)
            if result is None:
                # The first member may always finish, so that there is a model even if the time is very short.
                limit = until if results else np.inf
                result = cross_validate(
                    member, samples, folds, until=limit, best_first_loss=best_first_loss, on_fold=on_fold
                )
                watcher.keep(result)
        except LeftOut as error:
            left_out[member.name] = str(error)
            remark = f"left out: {error}"
            watcher.tried(TriedMember(member.name, member.description, member.uses_pool, 0.0, None, None, 0.0, remark))
            continue
        best_first_loss = min(best_first_loss, first_loss(result, folds))
        values, variances = recalls(result.probs_labeled.argmax(2), folds.y, samples.num_classes)
        score = weighted_score(values, variances, np.ones(samples.num_classes))
        watcher.tried(TriedMember(member.name, member.description, member.uses_pool, 0.0, score, None, result.seconds))
        results.append(result)
    return results, left_out


def _decided_probs(probs: Floats, pool_mix: Floats, objective: Objective) -> Floats:
    """Apply `decided` to balanced probabilities [repeats, m, k]."""
    return decided(probs.reshape(-1, probs.shape[-1]), pool_mix, objective).reshape(probs.shape)


def _estimated_shares(
    chosen: list[Tried], weights: Floats, combined: Floats, samples: Samples, folds: Folds
) -> Interval:
    """Estimate the class shares of the pool from the combined predictions of the first repeat."""
    labeled_shares = samples.counts / samples.counts.sum()
    pool = np.stack(
        [
            with_shares(
                combine(np.stack([logs(t.probs_pool[j].astype(np.float64)) for t in chosen]), weights), labeled_shares
            )
            for j in range(folds.num_folds)
        ]
    )
    out_of_fold = OutOfFold(with_shares(combined[0], labeled_shares), folds.fold[0], pool.astype(np.float32))
    return pool_shares(out_of_fold, folds.y, seed=samples.seed).em


def _at_random_test(tried: Tried, samples: Samples, folds: Folds) -> AtRandomTest | None:
    """Test with the predictions of one member, the first repeat; None if there is no pool, or no class has labels in
    every fold.

    The predictions of a combination would not do: its weights are fitted to the labels, so its predictions for labelled
    rows and for the pool differ even if labels are missing at random.
    """
    if not len(folds.pool) or samples.counts.max() < folds.num_folds:
        return None
    out_of_fold = OutOfFold(tried.probs_labeled[0], folds.fold[0], tried.probs_pool)
    return missing_at_random_test(out_of_fold, folds.y, seed=samples.seed)


def _known_shares(shares: Interval | None, samples: Samples) -> Floats:
    """Return the shares that Bayes' rule uses: estimated ones, or those of the labels if there is no pool."""
    if shares is not None:
        return shares.for_bayes_rule()
    of_labels: Floats = samples.counts / samples.counts.sum()
    return of_labels


def _reason(lines: Sequence[TriedMember], comparison: Comparison | None) -> str:
    """Say in a sentence what was chosen and why."""
    chosen = sorted((line for line in lines if line.weight > 0), key=lambda line: -line.weight)
    total = sum(line.weight for line in chosen)
    parts = ", ".join(f"{line.name} ({line.weight / total:.0%})" for line in chosen)
    text = (
        f"{parts}: the combination with the lowest log-loss in a cross-validation in which every class counts the same"
    )
    if comparison is not None and comparison.ratio.value < 1:
        text += "; members that use the pool are left out, because the labels alone predict at least as well"
    return text
