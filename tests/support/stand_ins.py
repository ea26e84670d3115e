"""Guidances and models that do as they are told and keep what they were shown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mnar.guidances import Guidance
from mnar.learners import Learner
from mnar.models import MLP
from mnar.types import Batch, Task


class Dictated(Guidance):
    """Rectifies every sample to a row of a table, and remembers what it was shown."""

    table: Tensor

    def __init__(self, task: Task, table: Tensor) -> None:
        super().__init__(task)
        self.register_buffer("table", table)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        self.seen.append((probs, index))
        return self.table[index]


class Told(Guidance):
    """Rectifies a batch to `answer`, whatever is in it, and remembers what it was shown."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.answer = torch.full((task.batch_unlabeled, task.num_classes), 1 / task.num_classes)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.seen.append((probs, index))
        return self.answer


class Blank(Guidance):
    """Leaves pseudo-labels as they are; a network's bias is ten times what it makes of an empty digit."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.modes: list[bool] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        return probs

    def test_bias(self, network: nn.Module) -> Tensor:
        self.modes.append(network.training)
        bias: Tensor = 10 * network(torch.zeros(1, 1, 8, 8))[0]
        return bias


class Recorded(nn.Module):
    """A linear model of three features and four classes that keeps its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x)
        logits: Tensor = self.linear(x)
        return logits


class RecordedWithHeads(MLP):
    """A model with a learner's heads that keeps the images it was given."""

    def __init__(self, learner: Learner) -> None:
        super().__init__((5,), learner.task.num_classes, hidden=(6,))
        self.heads.update(learner.heads(self))
        self.inputs: list[Tensor] = []

    def features(self, x: Tensor) -> Tensor:
        self.inputs.append(x)
        return super().features(x)

    def embed(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.heads["projection"](self.features(images))
        return embeddings.detach()


def vector_batch(task: Task, views: Sequence[str], *, seed: int, num_unlabeled: int) -> Batch:
    """A batch of random samples with five features, for `RecordedWithHeads`."""
    torch.manual_seed(seed)
    return Batch(
        x=torch.randn(task.batch_labeled, 5, requires_grad=True),
        y=torch.randint(task.num_classes, (task.batch_labeled,)),
        x_index=torch.arange(task.batch_labeled),
        u={view: torch.randn(num_unlabeled, 5, requires_grad=True) for view in views},
        u_index=torch.randperm(task.num_unlabeled)[:num_unlabeled],
    )
