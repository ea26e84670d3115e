"""A second CUDA stream, on which the backward pass computes the gradients of convolution weights.

Nothing in the backward pass reads the gradient of a weight, so the GPU can compute it at the same time as the gradients
of the layers before. The gradient of a weight keeps the tensor cores busy, while the rest mostly moves memory.

There is one exception: autograd adds up gradients of a weight on the current stream, if the weight was used several
times or has a gradient already. Then the current stream has to wait for the second one. The hooks of a parameter, too,
run on the current stream, so do not use them within `weight_gradients_aside`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

# The stream while `weight_gradients_aside` is active, the tensors that it reads, and the weights whose gradients it
# computes. The backward pass runs in threads of its own, so this is not a property of a thread. A process can run only
# one backward pass at a time within `weight_gradients_aside`.
_stream: torch.cuda.Stream | None = None
_in_use: list[Tensor] = []
_weights: set[Tensor] = set()


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
        _weights.clear()


def aside(function: Callable[..., Tensor], *tensors: Tensor, weight: Tensor) -> Tensor:
    """Return function(*tensors), a gradient of `weight`. `weight_gradients_aside` moves it to the second stream."""
    if _stream is None:
        return function(*tensors)
    _in_use.extend(tensors)  # otherwise their memory would be used again before the second stream has read it
    _stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_stream):
        result = function(*tensors)
    if weight in _weights or weight.grad is not None:
        torch.cuda.current_stream().wait_stream(_stream)  # autograd adds the gradients now
    _weights.add(weight)
    return result


@cache
def _stream_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
