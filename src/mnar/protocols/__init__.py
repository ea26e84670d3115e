"""Protocols: rules that decide which samples keep their label, and the random draw that applies a rule."""

from collections.abc import Callable

from mnar.protocols.as_labeled import as_labeled
from mnar.protocols.balanced import balanced
from mnar.protocols.cadr import cadr
from mnar.protocols.darp import darp
from mnar.protocols.own import own
from mnar.protocols.pool_shape import pool_shape
from mnar.protocols.split import hold_out, split
from mnar.types import Counts, LabelBudget

PROTOCOLS: dict[str, Callable[..., Counts | LabelBudget | None]] = {
    "cadr": cadr,
    "own": own,
    "darp": darp,
    "balanced": balanced,
    "pool_shape": pool_shape,
    "as_labeled": as_labeled,
}

__all__ = ["PROTOCOLS", "as_labeled", "balanced", "cadr", "darp", "hold_out", "own", "pool_shape", "split"]
