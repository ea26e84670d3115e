"""Dropout where a model is asked for it."""

from __future__ import annotations

from torch import nn


def dropout_layers(rate: float) -> tuple[nn.Dropout, ...]:
    """One layer, or none at all for rate 0: a model without dropout keeps the names of its layers."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout is {rate}; the share of values dropped lies between 0 and below 1, such as 0.3")
    return (nn.Dropout(rate),) if rate > 0 else ()
