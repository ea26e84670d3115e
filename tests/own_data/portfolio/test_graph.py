from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mnar.own_data.portfolio.graph import REACH, Graph, fit_graph, normalized_edges, propagate, start_weights
from mnar.own_data.portfolio.member import Floats, Inputs, Samples
from mnar.own_data.portfolio.neighbors import SMALL, NearestRows, nearest
from tests.support.half_labeled import clouds, clouds_and_truth


def literal_edges(rows: Floats, num_neighbors: int) -> Floats:
    """S with a loop over the rows: Gaussians of the distance over both widths, and D^-1/2 W D^-1/2."""
    n = len(rows)
    distance = np.array([[np.linalg.norm(a - b) for b in rows] for a in rows])
    nearest = [np.argsort(distance[i])[1 : num_neighbors + 1] for i in range(n)]
    width = [distance[i][nearest[i][-1]] for i in range(n)]
    edges = np.zeros((n, n))
    for i in range(n):
        for j in nearest[i]:
            edges[i, j] = edges[j, i] = np.exp(-2 * distance[i, j] ** 2 / (width[i] * width[j]))
    degree = edges.sum(1)
    return edges / np.sqrt(np.outer(degree, degree))


def test_the_edges_equal_a_loop_over_all_pairs() -> None:
    rows = clouds((6, 6), 20).inputs.features
    edges = normalized_edges(rows, 4).toarray()
    np.testing.assert_allclose(edges, literal_edges(rows.astype(float), 4), rtol=1e-5, atol=1e-12)


def test_many_steps_equal_the_solution_of_the_linear_system() -> None:
    samples = clouds((6, 3), 20, distance=1.0)
    spread, start = normalized_edges(samples.inputs.features, 4), start_weights(samples)
    solution = (1 - REACH) * np.linalg.solve(np.eye(len(start)) - REACH * spread.toarray(), start)
    np.testing.assert_allclose(propagate(spread, start, 3000), solution, atol=1e-10)


def test_the_labels_of_every_class_start_with_the_same_total_weight() -> None:
    start = start_weights(clouds((6, 3, 0), 20))
    np.testing.assert_allclose(start.sum(0), [1, 1, 0])
    np.testing.assert_array_equal(start[6:9, 1], [1 / 3] * 3)


def test_training_rows_are_looked_up_and_new_rows_are_a_mean_of_their_neighbours() -> None:
    samples, truth = clouds_and_truth((20, 2), 100, distance=5.0)
    graph = fit_graph(samples)
    assert (graph.row_probs.argmax(1) == truth).all()
    inputs = samples.inputs._replace(training_rows=np.arange(len(truth)))
    np.testing.assert_array_equal(graph.probs(inputs.rows(np.array([3, 50]))), graph.row_probs[[3, 50]])
    new = graph.probs(samples.inputs)  # without their numbers the rows are new
    assert (new.argmax(1) == truth).all()
    np.testing.assert_allclose(new.sum(1), 1)
    neighborhood = graph.probs(Inputs(samples.inputs.features[:1] + np.float32(1e-4)))
    assert graph.row_probs.min(0)[0] <= neighborhood[0, 0] <= graph.row_probs.max(0)[0]


def test_a_row_that_no_label_reaches_is_undecided() -> None:
    features = np.concatenate([np.linspace(0, 1, 10), np.linspace(100, 101, 10)]).astype(np.float32)[:, None]
    y = np.full(20, -1)
    y[[0, 9]] = 0, 1
    graph = fit_graph(Samples(Inputs(features), y, 2), num_neighbors=3)
    np.testing.assert_allclose(graph.row_probs[10:], 0.5, atol=1e-6)
    assert graph.row_probs[[0, 9]].argmax(1).tolist() == [0, 1]


@pytest.mark.parametrize("num_rows", [2, 3, 5])
def test_fewer_rows_than_neighbours_are_all_joined(num_rows: int) -> None:
    features = np.arange(num_rows, dtype=np.float32)[:, None] ** 2
    graph = fit_graph(Samples(Inputs(features), np.array([0, 1, -1, -1, -1])[:num_rows], 2))
    assert graph.num_neighbors == num_rows - 1
    np.testing.assert_allclose(graph.row_probs.sum(1), 1)
    assert graph.row_probs[1, 1] > graph.row_probs[0, 1]


def test_constant_features_give_finite_probabilities() -> None:
    samples = Samples(Inputs(np.ones((30, 2), np.float32)), np.array([0, 1] + [-1] * 28), 2)
    graph = fit_graph(samples)
    assert np.isfinite(graph.row_probs).all()
    assert np.isfinite(graph.probs(Inputs(np.full((2, 2), 3, np.float32)))).all()


def large_graph(num_neighbors: int) -> Graph:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2 * SMALL, 6)).astype(np.float32)
    return Graph(rows, rng.dirichlet(np.ones(3), len(rows)), num_neighbors)


@pytest.mark.parametrize("num_neighbors", [5, 10, 12])
def test_a_large_graph_predicts_the_mean_of_the_neighbours_that_scikit_learn_finds(num_neighbors: int) -> None:
    graph, x = large_graph(num_neighbors), np.random.default_rng(1).standard_normal((400, 6)).astype(np.float32)
    distance, neighbor = nearest(graph.rows, x, num_neighbors)
    weights = np.exp(-2 * (distance / distance[:, -1:]) ** 2)
    expected = (weights[:, :, None] * graph.row_probs[neighbor]).sum(1) / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(graph.probs(Inputs(x)), expected, atol=1e-6)


def test_a_copy_of_a_row_of_a_large_graph_gets_the_probabilities_of_this_row() -> None:
    graph = large_graph(10)
    np.testing.assert_allclose(graph.probs(Inputs(graph.rows[::7])), graph.row_probs[::7], atol=1e-12)


def test_graphs_of_the_same_rows_share_one_search_and_predict_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [large_graph(num_neighbors) for num_neighbors in (5, 10, 3)]
    other = replace(graphs[0], rows=graphs[0].rows + np.float32(1))
    x = np.random.default_rng(1).standard_normal((40, 6)).astype(np.float32)
    alone = [graph.probs(Inputs(x)) for graph in (*graphs, other)]
    searches, search = [], NearestRows.search

    def counted(rows: NearestRows, *args: Any) -> Any:
        searches.append(rows)
        return search(rows, *args)

    monkeypatch.setattr(NearestRows, "search", counted)
    inputs = Inputs(x, shared={})
    for graph, expected in zip((*graphs, other), alone, strict=True):
        np.testing.assert_array_equal(graph.probs(inputs), expected)
    assert len(searches) == 2  # one for the three graphs, and one for the graph of other rows
