"""Gradient boosting and extremely randomised trees, stored as plain arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mnar.own_data.inspection.probe import gradient_boosting
from mnar.own_data.portfolio.member import Arrays, Floats, Inputs, Integers, Samples, balanced, softmax

NUM_TREES = 200
MIN_ROWS_OF_LEAF = 2
ROWS_AT_A_TIME = 8192


class Tree(NamedTuple):
    """The nodes of one tree. A leaf is its own child."""

    feature: Integers  # [nodes]
    threshold: Floats  # [nodes]; rows with a value up to the threshold go left
    left: Integers  # [nodes] number of the left child
    right: Integers
    value: Floats  # [nodes, c] what a leaf adds to the score of each class


@dataclass(frozen=True)
class Trees:
    """A sum of trees. The nodes of all trees lie in one list, tree after tree."""

    kind: ClassVar[str] = "trees"
    classes: Integers  # [c] the classes that had labels
    counts: Integers  # [k] number of labels of each class
    start: Floats  # [c] scores before the first tree
    roots: Integers  # [t] number of the root of each tree
    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    value: Floats
    is_log: bool  # whether the scores are log-probabilities (boosting) or probabilities (a forest)

    def probs(self, inputs: Inputs) -> Floats:
        parts = [
            self._probs(inputs.features[i : i + ROWS_AT_A_TIME]) for i in range(0, len(inputs.features), ROWS_AT_A_TIME)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.counts)))

    def _probs(self, x: npt.NDArray[np.float32]) -> Floats:
        scores = np.tile(self.start, (len(x), 1))
        compiled = self._compiled
        if compiled is None:
            for root in self.roots:
                scores += self.value[_leaves(self, root, x)]
        else:
            x = np.ascontiguousarray(x, np.float32)
            for tree in compiled:
                scores += tree.predict(x).reshape(scores.shape)
        probs = np.zeros((len(x), len(self.counts)))
        probs[:, self.classes] = softmax(scores) if self.is_log else scores
        return balanced(probs, self.counts)

    @cached_property
    def _compiled(self) -> list[Any] | None:
        """The trees in the form of scikit-learn, whose compiled code is five times as fast as numpy, or None.

        scikit-learn's class has no public constructor. If a later version changes it, numpy computes the same scores.
        """
        try:
            return [_compiled_tree(self, root, end) for root, end in zip(self.roots, self._ends, strict=True)]
        except (ImportError, AttributeError, TypeError, ValueError, KeyError):
            return None

    @property
    def _ends(self) -> Integers:
        """The number of the first node after each tree, [t]."""
        return np.append(self.roots[1:], len(self.feature)) if len(self.roots) else self.roots

    def arrays(self) -> Arrays:
        return {name: np.asarray(getattr(self, name)) for name in ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        return cls(**{**arrays, "is_log": arrays["is_log"].item()})


def _leaves(trees: Trees, root: int, x: npt.NDArray[np.float32]) -> Integers:
    """Return the number of the leaf of one tree that each row falls into, by numpy."""
    all_rows, node = np.arange(len(x)), np.full(len(x), root)
    while True:
        goes_left = x[all_rows, trees.feature[node]] <= trees.threshold[node]
        child = np.where(goes_left, trees.left[node], trees.right[node])
        if (child == node).all():
            return node
        node = child


def _compiled_tree(trees: Trees, root: int, end: int) -> Any:
    """Return the nodes from `root` to `end` as a tree of scikit-learn."""
    from sklearn.tree._tree import NODE_DTYPE, Tree

    is_leaf = trees.left[root:end] == np.arange(root, end)
    nodes = np.zeros(end - root, NODE_DTYPE)
    nodes["left_child"] = np.where(is_leaf, -1, trees.left[root:end] - root)
    nodes["right_child"] = np.where(is_leaf, -1, trees.right[root:end] - root)
    nodes["feature"], nodes["threshold"] = trees.feature[root:end], trees.threshold[root:end]
    values = np.ascontiguousarray(trees.value[root:end, None], np.float64)
    tree = Tree(int(trees.feature.max()) + 1, np.array([values.shape[2]], np.intp), 1)
    tree.__setstate__({"max_depth": len(nodes), "node_count": len(nodes), "nodes": nodes, "values": values})
    return tree


ARRAYS = ("classes", "counts", "start", "roots", "feature", "threshold", "left", "right", "value", "is_log")


def fit_boosting(samples: Samples) -> Trees:
    """Fit gradient boosting with small trees."""
    classes = np.unique(samples.labels)
    if len(classes) == 1:
        return _joined([], samples.counts, np.zeros(1), is_log=True)
    model = gradient_boosting(seed=samples.seed).fit(samples.labeled_features, samples.labels)
    start = np.ravel(model._baseline_prediction)
    if len(classes) == 2:  # the score is that of the second class
        start = np.array([0.0, start[0]])
    return _joined(_boosted_trees(model, len(classes)), samples.counts, start, is_log=True)


def fit_forest(samples: Samples) -> Trees:
    """Fit extremely randomised trees."""
    forest = new_forest(samples.seed).fit(samples.labeled_features, samples.labels)
    return stored_forest(forest, samples.counts)


def new_forest(seed: int, *, num_trees: int = NUM_TREES) -> Any:
    """Return an untrained forest of extremely randomised trees."""
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(num_trees, min_samples_leaf=MIN_ROWS_OF_LEAF, random_state=seed)


def stored_forest(forest: Any, counts: Integers) -> Trees:
    """Return the trees of a forest that was fitted to `counts` rows of each class."""
    trees = [_tree_of_forest(tree.tree_, len(forest.estimators_)) for tree in forest.estimators_]
    return _joined(trees, counts, np.zeros(len(forest.classes_)), is_log=False)


def _boosted_trees(model: Any, num_classes: int) -> Iterable[Tree]:
    """Yield the trees of a HistGradientBoostingClassifier, which has no public access to them."""
    for iteration in model._predictors:
        for column, predictor in enumerate(iteration):
            nodes = predictor.nodes
            value = np.zeros((len(nodes), num_classes))
            value[:, column if len(iteration) > 1 else 1] = nodes["value"]
            yield _tree(
                nodes["is_leaf"].astype(bool),
                nodes["feature_idx"],
                nodes["num_threshold"],
                nodes["left"],
                nodes["right"],
                value,
            )


def _tree_of_forest(tree: Any, num_trees: int) -> Tree:
    value = tree.value[:, 0] / tree.value[:, 0].sum(1, keepdims=True) / num_trees
    is_leaf = tree.children_left < 0
    return _tree(is_leaf, tree.feature, tree.threshold, tree.children_left, tree.children_right, value)


def _tree(is_leaf: npt.NDArray[np.bool_], feature: Any, threshold: Any, left: Any, right: Any, value: Floats) -> Tree:
    own = np.arange(len(is_leaf))
    return Tree(
        np.where(is_leaf, 0, feature).astype(np.int64),
        np.where(is_leaf, 0.0, threshold),
        np.where(is_leaf, own, left).astype(np.int64),
        np.where(is_leaf, own, right).astype(np.int64),
        np.where(is_leaf[:, None], value, 0.0),
    )


def _joined(trees: Iterable[Tree], counts: Integers, start: Floats, *, is_log: bool) -> Trees:
    """Put the nodes of all trees into one list."""
    trees = list(trees)
    sizes = [len(tree.feature) for tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    no_numbers = np.zeros(0, np.int64)
    none = Tree(no_numbers, np.zeros(0), no_numbers, no_numbers, np.zeros((0, len(start))))
    children = [
        np.concatenate(
            [getattr(none, side), *(getattr(tree, side) + root for tree, root in zip(trees, roots, strict=False))]
        )
        for side in ("left", "right")
    ]
    return Trees(
        np.flatnonzero(counts),
        counts,
        start,
        roots[:-1],
        np.concatenate([none.feature, *(tree.feature for tree in trees)]).astype(np.int64),
        np.concatenate([none.threshold, *(tree.threshold for tree in trees)]),
        children[0].astype(np.int64),
        children[1].astype(np.int64),
        np.concatenate([none.value, *(tree.value for tree in trees)]),
        is_log,
    )
