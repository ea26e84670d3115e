"""Learners: the semi-supervised methods. A learner forms the labelled and the unlabelled loss of a batch."""

from __future__ import annotations

from mnar.learners.acr import ACR
from mnar.learners.comatch import CoMatch
from mnar.learners.fixmatch import FixMatch
from mnar.learners.flexmatch import FlexMatch
from mnar.learners.learner import Learner
from mnar.learners.mean_teacher import MeanTeacher
from mnar.learners.mixmatch import MixMatch
from mnar.learners.pi_model import PiModel
from mnar.learners.pseudo_label import PseudoLabel
from mnar.learners.remixmatch import ReMixMatch
from mnar.learners.simclr import SimCLR
from mnar.learners.simmatch import SimMatch
from mnar.learners.supervised import Supervised
from mnar.learners.ups import UPS
from mnar.learners.vime import Vime
from mnar.learners.vime_self import VimeSelf

LEARNERS: dict[str, type[Learner]] = {
    "supervised": Supervised,
    "pi_model": PiModel,
    "pseudo_label": PseudoLabel,
    "mean_teacher": MeanTeacher,
    "mixmatch": MixMatch,
    "remixmatch": ReMixMatch,
    "fixmatch": FixMatch,
    "flexmatch": FlexMatch,
    "comatch": CoMatch,
    "simmatch": SimMatch,
    "acr": ACR,
    "ups": UPS,
    "simclr": SimCLR,
    "vime_self": VimeSelf,
    "vime": Vime,
}

__all__ = [
    "ACR",
    "LEARNERS",
    "UPS",
    "CoMatch",
    "FixMatch",
    "FlexMatch",
    "Learner",
    "MeanTeacher",
    "MixMatch",
    "PiModel",
    "PseudoLabel",
    "ReMixMatch",
    "SimCLR",
    "SimMatch",
    "Supervised",
    "Vime",
    "VimeSelf",
]
