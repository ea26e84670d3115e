"""What every guidance promises, over the table of all of them: a new one is tested by its table line."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.guidances import DARP, GUIDANCES, PRG, BalancedPRG, Chain, Guidance, NoGuidance
from mnar.learners.learner import HOOKS
from mnar.report.matrices import CONFUSIONS
from mnar.types import Task
from tests.support.equality import assert_same

NUM_CLASSES, NUM_UNLABELED, BATCH = 4, 30, 12


def make_task() -> Task:
    targets = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3])
    return Task(NUM_CLASSES, NUM_UNLABELED, targets, batch_labeled=5, batch_unlabeled=BATCH)


def batches(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches whose indices repeat across and within them; every other one is not full."""
    generator = torch.Generator().manual_seed(seed)
    for n in range(count):
        size = BATCH - n % 2
        logits = 2 * torch.randn(size, NUM_CLASSES, generator=generator)
        yield logits.softmax(1), torch.randint(NUM_UNLABELED, (size,), generator=generator)


@pytest.fixture(params=sorted(GUIDANCES))
def guidance(request: pytest.FixtureRequest) -> Guidance:
    return GUIDANCES[request.param](make_task())


def test_a_guidance_is_a_module_without_parameters(guidance: Guidance) -> None:
    assert isinstance(guidance, Guidance)
    assert list(guidance.parameters()) == []


def test_every_row_of_the_output_is_a_distribution_without_gradient(guidance: Guidance) -> None:
    for probs, index in batches(8):
        q = guidance(probs.requires_grad_(), index)
        assert q.shape == probs.shape
        assert q.dtype == torch.float32
        assert not q.requires_grad
        assert torch.isfinite(q).all()
        assert (q >= 0).all()
        torch.testing.assert_close(q.sum(1), torch.ones(len(q)), atol=1e-5, rtol=0)


def test_a_guidance_leaves_its_input_as_it_was(guidance: Guidance) -> None:
    for probs, index in batches(4):
        probs_before, index_before = probs.clone(), index.clone()
        guidance(probs, index)
        assert torch.equal(probs, probs_before)
        assert torch.equal(index, index_before)


@pytest.mark.parametrize("name", sorted(GUIDANCES))
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(name: str) -> None:
    with FakeTensorMode():  # without a ShapeEnv: .item(), nonzero, bincount and boolean masks raise
        guidance = GUIDANCES[name](make_task())
        index = torch.arange(BATCH)
        for _ in range(2):
            q = guidance(torch.rand(BATCH, NUM_CLASSES).softmax(1), index)
            assert q.shape == (BATCH, NUM_CLASSES)


@pytest.mark.parametrize("name", sorted(GUIDANCES))
def test_a_guidance_compiles_as_one_graph(name: str) -> None:
    torch.compiler.reset()
    plain, compiled = GUIDANCES[name](make_task()), GUIDANCES[name](make_task())
    compiled.compile(fullgraph=True, dynamic=False, backend="eager")  # as the engine does on a GPU, but for the backend
    for probs, index in list(batches(4))[::2]:
        torch.testing.assert_close(compiled(probs, index), plain(probs, index))


def test_a_guidance_needs_every_hook_that_it_acts_by(guidance: Guidance) -> None:
    """Or a learner that does not call it would use half of the method without a word."""
    overridden = {hook for hook in HOOKS if getattr(type(guidance), hook) is not getattr(Guidance, hook)}
    optional = {
        DARP: {"supervised"},  # DARP only looks at the labels, and only for an estimate
        BalancedPRG: {"threshold"},  # a learner without a threshold uses all pseudo-labels anyway
    }
    assert guidance.needs == overridden - optional.get(type(guidance), set())


def test_buffers_change_in_place_so_a_captured_graph_finds_them(guidance: Guidance) -> None:
    addresses = {name: buffer.data_ptr() for name, buffer in guidance.named_buffers()}
    for probs, index in batches(4):
        guidance(probs, index)
    assert {name: buffer.data_ptr() for name, buffer in guidance.named_buffers()} == addresses


@pytest.mark.parametrize("name", sorted(GUIDANCES))
def test_state_dict_into_a_fresh_guidance_continues_bit_for_bit(name: str) -> None:
    guidance, resumed = GUIDANCES[name](make_task()), GUIDANCES[name](make_task())
    history = list(batches(10))
    for probs, index in history[:5]:
        guidance(probs, index)
    resumed.load_state_dict(copy.deepcopy(guidance.state_dict()))
    for probs, index in history[5:]:
        assert torch.equal(guidance(probs, index), resumed(probs, index))


def test_matrices_are_class_by_class_and_estimates_have_one_value_per_class(guidance: Guidance) -> None:
    """The report draws all of them; the names of the confusions are taken."""
    for probs, index in batches(4):
        guidance(probs, index)
    for name, matrix in guidance.matrices().items():
        assert matrix.shape == (NUM_CLASSES, NUM_CLASSES), name
        assert name not in CONFUSIONS
    for name, estimate in guidance.estimates().items():
        assert estimate.shape == (NUM_CLASSES,), name
        assert torch.isfinite(estimate).all(), name


def cannot_be_chained(first: str, second: str) -> bool:
    """Whether both guidances decide the same thing, or one changes the labels that the other one uses."""
    one, other = (GUIDANCES[name](make_task()).needs for name in (first, second))
    return bool(one & other & {"supervised", "refresh", "relabel"}) or {"relabel", "supervised"} <= one | other


PAIRS = [*product(sorted(GUIDANCES), repeat=2)]
REFUSED = [{*pair} for pair in PAIRS if pair[0] <= pair[1] and cannot_be_chained(*pair)]


def test_the_guidances_of_this_package_that_cannot_be_chained_are_these() -> None:
    known = {"cadr", "cdmad", "crest", "crest_plus", "darp", "distribution_alignment", "prg", "prg_last", "simpro"}
    known |= {"adello", "none", "prg_balanced", "prg_smooth", "tracking"}
    with_a_labeled_loss = ("adello", "cadr", "prg_balanced", "simpro")
    expected = [
        *({one, other} for one, other in product(with_a_labeled_loss, repeat=2) if one <= other),
        {"darp"},
        {"crest"},
        {"crest_plus"},
        {"crest", "crest_plus"},
        *({relabeling, given} for relabeling in ("crest", "crest_plus") for given in with_a_labeled_loss),
    ]
    found = [pair for pair in REFUSED if pair <= known]
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


@pytest.mark.parametrize("pair", REFUSED, ids=sorted)
def test_a_chain_of_two_that_cannot_both_be_themselves_is_refused(pair: set[str]) -> None:
    first, second = min(pair), max(pair)
    with pytest.raises(ValueError, match="cannot be chained"):
        Chain(GUIDANCES[first](make_task()), GUIDANCES[second](make_task()))


@pytest.mark.parametrize(("first", "second"), [pair for pair in PAIRS if set(pair) not in REFUSED])
def test_chain_is_the_second_guidance_of_the_first_ones_output(first: str, second: str) -> None:
    a, b = GUIDANCES[first](make_task()), GUIDANCES[second](make_task())
    chain = Chain(copy.deepcopy(a), copy.deepcopy(b))
    assert isinstance(chain, Guidance)
    for probs, index in batches(4):
        assert torch.equal(chain(probs, index), b(a(probs, index), index))


def test_state_of_a_chain_holds_the_state_of_its_parts() -> None:
    chain, resumed = (Chain(PRG(make_task()), PRG(make_task(), last=True)) for _ in range(2))
    history = list(batches(10))
    for probs, index in history[:5]:
        chain(probs, index)
    resumed.load_state_dict(copy.deepcopy(chain.state_dict()))
    for probs, index in history[5:]:
        assert torch.equal(chain(probs, index), resumed(probs, index))


def test_a_chain_numbers_a_name_that_a_stage_before_has() -> None:
    task = make_task()
    first, second, third = PRG(task), NoGuidance(task), PRG(task, last=True)
    chain = Chain(first, second, third)
    for probs, index in batches(6):
        chain(probs, index)
    names = {"empty_row_share", "transitions", "empty_row_share_3", "transitions_3"}
    assert set(chain.logs()) == names
    assert set(chain.matrices()) == {"transitions", "transitions_3"}
    assert torch.equal(chain.matrices()["transitions"], first.transitions)
    assert torch.equal(chain.matrices()["transitions_3"], third.transitions)
    assert not torch.equal(first.transitions, third.transitions), "two that can be told apart"


@pytest.mark.parametrize("other", [{"num_classes": NUM_CLASSES + 1}, {"num_unlabeled": NUM_UNLABELED + 1}])
def test_a_chain_of_guidances_of_other_tasks_is_refused_with_both(other: dict[str, Any]) -> None:
    stages = [PRG(make_task()), PRG(make_task()._replace(**other))]
    with pytest.raises(ValueError, match=rf"other tasks: .*\({NUM_CLASSES}, {NUM_UNLABELED}\)"):
        Chain(*stages)


def test_an_index_of_either_size_gives_the_same(guidance: Guidance) -> None:
    other = copy.deepcopy(guidance)
    for probs, index in batches(8):
        assert torch.equal(guidance(probs, index), other(probs, index.int()))
    assert_same(other.state_dict(), guidance.state_dict())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.bool, torch.float32])
def test_an_index_of_another_type_is_refused_by_those_who_look_at_it(dtype: torch.dtype) -> None:
    for probs, index in batches(1):
        with pytest.raises(ValueError, match=f"type {dtype}; expected {BATCH} integers"):
            PRG(make_task())(probs, index.to(dtype))


def test_no_guidance_returns_the_probabilities_it_was_given() -> None:
    guidance = NoGuidance(make_task())
    for probs, index in batches(2):
        assert torch.equal(guidance(probs, index), probs)
