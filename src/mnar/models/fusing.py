"""When our own Triton kernels can take a layer's place."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

TRITON_IS_INSTALLED = find_spec("triton") is not None


def triton_can_take(x: Tensor) -> bool:
    """Images in channels-last memory on the current GPU, outside torch.compile, which fuses plain operations itself."""
    return (
        x.is_cuda
        and TRITON_IS_INSTALLED
        and not torch.compiler.is_dynamo_compiling()  # is_compiling() is true in all threads while one compiles
        and x.get_device() == torch.cuda.current_device()
        and x.is_contiguous(memory_format=torch.channels_last)
    )
