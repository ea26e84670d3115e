"""Guidances: plug-ins that rectify a pseudo-label before the learner uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mnar.guidances.adello import ADELLO
from mnar.guidances.cadr import CADR
from mnar.guidances.cdmad import CDMAD
from mnar.guidances.chain import Chain
from mnar.guidances.crest import CReST
from mnar.guidances.darp import DARP
from mnar.guidances.distribution_alignment import DistributionAlignment
from mnar.guidances.guidance import Guidance
from mnar.guidances.none import NoGuidance
from mnar.guidances.prg import PRG
from mnar.guidances.prg_balanced import BalancedPRG
from mnar.guidances.simpro import SimPro
from mnar.guidances.tracking import Tracking

GUIDANCES: dict[str, Callable[..., Guidance]] = {
    "none": NoGuidance,
    "tracking": Tracking,
    "distribution_alignment": DistributionAlignment,
    "darp": DARP,
    "cadr": CADR,
    "crest": CReST,
    "crest_plus": partial(CReST, align=True),
    "prg": PRG,
    "prg_last": partial(PRG, last=True, alpha=3.0),  # alpha as in the published README
    "prg_smooth": partial(PRG, smoothing=1.0),  # not in the paper; docs/methods/prg_smooth.md
    "prg_balanced": BalancedPRG,
    "simpro": SimPro,
    "cdmad": CDMAD,
    "adello": ADELLO,
}


def class_of(make: Callable[..., Guidance]) -> type[Guidance]:
    """Return the class of an entry of GUIDANCES, which is a class or a `partial` of a class with some options set."""
    made = make.func if isinstance(make, partial) else make
    assert isinstance(made, type)
    return made


__all__ = [
    "ADELLO",
    "CADR",
    "CDMAD",
    "DARP",
    "GUIDANCES",
    "PRG",
    "BalancedPRG",
    "CReST",
    "Chain",
    "DistributionAlignment",
    "Guidance",
    "NoGuidance",
    "SimPro",
    "Tracking",
    "class_of",
]
