"""The conditions under which our own Triton kernels can replace the plain operations of a layer."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch
from torch import Tensor

TRITON_IS_INSTALLED = find_spec("triton") is not None
OLDEST_CAPABILITY = (7, 5)  # of a GPU for which Triton compiles our kernels


def gpu_can_run_kernels(device: torch.device) -> bool:
    """Whether the GPU has the instructions that our kernels need. If not, a warning says what is used instead."""
    capability = torch.cuda.get_device_capability(device)
    if capability >= OLDEST_CAPABILITY:
        return True
    warnings.warn(
        f"the GPU {torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, and our "
        f"Triton kernels need {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]}; training uses the slower operations of "
        "PyTorch. Choose engine.fused=false to leave out this warning",
        stacklevel=2,
    )
    return False


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
