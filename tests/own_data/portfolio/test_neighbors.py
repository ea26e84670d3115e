from __future__ import annotations

import numpy as np
import pytest

from mnar.own_data.portfolio import neighbors
from mnar.own_data.portfolio.neighbors import SMALL, NearestRows, nearest

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("num_rows", [SMALL, SMALL + 1, 3072, 5000])
@pytest.mark.parametrize("num_features", [1, 6, 40])
def test_the_search_finds_the_neighbours_that_a_sort_of_all_distances_finds(num_rows: int, num_features: int) -> None:
    rows, x = (RNG.standard_normal((n, num_features)).astype(np.float32) for n in (num_rows, 300))
    every = np.stack([np.linalg.norm(rows - row, axis=1) for row in x.astype(float)])
    distance, neighbor = NearestRows(rows).search(x, 7)
    # the distances and not the numbers, because two rows can be equally near
    np.testing.assert_allclose(distance, np.sort(every, 1)[:, :7], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(distance, np.take_along_axis(every, neighbor, 1), rtol=1e-4, atol=1e-6)
    assert all(len(set(found)) == 7 for found in neighbor.tolist())


def test_many_neighbours_are_found_as_scikit_learn_finds_them() -> None:
    rows, x = RNG.standard_normal((2 * SMALL, 7)).astype(np.float32), RNG.standard_normal((9, 7)).astype(np.float32)
    for found, expected in zip(NearestRows(rows).search(x, 40), nearest(rows, x, 40), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_equal_row_is_at_distance_0_even_far_from_the_origin() -> None:
    rows = 100 + RNG.standard_normal((3 * SMALL + 1, 40)).astype(np.float32)
    which = RNG.permutation(len(rows))[:500]
    which[0] = len(rows) - 1
    for num_neighbors in (1, 5):
        distance, neighbor = NearestRows(rows).search(rows[which], num_neighbors)
        np.testing.assert_array_equal(neighbor[:, 0], which)
        np.testing.assert_array_equal(distance[:, 0], 0)


def test_a_row_is_found_in_the_same_way_in_any_part_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, x = (RNG.standard_normal((n, 9)).astype(np.float32) for n in (3000, 700))
    search = NearestRows(rows)
    distance, neighbor = search.search(x, 6)
    for part in (slice(0, 0), slice(0, 1), slice(255, 258), slice(600, 700)):
        of_part = search.search(x[part], 6)
        np.testing.assert_array_equal(of_part[0], distance[part])
        np.testing.assert_array_equal(of_part[1], neighbor[part])
    monkeypatch.setattr(neighbors, "QUERIES_AT_A_TIME", 64)
    np.testing.assert_array_equal(search.search(x, 6)[1], neighbor)
