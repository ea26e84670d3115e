"""How a pseudo-label is rectified before it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mnar.guidances.chain import Chain
from mnar.guidances.distribution_alignment import DistributionAlignment
from mnar.guidances.guidance import Guidance
from mnar.guidances.none import NoGuidance
from mnar.guidances.prg import PRG

GUIDANCES: dict[str, Callable[..., Guidance]] = {
    "none": NoGuidance,
    "distribution_alignment": DistributionAlignment,
    "prg": PRG,
    "prg_last": partial(PRG, last=True, alpha=3.0),  # the published README's setting
}

__all__ = ["GUIDANCES", "PRG", "Chain", "DistributionAlignment", "Guidance", "NoGuidance"]
