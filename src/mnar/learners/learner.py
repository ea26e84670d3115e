"""The interface of a learner: it turns the labelled and the unlabelled part of a batch into one loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from mnar.guidances.chain import Chain
from mnar.guidances.guidance import Guidance
from mnar.models.classifier import Classifier
from mnar.models.rows import divided
from mnar.types import Batch, Predict, Samples, Selection, Step, Task

# The hooks of a guidance that a learner or the training loop has to call, and what a guidance does through each hook.
# The error message about a learner that does not call a hook quotes these texts.
HOOKS = {
    "watch": "wraps the network to observe its predictions",
    "refresh": "works on the whole unlabelled set between steps",
    "relabel": "trains in generations",
    "supervised": "changes the labelled loss",
    "threshold": "changes the threshold of each class",
    "pool_logits": "changes the logits that pseudo-labels are compared with",
    "extra_loss": "adds a loss on the unlabelled batch",
}


class Learner(nn.Module):
    """Form the loss of a batch. The training loop does everything else.

    A learner has no parameters. All parameters belong to the model, including those of the heads that a learner adds.
    A learner keeps its state in buffers, as a guidance does. A learner that makes pseudo-labels reports them with
    `note_pseudo_labels`, so that the loop can log their quality.
    """

    # The citation that `mnar list learners` shows, e.g. "Sohn et al., NeurIPS 2020".
    paper: ClassVar[str]
    # The views of the unlabelled batch that the learner reads, e.g. ("weak", "strong").
    views: tuple[str, ...]
    # The view of the labelled batch that the learner reads; "both" is a weak view and a strong view of each sample.
    labeled_view: str = "weak"
    # The kinds of data that the learner can be trained on: "images", "tables" or both.
    suits: ClassVar[tuple[str, ...]] = ("images",)
    # mu: the number of unlabelled samples per labelled sample, if the user does not set train.batch_unlabeled.
    unlabeled_ratio: ClassVar[int] = 7
    # The guidance that the paper of the method uses, with its options as in YAML. It is the default of the learner. If
    # the user names another guidance, this default acts first, unless that guidance replaces it (`Guidance.aligns`).
    default_guidance: ClassVar[Mapping[str, Any]] = {"name": "none"}
    # Whether the averaged model (`teacher`) takes part in training.
    uses_teacher: ClassVar[bool] = False
    # Whether the learner makes pseudo-labels that a guidance can rectify.
    is_guided: ClassVar[bool] = True
    # Whether each step makes pseudo-labels and reports them with `note_pseudo_labels`.
    labels_batches: ClassVar[bool] = True
    # Whether the learner trains a classifier, which held-out labels can then validate.
    uses_labels: ClassVar[bool] = True
    # The learner of the first stage, which trains the encoder. A learner that has a first stage needs the options
    # `encoder` and `pretraining_epochs`.
    pretrained_by: ClassVar[str | None] = None
    # Training options of this learner when it trains the encoder for another learner.
    pretraining_options: ClassVar[Mapping[str, Any]] = {}
    # The options that a guidance gets with this learner if the user does not set them: {"prg": {"window": 1024}}.
    guidance_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # The hooks of a guidance that work with this learner. The training loop calls watch, refresh and relabel for every
    # learner that lists them. A learner adds the hooks that its `forward` calls.
    hooks: ClassVar[frozenset[str]] = frozenset({"watch", "refresh", "relabel"})
    # Whether the state of the learner and of its guidance is reset at the end of each generation.
    forgets: ClassVar[bool] = True

    # Whether the weak views are part of the backward pass. In FixMatch and its relatives, no loss trains them.
    # The weak views only influence the trained images through batch norm. These learners can leave the weak views out.
    weak_gradient: bool = True

    pseudo_labels: Tensor
    not_used: Tensor
    progress: Tensor

    def __init__(self, task: Task, guidance: Guidance) -> None:
        super().__init__()
        missing = sorted(guidance.needs - self.hooks)
        if missing:
            means = " and ".join(f"{HOOKS[hook]} ({hook})" for hook in missing)
            stages = guidance.stages if isinstance(guidance, Chain) else [guidance]
            names = " + ".join(type(stage).__name__ for stage in stages if not stage.needs <= self.hooks)
            raise ValueError(
                f"{type(self).__name__} does not support {names}, which {means}; choose another "
                "learner (`mnar list guidances` shows which learners can), or change the options of the guidance"
            )
        self.task = task
        self.guidance = guidance
        # The number of training rounds. Each round trains a fresh network. From the second round on, the samples that
        # `relabel` selected are part of the labelled set.
        self.generations = guidance.generations
        # The class that each row of the last unlabelled batch was trained as; -1 means that the row was not used. Only
        # the log reads this buffer.
        no_pseudo_labels = torch.full((task.batch_unlabeled,), -1)
        self.register_buffer("pseudo_labels", no_pseudo_labels, persistent=False)
        # A constant on the device. Where a number is given instead, a GPU needs one more kernel to write it to memory.
        self.register_buffer("not_used", torch.tensor(-1), persistent=False)
        # The share of the current generation that is done, by which loss weights ramp up. With one generation, this is
        # the share of the whole training. The loop sets it before each step.
        self.register_buffer("progress", torch.zeros(()), persistent=False)
        self._share_progress()
        # The teacher is in a tuple, so that PyTorch does not make its weights part of the learner's state.
        self._teacher: tuple[nn.Module, ...] = ()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move the buffers, as `nn.Module` does, and share `progress` again, because the guidance then has a copy."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._share_progress()
        return self

    def _share_progress(self) -> None:
        """Let the guidance and its stages read the tensor that the loop sets before each step."""
        for part in self.guidance.modules():
            if isinstance(part, Guidance):
                part.progress = self.progress

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        """Return the loss of a batch and the values to log. `model` maps samples to logits."""
        raise NotImplementedError

    @property
    def forward_size(self) -> int:
        """The number of samples in the largest forward pass of a step."""
        num_labeled = self.task.batch_labeled * (2 if self.labeled_view == "both" else 1)
        return num_labeled + len(self.views) * self.task.batch_unlabeled

    def together(self, x: Tensor, weak: Tensor, *strong: Tensor) -> Samples:
        """Join the images of a step for one forward pass, so that batch norm sees all of them, as in published code.

        With `weak_gradient=False`, the weak views come last and have no gradient.
        """
        if self.weak_gradient:
            return torch.cat([x, weak, *strong])
        images = torch.cat([x, *strong, weak])
        return divided(images, len(images) - len(weak))

    def apart(self, output: Tensor, x: Tensor, weak: Tensor, *strong: Tensor) -> list[Tensor]:
        """Divide the output of a network for `together(x, weak, *strong)` into the outputs for x, weak, *strong."""
        if self.weak_gradient:
            return list(output.split([len(images) for images in (x, weak, *strong)]))
        output_x, *output_strong, output_weak = output.split([len(images) for images in (x, *strong, weak)])
        return [output_x, output_weak, *output_strong]

    def heads(self, model: Classifier) -> dict[str, nn.Module]:
        """Return the further heads that this method trains: the learner calls `model.heads[name](features)`."""
        return {}

    def prepare(self, model: Classifier) -> None:
        """Refuse a model that does not suit the method, and freeze the parts of the model that are not trained.

        This is called once, before training.
        """
        if not self.weak_gradient and not model.takes_rows:
            raise ValueError(
                f"learner.weak_gradient is false, but {type(model).__name__} cannot leave the weak views out of its "
                "backward pass; choose --set learner.weak_gradient=true"
            )

    def check_sample(self, views: Mapping[str, Tensor]) -> None:
        """Refuse data that do not suit the method. This is called once before training, with views of some samples."""

    def relabel(self, predict: Predict, generation: int) -> Selection | None:
        """Select the unlabelled samples, with labels, that join the labelled set in the next generation.

        The loop calls this after every generation but the last. `predict` goes through the unlabelled set, and
        `generation` is the number of the generation that has ended, counted from 0. The result None changes nothing.
        """
        return self.guidance.relabel(predict, generation)

    @property
    def teacher(self) -> nn.Module | None:
        """The averaged model, or None if `set_teacher` was not called."""
        return self._teacher[0] if self._teacher else None

    def set_teacher(self, network: nn.Module) -> None:
        """Give the learner the averaged model. Learners with `uses_teacher` need it before the first step."""
        self._teacher = (network,)

    def note_pseudo_labels(self, target: Tensor, mask: Tensor) -> None:
        """Keep the pseudo-labels of this batch for the log.

        target  [n] the class of each pseudo-label
        mask    [n] whether the pseudo-label was used in the loss
        """
        batch, rest = self.pseudo_labels[: len(target)], self.pseudo_labels[len(target) :]
        torch.where(mask, target, self.not_used, out=batch)
        rest.fill_(-1)
