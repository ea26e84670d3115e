"""`TrainedModel`: the model of a finished run, which predicts data of every kind that the run could be trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.sample_blocks import SampleBlock, SampleBlocks, open_samples
from mnar.datasets.user_files.sample_blocks.shards import Map
from mnar.own_data.inspection.label_shift import Interval
from mnar.own_data.portfolio.member import Floats
from mnar.run.calibration_file import CalibrationData
from mnar.trained.class_mix import ClassMix, Prior, class_mix
from mnar.trained.predictor import Features, Predictor, predicted_blocks


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """The model of a run, returned by `mnar.load(RUN)`.

    The methods take the same data as `mnar train`, without labels: an array of images, uint8 [n, h, w], [n, h, w, c]
    or [n, c, h, w]; an array of numbers [n, features]; a DataFrame; a list of image paths; or the path of a table, an
    .npy or .npz file, an image, a folder of images, or a folder of shards (tables or arrays). The data go through the
    preprocessing of the training run: columns are found by name, images are resized, numbers are standardised.

    `prior` is the class mix that the probabilities are for: "uniform", "labels", "pool", the path of a CSV file with
    the columns class and share, or the shares themselves. The default is the estimated class mix of the pool, where the
    run has an estimate.
    """

    run: Path
    inputs: ModelInputs
    predictor: Predictor
    calibration: CalibrationData | None = None  # None: the run was trained by an older version
    ignored: tuple[str, ...] = ()  # columns that are no features: those that the user left out, and the label

    def __repr__(self) -> str:
        return f"TrainedModel({str(self.run)!r}, {self.inputs.in_words}, {len(self.inputs.class_names)} classes)"

    @property
    def classes_(self) -> npt.NDArray[np.str_]:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return np.array(self.inputs.class_names)

    @property
    def pool_shares(self) -> Interval | None:
        """The estimated class shares of the pool; None if there is no estimate."""
        if self.calibration is None or self.calibration.pool_shares is None:
            return None
        return Interval(*self.calibration.pool_shares)

    def predict(self, data: Any, *, prior: Prior | None = None) -> npt.NDArray[np.str_]:
        """Return the most probable class of each sample, [n]. A sample that cannot be read is an error."""
        labels: npt.NDArray[np.str_] = self.classes_[self.predict_proba(data, prior=prior).argmax(1)]
        return labels

    def predict_proba(self, data: Any, *, prior: Prior | None = None) -> Floats:
        """Return the probabilities of the classes, [n, k]."""
        shares = self.class_mix(prior).shares
        parts = [probs for _, probs in predicted_blocks(self.predictor, self._blocks(data), shares)]
        return np.concatenate(parts)

    def features(self, data: Any) -> Features:
        """Return the features [n, d] from which the model predicts, e.g. to find similar samples."""
        return np.concatenate([self.predictor.features(block.x) for block in self._blocks(data)])

    def class_mix(self, prior: Prior | None) -> ClassMix:
        """Return the class shares that a prior stands for."""
        num_labels = None if self.calibration is None else self.calibration.num_labels
        return class_mix(
            prior,
            self.inputs.class_names,
            num_labels=num_labels,
            pool=self.pool_shares,
            is_balanced=self.predictor.is_balanced,
        )

    def open(self, data: Any, *, id: str | None = None, features: Path | None = None, over: Map = map) -> SampleBlocks:
        """Open new samples, block by block. `over` calls a function for each shard of a folder."""
        return open_samples(data, self.inputs, ignore=self.ignored, id=id, features=features, over=over)

    def _blocks(self, data: Any) -> Iterator[SampleBlock]:
        """Yield the blocks of new data, and raise an error if a sample cannot be read."""
        for block in self.open(data).blocks():
            for place, problem in block.problems.items():
                raise ValueError(f"{block.names[place]} cannot be read ({problem}); replace the file, or leave it out")
            yield block
