"""Label propagation on a graph of nearest neighbours (Zhou et al., "Learning with Local and Global Consistency").

The labels of each class start with the same total weight, however many they are. This corrects the bias of the labels:
without the correction, a class with many labels overruns its neighbours.

paper    here       meaning
S        spread     symmetrically normalised weights of the edges
alpha    REACH      share of a row's label weight that comes from its neighbours
F        weights    label weight of every row and class
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from mnar.own_data.portfolio.member import Arrays, Features, Floats, Inputs, Integers, Samples, normalized
from mnar.own_data.portfolio.neighbors import NearestRows, nearest

REACH = 0.99
SAME = 1e-3  # rows at this distance, relative to the farthest neighbour, are equal up to rounding
FOUND_TOGETHER = 10  # neighbours that one search finds for all graphs of the same rows, which use 5 or 10 of them
FLOOR = 1e-9  # weight added to every class: a row that no label reaches gets equal probabilities


@dataclass(frozen=True)
class Graph:
    """The rows of the graph with their class probabilities.

    A new row takes the weighted mean of its nearest rows. A row that equals a row of the graph takes its probabilities.
    """

    kind: ClassVar[str] = "graph"
    rows: Features  # [n, d]
    row_probs: Floats  # [n, k]
    num_neighbors: int

    def probs(self, inputs: Inputs) -> Floats:
        if inputs.training_rows is not None:
            return self.row_probs[inputs.training_rows]
        x = inputs.features
        if len(x) == 0:
            return np.zeros((0, self.row_probs.shape[1]))
        distance, neighbor = self._neighbors(inputs)
        scale = np.maximum(distance[:, -1:], np.finfo(np.float32).tiny)
        closeness = np.exp(-2 * (distance / scale) ** 2)
        is_same = distance <= SAME * scale
        closeness = np.where(is_same.any(1, keepdims=True), is_same, closeness)
        return normalized((closeness[:, :, None] * self.row_probs[neighbor]).sum(1))

    def _neighbors(self, inputs: Inputs) -> tuple[Floats, Integers]:
        """Return the distances and the numbers of the nearest rows, [n, num_neighbors]."""
        shared = {} if inputs.shared is None else inputs.shared
        key = f"neighbours in the graph {self._fingerprint}"
        if key not in shared or shared[key][0].shape[1] < self.num_neighbors:
            num_found = min(max(self.num_neighbors, FOUND_TOGETHER), len(self.rows))
            shared[key] = self._search.search(inputs.features, num_found)
        distance, neighbor = shared[key]
        return distance[:, : self.num_neighbors], neighbor[:, : self.num_neighbors]

    @cached_property
    def _search(self) -> NearestRows:
        return NearestRows(self.rows)

    @cached_property
    def _fingerprint(self) -> str:
        return hashlib.sha1(self.rows.tobytes(), usedforsecurity=False).hexdigest()

    def arrays(self) -> Arrays:
        return {"rows": self.rows, "row_probs": self.row_probs, "num_neighbors": np.array(self.num_neighbors)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        return cls(arrays["rows"], arrays["row_probs"], arrays["num_neighbors"].item())


def fit_graph(samples: Samples, *, num_neighbors: int = 10, num_steps: int = 200) -> Graph:
    """Propagate the labels to all samples."""
    rows = samples.inputs.features
    num_neighbors = min(num_neighbors, len(rows) - 1)
    key = f"edges between {num_neighbors} neighbours"
    if key not in samples.shared:
        samples.shared[key] = normalized_edges(rows, num_neighbors)
    start = start_weights(samples)
    return Graph(rows, normalized(propagate(samples.shared[key], start, num_steps) + FLOOR), num_neighbors)


def normalized_edges(rows: Features, num_neighbors: int) -> Any:
    """Return S: Gaussian weights between neighbours, with the width of each row's neighbourhood, as a sparse matrix."""
    from scipy import sparse  # type: ignore[import-untyped]

    num_rows = len(rows)
    distance, neighbor = nearest(rows, rows, num_neighbors + 1)
    distance, neighbor = distance[:, 1:], neighbor[:, 1:]  # the nearest row is the row itself
    width = distance[:, -1] + np.finfo(np.float32).tiny
    closeness = np.exp(-2 * distance**2 / (width[:, None] * width[neighbor]))
    source = np.repeat(np.arange(num_rows), num_neighbors)
    edges = sparse.csr_matrix((closeness.ravel(), (source, neighbor.ravel())), shape=(num_rows, num_rows))
    edges = edges.maximum(edges.T)
    scale = sparse.diags(1 / np.sqrt(np.asarray(edges.sum(1)).ravel() + np.finfo(np.float32).tiny))
    return (scale @ edges @ scale).tocsr()


def start_weights(samples: Samples) -> Floats:
    """Return the weights [n, k] of the labels. The weights of the labels of one class sum to 1."""
    start = np.zeros((len(samples.y), samples.num_classes))
    start[np.flatnonzero(samples.is_labeled), samples.labels] = 1
    weights: Floats = start / np.maximum(start.sum(0), 1)
    return weights


def propagate(spread: Any, start: Floats, num_steps: int) -> Floats:
    """Return F after `num_steps` rounds of F = alpha S F + (1 - alpha) Y."""
    weights = start
    for _ in range(num_steps):
        weights = REACH * (spread @ weights) + (1 - REACH) * start
    return weights
