"""PRG on a balanced classifier, for a pool whose class distribution is unknown.

A network that is trained on skewed labels learns their class distribution as a prior, and this prior shapes its
pseudo-labels. Here the labelled loss keeps the prior out of the network: it adds the logarithm of the class shares of
the labels to the logits (logit adjustment, Menon et al., ICLR 2021). The network then learns balanced predictions, and
PRG with smoothing rectifies these predictions. A network that has seen few labels of a class is seldom sure of this
class, so the confidence threshold of a class with few labels is lower.

    pi_l        labeled_shares         class distribution of the labels
    A           log_prior              tau log pi_l
    L_x         supervised()           CE(f(x) + A, y)
    p~          forward()              PRG on softmax f(weak view)
    t_c         relative_threshold     (pi_l[c] / max pi_l)^beta, the factor of the threshold of class c

At test time the classifier is arg-max f. This guidance is not part of the paper. docs/methods/prg_balanced.md has the
measurements, and says what was tried instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from mnar.guidances.guidance import Guidance
from mnar.guidances.prg import PRG
from mnar.option_values import Factor, Window, checked_options
from mnar.types import Task


class BalancedPRG(Guidance):
    """Rectify pseudo-labels with PRG, and keep the class distribution of the labels out of the network.

    Call `q = guidance(probs, index)` once per step, where `guidance = BalancedPRG(task)`. The learner must also call
    `supervised`, and `threshold` if it has one.

    tau          strength of the logit adjustment: the factor of the log shares; 0 leaves the labelled loss unchanged
    beta         the larger, the lower the threshold of a class with few labels; 0: the same threshold for every class
    smoothing    transitions that PRG adds to each row of C, relative to the visits of a class with the average share
    alpha        weight of staying in the class in PRG
    window       number of recent batches that PRG covers
    """

    paper = "a variant of Duan et al., ICCV 2023"
    needs = frozenset({"supervised"})
    aligns = True
    learner_options: ClassVar[Mapping[str, Any]] = {"strong_views": 2, "labeled_strong": True}

    log_prior: Tensor
    relative_threshold: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        tau: Factor = 2.0,
        beta: Factor = 0.1,
        smoothing: Factor = 1.0,
        alpha: Factor = 1.0,
        window: Window = 128,
    ) -> None:
        super().__init__(task)
        self.prg = PRG(task, smoothing=smoothing, alpha=alpha, window=window)
        labeled_shares = task.labeled_shares(needed_by="prg_balanced")
        self.register_buffer("log_prior", tau * labeled_shares.log(), persistent=False)
        relative_threshold = (labeled_shares / labeled_shares.max()) ** beta
        self.register_buffer("relative_threshold", relative_threshold, persistent=False)

    def supervised(self, logits: Tensor, y: Tensor, logits_weak: Tensor) -> Tensor:
        """Return the cross-entropy of the adjusted logits."""
        return F.cross_entropy(logits + self.log_prior, y)  # L_x

    def threshold(self, q: Tensor, tau: float | Tensor) -> Tensor:
        """Return tau t_c of the class c of each pseudo-label, [n]."""
        return tau * self.relative_threshold[q.argmax(1)]

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        rectified: Tensor = self.prg(probs, index)
        return rectified

    def logs(self) -> dict[str, Tensor]:
        return self.prg.logs()

    def matrices(self) -> dict[str, Tensor]:
        return self.prg.matrices()
