"""Turn what a network returns for a batch into one row of features per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# What the outputs of transformers models call their features, the best first.
NAMES = ("pooler_output", "image_embeds", "last_hidden_state", "logits")


def features_function(network: nn.Module) -> Callable[[Tensor], Any]:
    """Return the network's own `features`, if it has that method or part, and otherwise the network."""
    own = getattr(network, "features", None)
    return own if callable(own) else network


def rows_of(output: Any, num_samples: int) -> Tensor:
    """Return the features [n, d] in the output for a batch of n samples.

    Feature maps [n, c, h, w] are averaged over the positions, and tokens [n, t, d] over the tokens.
    """
    tensor = _tensor_in(output)
    if tensor is None:
        raise ValueError(
            f"the network returns {type(output).__name__}, in which no features were found; return a tensor [n, d]"
        )
    if tensor.ndim < 2 or len(tensor) != num_samples:
        raise ValueError(
            f"for {num_samples} samples the network returns a tensor of shape {tuple(tensor.shape)}; return one row of "
            "features per sample, [n, d]"
        )
    if 0 in tensor.shape:
        raise ValueError(
            f"the network returns a tensor of shape {tuple(tensor.shape)}, which has no features; return [n, d] with d "
            "of at least 1"
        )
    if tensor.ndim == 3:  # [n, tokens, d]
        tensor = tensor.float().mean(1)
    elif tensor.ndim > 3:  # [n, c, positions...]
        tensor = tensor.float().flatten(2).mean(2)
    return tensor.to(torch.float32)


def _tensor_in(output: Any) -> Tensor | None:
    """Return the tensor of features in an output: the output, a named entry or attribute, or the first of a tuple."""
    if isinstance(output, Tensor):
        return output
    for name in NAMES:
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, tuple | list) and output:
        return _tensor_in(output[0])
    return None
