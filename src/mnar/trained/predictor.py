"""Predict encoded samples with the two kinds of models that a run can contain: a network or a portfolio."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.sample_blocks import SampleBlock
from mnar.own_data.portfolio.member import Floats, Integers, with_shares
from mnar.own_data.portfolio.threads import in_order
from mnar.own_data.portfolio_model import PortfolioModel

Features = npt.NDArray[np.float32]


class Predictor(Protocol):
    """Predicts encoded samples: images as uint8 [n, channels, height, width], others as float32 [n, features]."""

    @property
    def can_reweight(self) -> bool:
        """Whether the predictions can be made for any class shares."""

    @property
    def is_balanced(self) -> bool:
        """Whether predictions that are made for no shares are as if all classes were equally frequent."""

    def probs(self, x: npt.NDArray[Any], shares: Floats | None) -> Floats:
        """Return the probabilities [n, k] for data with these class shares; None: as the model was trained."""

    def reweighted(self, probs: npt.NDArray[Any], shares: Floats) -> Floats:
        """Return stored predictions [n, k] of the model, in calibration.npz, for data with these class shares."""

    def held_out_probs(self, probs: npt.NDArray[Any], y: Integers, shares: Floats) -> Floats:
        """Return `reweighted` stored predictions to compare with their labels y [n], which influence none of them.

        With too few labels for that, the calibration of a network is the one that is fitted to all of them.
        """

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
    is_balanced: ClassVar[bool] = True
    pool: ClassVar[None] = None

    def probs(self, x: npt.NDArray[Any], shares: Floats | None) -> Floats:
        balanced = self.model.balanced_probs(x)
        return balanced if shares is None else with_shares(balanced, shares)

    def reweighted(self, probs: npt.NDArray[Any], shares: Floats) -> Floats:
        return with_shares(probs, shares)

    def held_out_probs(self, probs: npt.NDArray[Any], y: Integers, shares: Floats) -> Floats:
        return self.reweighted(probs, shares)  # the cross-validation has kept each label away from its prediction

    def features(self, x: npt.NDArray[Any]) -> Features:
        return self.model.encoder.inputs(x).features

    @property
    def num_threads(self) -> int | None:
        return self.model.num_threads
