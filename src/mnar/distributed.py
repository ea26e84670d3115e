"""Helpers for training in several processes. With one process, `gather` and `mean` return their input.

All processes hold the same state: weights, buffers of learner and guidance, random generators. Only the rows of the
batch differ. State stays equal because each update is a function of gathered rows, and because random numbers are drawn
for the whole batch in every process (`own_rows`). run/processes.py makes the process group.
"""

# mypy: allow-untyped-calls
# (torch.autograd.Function.apply has no types)

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

T = TypeVar("T")

# The name of this function changed between torch 2.11 and 2.13. A build without distributed training has neither.
ALL_GATHER: Any = getattr(dist, "all_gather_single", getattr(dist, "all_gather_into_tensor", None))


class LostProcess(RuntimeError):
    """Another process of this training has ended or does not answer."""


def is_joined() -> bool:
    """Whether this process belongs to a process group, maybe of one process."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if is_joined() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


_has_whole_batches = False


def num_parts() -> int:
    """Return into how many parts a batch is divided: one for each process, or one within `whole_batches`."""
    return 1 if _has_whole_batches else world_size()


@contextmanager
def whole_batches() -> Iterator[None]:
    """Within this block every process works on all rows of a batch, and `gather`, `mean` and `own_rows` change nothing.

    All processes must then work on the same rows in the same order.
    """
    global _has_whole_batches
    before, _has_whole_batches = _has_whole_batches, True
    try:
        yield
    finally:
        _has_whole_batches = before


def local_rank() -> int:
    """Return the number of this process on its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", rank())) if world_size() > 1 else 0


def is_on_nccl() -> bool:
    """Whether tensors on a GPU are exchanged by NCCL, which a CUDA graph can record."""
    return is_joined() and dist.is_nccl_available() and "nccl" in dist.get_backend_config()


def gather(local: Tensor, *, sent_as: torch.dtype | None = None) -> Tensor:
    """Return the rows of all processes, in the order of their ranks, on every process.

    State that is updated from gathered rows is equal on all processes. `sent_as` is a smaller type that can hold the
    values: it saves traffic, and the result has the type of `local`.
    """
    if num_parts() == 1:
        return local
    sent = local.to(sent_as or local.dtype).contiguous()
    whole = sent.new_empty(world_size() * len(sent), *sent.shape[1:])
    _with_all_processes(ALL_GATHER, whole, sent)
    return whole.to(local.dtype)


def gather_with_gradient(local: Tensor) -> Tensor:
    """`gather`, but the gradient flows back to the rows of every process.

    The mean over all processes of the gradients is then the gradient of the mean of all losses.
    """
    whole: Tensor = local if world_size() == 1 else _Gather.apply(local)
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        return gather(local)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return own_rows(total(grad))


def mean(local: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes, on every process."""
    return local if num_parts() == 1 else gather(local.unsqueeze(0)).mean(0)


def total(local: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, on every process."""
    if world_size() == 1:
        return local
    result = local.contiguous().clone()
    _with_all_processes(dist.all_reduce, result)
    return result


def average(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their means over all processes, with one exchange per data type.

    One exchange of a flat copy takes less time than one exchange per tensor, and a CUDA graph can record it.
    """
    if not is_joined():
        return
    by_dtype = defaultdict[torch.dtype, list[Tensor]](list)
    for tensor in tensors:
        by_dtype[tensor.dtype].append(tensor)
    for group in by_dtype.values():
        views = [_in_memory_order(tensor) for tensor in group]
        flat = torch.cat([view.reshape(-1) for view in views])
        _with_all_processes(dist.all_reduce, flat)
        flat /= world_size()
        parts = flat.split([view.numel() for view in views])
        torch._foreach_copy_(views, [part.view(view.shape) for part, view in zip(parts, views, strict=True)])


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return a view whose last dimension is the closest in memory.

    Weights of convolutions are stored in channels-last order on a GPU. In the order of memory they are copied all at
    once; otherwise each of them needs a kernel of its own to be flattened and one to be written back.
    """
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))


def own_rows(whole: Tensor) -> Tensor:
    """Return the rows of this process, an equal part of the rows of all processes."""
    if num_parts() == 1:
        return whole
    share = len(whole) // world_size()
    return whole.narrow(0, rank() * share, share)


def any_of(flag: bool) -> bool:
    """Whether the flag is true in at least one process. This does not wait for a GPU."""
    if world_size() == 1:
        return flag
    flags = torch.tensor([int(flag)])
    _with_all_processes(dist.all_reduce, flags)
    return bool(flags.item())


def different_tensors(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors whose bits are not the same in all processes."""
    if world_size() == 1 or not tensors:
        return []
    # A checkpoint has tensors on the GPU and on the host, e.g. a bank that is too large for the GPU.
    device = next(iter(tensors.values())).device
    checksums = torch.stack([_checksum(tensor.detach()).to(device) for tensor in tensors.values()])
    by_process = gather(checksums.unsqueeze(0))
    differs = (by_process != by_process[0]).any(0).tolist()
    return [name for name, is_different in zip(tensors, differs, strict=True) if is_different]


def gather_objects(local: Any) -> list[Any]:
    """Return an object of each process, in the order of their ranks, on every process."""
    if world_size() == 1:
        return [local]
    objects = [None] * world_size()
    _with_all_processes(dist.all_gather_object, objects, local)
    return objects


def from_first(local: T) -> T:
    """Return the object of process 0 on every process."""
    if world_size() == 1:
        return local
    objects = [local]
    _with_all_processes(dist.broadcast_object_list, objects)
    return objects[0]


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Replace tensors in place by those of process 0."""
    if world_size() == 1:
        return
    for tensor in tensors:
        as_bytes = tensor.reshape(-1).contiguous().view(torch.uint8)  # neither NCCL nor gloo can send int16
        _with_all_processes(dist.broadcast, as_bytes, 0)
        tensor.copy_(as_bytes.view(tensor.dtype).view(tensor.shape))


def _checksum(tensor: Tensor) -> Tensor:
    """Return the sum of the bits of a tensor, taken as integers."""
    flat = tensor.reshape(-1).contiguous()
    bits = flat.view(torch.int32 if flat.element_size() % 4 == 0 else torch.uint8)
    return bits.sum(dtype=torch.int64)


def _with_all_processes(exchange: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of torch.distributed. If another process has ended, the call fails."""
    try:
        exchange(*arguments)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].partition(". This is typically")[0]
        raise LostProcess(f"another process of this training has ended ({reason})") from error
