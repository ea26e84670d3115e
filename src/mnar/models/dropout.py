"""Optional dropout layers of a model."""

from __future__ import annotations

from torch import nn


def dropout_layers(rate: float) -> tuple[nn.Dropout, ...]:
    """Return one dropout layer, or no layer for rate 0.

    Without a layer for rate 0, the other layers have the same names in the state dict as in a model that has no
    dropout option.
    """
    if not 0 <= rate < 1:
        raise ValueError(
            f"dropout is {rate}; the share of dropped values must be at least 0 and below 1. Choose e.g. 0.3"
        )
    return (nn.Dropout(rate),) if rate > 0 else ()
