"""The one check of class labels that come from outside."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def class_labels(values: npt.ArrayLike, name: str, num_classes: int | None = None) -> npt.NDArray[np.int64]:
    """`values` as int64 class numbers, or an error that names the first row that is none."""
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} has type {labels.dtype} and shape {labels.shape}; give one class number per row: 0, 1, 2, ..."
        )
    limit = np.inf if num_classes is None else num_classes
    valid = (labels >= 0) & (labels < limit) & (labels == np.trunc(labels))
    if not valid.all():
        row = int(np.argmin(valid))
        choices = "0, 1, 2, ..." if num_classes is None else f"0 to {num_classes - 1}"
        raise ValueError(f"{name}[{row}] is {labels[row]}; a label is a whole number, {choices}")
    return labels.astype(np.int64)
