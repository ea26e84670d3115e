"""Predict encoded samples with the two kinds of models that a run can contain: a network or a portfolio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mnar.datasets.user_files.sample_blocks import SampleBlock
from mnar.models import Classifier
from mnar.own_data.confidence import NetworkCalibration
from mnar.own_data.portfolio.member import Floats, with_shares
from mnar.own_data.portfolio.threads import in_order
from mnar.own_data.portfolio_model import PortfolioModel

Features = npt.NDArray[np.float32]
# Samples per forward pass. On a CPU, larger batches need more memory and are not faster.
BATCH_ON_CPU, BATCH_ON_GPU = 512, 8192


class Predictor(Protocol):
    """Predicts encoded samples: images as uint8 [n, channels, height, width], others as float32 [n, features]."""

    @property
    def can_reweight(self) -> bool:
        """Whether the predictions can be made for any class shares."""

    def probs(self, x: npt.NDArray[Any], shares: Floats | None) -> Floats:
        """Return the probabilities [n, k] for data with these class shares; None: as the model was trained."""

    def reweighted(self, probs: npt.NDArray[Any], shares: Floats) -> Floats:
        """Return stored predictions [n, k] of the model, in calibration.npz, for data with these class shares."""

    def features(self, x: npt.NDArray[Any]) -> Features:
        """Return the features [n, d] from which the model predicts."""

    @property
    def num_threads(self) -> int | None:
        """How many blocks to predict at the same time; None: as many as torch has threads."""

    @property
    def pool(self) -> ThreadPoolExecutor | None:
        """The threads that predict; None: new threads for each call."""


def predicted_blocks(
    predictor: Predictor, blocks: Iterator[SampleBlock], shares: Floats | None
) -> Iterator[tuple[SampleBlock, Floats]]:
    """Yield each block with its probabilities [n, k]. The next blocks are read while some are predicted."""
    return in_order(lambda block: predictor.probs(block.x, shares), blocks, predictor.num_threads, predictor.pool)


@dataclass(frozen=True)
class PortfolioPredictor:
    """The portfolio. Its features are the standardised columns of a table, or the features of images."""

    model: PortfolioModel
    can_reweight: ClassVar[bool] = True
    pool: ClassVar[None] = None

    def probs(self, x: npt.NDArray[Any], shares: Floats | None) -> Floats:
        balanced = self.model.balanced_probs(x)
        return balanced if shares is None else with_shares(balanced, shares)

    def reweighted(self, probs: npt.NDArray[Any], shares: Floats) -> Floats:
        return with_shares(probs, shares)

    def features(self, x: npt.NDArray[Any]) -> Features:
        return self.model.encoder.inputs(x).features

    @property
    def num_threads(self) -> int | None:
        return self.model.num_threads


@dataclass(frozen=True)
class NetworkPredictor:
    """A network. Its features are the input of its last layer."""

    network: nn.Module
    prepare: Callable[[Tensor], Tensor]  # turns samples into the input of the network
    device: torch.device
    calibration: NetworkCalibration | None  # None: there are no labels to calibrate on

    @property
    def can_reweight(self) -> bool:
        return self.calibration is not None

    @torch.inference_mode()
    def probs(self, x: npt.NDArray[Any], shares: Floats | None) -> Floats:
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

    @torch.inference_mode()
    def features(self, x: npt.NDArray[Any]) -> Features:
        network = cast(Classifier, self.network)
        parts = [network.features(self.prepare(batch)).float() for batch in self._batches(x)]
        features: Features = torch.cat(parts).cpu().numpy()
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
