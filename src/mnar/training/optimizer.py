"""The optimisers with their parameter groups, and the moving average of the weights."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from mnar.models import Classifier
from mnar.training.muon import Muon
from mnar.training.sgd import SGD, leave_dynamo_alone

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def make_optimizer(
    kind: str, model: Classifier, *, lr: Tensor, momentum: float, weight_decay: float, capturable: bool = False
) -> torch.optim.Optimizer:
    """Make Nesterov SGD, Adam, RMSprop or Muon. Normalisation layers have no weight decay, as in the published recipe.

    Muon trains the weights of hidden layers (`hidden_matrices`), and Nesterov SGD trains all other parameters.

    lr            a tensor on the device that the schedule changes in place, so that a CUDA graph sees the change
    capturable    whether the optimiser will be part of a CUDA graph
    """
    of_norms = {p for module in model.modules() if isinstance(module, NORMS) for p in module.parameters()}
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = hidden_matrices(model) if kind == "muon" else set()
    groups = [
        {"params": [p for p in trainable if p in matrices], "weight_decay": weight_decay, "muon": True},
        {"params": [p for p in trainable if p not in of_norms | matrices], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p in of_norms], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    leave_dynamo_alone()
    if kind == "sgd":
        return SGD(groups, lr=lr, momentum=momentum)
    if kind == "adam":
        return torch.optim.Adam(groups, lr=lr, fused=True, capturable=capturable)
    if kind == "rmsprop":  # the values of Keras, which the methods with RMSprop used
        return torch.optim.RMSprop(groups, lr=lr, alpha=0.9, eps=1e-7, capturable=capturable)
    if kind == "muon":
        return Muon(groups, lr=lr, momentum=momentum)
    raise ValueError(f"unknown train.optimizer {kind!r}; choose sgd, adam, rmsprop or muon")


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], *, lr: Tensor) -> None:
    """Load a saved state, but keep the options of this machine (e.g. `capturable`) and the tensor of the rate."""
    mine = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    groups = [{**saved, **options} for saved, options in zip(state["param_groups"], mine, strict=True)]
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
    for group in optimizer.param_groups:
        group["lr"] = lr  # load_state_dict replaced it by a copy


def hidden_matrices(model: Classifier) -> set[nn.Parameter]:
    """The parameters that Muon trains: trainable weights of linear layers and convolutions, except those of the heads.

    The weight of a grouped convolution is not one matrix, and a matrix with a single row or column is a vector.
    """
    heads = {*model.head.modules(), *model.heads.modules()}
    layers = [module for module in model.modules() if isinstance(module, LAYERS) and module not in heads]
    weights = {layer.weight for layer in layers if getattr(layer, "groups", 1) == 1}
    matrices = {p for p in model.parameters() if p in weights and p.requires_grad and 1 < len(p) < p.numel()}
    if not matrices:
        raise ValueError(
            f"train.optimizer is 'muon', but {type(model).__name__} has no hidden layer with a trainable matrix of "
            "weights. Muon does not suit heads, biases and other vectors. Choose --set train.optimizer=sgd"
        )
    return matrices


class Average:
    """The exponential moving average (EMA) of a model: parameters are averaged, batch-norm statistics are copied."""

    def __init__(self, model: Classifier, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._averages: list[Tensor] = list(self.model.parameters())
        self._parameters: list[Tensor] = list(model.parameters())
        # One list per dtype. A list with several would be copied tensor by tensor on a GPU: 75 kernels for WRN-28-2.
        self._copies, self._buffers = defaultdict[torch.dtype, list[Tensor]](list), defaultdict(list)
        for copied, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            self._copies[buffer.dtype].append(copied)
            self._buffers[buffer.dtype].append(buffer)

    @torch.no_grad()
    def restart(self) -> None:
        """Start the average again from the current model."""
        torch._foreach_copy_(self._averages, self._parameters)
        self._copy_buffers()

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._averages, self._parameters, 1 - self.decay)
        self._copy_buffers()

    def _copy_buffers(self) -> None:
        for dtype, buffers in self._buffers.items():
            torch._foreach_copy_(self._copies[dtype], buffers)
