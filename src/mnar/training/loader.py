"""The two streams: which rows a step sees, and the batch that they become on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mnar import distributed
from mnar.augment import kind_of
from mnar.types import Batch, DataSet, Selection, Split

STEPS_AHEAD = 64  # rows are drawn on the host and copied to the device for so many steps at a time
LARGEST_SHARE = 0.5  # of the free memory of a device that samples may fill; the rest is for model and activations


class Loader:
    """Draws rows for a step from (seed, step) alone, so that resuming needs no sampler state.

    Labelled rows repeat; unlabelled rows are distinct within a batch and independent across batches, so a sample's
    second visit can come at once: with epoch-wise permutations PRG would see no transition for a whole epoch.

    on_device   whether all samples are copied to the device, or stay where they are (in memory, or in a memory-mapped
                file) and follow step by step; None: copied if they fit well. Batches are the same either way.
    held_out    samples whose labels are kept to validate with
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
        on_device: bool | None = None,
        held_out: npt.NDArray[np.int64] | None = None,
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
        self.on_device = fits(data.train_x.nbytes, device) if on_device is None else on_device
        # uint8 on the device: a quarter of float32's memory; cast after the crop
        self._inputs = data.train_x.to(device) if self.on_device else data.train_x
        self._given_rows = torch.from_numpy(split.labeled_index).to(device)
        self._given_labels = data.labels.to(device)[self._given_rows]
        self._unlabeled_rows = torch.from_numpy(split.unlabeled_index).to(device)
        with_label = split.labeled_index if held_out is None else np.append(split.labeled_index, held_out)
        self._with_label = torch.from_numpy(with_label).to(device)
        self._labeled_rows, self._labels = self._given_rows, self._given_labels
        self.selection: Selection | None = None  # what the last generation handed on
        self._pool: npt.NDArray[np.int64] | None = None  # None: all of the unlabelled set
        # For scores only; no learner sees it. Where some are unknown all are: those known are trained on, and flatter.
        self.unlabeled_targets = data.train_y.to(device)[self._unlabeled_rows]
        if (self.unlabeled_targets < 0).any():
            self.unlabeled_targets = torch.full_like(self.unlabeled_targets, -1)
        # Fixed addresses, for CUDA graphs.
        local = slice(distributed.rank(), None, distributed.world_size())
        self._local = local
        self._x_index = torch.zeros(len(range(batch_labeled)[local]), dtype=torch.int64, device=device)
        self._u_index = torch.zeros(len(range(batch_unlabeled)[local]), dtype=torch.int64, device=device)
        self._drawn_from = -1
        self._drawn: tuple[Tensor, Tensor] | None = None
        batch = len(self._x_index) + len(self._u_index)
        self._staging = None if self.on_device else Staging(self._inputs, batch, device)

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
        self._labels = torch.cat([self._given_labels, labels])
        self.num_labeled = len(self._labels)
        is_pool = selection.pool is not None and len(selection.pool) > 0
        self._pool = selection.pool.cpu().numpy() if is_pool else None  # type: ignore[union-attr]
        pool = None if selection.pool is None else selection.pool.to(self.device)
        self.selection, self._drawn = Selection(rows, labels, pool, selection.negative), None

    def unlabeled(self, view: str, *, batch: int, labeled: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole unlabelled set, in order: rows and their view, a batch at a time.

        Without `labeled` those of its rows are left out that have a given label, held out or not.
        """
        wanted = torch.arange(self.num_unlabeled, device=self.device)
        if not labeled:
            wanted = wanted[~torch.isin(self._unlabeled_rows, self._with_label)]
        for rows in wanted.split(batch):
            inputs = self._inputs[self._unlabeled_rows[rows].to(self._inputs.device)]
            yield rows, self.augment(inputs.to(self.device), view)

    def seek(self, step: int) -> None:
        """Make `step` the one that `batch` reads."""
        block, offset = divmod(step, STEPS_AHEAD)
        if self._drawn is None or block != self._drawn_from:
            self._drawn, self._drawn_from = self._draw(block), block
        x_index, u_index = self._drawn
        self._x_index.copy_(x_index[offset])
        self._u_index.copy_(u_index[offset])
        if self._staging is not None:
            self._staging.load(offset)

    def batch(self) -> Batch:
        """The batch of the step last sought. Only device work: it can be part of a CUDA graph."""
        if self._staging is None:
            labeled = self._inputs[self._labeled_rows[self._x_index]]
            unlabeled = self._inputs[self._unlabeled_rows[self._u_index]]
        else:
            labeled, unlabeled = self._staging.loaded.tensor_split([len(self._x_index)])
        return Batch(
            x=self.augment(labeled, self.labeled_view),
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
        x_index, u_index = (index.to(self.device, non_blocking=True) for index in (x_index, u_index))
        if self._staging is not None:
            self._staging.plan(torch.cat([self._labeled_rows[x_index], self._unlabeled_rows[u_index]], dim=1))
        return x_index, u_index


class Staging:
    """Brings the samples of a step from the host to a fixed place on the device, where a CUDA graph finds them.

    Two buffers take turns: the device works behind the host, so while it is busy with a step, and even with copying
    from one buffer, the samples of the next step are gathered into the other.
    """

    def __init__(self, samples: Tensor, batch: int, device: torch.device) -> None:
        self.samples = samples
        shape, on_gpu = (batch, *samples.shape[1:]), device.type == "cuda"
        self.loaded = torch.empty(shape, dtype=samples.dtype, device=device)
        self._buffers = cycle(
            (torch.empty(shape, dtype=samples.dtype, pin_memory=on_gpu), torch.cuda.Event() if on_gpu else None)
            for _ in range(2)
        )

    def plan(self, rows: Tensor) -> None:
        """Set the rows of the next steps, [steps, batch]. This waits for the device, once for all of them."""
        self._rows = rows.cpu()

    def load(self, step: int) -> None:
        """Gather the samples of one of the steps planned, and have them copied."""
        buffer, copied = next(self._buffers)
        if copied is not None:
            copied.synchronize()  # what is in the buffer may still be on its way
        torch.index_select(self.samples, 0, self._rows[step], out=buffer)
        self.loaded.copy_(buffer, non_blocking=True)
        if copied is not None:
            copied.record()


def fits(num_bytes: int, device: torch.device) -> bool:
    """Whether samples can be copied to the device; if that is the host, they are there already."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes <= LARGEST_SHARE * free
