"""PRG with a smoothed random walk: against a literal oracle, plain PRG, alignment, and the fault that it mends."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot
from torch.testing import assert_close

from mnar.guidances import GUIDANCES, PRG
from mnar.types import Task
from tests.guidances.test_prg import (
    BATCH,
    NUM_UNLABELED,
    Sequence,
    assert_same_state,
    few_examples,
    make_prg,
    random_batches,
    rows_to_sum_one,
    sequences,
    state_of,
)
from tests.reference.prg import LiteralPRG


def make_smooth(num_classes: int, *, smoothing: float = 0.3, **options: Any) -> PRG:
    return make_prg(num_classes, smoothing=smoothing, **options)


# The literal algorithm


def assert_equals_the_literal_algorithm(num_classes: int, count: int, **options: Any) -> None:
    smooth, literal = make_smooth(num_classes, **options), LiteralPRG(num_classes, batch=BATCH, **options)
    for probs, index in random_batches(num_classes, count):
        q, expected = smooth(probs, index).double(), torch.from_numpy(literal(probs, index))
        assert_close(q, expected, atol=1e-5, rtol=0)
        assert smooth.transitions.tolist() == literal.transitions.tolist()
        matrix, expected_matrix = smooth.guidance_matrix(), literal.guidance_matrix()
        assert_close(rows_to_sum_one(matrix), rows_to_sum_one(expected_matrix), atol=1e-5, rtol=0)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("smoothing", "window"), [(0.3, 1), (0.3, 5), (0.02, 128), (3.0, 1000)])
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_smoothed_prg_equals_the_literal_algorithm_over_200_steps(
    num_classes: int, smoothing: float, window: int, last: bool
) -> None:
    """The window of 1,000 batches is longer than the sequence."""
    assert_equals_the_literal_algorithm(num_classes, 200, smoothing=smoothing, window=window, last=last)


@pytest.mark.parametrize(
    ("rescale", "usage", "alpha", "last"),
    list(itertools.product([True, False], ["soft", "hard"], [0.0, 0.3, 3.0], [False, True])),
)
def test_every_option_equals_the_literal_algorithm(rescale: bool, usage: str, alpha: float, last: bool) -> None:
    options: dict[str, Any] = {"rescale": rescale, "usage": usage, "alpha": alpha, "last": last}
    assert_equals_the_literal_algorithm(4, 40, smoothing=0.1, window=3, **options)


def test_b_is_the_number_of_the_formula() -> None:
    """No move was counted in row 2, so its off-diagonal entries are equal; rows 0 and 1 have 3 and 1 moves."""
    smooth = make_smooth(3, smoothing=0.25, window=6, alpha=5.0, rescale=False)
    for label in ([0, 0, 0, 1], [1, 1, 2, 0]):
        smooth(torch.eye(3)[label], torch.arange(4))
    b = 0.25 * 6 * 16 / (3 * 2)  # 4
    expected = [[2.5, (2 + b) / (3 + 2 * b), (1 + b) / (3 + 2 * b)], [(1 + b) / (1 + 2 * b), 2.5, b / (1 + 2 * b)]]
    assert_close(smooth.guidance_matrix(), torch.tensor([*expected, [0.5, 0.5, 2.5]]))


# Limits


@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize(
    "options",
    [{}, {"last": True, "alpha": 3.0}, {"usage": "hard", "window": 2}, {"rescale": False}, {"alpha": 0.0, "window": 1}],
    ids=str,
)
def test_without_smoothing_it_is_prg_bit_for_bit_also_on_empty_rows(num_classes: int, options: dict[str, Any]) -> None:
    smooth, prg = make_smooth(num_classes, smoothing=0, **options), make_prg(num_classes, **options)
    empty_rows = 0.0
    for probs, index in random_batches(num_classes, 60):
        assert torch.equal(smooth(probs, index), prg(probs, index))
        assert torch.equal(smooth.guidance_matrix(), prg.guidance_matrix())
        empty_rows += prg.empty_row_share.item()
    assert empty_rows > 0
    assert_same_state(state_of(smooth), state_of(prg))


@pytest.mark.parametrize("usage", ["soft", "hard"])
def test_with_huge_smoothing_and_alpha_1_it_divides_predictions_by_their_class_shares(usage: str) -> None:
    smooth = make_smooth(4, smoothing=1e6, window=5, usage=usage)
    for step, (probs, index) in enumerate(random_batches(4, 60)):
        q = smooth(probs, index)
        if step >= 5:  # by then every class was predicted, so no share is zero
            aligned = probs / smooth.class_usage
            assert (smooth.class_usage > 0).all()
            assert_close(q, aligned / aligned.sum(1, keepdim=True), atol=1e-5, rtol=0)


def test_with_two_classes_smoothing_changes_empty_rows_only() -> None:
    """The only entry of H beside the diagonal is (C + b) / (C + b) = 1."""
    smooth, prg = make_smooth(2, window=3), make_prg(2, window=3)
    compared = 0
    for probs, index in random_batches(2, 60):
        q, expected = smooth(probs, index), prg(probs, index)
        moved = prg.transitions.sum(1)[probs.argmax(1)] > 0
        assert_close(q[moved], expected[moved])
        assert ((q[~moved] > 0) >= (expected[~moved] > 0)).all()
        compared += int(moved.sum())
    assert compared > 0


# What smoothing is for


@few_examples
@given(sequences(), st.booleans(), st.sampled_from([1e-3, 0.3, 10.0]))
def test_every_class_with_a_probability_keeps_some(sequence: Sequence, last: bool, smoothing: float) -> None:
    smooth = make_smooth(4, smoothing=smoothing, last=last)
    for probs, index in sequence:
        q = smooth(probs, index)
        assert (q > 0).all()
        assert_close(q.sum(1), torch.ones(len(q)))


def drained(guidance: PRG, batches_after: int) -> Tensor:
    """All samples move from class 9 to class 3 and stay there; then a new sample lies between the two classes."""
    index = torch.arange(BATCH)
    for label in (9, *[3] * (1 + batches_after)):
        guidance(one_hot(torch.full((BATCH,), label), 10).float(), index)
    assert guidance.transitions.nonzero().tolist() == [[9, 3]], "nothing comes back from class 3"
    between = torch.zeros(1, 10)
    between[0, 3], between[0, 9] = 0.51, 0.49
    return guidance(between, torch.tensor([NUM_UNLABELED - 1]))[0]


def test_a_sample_between_two_classes_is_one_hot_with_prg_and_unsure_with_smoothing() -> None:
    assert torch.equal(drained(make_prg(10), 6), torch.eye(10)[3])
    q = drained(make_smooth(10), 6)
    # Row 3 is empty, so H is flat. Of nine batches, class 9 has one and the 0.49 of the probe, class 3 has the others.
    share_of_3, share_of_9 = 0.51 / (7 + 0.51), 0.49 / (1 + 0.49)
    expected = torch.zeros(10)
    expected[3], expected[9] = share_of_3 / (share_of_3 + share_of_9), share_of_9 / (share_of_3 + share_of_9)
    assert_close(q, expected)
    assert 0.8 < q[9] < 0.95, "the sample returns to class 9, and not with certainty"


def test_the_fewer_predictions_a_class_has_the_more_a_doubtful_sample_returns_to_it() -> None:
    regained = [drained(make_smooth(10), batches_after)[9].item() for batches_after in (0, 1, 4, 16, 64)]
    assert regained == sorted(set(regained))
    assert regained[0] < 0.7
    assert regained[-1] > 0.95
    assert all(drained(make_prg(10), batches_after)[9] == 0 for batches_after in (0, 64))


@few_examples
@given(sequences())
def test_counted_moves_still_decide_between_classes_with_equal_shares(sequence: Sequence) -> None:
    """Without the division by L, the entries of a row of H have the order of the counted moves."""
    smooth = make_smooth(4, rescale=False)
    for probs, index in sequence:
        smooth(probs, index)
        for i, j, other in itertools.permutations(range(4), 3):
            more_moves = bool(smooth.transitions[i, j] > smooth.transitions[i, other])
            matrix = smooth.guidance_matrix()
            assert bool(matrix[i, j] > matrix[i, other]) == more_moves


# State


@pytest.mark.parametrize("options", [{}, {"last": True}, {"usage": "hard"}], ids=str)
def test_state_dict_in_the_middle_of_a_sequence_continues_bit_for_bit(options: dict[str, Any]) -> None:
    smooth, resumed = make_smooth(3, window=5, **options), make_smooth(3, window=5, **options)
    history = list(random_batches(3, 40))
    for probs, index in history[:18]:
        smooth(probs, index)
    resumed.load_state_dict(copy.deepcopy(smooth.state_dict()))
    for probs, index in history[18:]:
        assert torch.equal(smooth(probs, index), resumed(probs, index))
    assert_same_state(state_of(smooth), state_of(resumed))


def test_the_state_is_that_of_prg_whatever_the_smoothing() -> None:
    """C and L depend on the predictions only, so a checkpoint of either guidance suits the other one."""
    smooth, prg = make_smooth(3, window=5), make_prg(3, window=5)
    for probs, index in random_batches(3, 20):
        smooth(probs, index)
        prg(probs, index)
    assert_same_state(state_of(smooth), state_of(prg))
    make_smooth(3, window=5, smoothing=2.0).load_state_dict(prg.state_dict())


# Bad input


@pytest.mark.parametrize("smoothing", [-1, math.inf, math.nan])
def test_a_bad_smoothing_is_an_error_with_its_value_and_a_remedy(smoothing: float) -> None:
    with pytest.raises(ValueError, match=rf"smoothing is {smoothing}; expected a number from 0 to"):
        make_smooth(3, smoothing=smoothing)


@pytest.mark.parametrize("options", [{"window": 0}, {"alpha": -0.5}, {"usage": "medium"}], ids=str)
def test_a_bad_option_of_prg_is_refused_as_by_prg(options: dict[str, Any]) -> None:
    ((option, value),) = options.items()
    messages = []
    for make in (make_prg, make_smooth):
        with pytest.raises(ValueError, match=rf"{option}.*{value}") as refused:
            make(3, **options)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_a_class_that_no_sample_is_predicted_as_counts_as_one_visit() -> None:
    """Without a bound, 1 / L would be infinite here, and every sample would get class 2."""
    smooth = make_smooth(3, usage="hard", window=4)
    p = torch.tensor([[0.9, 0.0999, 1e-4]])
    for step in range(4):
        q = smooth(p, torch.tensor([step]))
    visits = 4 * BATCH
    weights = [0.9, 0.0999 * visits, 1e-4 * visits]  # H is constant without transitions and with alpha 1
    assert_close(q[0], torch.tensor(weights) / sum(weights), atol=1e-6, rtol=0)


def test_the_preset_adds_as_many_transitions_as_a_class_has_visits() -> None:
    preset = GUIDANCES["prg_smooth"](Task(10, NUM_UNLABELED, batch_unlabeled=BATCH))
    assert isinstance(preset, PRG)
    assert preset.added == pytest.approx(128 * BATCH / 10)
