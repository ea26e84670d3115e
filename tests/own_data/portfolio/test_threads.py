from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from mnar.own_data.portfolio.threads import in_order, one_thread


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def slow_square(number: int) -> int:
    time.sleep(0.002 * (number % 3))  # later items finish first
    return number**2


@pytest.mark.usefixtures("num_threads")
def test_results_come_in_the_order_of_the_items() -> None:
    assert list(in_order(slow_square, range(20))) == [(number, number**2) for number in range(20)]
    assert list(in_order(slow_square, [])) == []


def test_few_items_are_read_ahead(num_threads: int) -> None:
    read = []

    def items() -> Iterator[int]:
        for number in range(50):
            read.append(number)
            yield number

    for done, _ in enumerate(in_order(slow_square, items()), 1):
        assert len(read) - done <= num_threads


def test_each_item_is_computed_by_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert {result for _, result in in_order(lambda _: torch.get_num_threads(), range(9))} == {1}
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_is_restored_after_the_end_an_error_and_an_early_stop(num_threads: int) -> None:
    def fails(number: int) -> int:
        if number == 4:
            raise ValueError("the fifth item")
        return number

    list(in_order(slow_square, range(3)))
    assert torch.get_num_threads() == num_threads
    with pytest.raises(ValueError, match="the fifth item"):
        list(in_order(fails, range(20)))
    assert torch.get_num_threads() == num_threads
    for number, _ in in_order(slow_square, range(20)):
        if number == 3:
            break
    assert torch.get_num_threads() == num_threads
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == num_threads
