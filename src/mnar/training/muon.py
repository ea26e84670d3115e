"""Muon: momentum whose update of a matrix is orthogonalised (Jordan et al., 2024).

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", https://kellerjordan.github.io/posts/muon/.
`torch.optim.Muon` takes two-dimensional parameters only and treats them one by one. This class takes convolutions,
orthogonalises matrices in batches, and can be part of a CUDA graph.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mnar.training.sgd import nesterov_update

# The published polynomial. It moves every singular value of a matrix to about 1 (about 0.7 to 1.2) in five iterations.
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
SMALLEST_NORM = 1e-7  # a matrix of zeros stays a matrix of zeros

# The learning rate of the SGD part over the learning rate of the matrices: 0.1 for the usual 0.02.
SGD_FACTOR = 5.0


class Muon(torch.optim.Optimizer):
    """Muon for parameter groups with `muon=True`, Nesterov SGD for the other groups, with one learning rate.

    One step with the gradient G of a parameter W [rows, columns], momentum m, weight decay d and learning rate r:

        B <- m B + G
        U <- G + m B                                    (Nesterov)
        W <- (1 - r d) W                                (decoupled weight decay, in all groups)
        W <- W - r sqrt(max(1, rows / columns)) N(U)    in a group with `muon=True`
        W <- W - 5 r U                                  in any other group

    N(U) has the singular vectors of U, and its singular values are all about 1 (`orthogonalized`). The weight of a
    convolution [out, in, height, width] is a matrix with `out` rows.

    groups         parameter groups; the parameters of a group with `muon=True` have two dimensions or more
    lr             a 0-d tensor on the device. The schedule changes it in place, also within a CUDA graph.
    momentum       m, in both parts
    weight_decay   d, unless a group has its own
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: Tensor, momentum: float, weight_decay: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "muon": False}
        super().__init__(groups, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["muon"] and parameter.ndim < 2:
                    raise ValueError(
                        f"Muon orthogonalises matrices, but a parameter has the shape {tuple(parameter.shape)}; "
                        "put vectors into a group without muon=True, which is trained with SGD"
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self._momentum_buffer(p) for p in parameters]
        if group["muon"]:
            layouts = [p.is_contiguous() for p in parameters]
            parameters, gradients, buffers = (
                [_as_matrix(tensor, layout) for tensor, layout in zip(tensors, layouts, strict=True)]
                for tensors in (parameters, gradients, buffers)
            )
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        rate, momentum = group["lr"] if group["muon"] else SGD_FACTOR * group["lr"], group["momentum"]
        if parameters[0].is_cuda and not group["muon"]:
            # One kernel instead of six. On a CPU this kernel is no faster, and its results are rounded differently.
            nesterov_update(parameters, gradients, buffers, lr=rate, momentum=momentum)
            return
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, gradients)
        updates = list(torch._foreach_add(gradients, buffers, alpha=momentum))
        if group["muon"]:
            updates = orthogonalized(updates)
            tall = [update for update in updates if len(update) > update.shape[1]]
            if tall:
                torch._foreach_mul_(tall, [(len(update) / update.shape[1]) ** 0.5 for update in tall])
        torch._foreach_mul_(updates, rate)
        torch._foreach_sub_(parameters, updates)

    def _momentum_buffer(self, parameter: Tensor) -> Tensor:
        """The buffer B in the memory format of the parameter, also if it was saved on a device with another format."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        elif state["momentum_buffer"].stride() != parameter.stride():
            state["momentum_buffer"] = torch.empty_like(parameter).copy_(state["momentum_buffer"])
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _as_matrix(tensor: Tensor, is_contiguous: bool) -> Tensor:
    """View a tensor, contiguous or channels-last, as a matrix. The order of its columns does not matter to Muon."""
    return (tensor if is_contiguous else tensor.movedim(1, -1)).view(len(tensor), -1)


def orthogonalized(matrices: Sequence[Tensor], *, tile: int | None = None) -> list[Tensor]:
    """Return U V^T, approximately, for every matrix U S V^T.

    Matrices of the same shape are stacked, and the stacks are transposed if this makes them wide, padded with zeros and
    orthogonalised in batches. Rows and columns of zeros stay zero and change nothing else. On a GPU the 28 matrices of
    WRN-28-2 have 10 shapes, so that stacking them halves the number of small kernels.

    tile    The short side of a matrix is padded to a multiple of this. None: 128 on a GPU, where a matrix product with
            fewer rows is no faster, so that all 28 matrices of WRN-28-2 form one batch, and 1 on a CPU.
    """
    tile = tile or (128 if matrices[0].is_cuda else 1)
    places = defaultdict[torch.Size, list[int]](list)  # of the matrices of each shape
    for place, matrix in enumerate(matrices):
        places[matrix.shape].append(place)
    batches = defaultdict[int, list[torch.Size]](list)  # by the number of rows, padded
    for shape in places:
        batches[math.ceil(min(shape) / tile) * tile].append(shape)

    results = list(matrices)
    for rows, shapes in batches.items():
        columns = max(rows, *(max(shape) for shape in shapes))
        sizes = [len(places[shape]) for shape in shapes]
        padded = matrices[0].new_zeros(sum(sizes), rows, columns)
        for part, shape in zip(padded.split(sizes), shapes, strict=True):
            _unpadded(part, shape).copy_(_stacked([matrices[place] for place in places[shape]]))
        for part, shape in zip(newton_schulz(padded).split(sizes), shapes, strict=True):
            stack = padded.new_empty(len(part), *shape).copy_(_unpadded(part, shape))
            for place, result in zip(places[shape], stack, strict=True):
                results[place] = result
    return results


def _stacked(matrices: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(matrices)) if len(matrices) > 1 else matrices[0].unsqueeze(0)


def _unpadded(batch: Tensor, shape: torch.Size) -> Tensor:
    """View matrices of this shape [n, *shape] in a padded batch, which holds tall matrices transposed."""
    rows, columns = sorted(shape)
    wide = batch[:, :rows, :columns]
    return wide.mT if shape[0] > shape[1] else wide


def newton_schulz(matrices: Tensor) -> Tensor:
    """Move the singular values of every matrix of the batch [n, rows, columns], rows <= columns, to about 1.

    A GPU computes in bfloat16, which is exact enough, because singular values from 0.7 to 1.2 are near enough to 1. The
    result has this type.
    """
    norms: Tensor = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x = torch.empty_like(matrices, dtype=torch.bfloat16 if matrices.is_cuda else matrices.dtype)
    torch.div(matrices, norms.clamp(min=SMALLEST_NORM), out=x)  # the iteration needs singular values of at most 1
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        cubic_and_quintic = torch.baddbmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC)
        x = torch.baddbmm(x, cubic_and_quintic, x, beta=LINEAR)
    return x
