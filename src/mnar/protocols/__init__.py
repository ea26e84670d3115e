"""Who keeps a label: the class counts of the papers, and the draw that follows them."""

from collections.abc import Callable

from mnar.protocols.balanced import balanced
from mnar.protocols.cadr import cadr
from mnar.protocols.darp import darp
from mnar.protocols.found import found
from mnar.protocols.own import own
from mnar.protocols.split import hold_out, split
from mnar.types import Counts, Thinned

PROTOCOLS: dict[str, Callable[..., Counts | Thinned | None]] = {
    "cadr": cadr,
    "own": own,
    "darp": darp,
    "balanced": balanced,
    "found": found,
}

__all__ = ["PROTOCOLS", "balanced", "cadr", "darp", "found", "hold_out", "own", "split"]
