"""The conditions under which our own Triton kernels can replace the plain operations of a layer."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

TRITON_IS_INSTALLED = find_spec("triton") is not None


def triton_can_take(x: Tensor) -> bool:
    """Whether our kernels can process x: a channels-last tensor on the current GPU, outside torch.compile.

    torch.compile fuses plain operations itself.
    """
    return (
        x.is_cuda
        and TRITON_IS_INSTALLED
        # is_compiling() would be true in all threads while one thread compiles.
        and not torch.compiler.is_dynamo_compiling()
        and x.get_device() == torch.cuda.current_device()
        and x.is_contiguous(memory_format=torch.channels_last)
    )
