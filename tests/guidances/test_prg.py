"""PRG against golden numbers, a literal oracle, and what must hold whatever the input."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from mnar.guidances import GUIDANCES, PRG
from mnar.types import Task
from tests.reference.prg import LiteralPRG

FIXTURES = json.loads((Path(__file__).parents[1] / "fixtures" / "published_numbers.json").read_text())
GOLDEN = {
    "code/prg": {"alpha": 1.0, "last": False},
    "code/last": {"alpha": 1.0, "last": True},
    "code/prg/alpha3": {"alpha": 3.0, "last": False},
}
NUM_UNLABELED, BATCH = 37, 16  # so few that indices repeat across and within batches
few_examples = settings(max_examples=40, deadline=None, database=None)

Sequence = list[tuple[Tensor, Tensor]]


def make_prg(num_classes: int, **options: Any) -> PRG:
    return PRG(Task(num_classes, NUM_UNLABELED, batch_unlabeled=BATCH), **options)


def rows_to_sum_one(matrix: Any) -> Tensor:
    rows = torch.as_tensor(matrix, dtype=torch.float64)
    return rows / rows.sum(-1, keepdim=True)


def random_batches(num_classes: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """From flat to very sharp predictions, in batches of any size up to the largest."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, BATCH + 1, (count,), generator=generator).tolist()
    sharpness = 8 * torch.rand(count, BATCH, 1, generator=generator)
    probs = (sharpness * torch.randn(count, BATCH, num_classes, generator=generator)).softmax(2)
    index = torch.randint(NUM_UNLABELED, (count, BATCH), generator=generator)
    for n, size in enumerate(sizes):
        yield probs[n, :size], index[n, :size]


def bank_of(prg: PRG) -> Tensor:
    return prg.bank[:NUM_UNLABELED].long()  # without the spare rows that it may end with


def state_of(prg: PRG) -> dict[str, Tensor]:
    return copy.deepcopy(prg.state_dict())


def assert_same_state(state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert state.keys() == other.keys()
    for name, value in state.items():
        assert torch.equal(value, other[name]), name


# Golden numbers. The published code keeps one batch fewer in C than in L: three of a window of four, so with
# three batches nothing has been dropped yet and its numbers are also those of a full window.


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("build", [make_prg, LiteralPRG])
def test_prg_and_its_oracle_equal_the_golden_numbers(build: Callable[..., Any], name: str) -> None:
    guidance = build(3, window=4, **GOLDEN[name])
    for batch, golden in zip(FIXTURES["inputs"]["prg_batches"], FIXTURES["prg"][name], strict=True):
        before = guidance.guidance_matrix()
        q = torch.as_tensor(guidance(torch.tensor(batch["probs"]), torch.tensor(batch["index"])))
        used = before if GOLDEN[name]["last"] else guidance.guidance_matrix()
        assert_close(q.double(), torch.tensor(golden["p_tilde"]).double(), atol=1e-6, rtol=0)
        assert q.argmax(1).tolist() == golden["hard"]
        assert (q.amax(1) >= 0.95).int().tolist() == golden["mask"]
        if golden["Hp"] is not None:
            assert_close(rows_to_sum_one(used), rows_to_sum_one(golden["Hp"]), atol=1e-6, rtol=0)


# The literal algorithm


def assert_equals_the_literal_algorithm(num_classes: int, count: int, **options: Any) -> None:
    prg, literal = make_prg(num_classes, **options), LiteralPRG(num_classes, **options)
    outputs, expected_outputs, usages, expected_usages = [], [], [], []
    for probs, index in random_batches(num_classes, count):
        outputs.append(prg(probs, index))
        expected_outputs.append(torch.from_numpy(literal(probs, index)))
        usages.append(prg.class_usage.clone())
        expected_usages.append(torch.from_numpy(literal.class_usage))
        assert prg.transitions.tolist() == literal.transitions.tolist()
        assert bank_of(prg).tolist() == [literal.bank.get(i, -1) for i in range(NUM_UNLABELED)]

    q, expected = torch.cat(outputs).double(), torch.cat(expected_outputs)
    assert_close(q, expected, atol=1e-5, rtol=0)
    largest = expected.topk(2).values
    clear = largest[:, 0] - largest[:, 1] > 1e-5
    assert torch.equal(q.argmax(1)[clear], expected.argmax(1)[clear])
    usage, expected_usage = (
        rows_to_sum_one(torch.stack(usages)),
        rows_to_sum_one(torch.stack(expected_usages)),
    )
    assert_close(usage, expected_usage, atol=1e-5, rtol=0)
    if options.get("steps", 1) == 1:
        tracked = prg.transitions.sum(1) > 0  # "identity" says what an empty row does, not what H' shows there
        matrix, expected_matrix = prg.guidance_matrix()[tracked], literal.guidance_matrix()[tracked.numpy()]
        assert_close(rows_to_sum_one(matrix), rows_to_sum_one(expected_matrix), atol=1e-5, rtol=0)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("window", [1, 5, 128])
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_prg_equals_the_literal_algorithm_over_500_steps(num_classes: int, window: int, last: bool) -> None:
    assert_equals_the_literal_algorithm(num_classes, 500, window=window, last=last)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("rescale", "steps", "usage", "empty_row"),
    list(itertools.product([True, False], [1, 2, 5], ["soft", "hard"], ["onehot", "identity"])),
)
def test_every_option_equals_the_literal_algorithm(
    rescale: bool, steps: int, usage: str, empty_row: str, last: bool
) -> None:
    options: dict[str, Any] = {"rescale": rescale, "steps": steps, "usage": usage, "empty_row": empty_row}
    assert_equals_the_literal_algorithm(10, 40, window=3, last=last, **options)
    assert_equals_the_literal_algorithm(3, 40, window=1, last=last, alpha=0.3, **options)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 3.0, 50.0])
def test_every_alpha_equals_the_literal_algorithm(alpha: float, last: bool) -> None:
    assert_equals_the_literal_algorithm(3, 60, window=5, alpha=alpha, last=last)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("steps", [2, 5, 50])
def test_the_guidance_matrix_is_finite_even_where_no_walk_leads_anywhere(steps: int, rescale: bool) -> None:
    prg = make_prg(3, alpha=0.0, steps=steps, rescale=rescale)
    assert torch.isfinite(prg.guidance_matrix()).all(), "before the first batch"
    for probs, index in random_batches(3, 10):
        prg(probs, index)
        assert torch.isfinite(prg.guidance_matrix()).all()


def test_prg_last_preset_is_prg_with_last_and_alpha_3() -> None:
    task = Task(3, NUM_UNLABELED, batch_unlabeled=BATCH)
    preset, with_alpha_1 = GUIDANCES["prg_last"](task), GUIDANCES["prg_last"](task, alpha=1.0)
    expected, expected_1 = PRG(task, last=True, alpha=3.0), PRG(task, last=True, alpha=1.0)
    for probs, index in random_batches(3, 20):
        assert torch.equal(preset(probs, index), expected(probs, index))
        assert torch.equal(with_alpha_1(probs, index), expected_1(probs, index))


# Properties


@st.composite
def sequences(draw: st.DrawFn, num_classes: int = 4) -> Sequence:
    """A few batches in which every prediction is clear, at indices that often repeat."""
    weights = st.lists(st.integers(1, 9), min_size=num_classes, max_size=num_classes)
    samples = st.tuples(st.integers(0, 5), st.integers(0, num_classes - 1), weights)
    batches = draw(st.lists(st.lists(samples, min_size=1, max_size=8), min_size=1, max_size=6))
    sequence = []
    for batch in batches:
        probs = torch.tensor([weights for _, _, weights in batch], dtype=torch.float32)
        for p, (_, prediction, _) in zip(probs, batch, strict=True):
            p[prediction] += 10
        sequence.append((probs / probs.sum(1, keepdim=True), torch.tensor([i for i, _, _ in batch])))
    return sequence


@few_examples
@given(sequences(), st.booleans(), st.sampled_from([1, 2, 128]))
def test_rows_sum_to_one_and_c_has_no_diagonal_and_at_most_window_times_batch_moves(
    sequence: Sequence, last: bool, window: int
) -> None:
    prg = make_prg(4, last=last, window=window)
    for probs, index in sequence:
        q = prg(probs.requires_grad_(), index)
        assert not q.requires_grad
        assert_close(q.sum(1), torch.ones(len(q)))
        assert (prg.transitions >= 0).all()
        assert prg.transitions.diagonal().tolist() == [0, 0, 0, 0]
        assert prg.transitions.sum() <= window * max(len(index) for _, index in sequence)


@few_examples
@given(sequences(), st.booleans())
def test_a_factor_on_l_changes_nothing(sequence: Sequence, last: bool) -> None:
    """Each sample twice in a row doubles the hard counts and moves nothing between classes."""
    prg, doubled = (make_prg(4, last=last, usage="hard") for _ in range(2))
    for probs, index in sequence:
        q = prg(probs, index)
        q_doubled = doubled(probs.repeat_interleave(2, 0), index.repeat_interleave(2))
        assert torch.equal(prg.transitions, doubled.transitions)
        assert_close(q_doubled[1::2], q)


@few_examples
@given(sequences(), st.booleans())
def test_first_visits_count_nothing_and_replayed_predictions_add_nothing(sequence: Sequence, last: bool) -> None:
    prg = make_prg(4, last=last)
    for visit, (probs, _) in enumerate(sequence[:4]):
        q = prg(probs, 8 * visit + torch.arange(len(probs)))
        assert prg.transitions.sum() == 0
        assert torch.equal(q, probs if last else one_hot(probs.argmax(1), 4).float())
    for probs, index in sequence:
        prg(probs, index)
        counted = prg.transitions.clone()
        latest = bank_of(prg)[index]
        prg(one_hot(latest, 4) * 0.9 + 0.025, index)
        assert torch.equal(prg.transitions, counted)


@few_examples
@given(sequences(), st.booleans())
def test_alpha_to_infinity_is_one_hot_at_the_row_class(sequence: Sequence, last: bool) -> None:
    prg = make_prg(4, last=last, alpha=1e12)
    for probs, index in sequence:
        rows = bank_of(prg)[index] if last else probs.argmax(1)
        q = prg(probs, index)
        seen = rows >= 0
        assert_close(q[seen], one_hot(rows[seen], 4).float())
        assert torch.equal(q[~seen], probs[~seen])


@few_examples
@given(sequences())
def test_classes_without_a_recorded_transition_from_the_row_get_zero(sequence: Sequence) -> None:
    prg = make_prg(4)
    for probs, index in sequence:
        q = prg(probs, index)
        rows = probs.argmax(1)
        reachable = (prg.transitions + torch.eye(4))[rows] > 0
        assert torch.equal(q > 0, reachable)


@pytest.mark.parametrize(
    ("num_classes", "alpha", "destinations", "count_i", "count_j", "threshold"),
    [
        (10, 1.0, 1, 8, 8, 1 / 9),
        (10, 1.0, 2, 8, 8, 2 / 9),
        (10, 1.0, 2, 30, 3, 0.2 / 9),
        (10, 3.0, 2, 8, 8, 6 / 9),
        (100, 1.0, 5, 8, 8, 5 / 99),
    ],
)
def test_the_label_flips_where_the_threshold_formula_says(
    num_classes: int, alpha: float, destinations: int, count_i: int, count_j: int, threshold: float
) -> None:
    """One move from class 0 to each of `destinations` classes; hard counts: L_0 = count_i, L_1 = count_j."""
    moves = list(range(1, destinations + 1))
    fresh = [0] * (count_i - 1 - destinations) + [1] * (count_j - 1)  # first visits: they count in L only
    visits = [(i, 0) for i in range(destinations)] + list(enumerate(moves)) + list(enumerate(fresh, start=5))
    history = PRG(Task(num_classes, 50, batch_unlabeled=BATCH), alpha=alpha, usage="hard")
    for i, prediction in visits:
        history(torch.eye(num_classes)[[prediction]], torch.tensor([i]))

    def flips(ratio: float) -> bool:
        probe = torch.zeros(1, num_classes)
        probe[0, 0], probe[0, 1] = 1, ratio
        label = copy.deepcopy(history)(probe / probe.sum(), torch.tensor([49])).argmax()
        return int(label) == 1

    assert not flips(0.999 * threshold)
    assert flips(1.001 * threshold)


def test_zero_mass_falls_back_to_the_prediction_and_a_tiny_mass_does_not() -> None:
    prg = make_prg(3, last=True)
    index = torch.tensor([4, 9])
    prg(torch.eye(3)[[0, 0]], index)
    probs = torch.tensor([[0.0, 0.7, 0.3], [1e-20, 0.7, 0.3]])
    assert torch.equal(prg(probs, index), torch.tensor([[0.0, 0.7, 0.3], [1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
def test_half_precision_probabilities_are_handled_in_float32(dtype: torch.dtype, last: bool) -> None:
    prg, expected = make_prg(3, last=last), make_prg(3, last=last)
    for probs, index in random_batches(3, 20):
        q = prg(probs.to(dtype), index)
        assert q.dtype == torch.float32
        assert torch.equal(q, expected(probs.to(dtype).float(), index))


# Class shares of the pool other than uniform ones


@pytest.mark.parametrize("last", [False, True])
def test_given_pool_shares_equal_the_literal_walk_times_pi(last: bool) -> None:
    pi = (0.5, 0.3, 0.2)
    prg, literal = make_prg(3, pool_shares=pi, window=5, last=last), LiteralPRG(3, pool_shares=pi, window=5, last=last)
    for probs, index in random_batches(3, 60):
        assert_close(prg(probs, index).double(), torch.from_numpy(literal(probs, index)), atol=1e-5, rtol=0)
        matrix, expected = prg.guidance_matrix(), literal.guidance_matrix()
        assert_close(rows_to_sum_one(matrix), rows_to_sum_one(expected), atol=1e-5, rtol=0)


def test_labelled_pool_shares_are_the_class_distribution_of_the_labels() -> None:
    task = Task(3, NUM_UNLABELED, torch.tensor([0, 0, 0, 1, 2]), batch_unlabeled=BATCH)
    labeled, given = PRG(task, pool_shares="labeled"), PRG(task, pool_shares=(3.0, 1.0, 1.0))
    for probs, index in random_batches(3, 20):
        assert torch.equal(labeled(probs, index), given(probs, index))


def test_equal_pool_shares_are_plain_prg() -> None:
    equal, prg = make_prg(3, pool_shares=(2.0, 2.0, 2.0)), make_prg(3)
    for probs, index in random_batches(3, 20):
        assert_close(equal(probs, index), prg(probs, index))


# State


@pytest.mark.parametrize("options", [{}, {"last": True}, {"usage": "hard", "steps": 2}])
def test_state_dict_in_the_middle_of_a_sequence_continues_bit_for_bit(options: dict[str, Any]) -> None:
    prg, resumed = make_prg(3, window=5, **options), make_prg(3, window=5, **options)
    history = list(random_batches(3, 40))
    for probs, index in history[:18]:
        prg(probs, index)
    resumed.load_state_dict(state_of(prg))
    for probs, index in history[18:]:
        assert torch.equal(prg(probs, index), resumed(probs, index))
    assert_same_state(state_of(prg), state_of(resumed))


def test_state_is_what_the_next_batch_needs_and_no_log() -> None:
    assert set(make_prg(3).state_dict()) == {"bank", "counts", "events", "usage_ring", "batches"}


def test_state_at_1000_classes_is_at_most_20_megabytes() -> None:
    prg = PRG(Task(1000, 50_000, batch_unlabeled=448))
    assert list(prg.parameters()) == []
    assert sum(buffer.nbytes for buffer in prg.buffers()) <= 20e6


class Operations(TorchDispatchMode):
    """Counts the operations that compute something. On a GPU, each of them launches at least one kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and "empty" not in func.name() and "detach" not in func.name():
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_full_batch_takes_at_most_52_operations_because_each_costs_2_microseconds_on_a_gpu() -> None:
    prg = PRG(Task(10, 1000, batch_unlabeled=64))
    probs, index = torch.rand(64, 10).softmax(1), torch.arange(64)
    prg(probs, index)
    with Operations() as counted:
        prg(probs, index)
        prg.logs()
    assert len(counted.names) <= 52, counted.names


# Bad input


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"window": 0}, "0"),
        ({"window": -3}, "-3"),
        ({"alpha": -0.5}, "-0.5"),
        ({"alpha": math.nan}, "nan"),
        ({"steps": 0}, "0"),
        ({"usage": "medium"}, "medium"),
        ({"empty_row": "ones"}, "ones"),
        ({"num_classes": 1}, "1"),
    ],
)
def test_a_bad_option_is_an_error_that_names_it_and_its_value(options: dict[str, Any], named: str) -> None:
    (option,) = options
    with pytest.raises(ValueError, match=rf"(?s){option}.*{named}|{named}.*{option}"):
        make_prg(**{"num_classes": 3, **options})


@pytest.mark.parametrize(
    ("probs", "index", "error", "named"),
    [
        (torch.full((2, 4), 0.25), torch.tensor([0, 1]), ValueError, "4"),
        (torch.full((3,), 1 / 3), torch.tensor([0, 1, 2]), ValueError, "3"),
        (torch.full((BATCH + 1, 3), 1 / 3), torch.arange(BATCH + 1), ValueError, f"{BATCH + 1}.*{BATCH}"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0, 1, 2]), ValueError, "3"),
        (torch.full((2, 3), 1 / 3), torch.tensor([[0, 1]]), ValueError, "1, 2"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0.0, 1.0]), ValueError, "float32"),
        (torch.full((2, 3), 1 / 3), torch.tensor([0, 1], dtype=torch.uint8), ValueError, "uint8"),
        (
            torch.full((2, 3), 1 / 3),
            torch.tensor([0, -1]),
            IndexError,
            f"{NUM_UNLABELED}|{NUM_UNLABELED - 1}",
        ),
        (torch.full((2, 3), 1 / 3), torch.tensor([NUM_UNLABELED, 0]), IndexError, f"{NUM_UNLABELED}"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_bad_call_is_an_error_that_names_the_value_and_changes_nothing(
    probs: Tensor, index: Tensor, error: type[Exception], named: str, last: bool
) -> None:
    prg = make_prg(3, last=last)
    for earlier in random_batches(3, 5):
        prg(*earlier)
    before = state_of(prg)
    with pytest.raises(error, match=f"(?s){named}"):
        prg(probs, index)
    assert_same_state(before, state_of(prg))
