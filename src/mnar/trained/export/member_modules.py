"""The fitted members of a portfolio as torch modules that torch.export and ONNX can express.

The modules compute in double precision, as the members do. A module gets the standardised features [n, d] as float32
and, for images, also the images [n, channels, height, width] as uint8. It returns balanced probabilities [n, k].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mnar.own_data.portfolio.graph import SAME, Graph
from mnar.own_data.portfolio.kernel import Kernel
from mnar.own_data.portfolio.linear import Linear
from mnar.own_data.portfolio.member import Fitted
from mnar.own_data.portfolio.network import Network
from mnar.own_data.portfolio.trees import Trees
from mnar.trained.export.network_module import network_module

MOST_TIED = 64  # rows beyond the nearest ones that can share the last places
EQUAL = 1e-6  # distances that differ less, relative to the farthest neighbour, are equal up to rounding
TREES_AT_A_TIME = 32  # the values of 32 leaves for 1,000 rows and 100 classes take 26 MB


class LinearModule(nn.Module):
    """Logistic regression."""

    weights: Tensor  # [d, k]
    bias: Tensor  # [k]

    def __init__(self, member: Linear) -> None:
        super().__init__()
        self.register_buffer("weights", doubles(member.weights))
        self.register_buffer("bias", doubles(member.bias))

    def forward(self, features: Tensor, images: Tensor | None) -> Tensor:
        return (features.double() @ self.weights + self.bias).softmax(1)


class KernelModule(nn.Module):
    """Logistic regression on Gaussians around centres."""

    centers: Tensor  # [c, d]
    weights: Tensor  # [c, k]
    bias: Tensor  # [k]

    def __init__(self, member: Kernel) -> None:
        super().__init__()
        self.gamma = float(member.gamma)
        self.register_buffer("centers", doubles(member.centers))
        self.register_buffer("weights", doubles(member.weights))
        self.register_buffer("bias", doubles(member.bias))

    def forward(self, features: Tensor, images: Tensor | None) -> Tensor:
        kernel = torch.exp(-self.gamma * squared_distances(features.double(), self.centers))
        return (kernel @ self.weights + self.bias).softmax(1)


class GraphModule(nn.Module):
    """Weighted mean of the probabilities of the nearest rows of a graph.

    Rows at the same distance share the last places among the nearest rows. Otherwise the result would depend on the
    order of these rows, which differs between runtimes.
    """

    rows: Tensor  # [m, d]
    row_probs: Tensor  # [m, k]

    def __init__(self, member: Graph) -> None:
        super().__init__()
        self.num_neighbors = int(member.num_neighbors)
        self.num_candidates = min(len(member.rows), self.num_neighbors + MOST_TIED)
        self.register_buffer("rows", doubles(member.rows))
        self.register_buffer("row_probs", doubles(member.row_probs))

    def forward(self, features: Tensor, images: Tensor | None) -> Tensor:
        x = features.double()
        candidate = torch.topk(squared_distances(x, self.rows), self.num_candidates, dim=1, largest=False).indices
        # Exact distances: the expanded square above loses the digits of a distance of almost 0.
        distance = (x[:, None] - self.rows[candidate]).square().sum(2).sqrt()
        last = torch.topk(distance, self.num_neighbors, dim=1, largest=False, sorted=True).values[:, -1:]
        scale = last.clamp(min=float(np.finfo(np.float32).tiny))
        is_inside = (distance < last - EQUAL * scale).double()
        is_tied = (distance <= last + EQUAL * scale).double() - is_inside
        places = is_inside + is_tied * (self.num_neighbors - is_inside.sum(1, keepdim=True)) / is_tied.sum(
            1, keepdim=True
        )
        closeness = torch.exp(-2 * (distance / scale).square())
        is_same = (distance <= SAME * scale).double()
        closeness = torch.where(is_same.amax(1, keepdim=True) > 0, is_same, closeness) * places
        return normalized((closeness[:, :, None] * self.row_probs[candidate]).sum(1))


class TreesModule(nn.Module):
    """A sum of trees. All rows go down all trees at the same time, one level per step."""

    feature: Tensor  # [nodes]
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor  # [nodes, k]
    roots: Tensor  # [trees]
    start: Tensor  # [k]
    factors: Tensor  # [k] 1 / number of labels; 0 for a class without labels

    def __init__(self, member: Trees) -> None:
        super().__init__()
        self.is_log, self.depth = bool(member.is_log), depth_of(member)
        num_classes, classes = len(member.counts), member.classes
        # A class without labels gets the score minus infinity (boosting) or the probability 0 (a forest).
        start = np.full(num_classes, -np.inf if self.is_log else 0.0)
        start[classes] = member.start
        value = np.zeros((len(member.feature), num_classes))
        value[:, classes] = member.value
        counts = member.counts.astype(np.float64)
        self.register_buffer("feature", integers(member.feature))
        self.register_buffer("threshold", doubles(member.threshold))
        self.register_buffer("left", integers(member.left))
        self.register_buffer("right", integers(member.right))
        self.register_buffer("value", doubles(value))
        self.register_buffer("roots", integers(member.roots))
        self.register_buffer("start", doubles(start))
        factors = np.divide(1.0, counts, out=np.zeros(num_classes), where=counts > 0)
        self.register_buffer("factors", doubles(factors))

    def forward(self, features: Tensor, images: Tensor | None) -> Tensor:
        scores = self.start.expand(features.shape[0], -1)
        if len(self.roots):
            values, node = features.double(), self.roots.expand(features.shape[0], -1)  # [n, trees]
            for _ in range(self.depth):
                goes_left = values.gather(1, self.feature[node]) <= self.threshold[node]
                node = torch.where(goes_left, self.left[node], self.right[node])
            for some in node.split(TREES_AT_A_TIME, dim=1):
                scores = scores + self.value[some].sum(1)
        probs = scores.softmax(1) if self.is_log else scores
        return normalized(probs * self.factors)


class NetworkModule(nn.Module):
    """A neural network on the features or, if there are images, on the images."""

    def __init__(self, member: Network) -> None:
        super().__init__()
        weights = {name: torch.from_numpy(weight) for name, weight in member.weights.items()}
        # In double precision for tables, as `network_probs` computes.
        dtype = torch.float32 if member.data.is_image else torch.float64
        self.normalized = network_module(member.config, member.data, weights, dtype)

    def forward(self, features: Tensor, images: Tensor | None) -> Tensor:
        probs: Tensor = self.normalized(features if images is None else images)
        return probs


MODULES: dict[type, type[nn.Module]] = {
    Linear: LinearModule,
    Kernel: KernelModule,
    Graph: GraphModule,
    Trees: TreesModule,
    Network: NetworkModule,
}


def member_module(member: Fitted) -> nn.Module:
    """Return the module that predicts as the member does."""
    made = MODULES.get(type(member))
    if made is None:
        raise ValueError(
            f"the member {member.kind!r} cannot be exported; train a model without it, e.g. `mnar train DATA "
            "--learner linear`, and export that run"
        )
    return made(member)


def depth_of(trees: Trees) -> int:
    """Return the number of steps from a root to the deepest leaf."""
    node, depth = trees.roots, 0
    own = np.arange(len(trees.feature))
    inner = (trees.left != own) | (trees.right != own)
    while len(node := node[inner[node]]):
        node = np.concatenate([trees.left[node], trees.right[node]])
        depth += 1
    return depth


def squared_distances(x: Tensor, rows: Tensor) -> Tensor:
    """Return the squared distances of all pairs of rows, [n, m]."""
    squared = x.square().sum(1, keepdim=True) + rows.square().sum(1) - 2 * x @ rows.T
    return squared.clamp(min=0)


def normalized(weights: Tensor) -> Tensor:
    """Return rows that sum to 1; a row of zeros becomes uniform."""
    sums = weights.sum(1, keepdim=True)
    uniform = torch.full_like(weights, 1 / weights.shape[1])
    return torch.where(sums > 0, weights / torch.where(sums > 0, sums, torch.ones_like(sums)), uniform)


def doubles(values: npt.ArrayLike) -> Tensor:
    """Return a copy of the values as a tensor of float64."""
    return torch.from_numpy(np.array(values, np.float64))


def integers(values: npt.ArrayLike) -> Tensor:
    """Return a copy of the values as a tensor of int64."""
    return torch.from_numpy(np.array(values, np.int64))
