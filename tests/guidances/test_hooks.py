"""The hooks of a guidance: nothing by default, called by the learners that name them, passed on by a chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.guidances import GUIDANCES, Chain, Guidance, NoGuidance
from mnar.learners import LEARNERS, Learner
from mnar.types import Batch, Step, Task
from tests.learners.test_contract import (
    BATCH_LABELED,
    BATCH_UNLABELED,
    NUM_CLASSES,
    NUM_UNLABELED,
    make_batch,
    make_model,
)

IN_A_STEP = frozenset({"supervised", "threshold", "pool_logits", "extra_loss"})
HOOKS = IN_A_STEP | {"watch", "refresh", "relabel"}
TASK = Task(NUM_CLASSES, NUM_UNLABELED, torch.tensor([0, 0, 0, 0, 1, 1, 2, 3]), BATCH_LABELED, BATCH_UNLABELED)
GUIDED = [name for name, learner in LEARNERS.items() if learner.is_guided]


def serving(hook: str) -> list[str]:
    return [name for name in GUIDED if hook in LEARNERS[name].hooks]


class Told(Guidance):
    """Does in each hook what it was told, or what is the default, and keeps what it was shown, in order."""

    def __init__(self, task: Task, **told: Callable[..., Any]) -> None:
        super().__init__(task)
        self.told = told
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.calls.append(("forward", (probs, index)))
        rectified: Tensor = self.told["forward"](probs) if "forward" in self.told else probs
        return rectified

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Any:
        return self._called("supervised", logits, y, logits_weak)

    def threshold(self, q: Tensor, tau: float | Tensor) -> Any:
        return self._called("threshold", q, tau)

    def pool_logits(self, logits: Tensor) -> Any:
        return self._called("pool_logits", logits)

    def extra_loss(self, logits: Sequence[Tensor], probs: Tensor, mask: Tensor) -> Any:
        return self._called("extra_loss", logits, probs, mask)

    def _called(self, hook: str, *shown: Any) -> Any:
        self.calls.append((hook, shown))
        return self.told[hook](*shown) if hook in self.told else getattr(Guidance, hook)(self, *shown)

    def shown(self, hook: str) -> tuple[Any, ...]:
        (arguments,) = [arguments for called, arguments in self.calls if called == hook]
        return arguments


def take_step(name: str, **told: Callable[..., Any]) -> tuple[Learner, Told, Batch, Step]:
    """The first step of a learner: the same each time, but for what its guidance does."""
    guidance = Told(TASK, **told)
    learner = LEARNERS[name](TASK, guidance)
    learner.progress.fill_(0.5)  # past the start of every ramp
    torch.manual_seed(0)
    model, batch = make_model(learner), make_batch(learner)
    return learner, guidance, batch, learner(model, batch)


def nobody_predicts(**options: Any) -> Any:
    raise AssertionError("nobody is to ask for predictions")


# ---- by default


def test_by_default_the_labelled_loss_is_cross_entropy_and_no_other_hook_does_anything() -> None:
    guidance, network = NoGuidance(TASK), nn.Linear(3, NUM_CLASSES)
    torch.manual_seed(0)
    logits, logits_weak = torch.randn(5, NUM_CLASSES), torch.randn(7, NUM_CLASSES)
    y, q = torch.tensor([0, 1, 2, 3, 0]), logits_weak.softmax(1)
    expected = -sum(logits[n, label] - logits[n].exp().sum().log() for n, label in enumerate(y)) / 5
    torch.testing.assert_close(guidance.supervised(logits, y, logits_weak), expected)
    per_sample = torch.rand(7)
    assert guidance.threshold(q, 0.95) == 0.95
    assert guidance.threshold(q, per_sample) is per_sample
    assert guidance.pool_logits(logits) is logits
    assert guidance.extra_loss([logits], q, per_sample) is None
    assert guidance.watch(network) is network
    assert guidance.relabel(nobody_predicts, 0) is None
    assert guidance.test_bias(network) is None
    assert (guidance.needs, guidance.generations, guidance.refresh_every) == (frozenset(), 1, 0)


# ---- learners


@pytest.mark.parametrize("name", LEARNERS)
def test_hooks_that_a_learner_names_are_hooks(name: str) -> None:
    assert LEARNERS[name].hooks <= HOOKS


@pytest.mark.parametrize("name", GUIDED)
def test_a_step_calls_each_hook_that_its_learner_names_once_and_no_other(name: str) -> None:
    learner, guidance, _, _ = take_step(name)
    named = [hook for hook, _ in guidance.calls if hook != "forward"]
    assert sorted(named) == sorted(learner.hooks & IN_A_STEP)


@pytest.mark.parametrize("name", serving("supervised"))
def test_the_labelled_loss_comes_first_and_sees_labelled_and_weak_logits_with_gradient(name: str) -> None:
    _, guidance, batch, _ = take_step(name)
    assert [hook for hook, _ in guidance.calls][:2] == ["supervised", "forward"]
    logits, y, logits_weak = guidance.shown("supervised")
    assert (logits.shape, logits_weak.shape) == ((BATCH_LABELED, NUM_CLASSES), (BATCH_UNLABELED, NUM_CLASSES))
    assert logits.requires_grad
    assert logits_weak.requires_grad
    assert torch.equal(y, batch.y)
    probs, _ = guidance.shown("forward")
    assert not probs.requires_grad
    if name != "mean_teacher":  # there pseudo-labels are the teacher's, who has no gradient
        torch.testing.assert_close(logits_weak.softmax(1), probs)


@pytest.mark.parametrize("name", serving("supervised"))
def test_a_labelled_loss_of_zero_leaves_the_rest_of_the_loss(name: str) -> None:
    _, _, _, plain = take_step(name)
    _, _, _, without = take_step(name, supervised=lambda logits, y, logits_weak: 0 * logits.sum())
    assert without.logs["loss/labeled"] == 0
    assert plain.logs["loss/labeled"] > 0.1
    torch.testing.assert_close(without.loss + plain.logs["loss/labeled"], plain.loss)
    others = plain.logs.keys() - {"loss/labeled"}
    assert {other: without.logs[other] for other in others} == {other: plain.logs[other] for other in others}


@pytest.mark.parametrize("name", serving("threshold"))
def test_no_pseudo_label_reaches_a_threshold_of_2_and_every_one_that_of_0(name: str) -> None:
    learner, _, _, none_used = take_step(name, threshold=lambda q, tau: 2.0)
    assert none_used.logs["mask_rate"] == none_used.logs["loss/unlabeled"] == 0
    assert learner.pseudo_labels.tolist() == [-1] * BATCH_UNLABELED
    learner, _, _, all_used = take_step(name, threshold=lambda q, tau: 0.0)
    assert all_used.logs["mask_rate"] == 1
    assert all_used.logs["loss/unlabeled"] > 0
    assert (learner.pseudo_labels >= 0).all()


@pytest.mark.parametrize("name", serving("threshold"))
def test_a_threshold_may_be_one_for_each_pseudo_label_and_is_told_the_learners_own(name: str) -> None:
    learner, guidance, _, step = take_step(name, threshold=lambda q, tau: 2.0 * (torch.arange(len(q)) % 2))
    assert step.logs["mask_rate"] == 0.5
    assert [label >= 0 for label in learner.pseudo_labels.tolist()] == [True, False] * (BATCH_UNLABELED // 2)
    q, tau = guidance.shown("threshold")
    assert q.shape == (BATCH_UNLABELED, NUM_CLASSES)
    torch.testing.assert_close(q.sum(1), torch.ones(BATCH_UNLABELED))
    if name == "flexmatch":  # one for each class, 0 before anything is learnt
        assert tau.tolist() == [0] * BATCH_UNLABELED
    else:
        assert tau == learner.threshold


def test_an_extra_loss_is_added_and_sees_the_pool_logits_the_raw_prediction_and_the_mask() -> None:
    uniform = torch.full((BATCH_UNLABELED, NUM_CLASSES), 1 / NUM_CLASSES)
    told: dict[str, Callable[..., Any]] = {"forward": lambda probs: uniform, "pool_logits": lambda logits: 2 * logits}
    assert serving("extra_loss")
    for name in serving("extra_loss"):
        _, _, _, plain = take_step(name, **told)
        _, guidance, _, step = take_step(name, extra_loss=lambda logits, probs, mask: torch.tensor(0.75), **told)
        torch.testing.assert_close(step.loss, plain.loss + 0.75)
        assert step.logs["loss/extra"] == 0.75
        assert "loss/extra" not in plain.logs
        logits, probs, mask = guidance.shown("extra_loss")
        (before,) = guidance.shown("pool_logits")
        torch.testing.assert_close(logits[0], 2 * before)
        assert probs is guidance.shown("forward")[0]
        assert mask.tolist() == [False] * BATCH_UNLABELED  # no class of a uniform pseudo-label reaches the threshold


@pytest.mark.parametrize("name", GUIDED)
def test_guidance_and_stages_share_the_progress_of_the_learner_even_after_a_move(name: str) -> None:
    chain = Chain(Told(TASK), Told(TASK))
    learner = LEARNERS[name](TASK, chain).to(torch.float64)
    learner.progress.fill_(0.25)
    assert [part.progress.item() for part in (chain, *chain.stages)] == [0.25] * 3


@pytest.mark.parametrize("name", serving("pool_logits"))
def test_flat_pool_logits_make_the_unlabelled_loss_that_of_a_network_without_an_opinion(name: str) -> None:
    told: dict[str, Callable[..., Any]] = {
        "forward": lambda probs: torch.full_like(probs, 1 / NUM_CLASSES),
        "threshold": lambda q, tau: 0.0,
    }
    _, _, _, plain = take_step(name, **told)
    _, guidance, _, flat = take_step(name, pool_logits=lambda logits: 0 * logits, **told)
    squared_distance = name in ("pi_model", "mean_teacher")
    expected = 0 if squared_distance else math.log(NUM_CLASSES)
    assert flat.logs["loss/unlabeled"].item() == pytest.approx(expected, abs=1e-6)
    assert plain.logs["loss/unlabeled"].item() != pytest.approx(expected, abs=1e-5)
    others = plain.logs.keys() - {"loss/unlabeled"}
    assert {other: flat.logs[other] for other in others} == {other: plain.logs[other] for other in others}
    (logits,) = guidance.shown("pool_logits")
    assert logits.requires_grad
    assert logits.shape[-2:] == (BATCH_UNLABELED, NUM_CLASSES)


def needing(*hooks: str) -> Guidance:
    return type("Needing", (Told,), {"needs": frozenset(hooks)})(TASK)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("name", "hook"), list(product(GUIDED, sorted(HOOKS))))
def test_a_guidance_is_refused_by_a_learner_that_does_not_call_what_it_needs_and_by_no_other(
    name: str, hook: str
) -> None:
    guidances = [needing(hook), Chain(NoGuidance(TASK), needing(hook))]
    for guidance in guidances:
        if hook in LEARNERS[name].hooks:
            assert LEARNERS[name](TASK, guidance).guidance is guidance
        else:
            with pytest.raises(ValueError, match=rf"{LEARNERS[name].__name__} does not support .* \({hook}\); choose"):
                LEARNERS[name](TASK, guidance)


@pytest.mark.parametrize("name", sorted(GUIDANCES))
def test_a_guidance_needs_only_hooks_that_it_has_and_those_that_the_loop_calls_for_it(name: str) -> None:
    guidance = GUIDANCES[name](TASK)
    assert guidance.needs <= HOOKS
    assert all(getattr(type(guidance), hook) is not getattr(Guidance, hook) for hook in guidance.needs)
    assert guidance.generations == 1 or "relabel" in guidance.needs
    assert guidance.refresh_every == 0 or "refresh" in guidance.needs


# ---- chains


class Changing(Guidance):
    """Changes whatever passes through it."""

    def __init__(self, change: Callable[[Any], Any], calls: list[Any]) -> None:
        super().__init__(TASK)
        self.change, self.calls = change, calls

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        return probs

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        self.calls.append((self, samples, view))

    def watch(self, network: nn.Module) -> nn.Module:
        return Changed(network, self.change)

    def threshold(self, q: Tensor, tau: float | Tensor) -> Any:
        return self.change(tau)

    def pool_logits(self, logits: Tensor) -> Any:
        return self.change(logits)


class Changed(nn.Module):
    def __init__(self, network: nn.Module, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.network, self.change = network, change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.network(x))


def test_a_chain_passes_threshold_logits_and_network_through_its_stages_and_prepares_them_in_order() -> None:
    prepared = list[Any]()
    one_more, twice = Changing(lambda value: value + 1, prepared), Changing(lambda value: value * 2, prepared)
    q, x = torch.full((2, NUM_CLASSES), 1 / NUM_CLASSES), torch.tensor([[3.0, 5.0]])
    for chain, of_half, of_x in (
        (Chain(one_more, twice), 3.0, [[8.0, 12.0]]),
        (Chain(twice, one_more), 2.0, [[7.0, 11.0]]),
    ):
        assert chain.threshold(q, 0.5) == of_half
        assert chain.pool_logits(x).tolist() == of_x
        assert chain.watch(nn.Identity())(x).tolist() == of_x
    Chain(twice, one_more).prepare(x, torch.neg)
    assert prepared == [(twice, x, torch.neg), (one_more, x, torch.neg)]


def deciding(name: str, hook: str, **attributes: Any) -> Guidance:
    """A guidance that does nothing but answer one hook, with its name and what it was shown."""

    def decide(self: Guidance, *shown: Any) -> Any:
        self.asked = (name, *shown)  # type: ignore[assignment]
        return self.asked

    return type(name, (NoGuidance,), {hook: decide, "needs": frozenset({hook}), **attributes})(TASK)  # type: ignore[no-any-return]


DECIDED = {
    "supervised": (torch.zeros(2, 4), torch.zeros(2), torch.zeros(3, 4)),
    "refresh": (),
    "relabel": (nobody_predicts, 3),
}


@pytest.mark.parametrize("hook", DECIDED)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_chain_asks_the_stage_that_decides_wherever_it_stands(hook: str, position: int) -> None:
    stages: list[Guidance] = [NoGuidance(TASK), NoGuidance(TASK)]
    deciding_stage = deciding("First", hook)
    stages.insert(position, deciding_stage)
    answer = getattr(Chain(*stages), hook)(*DECIDED[hook])
    expected = ("First", *DECIDED[hook])
    assert all(one is other for one, other in zip(deciding_stage.asked, expected, strict=True))  # type: ignore[arg-type]
    assert answer is (None if hook == "refresh" else deciding_stage.asked)


@pytest.mark.parametrize("hook", DECIDED)
def test_two_stages_that_both_decide_are_refused_with_their_names_and_the_hook(hook: str) -> None:
    first, second, idle = deciding("First", hook), deciding("Second", hook), NoGuidance(TASK)
    for stages in ((first, second), (first, idle, second), (Chain(first, idle), Chain(idle, second))):
        with pytest.raises(ValueError, match=f"First and Second cannot be chained: each wants to decide '{hook}'"):
            Chain(*stages)


@pytest.mark.parametrize("other", ["supervised", "relabel"])
def test_stages_that_decide_different_hooks_go_together(other: str) -> None:
    stages = [deciding(hook.title(), hook) for hook in ("refresh", other)]
    chain = Chain(*stages)
    for stage, hook in zip(stages, ("refresh", other), strict=True):
        getattr(chain, hook)(*DECIDED[hook])
        assert stage.asked[0] == hook.title()  # type: ignore[index]


def test_one_that_changes_the_labels_and_one_that_knows_those_given_are_refused_with_their_names() -> None:
    for first, second in (("relabel", "supervised"), ("supervised", "relabel")):
        with pytest.raises(ValueError, match=f"{first.title()} and {second.title()} cannot be chained: one changes"):
            Chain(deciding(first.title(), first), deciding(second.title(), second))


def test_the_biases_of_a_chains_stages_add_up() -> None:
    def biased(value: float) -> Guidance:
        return type("Biased", (NoGuidance,), {"test_bias": lambda self, network: torch.full((4,), value)})(TASK)  # type: ignore[no-any-return]

    bias = Chain(biased(1.0), NoGuidance(TASK), biased(2.0)).test_bias(nn.Identity())
    assert bias is not None
    assert bias.tolist() == [3.0] * 4


def test_a_chain_without_a_stage_that_decides_does_as_by_default() -> None:
    chain = Chain(NoGuidance(TASK), NoGuidance(TASK))
    logits, y = torch.randn(3, NUM_CLASSES), torch.tensor([0, 1, 2])
    assert torch.equal(chain.supervised(logits, y, logits), F.cross_entropy(logits, y))
    assert chain.relabel(nobody_predicts, 0) is None
    assert chain.test_bias(nn.Identity()) is None
    assert (chain.needs, chain.generations, chain.refresh_every, chain.refresh_from) == (frozenset(), 1, 0, 0.0)


def test_a_chain_within_a_chain_is_one_chain() -> None:
    a, b, c, d = (GUIDANCES["prg"](TASK) for _ in range(4))
    nested, flat = Chain(Chain(a, Chain(b, c)), d), Chain(a, b, c, d)
    assert list(nested.stages) == [a, b, c, d]
    assert nested.state_dict().keys() == flat.state_dict().keys()


def test_a_chain_needs_what_any_of_its_stages_needs() -> None:
    both = [type("Needing", (NoGuidance,), {"needs": frozenset(hooks)})(TASK) for hooks in ("ab", "bc")]
    assert Chain(*both).needs == {"a", "b", "c"}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_chain_begins_anew_and_is_refreshed_as_often_as_the_stages_that_do(reverse: bool) -> None:
    stages = [
        deciding("Generations", "relabel", generations=6),
        deciding("Refreshed", "refresh", refresh_every=10, refresh_from=0.4),
        NoGuidance(TASK),
    ]
    chain = Chain(*(reversed(stages) if reverse else stages))
    assert (chain.generations, chain.refresh_every, chain.refresh_from) == (6, 10, 0.4)
