"""Checks of the arrays in the model file of a portfolio, so that a damaged file gives an error and no wrong prediction.

The arrays are checked before the members are made of them: a number out of range in a tree would make scikit-learn's
compiled code read foreign memory, or search for a leaf without end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.own_data.portfolio import OBJECTIVES
from mnar.own_data.portfolio.member import Arrays
from mnar.own_data.portfolio.members import FITTED

Shape = tuple[int, ...]
# Arrays that may contain infinite values: the score of a class without a label, and a split that no row passes.
MAY_BE_INFINITE = {"linear": ("bias",), "kernel": ("bias",), "trees": ("threshold",)}


def check_combination(metadata: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], num_classes: int) -> None:
    """Check the kinds of the members, their weights, the objective and the class shares."""
    kinds, objective = metadata["members"], metadata["objective"]
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) and kind in FITTED for kind in kinds):
        raise ValueError(f"members is {kinds}, not a list of {', '.join(FITTED)}")
    if objective not in OBJECTIVES:
        raise ValueError(f"objective is {objective!r}, not one of {', '.join(OBJECTIVES)}")
    _check_shapes("", arrays, {"weights": (len(kinds),), "shares": (num_classes,)})
    for name in ("weights", "shares"):
        _check_finite(name, arrays[name])
    if (arrays["weights"] <= 0).any():
        raise ValueError("a member has a weight that is not positive")
    if (arrays["shares"] < 0).any() or not arrays["shares"].sum() > 0:
        raise ValueError("shares are not class shares from 0 to 1")


def check_encoder(arrays: Mapping[str, npt.NDArray[Any]], input_shape: Sequence[int]) -> int:
    """Check the arrays of the `InputEncoder`. Return the number of features that the encoder gives."""
    channels_or_features, is_image = input_shape[0], len(input_shape) == 3
    _check_shapes("encoder.", arrays, {"mean": (channels_or_features,), "std": (channels_or_features,)})
    for name, array in arrays.items():
        _check_finite(f"encoder.{name}", array)
    if (arrays["std"] <= 0).any():
        raise ValueError("encoder.std is not positive")
    if is_image != any(name.startswith("images.") for name in arrays):
        raise ValueError(f"the encoder is not one for samples of shape {list(input_shape)}")
    if not is_image:
        return channels_or_features
    filters, components = arrays["images.filters"], arrays["images.components"]
    if filters.ndim != 4 or filters.shape[1] != channels_or_features or filters.shape[2] != filters.shape[3]:
        raise ValueError(f"encoder.images.filters has shape {filters.shape}")
    if components.ndim != 2:
        raise ValueError(f"encoder.images.components has shape {components.shape}")
    of_patches, num_features = (len(components),), components.shape[1]
    wanted = {"images.offset": (len(filters),), "images.mean": of_patches, "images.scale": of_patches}
    _check_shapes("encoder.", arrays, wanted)
    return int(num_features)


def check_member(
    name: str, kind: str, arrays: Arrays, *, num_classes: int, num_features: int, input_shape: Sequence[int]
) -> None:
    """Check the arrays of one member."""
    for array_name, array in arrays.items():
        _check_finite(f"{name}.{array_name}", array, may_be_infinite=array_name in MAY_BE_INFINITE.get(kind, ()))
    k, d, prefix = num_classes, num_features, f"{name}."
    if kind == "linear":
        _check_shapes(prefix, arrays, {"weights": (d, k), "bias": (k,)})
    elif kind == "kernel":
        num_centers = _length(prefix, arrays, "centers")
        wanted = {"centers": (num_centers, d), "weights": (num_centers, k), "bias": (k,), "gamma": ()}
        _check_shapes(prefix, arrays, wanted)
        if arrays["gamma"] < 0:
            raise ValueError(f"{name}.gamma is negative")
    elif kind == "graph":
        num_rows = _length(prefix, arrays, "rows")
        _check_shapes(prefix, arrays, {"rows": (num_rows, d), "row_probs": (num_rows, k)})
        _check_shapes(prefix, arrays, {"num_neighbors": ()}, "iu")
        if not 1 <= arrays["num_neighbors"] <= num_rows:
            raise ValueError(
                f"{name}.num_neighbors is {arrays['num_neighbors'].item()}, but the graph has {num_rows} rows"
            )
        if (arrays["row_probs"] < 0).any():
            raise ValueError(f"{name}.row_probs contains negative probabilities")
    elif kind == "network":
        _check_shapes(prefix, arrays, {"num_classes": (), "shape": (_length(prefix, arrays, "shape"),)}, "iu")
        shape = list(input_shape) if len(input_shape) == 3 else [d]
        if arrays["num_classes"] != k or arrays["shape"].tolist() != shape:
            raise ValueError(f"{name} is a network for other classes or samples of another shape")
        _check_shapes(prefix, arrays, {"mean": (shape[0],), "std": (shape[0],)})
        if (arrays["std"] <= 0).any():
            raise ValueError(f"{name}.std is not positive")
    elif kind == "trees":
        _check_trees(prefix, arrays, num_classes, num_features)


def _check_trees(prefix: str, arrays: Arrays, num_classes: int, num_features: int) -> None:
    """Check that every path from a root leads to a leaf, and that every feature and every class exists."""
    num_nodes, num_trees = (_length(prefix, arrays, name) for name in ("feature", "roots"))
    of_nodes: dict[str, Shape] = dict.fromkeys(("feature", "left", "right"), (num_nodes,))
    c = _length(prefix, arrays, "classes")
    _check_shapes(prefix, arrays, {**of_nodes, "roots": (num_trees,), "classes": (c,), "counts": (num_classes,)}, "iu")
    _check_shapes(prefix, arrays, {"threshold": (num_nodes,), "value": (num_nodes, c), "start": (c,)})
    _check_shapes(prefix, arrays, {"is_log": ()}, "b")
    classes, counts, roots, feature = (arrays[name] for name in ("classes", "counts", "roots", "feature"))
    if (counts < 0).any() or not np.array_equal(classes, np.flatnonzero(counts)):
        raise ValueError(f"{prefix}classes are not the classes with labels")
    if num_trees and (roots[0] != 0 or (np.diff(roots) <= 0).any() or roots[-1] >= num_nodes):
        raise ValueError(f"{prefix}roots are not the first nodes of the trees")
    if ((feature < 0) | (feature >= num_features)).any():
        raise ValueError(f"{prefix}feature contains a number that is not a feature from 0 to {num_features - 1}")
    own, left, right = np.arange(num_nodes), arrays["left"], arrays["right"]
    tree_end = np.repeat(np.append(roots[1:], num_nodes), np.diff(np.append(roots, num_nodes))) if num_trees else own
    is_leaf = (left == own) & (right == own)
    leads_on = (left > own) & (right > own) & (left < tree_end) & (right < tree_end)  # a child comes after its parent
    if not (is_leaf | leads_on).all():
        raise ValueError(f"{prefix}left and right contain numbers that are not nodes of the tree")


def _length(prefix: str, arrays: Mapping[str, npt.NDArray[Any]], name: str) -> int:
    if name not in arrays:
        raise ValueError(f"{prefix}{name} is missing")
    return len(np.atleast_1d(arrays[name]))


def _check_shapes(
    prefix: str, arrays: Mapping[str, npt.NDArray[Any]], wanted: Mapping[str, Shape], kinds: str = "f"
) -> None:
    for name, shape in wanted.items():
        if name not in arrays:
            raise ValueError(f"{prefix}{name} is missing")
        found = arrays[name].shape
        is_single = shape == () and found == (1,)  # a single number is stored as an array of length 1
        if (found != shape and not is_single) or arrays[name].dtype.kind not in kinds:
            raise ValueError(
                f"{prefix}{name} has shape {found} and type {arrays[name].dtype}; it should have the shape {shape}"
            )


def _check_finite(name: str, array: npt.NDArray[Any], *, may_be_infinite: bool = False) -> None:
    if array.dtype.kind == "f" and (np.isnan(array) if may_be_infinite else ~np.isfinite(array)).any():
        raise ValueError(f"{name} contains values that are not finite numbers")
