"""Label the samples of a pool block by block, on this machine or by the workers of a cluster, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files.sample_blocks import SampleBlock, SampleBlocks
from mnar.datasets.user_files.sample_blocks.shards import ShardBlocks
from mnar.own_data.portfolio.member import Floats
from mnar.trained.model import TrainedModel
from mnar.trained.predictor import Predictor, predicted_blocks
from mnar.trained.result_file import ResultFile, shards_fingerprint, source_fingerprint

OnRows = Callable[[int, int | None], None]  # called with the number of finished rows and their total, if it is known


class Pool(NamedTuple):
    """New samples for a trained model, and how to read them."""

    source: Path
    id: str | None = None  # a column that identifies the samples
    features: Path | None = None  # an .npy file with one row per sample


class LabelledBlock(NamedTuple):
    """Some consecutive lines of a result file."""

    lines: bytes
    num_rows: int
    counts: npt.NDArray[np.int64]  # how often each label was given, for the summary


class Labeller(Protocol):
    """Turns the probabilities of a block into lines of a result file. Workers get a copy of this object."""

    @property
    def shares(self) -> Floats | None:
        """The class mix of the probabilities; None: as the model was trained."""

    @property
    def counts_shape(self) -> tuple[int, ...]:
        """The shape of `LabelledBlock.counts`."""

    def __call__(self, block: SampleBlock, probs: Floats) -> LabelledBlock:
        """Label the samples of a block."""


class Workers(Protocol):
    """Where the samples of a pool are labelled."""

    def opened(self, model: TrainedModel, pool: Pool) -> AbstractContextManager[None]:
        """Connect to the workers and check that they see the model and the pool; disconnect at the end."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        """Call the function for each item, e.g. for each shard, and give the results in the order of the items."""

    def labelled(
        self, model: TrainedModel, pool: Pool, samples: SampleBlocks, first_row: int, labeller: Labeller
    ) -> Iterator[LabelledBlock]:
        """Yield the lines of all samples from `first_row` on, in the order of the pool."""


class ThisMachine:
    """Labels all samples in this process."""

    def opened(self, model: TrainedModel, pool: Pool) -> AbstractContextManager[None]:
        return nullcontext()

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        return map(function, items)

    def labelled(
        self, model: TrainedModel, pool: Pool, samples: SampleBlocks, first_row: int, labeller: Labeller
    ) -> Iterator[LabelledBlock]:
        return labelled_blocks(model.predictor, samples.blocks(first_row), labeller)


def labelled_blocks(predictor: Predictor, blocks: Iterator[SampleBlock], labeller: Labeller) -> Iterator[LabelledBlock]:
    """Predict and label each block."""
    for block, probs in predicted_blocks(predictor, blocks, labeller.shares):
        yield labeller(block, probs)


def write_labels(
    result: ResultFile, labelled: Iterable[LabelledBlock], labeller: Labeller, samples: SampleBlocks, on_rows: OnRows
) -> npt.NDArray[np.int64]:
    """Append all lines to the result file, and return how often each label was given."""
    counts = np.zeros(labeller.counts_shape, np.int64)
    for block in labelled:
        result.append(block.lines, block.num_rows)
        counts += block.counts
        on_rows(result.num_rows, samples.num_rows)
    return counts


def pool_fingerprints(pool: Pool, samples: SampleBlocks, workers: Workers) -> list[str]:
    """Return texts that change if the data of a pool change."""
    if isinstance(samples, ShardBlocks):
        return [shards_fingerprint(samples.paths, workers.map)]
    return [source_fingerprint(path) for path in (pool.source, pool.features) if path is not None]


def refuse_output_among_shards(out: Path, source: Path, shards: Iterable[Path]) -> None:
    """Raise an error if the output would lie in a folder of shards, because it would be read as a shard."""
    if any(True for _ in shards) and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(
            f"{out} would lie in {source}, whose files are the shards of the pool; choose --out in another folder"
        )
