"""A second CUDA stream, on which the backward pass computes the gradients of convolution weights.

Nothing in the backward pass reads the gradient of a weight, so the GPU can compute it at the same time as the gradients
of the layers before. The gradient of a weight keeps the tensor cores busy, while the rest mostly moves memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

# The stream while `weight_gradients_aside` is active, and the tensors that it reads. The backward pass runs in threads
# of its own, so this is not a property of a thread.
_stream: torch.cuda.Stream | None = None
_in_use: list[Tensor] = []


@contextmanager
def weight_gradients_aside(device: torch.device) -> Iterator[None]:
    """Compute weight gradients on the second stream. At the end, the current stream waits for them.

    On a CPU this changes nothing.
    """
    global _stream
    if device.type != "cuda":
        yield
        return
    _stream = _stream_of(device.index)
    try:
        yield
    finally:
        if _in_use:  # a CUDA graph may not wait for a stream that it has not used
            torch.cuda.current_stream().wait_stream(_stream)
        _stream = None
        _in_use.clear()


def aside(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return function(*tensors), computed on the second stream within `weight_gradients_aside`."""
    if _stream is None:
        return function(*tensors)
    _stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_stream):
        result = function(*tensors)
    _in_use.extend(tensors)  # otherwise their memory would be used again before the second stream has read it
    return result


@cache
def _stream_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
