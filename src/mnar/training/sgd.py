"""Nesterov SGD for a quick start of training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class SGD(torch.optim.Optimizer):
    """SGD with momentum, bit for bit as torch.optim.SGD(fused=True) computes it, and with the same state.

    torch.optim.SGD imports torch._dynamo, although nothing compiles the optimiser. The import takes 1 s on a warm disk
    and 5 s on a cold one. This class calls the same fused kernel without that import.

    lr         a tensor on the device, which a schedule may change in place
    momentum   with a positive momentum, the update is Nesterov's
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: Tensor, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            known = [p for p in trained if "momentum_buffer" in self.state[p]]
            new = [p for p in trained if "momentum_buffer" not in self.state[p]]
            if known:
                self._update(known, group, is_first_step=False)
            if new:
                self._update(new, group, is_first_step=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients. The method of torch also opens a record for the profiler, 0.1 ms per step on a CPU."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def _update(self, parameters: list[Tensor], group: dict[str, Any], *, is_first_step: bool) -> None:
        has_momentum = group["momentum"] > 0
        gradients = [p.grad for p in parameters if p.grad is not None]
        if has_momentum and is_first_step:
            for p, gradient in zip(parameters, gradients, strict=True):
                self.state[p]["momentum_buffer"] = torch.empty_like(gradient)  # the kernel writes the first values
        nesterov_update(
            parameters,
            gradients,
            [self.state[p]["momentum_buffer"] for p in parameters] if has_momentum else [],
            lr=group["lr"],
            momentum=group["momentum"],
            weight_decay=group["weight_decay"],
            is_first_step=is_first_step and has_momentum,
        )


def nesterov_update(
    parameters: list[Tensor],
    gradients: list[Tensor],
    buffers: list[Tensor],
    *,
    lr: Tensor,
    momentum: float,
    weight_decay: float = 0.0,
    is_first_step: bool = False,
) -> None:
    """Update parameters and momentum buffers with the fused kernel of torch.

    buffers          one per parameter, or none at all without momentum
    is_first_step    True: the kernel does not read the buffers, which may hold any values
    """
    torch._fused_sgd_(
        parameters,
        gradients,
        buffers,
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=bool(buffers),
        maximize=False,
        is_first_step=is_first_step,
        grad_scale=None,
        found_inf=None,
    )


def leave_dynamo_alone() -> None:
    """Let the methods of torch's optimisers run without importing torch._dynamo.

    torch imports torch._dynamo at the first call of these methods, to exclude them from torch.compile. The attribute
    below says that this has been done already. It holds for the whole process: if a program compiles its training loop
    with torch.compile, these methods are compiled, too. If a later version of torch does not read the attribute, the
    methods work as before, and only the import returns.
    """
    for method in vars(torch.optim.Optimizer).values():
        original = getattr(method, "__wrapped__", None)
        if original is not None and not hasattr(original, "__dynamo_disable"):
            setattr(original, "__dynamo_disable", original)
