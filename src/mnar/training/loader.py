"""The loader: draws the labelled and unlabelled rows of each step, and makes the batch on the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mnar import distributed
from mnar.augment import kind_of, kinds_of
from mnar.training.stages import Stage
from mnar.types import Batch, DataSet, Selection, Split

STEPS_AHEAD = 64  # the rows of this many steps are drawn on the host and copied to the device together
MAX_SHARE_OF_FREE_MEMORY = 0.5  # of the free device memory that samples may fill; model and activations need the rest


class Loader:
    """Draws the rows of a step from (seed, step, batch size) alone, so that resuming needs no sampler state.

    Labelled rows may repeat within a batch. Unlabelled rows are distinct within a batch and independent across batches,
    so a sample can return in the next batch. With one permutation per epoch, no sample would return within the first
    epoch, so PRG would see no transition.

    A `row` is a row of the training samples. An `index` is a position in the labelled or the unlabelled set.

    stages       the batch sizes of all steps; empty: every step has `batch_labeled` and `batch_unlabeled` samples
    on_device    True: copy all samples to the device. False: keep them in host memory (or in a memory-mapped file) and
                 copy the samples of each step. None: copy them if they take at most half of the free device memory.
                 The batches are the same in all cases.
    held_out     rows whose labels are held out for early stopping
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
        stages: Sequence[Stage] = (),
        seed: int,
        device: torch.device,
        on_device: bool | None = None,
        held_out: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.num_labeled, self.num_unlabeled = len(split.labeled_index), len(split.unlabeled_index)
        if batch_labeled < 1 or batch_unlabeled < 1:
            raise ValueError(f"batch sizes are {batch_labeled} and {batch_unlabeled}; each must be at least 1")
        self.stages = tuple(stages) or (Stage(sys.maxsize, batch_labeled, batch_unlabeled),)
        if not views:  # the learner uses no unlabelled samples
            batch_unlabeled = 0
            self.stages = tuple(stage._replace(batch_unlabeled=0) for stage in self.stages)
        if batch_unlabeled > self.num_unlabeled:
            raise ValueError(
                f"train.batch_unlabeled is {batch_unlabeled}, but there are {self.num_unlabeled} unlabelled samples "
                f"and a batch holds each at most once; choose at most {self.num_unlabeled}"
            )
        self._check_divisible()
        self.augment, self.seed, self.device = augment, seed, device
        self.views, self.labeled_view = tuple(views), labeled_view
        self.on_device = fits_on_device(data.train_x.nbytes, device) if on_device is None else on_device
        # uint8 on the device takes a quarter of the memory of float32; the augmentation casts after the crop
        self._inputs = data.train_x.to(device) if self.on_device else data.train_x
        self._given_rows = torch.from_numpy(split.labeled_index).to(device)
        self._given_labels = data.labels.to(device)[self._given_rows]
        self._unlabeled_rows = torch.from_numpy(split.unlabeled_index).to(device)
        with_label = split.labeled_index if held_out is None else np.append(split.labeled_index, held_out)
        self._with_label = torch.from_numpy(with_label).to(device)
        self._labeled_rows, self._labels = self._given_rows, self._given_labels
        self.selection: Selection | None = None  # the samples that joined after the last generation
        self._pool: npt.NDArray[np.int64] | None = None  # rows that unlabelled batches are drawn from; None: all
        # The true classes of the unlabelled samples, for scores only. If some are unknown, all count as unknown: the
        # known ones belong to labelled samples, on which the model was trained, so scores on them would be too high.
        self.unlabeled_targets = data.train_y.to(device)[self._unlabeled_rows]
        if (self.unlabeled_targets < 0).any():
            self.unlabeled_targets = torch.full_like(self.unlabeled_targets, -1)
        self._num_processes, self._process = distributed.world_size(), distributed.rank()
        num_x, num_u = self._local_sizes(batch_labeled, batch_unlabeled)
        # A CUDA graph reads the draw of a step from a fixed address. A smaller batch fills the buffer in part.
        self._buffer = torch.zeros(3 * (num_x + num_u), dtype=torch.int64, device=device)
        self._draw_of_step = Draw.unpacked(self._buffer, num_x, num_u)
        self._drawn_block: tuple[int, Stage] | None = None
        self._drawn: Tensor | None = None  # the packed draws of a block of steps, one row per step
        self._staging = None if self.on_device else Staging(self._inputs, num_x + num_u, device)

    def _check_divisible(self) -> None:
        """Refuse batches that the processes cannot share equally: the mean of their losses would be another loss."""
        processes = distributed.world_size()
        for stage in self.stages:
            for name, size in zip(("batch_labeled", "batch_unlabeled"), stage.sizes, strict=True):
                if size % processes:
                    below = size - size % processes
                    choices = f"{below} or {below + processes}" if below else f"{processes}"
                    raise ValueError(
                        f"train.{name} gives {size} samples per step, which {processes} processes cannot share "
                        f"equally; choose another number of processes, or, for a new run, sizes (and "
                        f"train.batch_stages) that give e.g. {choices}"
                    )

    def stage_of(self, step: int) -> Stage:
        """The stage of a step, counted from 0. Steps after the end belong to the last stage."""
        return next((stage for stage in self.stages if step < stage.end), self.stages[-1])

    def is_batch_changed(self, step: int) -> bool:
        """Whether the batch after this step has another size than the batch of this step (`train.batch_stages`)."""
        return self.stage_of(step).sizes != self.stage_of(step - 1).sizes

    def images_until(self, step: int) -> int:
        """The number of samples, counted once per view, that the steps up to this one process."""
        labeled_views, unlabeled_views = len(kinds_of(self.labeled_view)), len(self.views)
        images, began = 0, 0
        for stage in self.stages:
            num_steps = max(0, min(stage.end, step) - began)
            images += num_steps * (labeled_views * stage.batch_labeled + unlabeled_views * stage.batch_unlabeled)
            began = stage.end
        return images

    def indices(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draw the rows of one step: rows of the labelled set, and rows of the unlabelled set."""
        return self._indices(step, self.stage_of(step))

    def _indices(self, step: int, stage: Stage) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        rng = np.random.default_rng([self.seed, step])
        x_index = rng.integers(self.num_labeled, size=stage.batch_labeled)
        size = stage.batch_unlabeled
        if self._pool is None:
            u_index = rng.choice(self.num_unlabeled, size=size, replace=False)
        else:
            u_index = rng.choice(self._pool, size=size, replace=len(self._pool) < size)
        return x_index, u_index

    def adopt(self, selection: Selection) -> None:
        """Use the given labels plus this selection as the labelled set. An earlier selection is dropped."""
        rows, labels = selection.rows.to(self.device), selection.labels.to(self.device)
        self._labeled_rows = torch.cat([self._given_rows, self._unlabeled_rows[rows]])
        self._labels = torch.cat([self._given_labels, labels])
        self.num_labeled = len(self._labels)
        # UPS without any negative label gives an empty pool; batches then come from all samples.
        is_pool = selection.pool is not None and len(selection.pool) > 0
        self._pool = selection.pool.cpu().numpy() if is_pool else None  # type: ignore[union-attr]
        pool = None if selection.pool is None else selection.pool.to(self.device)
        self.selection, self._drawn = Selection(rows, labels, pool, selection.negative), None

    def unlabeled(self, view: str, *, batch: int, labeled: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through the unlabelled set in order: rows and their view, batch by batch.

        With `labeled=False`, rows that have a given label (held out or not) are left out.
        """
        wanted = torch.arange(self.num_unlabeled, device=self.device)
        if not labeled:
            wanted = wanted[~torch.isin(self._unlabeled_rows, self._with_label)]
        for rows in wanted.split(batch):
            inputs = self._inputs[self._unlabeled_rows[rows].to(self._inputs.device)]
            yield rows, self.augment(inputs.to(self.device), view)

    def labeled_samples(self, limit: int) -> tuple[Tensor, Tensor]:
        """At most `limit` of the given labels, spread evenly over their rows: samples without augmentation, classes."""
        chosen = torch.linspace(0, len(self._given_rows) - 1, min(limit, len(self._given_rows))).round().long()
        rows = self._given_rows[chosen.to(self.device)]
        inputs = self._inputs[rows.to(self._inputs.device)].to(self.device)
        return self.augment(inputs, "id"), self._given_labels[chosen.to(self.device)]

    def seek(self, step: int) -> None:
        """Load the rows of `step`, so that `batch` returns the batch of that step."""
        block, offset = divmod(step, STEPS_AHEAD)
        stage = self.stage_of(step)
        if self._drawn is None or (block, stage) != self._drawn_block:
            self._drawn, self._drawn_block = self._draw(block, stage), (block, stage)
        packed = self._drawn[offset]
        packed = self._buffer[: len(packed)].copy_(packed)
        self._draw_of_step = Draw.unpacked(packed, *self._local_sizes(*stage.sizes))
        if self._staging is not None:
            self._staging.load(offset)

    def batch(self) -> Batch:
        """The batch of the step that `seek` loaded. It contains only device work, so a CUDA graph can include it."""
        draw = self._draw_of_step
        samples = self._inputs[draw.rows] if self._staging is None else self._staging.loaded[: len(draw.rows)]
        labeled, unlabeled = samples.split([len(draw.x_index), len(draw.u_index)])
        x, y, x_index = self._labeled_views(labeled, draw)
        return Batch(
            x=x,
            y=y,
            x_index=x_index,
            # "weak2" is another random draw of "weak", so both use one compiled kernel
            u={view: self.augment(unlabeled, kind_of(view)) for view in self.views},
            u_index=draw.u_index,
        )

    def _labeled_views(self, labeled: Tensor, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
        """The views of the labelled samples, one kind after another, with their targets and rows."""
        views = [self.augment(labeled, kind) for kind in kinds_of(self.labeled_view)]
        if len(views) == 1:  # without a copy
            return views[0], draw.y, draw.x_index
        return torch.cat(views), draw.y.repeat(len(views)), draw.x_index.repeat(len(views))

    @property
    def batch_targets(self) -> Tensor:
        """The true classes of the unlabelled samples of the batch, for scores only; -1 if they are unknown."""
        return self._draw_of_step.u_targets

    def state_dict(self) -> dict[str, Any]:
        """The selection of the last generation. Everything else follows from seed and step."""
        return {"selection": None if self.selection is None else self.selection._asdict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("selection"):
            self.adopt(Selection(**state["selection"]))

    def _local_sizes(self, batch_labeled: int, batch_unlabeled: int) -> tuple[int, int]:
        """The parts of the two batch sizes that belong to this process."""
        return batch_labeled // self._num_processes, batch_unlabeled // self._num_processes

    def _own(self, drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The part of the rows [steps, batch] of this process. `distributed.gather` restores the order of `drawn`."""
        size = drawn.shape[1] // self._num_processes
        return drawn[:, self._process * size : (self._process + 1) * size]

    def _draw(self, block: int, stage: Stage) -> Tensor:
        """Draw the rows of a block of steps. Steps of the block that belong to another stage are drawn in vain.

        The result is one packed `Draw` per step. Rows and classes are looked up here, for many steps at once, which
        takes fewer kernels than a look-up in every step.
        """
        first = block * STEPS_AHEAD
        drawn = [self._indices(step, stage) for step in range(first, first + STEPS_AHEAD)]
        x_index, u_index = (torch.from_numpy(self._own(np.stack(rows)).copy()) for rows in zip(*drawn, strict=True))
        if self.device.type == "cuda":  # a copy from pinned memory does not block the host
            x_index, u_index = x_index.pin_memory(), u_index.pin_memory()
        x_index, u_index = (index.to(self.device, non_blocking=True) for index in (x_index, u_index))
        rows = torch.cat([self._labeled_rows[x_index], self._unlabeled_rows[u_index]], dim=1)
        if self._staging is not None:
            self._staging.plan(rows)
        return torch.cat([x_index, u_index, rows, self._labels[x_index], self.unlabeled_targets[u_index]], dim=1)


class Draw(NamedTuple):
    """The samples of one step, as integers on the device. They are views of one tensor, which one kernel can copy."""

    x_index: Tensor  # positions in the labelled set
    u_index: Tensor  # positions in the unlabelled set
    rows: Tensor  # rows of the training samples, first the labelled ones
    y: Tensor  # labels of the labelled samples
    u_targets: Tensor  # true classes of the unlabelled samples

    @classmethod
    def unpacked(cls, packed: Tensor, num_x: int, num_u: int) -> Draw:
        """Divide the packed draw of a step with `num_x` labelled and `num_u` unlabelled samples."""
        return cls(*packed.split([num_x, num_u, num_x + num_u, num_x, num_u]))


class Staging:
    """Copies the samples of a step from the host to a fixed address on the device, where a CUDA graph reads them.

    Two host buffers alternate: while the device still copies from one buffer, the host gathers the samples of the next
    step into the other.
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
        """Set the rows of the next steps, [steps, batch]. This waits for the device once for all these steps."""
        self._rows = rows.cpu()

    def load(self, step: int) -> None:
        """Gather the samples of one planned step and start copying them."""
        buffer, copied = next(self._buffers)
        if copied is not None:
            copied.synchronize()  # an earlier copy from this buffer may still be running
        rows = self._rows[step]  # as many as the batch has, which may be fewer than the largest batch
        torch.index_select(self.samples, 0, rows, out=buffer[: len(rows)])
        self.loaded[: len(rows)].copy_(buffer[: len(rows)], non_blocking=True)
        if copied is not None:
            copied.record()


def fits_on_device(num_bytes: int, device: torch.device) -> bool:
    """Whether the samples fit well into device memory; always true on the CPU, where they already are."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes <= MAX_SHARE_OF_FREE_MEMORY * free
