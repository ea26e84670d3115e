"""What the tests of Triton kernels share. The kernels are compiled on a GPU and interpreted on a CPU.

Import this module before a module with kernels: Triton decides about the interpreter when a kernel is defined.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"


def relative_error(value: Tensor, true: Tensor) -> float:
    assert not value.isnan().any()
    value, true = value.detach().double(), true.detach().double()
    return float((value - true).norm() / true.norm())
