"""Predict encoded samples with the network of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mnar.config import RunConfig
from mnar.models import Classifier
from mnar.own_data.confidence import NetworkCalibration, held_out_probabilities
from mnar.own_data.inspection.probe import Floats, Integers
from mnar.run import trained_network
from mnar.run.calibration_file import read_calibration
from mnar.training.engine import Engine
from mnar.types import DataSet

# Samples per forward pass. On a CPU, larger batches need more memory and are not faster.
BATCH_ON_CPU, BATCH_ON_GPU = 512, 8192


@dataclass(frozen=True)
class NetworkPredictor:
    """A network. Its features are the input of its last layer."""

    network: nn.Module
    prepare: Callable[[Tensor], Tensor]  # turns samples into the input of the network
    device: torch.device
    calibration: NetworkCalibration | None  # None: there are no labels to calibrate on
    is_balanced: ClassVar[bool] = False  # it predicts as if the class mix were the one that it learned

    @classmethod
    def of_run(cls, folder: Path, config: RunConfig, data: DataSet) -> Self:
        """Load the network of a run, with the precision and the kernels of its evaluation.

        `data` gives the shape of the samples, the classes and the moments; it needs no samples.
        """
        engine, stored = Engine(config.engine), read_calibration(folder, len(data.class_names))
        network, prepare = trained_network(folder, config, data, engine)
        calibration = None if stored is None else NetworkCalibration.fit(stored.probs, stored.y)
        return cls(network, prepare, engine.device, calibration)

    @property
    def can_reweight(self) -> bool:
        return self.calibration is not None

    @torch.inference_mode()
    def probs(self, x: npt.NDArray[Any], shares: Floats | None = None) -> Floats:
        parts = [self.network(self.prepare(batch)).double().softmax(1) for batch in self._batches(x)]
        probs: Floats = torch.cat(parts).cpu().numpy()
        return probs if shares is None else self.reweighted(probs, shares)

    def reweighted(self, probs: npt.NDArray[Any], shares: Floats) -> Floats:
        if self.calibration is None:
            raise ValueError(
                "the run stores no predictions for labels that its network was not trained on, so the predictions "
                "cannot be changed to another class mix. Leave out the prior, or train with more labels; if an older "
                "version of mnar trained the run, repeat `mnar train --resume RUN`"
            )
        return self.calibration(probs, shares)

    def held_out_probs(self, probs: npt.NDArray[Any], y: Integers, shares: Floats) -> Floats:
        out_of_fold = held_out_probabilities(probs, y, shares)
        return self.reweighted(probs, shares) if out_of_fold is None else out_of_fold

    @torch.inference_mode()
    def features(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        network = cast(Classifier, self.network)
        parts = [network.features(self.prepare(batch)).float() for batch in self._batches(x)]
        features: npt.NDArray[np.float32] = torch.cat(parts).cpu().numpy()
        return features

    @property
    def num_threads(self) -> int | None:
        return 1 if self.device.type == "cuda" else None

    @cached_property
    def pool(self) -> ThreadPoolExecutor | None:
        # cuDNN chooses its kernels once per thread, which takes a second. So one thread does all work on the GPU, while
        # the caller's thread reads and writes.
        return ThreadPoolExecutor(1) if self.device.type == "cuda" else None

    def _batches(self, x: npt.NDArray[Any]) -> Iterator[Tensor]:
        samples = torch.from_numpy(np.ascontiguousarray(x))
        size = BATCH_ON_GPU if self.device.type == "cuda" else BATCH_ON_CPU
        return (batch.to(self.device, non_blocking=True) for batch in samples.split(size))
