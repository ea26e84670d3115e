"""Class mixes that predictions can be made for: equal classes, the labels, the pool, or shares from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.csv_file import read_csv
from mnar.datasets.user_files.spreadsheet_cells import plain_cell
from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.portfolio.member import Floats

UNIFORM, LABELS, POOL = "uniform", "labels", "pool"
Prior = str | Path | Mapping[str, float] | Sequence[float] | npt.NDArray[np.floating]


class ClassMix(NamedTuple):
    """The class shares that probabilities are made for."""

    shares: Floats | None  # [k]; None: the predictions stay as the model was trained
    description: str  # completes the sentence "The probabilities are for ..."


def class_mix(
    prior: Prior | None,
    class_names: Sequence[str],
    *,
    num_labels: npt.NDArray[np.int64] | None,
    pool: Interval | None,
    is_balanced: bool = False,
) -> ClassMix:
    """Return the class mix that `prior` names; the default is the estimate for the pool, where there is one.

    prior         "uniform", "labels", "pool", the path of a CSV file with the columns class and share, or the shares
                  themselves, as a mapping from class names or as a list in the order of the classes
    num_labels    number of labels of each class in training, None if unknown
    pool          estimated class shares of the pool, None if there is no estimate
    is_balanced   the model predicts as if all classes were equally frequent
    """
    num_classes = len(class_names)
    uniform = ClassMix(np.full(num_classes, 1 / num_classes), "equally frequent classes")
    if prior is None:
        if pool is None:
            mix = uniform if is_balanced else ClassMix(None, "the class mix that the model learned")
            return mix._replace(description=f"{mix.description}, because there is no estimate for a pool")
        prior = POOL
    if isinstance(prior, str) and prior == UNIFORM:
        return uniform
    if isinstance(prior, str) and prior == LABELS:
        if num_labels is None or num_labels.sum() == 0:
            raise ValueError("the run does not store the class mix of its labels; choose --prior uniform, or a file")
        return ClassMix(num_labels / num_labels.sum(), "the class mix of the labels")
    if isinstance(prior, str) and prior == POOL:
        if pool is None:
            raise ValueError(
                "the run has no estimate of the class shares of a pool; choose --prior uniform, labels, or a CSV file "
                "with the columns class and share"
            )
        return ClassMix(pool.for_bayes_rule(), "the estimated class mix of the pool of the run")
    if isinstance(prior, str | Path):
        return ClassMix(_from_file(Path(prior), class_names), f"the class mix in {prior}")
    if isinstance(prior, Mapping):
        return ClassMix(_checked(prior, class_names, "the prior"), "the given class mix")
    values = np.asarray(prior, np.float64)
    if values.shape != (num_classes,):
        raise ValueError(f"the prior has shape {values.shape}; give one share for each of the {num_classes} classes")
    shares = dict(zip(class_names, values.tolist(), strict=True))
    return ClassMix(_checked(shares, class_names, "the prior"), "the given class mix")


def _from_file(path: Path, class_names: Sequence[str]) -> Floats:
    """Read the shares from a CSV file with the columns class and share."""
    if not path.is_file():
        raise FileNotFoundError(
            f"--prior {path} is neither uniform, labels or pool nor a file; give a CSV file with the columns class and "
            "share"
        )
    table = read_csv(path)
    shares: dict[str, float] = {}
    for row, (name, cell) in enumerate(zip(table.column("class"), table.column("share"), strict=True)):
        name = plain_cell(name.strip())
        if name in shares:
            raise ValueError(f"{path}, {table.row_names[row]}: class {name!r} has a share already; remove one of them")
        try:
            shares[name] = float(cell.replace(",", ".") if table.separator == ";" else cell)
        except ValueError as error:
            raise ValueError(f"{path}, {table.row_names[row]}: the share {cell!r} is no number; correct it") from error
    return _checked(shares, class_names, str(path))


def _checked(shares: Mapping[str, float], class_names: Sequence[str], where: str) -> Floats:
    """Return the shares in the order of the classes, with the sum 1. A class that is not given has share 0."""
    unknown = [name for name in shares if name not in class_names]
    if unknown:
        listed = ", ".join(map(repr, class_names[:20]))
        raise ValueError(f"{where}: the model does not know the class {unknown[0]!r}; name only its classes: {listed}")
    values = np.array([shares.get(name, 0.0) for name in class_names])
    if not np.isfinite(values).all() or (values < 0).any() or values.max() <= 0:
        raise ValueError(f"{where}: shares must be numbers from 0 on with a positive sum; correct them")
    relative = values / values.max()  # the sum of very large numbers could overflow
    normalized: Floats = relative / relative.sum()
    return normalized
