"""A function that the workers of a real Ray call: order, memory and errors."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs pip install 'mnar[ray]'")
pytestmark = [pytest.mark.ray, pytest.mark.slow]
CPU = {"num_cpus": 1}


def test_results_are_in_order_and_few_items_are_taken_ahead(cluster: str) -> None:
    from mnar.bench.launchers.ray_cluster import RayCluster
    from mnar.bench.launchers.ray_files import TASKS_PER_PLACE, map_in_order

    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    def square(item: int) -> tuple[int, int]:
        time.sleep(0.005 * (7 - item % 7))  # the first items of a task take longest
        return item * item, os.getpid()

    ray_cluster = RayCluster({})
    with ray_cluster.connected():
        results = map_in_order(ray_cluster, square, items(), resources=CPU, items_per_task=5)
        first, process = next(results)
        assert len(taken) == 2 * TASKS_PER_PLACE * 5
        assert process != os.getpid()
        assert [first, *(result for result, _ in results)] == [item * item for item in range(100)]


def test_an_error_of_bad_data_has_its_message_and_stops_the_other_tasks(cluster: str, tmp_path: Path) -> None:
    from mnar.bench.launchers.ray_cluster import RayCluster
    from mnar.bench.launchers.ray_files import map_in_order

    def refuse_seven(item: int) -> int:
        if item == 7:
            raise ValueError("7 is refused; leave it out")
        if item > 7:
            time.sleep(20)
        return item

    ray_cluster, seen = RayCluster({}), list[int]()
    began = time.monotonic()
    with ray_cluster.connected():
        with pytest.raises(ValueError, match=r"^7 is refused; leave it out$"):
            seen.extend(map_in_order(ray_cluster, refuse_seven, range(20), resources=CPU, items_per_task=2))
        assert list(map_in_order(ray_cluster, abs, [-1, -2], resources=CPU)) == [1, 2]
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    # Ray may miss a task that is about to begin. Without cancelling, five tasks of 40 s would go on, two at a time.
    assert time.monotonic() - began < 90, "most of the other tasks were cancelled"
