"""What a learner is: how the labelled and the unlabelled part of a batch become one loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mnar.guidances.guidance import Guidance
from mnar.models.classifier import Classifier
from mnar.types import Batch, Predict, Selection, Step, Task

# What a guidance does by each of its hooks that a learner, or the loop for it, has to call.
HOOKS = {
    "watch": "looks at the network as it predicts",
    "refresh": "works on the whole unlabelled set between steps",
    "relabel": "trains in generations",
    "supervised": "changes the labelled loss",
    "threshold": "changes the threshold of each class",
    "pool_logits": "changes the logits that pseudo-labels are compared with",
}


class Learner(nn.Module):
    """Forms the loss of a batch; the loop does the rest.

    A learner has no parameters: those are the model's, heads included. Like a guidance, it keeps what state it has in
    buffers. One that makes pseudo-labels tells which by `note_pseudo_labels`, so that their quality can be logged.
    """

    paper: ClassVar[str]  # e.g. "Sohn et al., NeurIPS 2020"
    views: tuple[str, ...]  # of the unlabelled batch, e.g. ("weak", "strong")
    labeled_view: ClassVar[str] = "weak"
    suits: ClassVar[tuple[str, ...]] = ("images",)  # "images", "tables"
    unlabeled_ratio: ClassVar[int] = 7  # mu: unlabelled samples for each labelled one, where nobody says otherwise
    default_guidance: ClassVar[Mapping[str, Any]] = {"name": "none"}  # what the method's own paper does, as YAML has it
    uses_teacher: ClassVar[bool] = False  # whether `teacher`, the averaged model, takes part in training
    is_guided: ClassVar[bool] = True  # whether there is a pseudo-label that a guidance could rectify
    labels_batches: ClassVar[bool] = True  # whether each step makes pseudo-labels and notes them
    uses_labels: ClassVar[bool] = True  # whether it trains a classifier, that could be validated
    # The learner of a stage that comes first and trains the encoder; needs options `encoder` and `pretraining_epochs`.
    pretrained_by: ClassVar[str | None] = None
    # What a guidance named beside this learner is set to, where nobody says otherwise: {"prg": {"window": 1024}}
    guidance_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # Which hooks of its guidance take effect with it; those that the loop calls are open to all but a few.
    hooks: ClassVar[frozenset[str]] = frozenset({"watch", "refresh", "relabel"})
    forgets: ClassVar[bool] = True  # whether its state, and its guidance's, ends with a generation

    pseudo_labels: Tensor
    progress: Tensor

    def __init__(self, task: Task, guidance: Guidance) -> None:
        super().__init__()
        missing = sorted(guidance.needs - self.hooks)
        if missing:
            means = " and ".join(f"{HOOKS[hook]} ({hook})" for hook in missing)
            raise ValueError(
                f"{type(self).__name__} cannot serve {type(guidance).__name__}, which {means}; choose another learner "
                "(`mnar list guidances` shows which can), or other options of the guidance"
            )
        self.task = task
        self.guidance = guidance
        self.generations = guidance.generations  # how often training begins anew, on what `relabel` selected
        # The class that each row of the last unlabelled batch was trained as; -1: none. Read by the log only.
        nobody = torch.full((task.batch_unlabeled,), -1)
        self.register_buffer("pseudo_labels", nobody, persistent=False)
        # The share of the training that is done, for ramps. The loop sets it before each step.
        self.register_buffer("progress", torch.zeros(()), persistent=False)
        self._teacher: tuple[nn.Module, ...] = ()  # in a tuple, so that its weights are no part of the learner's state

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        raise NotImplementedError

    @property
    def forward_size(self) -> int:
        """How many samples its largest forward has."""
        return self.task.batch_labeled + len(self.views) * self.task.batch_unlabeled

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        """Networks that this method trains beside the classifier: `model.heads[name](features)`."""
        return {}

    def prepare(self, model: Classifier) -> None:
        """Called once, with the model before training: refuse one that does not suit, freeze what is not trained."""

    def check_sample(self, views: Mapping[str, Tensor]) -> None:
        """Called once, with views of some samples before training: refuse data that do not suit."""

    def relabel(self, predict: Predict, generation: int) -> Selection | None:
        """After a generation: who joins the labelled set in the next one."""
        return self.guidance.relabel(predict, generation)

    @property
    def teacher(self) -> nn.Module | None:
        return self._teacher[0] if self._teacher else None

    def set_teacher(self, network: nn.Module) -> None:
        self._teacher = (network,)

    def note_pseudo_labels(self, target: Tensor, mask: Tensor) -> None:
        """Remember what was trained as what, for the log: [n] classes, [n] whether they were used."""
        self.pseudo_labels.fill_(-1)
        self.pseudo_labels[: len(target)] = torch.where(mask, target, -1)
