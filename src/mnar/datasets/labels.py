"""Check class labels that come from a file or from the caller."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def class_labels(values: npt.ArrayLike, name: str, num_classes: int | None = None) -> npt.NDArray[np.int64]:
    """Return `values` as int64 class numbers, or raise an error that names the first row that is no class number.

    `name` is what the error message calls the array. `num_classes` is the number of classes, if it is known.
    """
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        raise ValueError(
            f"{name} has type {labels.dtype} and shape {labels.shape}, but class labels are one number per row; "
            "give 0, 1, 2, ..."
        )
    limit = np.inf if num_classes is None else num_classes
    valid = (labels >= 0) & (labels < limit) & (labels == np.trunc(labels))
    if not valid.all():
        row = int(np.argmin(valid))
        choices = "of at least 0" if num_classes is None else f"from 0 to {num_classes - 1}"
        raise ValueError(f"{name}[{row}] is {labels[row]}; a label must be a whole number {choices}. Correct the label")
    return labels.astype(np.int64)
