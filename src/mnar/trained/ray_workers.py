"""`mnar predict --launcher ray` and `mnar relabel --launcher ray`: Ray Data labels the pool.

The pool is cut into pieces: a shard, or some blocks of a large file or of a folder of images. Each worker loads the
model once and labels one piece at a time. Ray gives the pieces back in the order of the pool, so the result file
grows as on one machine, and either of them continues what the other one began. Ray repeats the piece of a lost worker.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray

from mnar.bench.launchers.ray_cluster import RayCluster
from mnar.bench.launchers.ray_files import (
    MOST_LOSSES,
    WHAT_TO_DO,
    check_shared_files,
    errors_with_remedy,
    go_to,
    map_in_order,
)
from mnar.datasets.user_files.sample_blocks import ROWS_PER_BLOCK, SampleBlocks
from mnar.datasets.user_files.sample_blocks.shards import ShardBlocks, shortened
from mnar.own_data.network_predictor import NetworkPredictor
from mnar.run.file_names import MODEL
from mnar.trained.labelling import LabelledBlock, Labeller, Pool, labelled_blocks
from mnar.trained.load import load
from mnar.trained.model import TrainedModel

BLOCKS_PER_PIECE = 4  # of a large file: enough work that opening the file again costs little
NEEDED_BY_RAY_DATA = ("pyarrow", "pandas")


class RayWorkers:
    """Labels a pool on a Ray cluster.

    options    of the launcher: address, num_cpus, num_gpus, memory_gb
    device     for networks: cpu, cuda or auto
    """

    def __init__(self, options: Mapping[str, Any], device: str = "auto") -> None:
        missing = [name for name in NEEDED_BY_RAY_DATA if find_spec(name) is None]
        if missing:
            raise ValueError(
                f"--launcher ray needs the package {missing[0]}; install it with pip install 'mnar[ray]', or choose "
                "--launcher local"
            )
        if device.startswith("cuda:"):
            raise ValueError(f"--device is {device}, but the cluster chooses the GPU of each worker; use --device cuda")
        self.cluster, self.device = RayCluster(options), device
        self.resources: dict[str, float] = {}
        self.num_places = 0

    @contextmanager
    def opened(self, model: TrainedModel, pool: Pool) -> Iterator[None]:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # otherwise Ray warns about the actors of Ray Data
        with self.cluster.connected():
            paths = [model.run / MODEL, pool.source, *([] if pool.features is None else [pool.features])]
            check_shared_files(self.cluster, paths, "the run and the pool")
            uses_device = isinstance(model.predictor, NetworkPredictor)
            self.resources = self.cluster.resources(self.device if uses_device else "cpu")
            self.num_places = self.cluster.num_places(self.resources, "a worker", "--device cpu")
            yield

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], /) -> Iterable[Any]:
        return map_in_order(self.cluster, function, items, resources={"num_cpus": 1})

    def labelled(
        self, model: TrainedModel, pool: Pool, samples: SampleBlocks, first_row: int, labeller: Labeller
    ) -> Iterator[LabelledBlock]:
        pieces = list(_pieces(samples, first_row))
        if not pieces:
            return
        shards = samples.shards if isinstance(samples, ShardBlocks) else None
        attempts = ray.remote(_Attempts).options(num_cpus=0).remote(MOST_LOSSES)
        order = _Order(model.run, self.device, Path.cwd(), pool, shards, labeller, attempts)
        notes: list[str] = []
        with errors_with_remedy():
            dataset = _quiet_ray_data().from_items([asdict(piece) for piece in pieces], override_num_blocks=len(pieces))
            answers = dataset.flat_map(
                _Worker,
                fn_constructor_args=(order,),
                concurrency=min(self.num_places, len(pieces)),
                **self.resources,
            )
            for answer in answers.iter_rows():
                if answer["problem"]:
                    raise ValueError(answer["problem"])
                notes += list(answer["notes"])
                if answer["num_rows"]:
                    counts = np.array(answer["counts"], np.int64).reshape(labeller.counts_shape)
                    yield LabelledBlock(answer["lines"], answer["num_rows"], counts)
        samples.notes += shortened(notes)


@dataclass(frozen=True)
class _Piece:
    """Some blocks of a shard. A source that is no folder of shards counts as one shard."""

    shard: int
    first_row: int  # in the shard
    num_blocks: int  # 0: all blocks from the first row on


@dataclass(frozen=True)
class _Order:
    """All that a worker needs."""

    run: Path
    device: str
    directory: Path  # where the command was started: paths may be relative to it
    pool: Pool
    shards: Sequence[SampleBlocks] | None  # None: the worker opens the pool itself
    labeller: Labeller
    attempts: Any  # the actor that counts how often a piece was begun


class _Attempts:
    """Counts how often each piece was begun. Ray Data alone would repeat a piece that ends its worker for ever."""

    def __init__(self, most_losses: int) -> None:
        self.most_losses, self.counts = most_losses, Counter[_Piece]()

    def begin(self, piece: _Piece) -> bool:
        """Return whether the piece may be begun once more."""
        self.counts[piece] += 1
        return self.counts[piece] <= self.most_losses + 1


class _Worker:
    """Labels pieces. Ray Data creates one object per worker, so that each worker loads the model once."""

    def __init__(self, order: _Order) -> None:
        self.order = order
        self.model: TrainedModel | None = None
        self.shards: Sequence[SampleBlocks] = order.shards or ()

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield an answer for each block of the piece, then the notes on the piece; instead of an error, its text."""
        try:
            piece = _Piece(**row)
            if not ray.get(self.order.attempts.begin.remote(piece)):
                raise ValueError(self._lost(piece))
            self._open()
            yield from self._answers(piece)
        except (ValueError, OSError) as error:  # Ray would add a traceback
            yield _answer(problem=str(error))

    def _open(self) -> None:
        if self.model is not None:
            return
        go_to(self.order.directory)
        self.model = load(self.order.run, device=self.order.device)
        pool = self.order.pool
        self.shards = self.order.shards or [self.model.open(pool.source, id=pool.id, features=pool.features)]

    def _lost(self, piece: _Piece) -> str:
        shard = f"shard {piece.shard + 1}" if self.order.shards else str(self.order.pool.source)
        return (
            f"several workers were lost while they labelled {shard} from row {piece.first_row + 1:,} on, {WHAT_TO_DO}"
        )

    def _answers(self, piece: _Piece) -> Iterator[dict[str, Any]]:
        assert self.model is not None
        shard, num_rows = self.shards[piece.shard], 0
        before = list(shard.notes)
        with closing(shard.blocks(piece.first_row)) as blocks:
            chosen = islice(blocks, piece.num_blocks or None)
            for block in labelled_blocks(self.model.predictor, chosen, self.order.labeller):
                num_rows += block.num_rows
                yield _answer(lines=block.lines, num_rows=block.num_rows, counts=block.counts.ravel().tolist())
        notes = [note for note in shard.notes if note not in before]
        if shard.can_start_anywhere:  # the notes count what is in this piece only
            notes = [f"{note} (rows {piece.first_row + 1:,} to {piece.first_row + num_rows:,})" for note in notes]
        yield _answer(notes=notes)


def _answer(**values: Any) -> dict[str, Any]:
    """Return a row of the data set that the workers give back. All rows have the same columns."""
    return {"problem": "", "lines": b"", "num_rows": 0, "counts": [], "notes": []} | values


def _pieces(samples: SampleBlocks, first_row: int) -> Iterator[_Piece]:
    """Cut the samples from `first_row` on into pieces."""
    shards: Sequence[SampleBlocks] = samples.shards if isinstance(samples, ShardBlocks) else [samples]
    first_shard, row = samples.position(first_row) if isinstance(samples, ShardBlocks) else (0, first_row)
    for number, shard in enumerate(shards):
        if number < first_shard:
            continue
        start = row if number == first_shard else 0
        assert shard.num_rows is not None
        if shard.can_start_anywhere:
            starts = range(start, shard.num_rows, BLOCKS_PER_PIECE * ROWS_PER_BLOCK)
            yield from (_Piece(number, first, BLOCKS_PER_PIECE) for first in starts)
        elif start < shard.num_rows:
            yield _Piece(number, start, 0)


def _quiet_ray_data() -> Any:
    """Return the module ray.data, which then prints nothing and keeps the order of the pieces."""
    import ray.data as ray_data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray_data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    return ray_data
