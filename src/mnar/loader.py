"""The two streams: which rows a step sees, and the batch that they become on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mnar import distributed
from mnar.augment import kind_of
from mnar.types import Batch, DataSet, Selection, Split

STEPS_AHEAD = 64  # rows are drawn on the host and copied to the device for so many steps at a time


class Loader:
    """Draws rows for a step from (seed, step) alone, so that resuming needs no sampler state.

    Labelled rows repeat; unlabelled rows are distinct within a batch and independent across batches, so a sample's
    second visit can come at once: with epoch-wise permutations PRG would see no transition for a whole epoch.
    """

    def __init__(
        self,
        data: DataSet,
        split: Split,
        augment: Callable[[Tensor, str], Tensor],
        *,
        views: Sequence[str],
        labeled_view: str = "weak",
        batch_labeled: int,
        batch_unlabeled: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.num_labeled, self.num_unlabeled = len(split.labeled_index), len(split.unlabeled_index)
        if batch_labeled < 1 or batch_unlabeled < 1:
            raise ValueError(f"batch sizes are {batch_labeled} and {batch_unlabeled}; each must be at least 1")
        if not views:
            batch_unlabeled = 0  # nobody looks at them
        if batch_unlabeled > self.num_unlabeled:
            raise ValueError(
                f"train.batch_unlabeled is {batch_unlabeled}, but there are {self.num_unlabeled} unlabelled samples "
                f"and a batch holds each at most once; choose at most {self.num_unlabeled}"
            )
        self.augment, self.seed, self.device = augment, seed, device
        self.views, self.labeled_view = tuple(views), labeled_view
        self.batch_labeled, self.batch_unlabeled = batch_labeled, batch_unlabeled
        # uint8 on the device: a quarter of float32's memory; cast after the crop
        self._inputs, self._targets = data.train_x.to(device), data.train_y.to(device)
        self._given_rows = torch.from_numpy(split.labeled_index).to(device)
        self._unlabeled_rows = torch.from_numpy(split.unlabeled_index).to(device)
        self._labeled_rows, self._labels = self._given_rows, self._targets[self._given_rows]
        self.selection: Selection | None = None  # what the last generation handed on
        self._pool: npt.NDArray[np.int64] | None = None  # None: all of the unlabelled set
        self.unlabeled_targets = self._targets[self._unlabeled_rows]  # for scores only; no learner sees it
        # Fixed addresses, for CUDA graphs.
        local = slice(distributed.rank(), None, distributed.world_size())
        self._local = local
        self._x_index = torch.zeros(len(range(batch_labeled)[local]), dtype=torch.int64, device=device)
        self._u_index = torch.zeros(len(range(batch_unlabeled)[local]), dtype=torch.int64, device=device)
        self._drawn_from = -1
        self._drawn: tuple[Tensor, Tensor] | None = None

    def indices(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The rows of one step: of the labelled set, and of the unlabelled set."""
        random = np.random.default_rng([self.seed, step])
        x_index = random.integers(self.num_labeled, size=self.batch_labeled)
        if self._pool is None:
            u_index = random.choice(self.num_unlabeled, size=self.batch_unlabeled, replace=False)
        else:
            u_index = random.choice(
                self._pool, size=self.batch_unlabeled, replace=len(self._pool) < self.batch_unlabeled
            )
        return x_index, u_index

    def adopt(self, selection: Selection) -> None:
        """From now on the labelled set is the given one and what was selected; the selection before it is forgotten."""
        rows, labels = selection.rows.to(self.device), selection.labels.to(self.device)
        self._labeled_rows = torch.cat([self._given_rows, self._unlabeled_rows[rows]])
        self._labels = torch.cat([self._targets[self._given_rows], labels])
        self.num_labeled = len(self._labels)
        is_pool = selection.pool is not None and len(selection.pool) > 0
        self._pool = selection.pool.cpu().numpy() if is_pool else None  # type: ignore[union-attr]
        pool = None if selection.pool is None else selection.pool.to(self.device)
        self.selection, self._drawn = Selection(rows, labels, pool, selection.negative), None

    def unlabeled(self, view: str, *, batch: int, labeled: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole unlabelled set, in order: rows and their view, a batch at a time.

        Without `labeled` those of its rows are left out that are in the given labelled set as well.
        """
        wanted = torch.arange(self.num_unlabeled, device=self.device)
        if not labeled:
            wanted = wanted[~torch.isin(self._unlabeled_rows, self._given_rows)]
        for rows in wanted.split(batch):
            yield rows, self.augment(self._inputs[self._unlabeled_rows[rows]], view)

    def seek(self, step: int) -> None:
        """Make `step` the one that `batch` reads."""
        block, offset = divmod(step, STEPS_AHEAD)
        if self._drawn is None or block != self._drawn_from:
            self._drawn, self._drawn_from = self._draw(block), block
        x_index, u_index = self._drawn
        self._x_index.copy_(x_index[offset])
        self._u_index.copy_(u_index[offset])

    def batch(self) -> Batch:
        """The batch of the step last sought. Only device work: it can be part of a CUDA graph."""
        x_rows, u_rows = self._labeled_rows[self._x_index], self._unlabeled_rows[self._u_index]
        unlabeled = self._inputs[u_rows]
        return Batch(
            x=self.augment(self._inputs[x_rows], self.labeled_view),
            y=self._labels[self._x_index],
            x_index=self._x_index,
            # "weak2" is another draw of "weak": one compiled kernel serves both
            u={view: self.augment(unlabeled, kind_of(view)) for view in self.views},
            u_index=self._u_index,
        )

    def state_dict(self) -> dict[str, Any]:
        """What the generations before selected; all else follows from seed and step."""
        return {"selection": None if self.selection is None else self.selection._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("selection"):
            self.adopt(Selection(**state["selection"]))

    def _draw(self, block: int) -> tuple[Tensor, Tensor]:
        first = block * STEPS_AHEAD
        drawn = [self.indices(step) for step in range(first, first + STEPS_AHEAD)]
        x_index, u_index = (
            torch.from_numpy(np.stack(rows)[:, self._local].copy()) for rows in zip(*drawn, strict=True)
        )
        if self.device.type == "cuda":  # from pinned memory the copy does not hold up the host
            x_index, u_index = x_index.pin_memory(), u_index.pin_memory()
        return x_index.to(self.device, non_blocking=True), u_index.to(self.device, non_blocking=True)
