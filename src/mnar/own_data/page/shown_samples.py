"""The samples of the pool that the report shows: pictures, or cells of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.own_data.inspection.probe import Floats, Integers
from mnar.own_data.next_samples import NextSamples
from mnar.report import ClassSamples, NextSample, ShownSample
from mnar.types import DataSet

SAMPLES = 6  # of each class and kind
MOST_CLASSES = 20
MOST_COLUMNS = 6  # cells of a row that fit beside each other
MISSING, OTHER = "–", "(other)"


class PoolView:
    """The samples of the pool with their predictions, as the report shows them."""

    def __init__(self, data: DataSet, pool: npt.NDArray[np.intp], labels: Integers, probs: Floats) -> None:
        """Take the rows of the pool, their predicted classes [n], and their probabilities [n, k]."""
        self.data, self.pool, self.labels, self.probs = data, pool, labels, probs
        self.columns, self.num_columns, self._cells = _cells_of(data)

    def by_class(self) -> list[ClassSamples]:
        """Return the most confident and the most contested predictions of each class."""
        confidences = self.probs[np.arange(len(self.labels)), self.labels]
        margins = _margins(self.probs)
        groups = []
        for c, name in enumerate(self.data.class_names[:MOST_CLASSES]):
            members = np.flatnonzero(self.labels == c)
            if len(members):
                confident = members[np.argsort(-confidences[members], kind="stable")[:SAMPLES]]
                contested = members[np.argsort(margins[members], kind="stable")[:SAMPLES]]
                groups.append(
                    ClassSamples(
                        str(name),
                        [self._shown(i, num_classes=1) for i in confident],
                        [self._shown(i, num_classes=2) for i in contested],
                    )
                )
        return groups

    def to_label(self, chosen: NextSamples | None, probs: Floats) -> list[NextSample]:
        """Return the samples that should be labelled next, with the probabilities [n, k] that the reasons come from."""
        if chosen is None:
            return []
        pairs = zip(chosen.rows.tolist(), chosen.reasons, strict=True)
        return [
            NextSample(self._with_probs(i, np.argsort(-probs[i], kind="stable")[:2], probs[i]), why) for i, why in pairs
        ]

    def _shown(self, i: int, *, num_classes: int) -> ShownSample:
        """Return one sample with the probabilities of its predicted class and, if asked for, of the runner-up."""
        order = np.argsort(-self.probs[i], kind="stable")
        named = [self.labels[i], *(c for c in order if c != self.labels[i])][:num_classes]
        return self._with_probs(i, named, self.probs[i])

    def _with_probs(self, i: int, classes: Sequence[int] | Integers, probs: Floats) -> ShownSample:
        """Return one sample with the probabilities of these classes."""
        data, row = self.data, self.pool[i]
        prediction = " or ".join(f"{data.class_names[c]} ({_percent(probs[c])})" for c in classes)
        name = str(data.row_names[row]) if data.ids is None else str(data.ids[row])
        if data.is_image:
            return ShownSample(name, prediction, image=data.train_x[row].numpy())
        return ShownSample(name, prediction, cells=self._cells(data.train_x[row].numpy()))


def _percent(prob: float) -> str:
    """Return e.g. "97 %"; a probability is never shown as 0 or 100 %."""
    return "> 99 %" if prob > 0.995 else "< 1 %" if prob < 0.005 else f"{100 * prob:.0f} %"


def _margins(probs: Floats) -> Floats:
    """Return the difference between the largest and the second largest probability of each row."""
    if probs.shape[1] < 2 or not len(probs):
        return np.zeros(len(probs))
    top = np.partition(probs, -2, axis=1)
    margins: Floats = top[:, -1] - top[:, -2]
    return margins


def _cells_of(data: DataSet) -> tuple[tuple[str, ...], int, Callable[[npt.NDArray[np.float32]], list[str]]]:
    """Return the names of the shown columns, the number of all columns, and a function from a sample to its cells."""
    if data.is_image:
        return (), 0, lambda x: []
    if data.encoding is None:  # numbers without names, e.g. features from elsewhere
        num_columns = int(data.train_x.shape[1])
        names = tuple(f"x{i}" for i in range(min(num_columns, MOST_COLUMNS)))
        return names, num_columns, lambda x: [f"{value:.4g}" for value in x[:MOST_COLUMNS]]
    encoder = TableEncoder.from_dict(data.encoding)
    names = (*encoder.numeric_names, *encoder.categorical_names)
    return names[:MOST_COLUMNS], len(names), lambda x: decoded_cells(encoder, x)[:MOST_COLUMNS]


def decoded_cells(encoder: TableEncoder, x: npt.NDArray[np.float32]) -> list[str]:
    """Return the cells of an encoded row as texts. Rare categories share one encoded column and are shown as one."""
    position = {name: place for place, name in enumerate(encoder.feature_names)}
    cells = []
    for j, name in enumerate(encoder.numeric_names):
        is_missing = encoder.numeric_had_missing[j] and x[position[f"{name} (missing)"]] > 0
        cells.append(MISSING if is_missing else f"{float(x[position[name]]) * encoder.stds[j] + encoder.means[j]:.4g}")
    for j, name in enumerate(encoder.categorical_names):
        levels = encoder.levels[j][: encoder.num_levels_alone[j]]
        found = [level for level in levels if x[position[f"{name} = {level}"]] > 0]
        is_other = encoder.had_others[j] and x[position[f"{name} (other)"]] > 0
        cells.append(found[0] if found else OTHER if is_other else MISSING)
    return cells
