from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mnar.guidances import NoGuidance
from mnar.learners import SimCLR
from mnar.models import MLP
from mnar.types import Batch, Task
from tests.reference.simclr import nt_xent

NUM_CLASSES, NUM_LABELED, NUM_UNLABELED = 3, 5, 7
TASK = Task(NUM_CLASSES, 30, torch.arange(NUM_LABELED) % NUM_CLASSES, NUM_LABELED, NUM_UNLABELED)


def make_batch() -> Batch:
    torch.manual_seed(1)
    x_index = torch.arange(NUM_LABELED)
    return Batch(
        x=torch.randn(NUM_LABELED, 1, 4, 4),
        y=x_index % NUM_CLASSES,
        x_index=x_index,
        u={view: torch.randn(NUM_UNLABELED, 1, 4, 4) for view in ("contrast", "contrast2")},
        u_index=torch.arange(NUM_UNLABELED),
    )


def make_model(learner: SimCLR) -> MLP:
    torch.manual_seed(0)
    model = MLP((1, 4, 4), NUM_CLASSES, hidden=(6,))
    model.heads.update(learner.heads(model))
    return model


@pytest.mark.parametrize("temperature", [0.5, 0.1, 1.0])
def test_simclr_equals_the_literal_formula(temperature: float) -> None:
    learner, batch = SimCLR(TASK, NoGuidance(TASK), temperature=temperature, dim=4), make_batch()
    model = make_model(learner)
    step = learner(model, batch)
    projection: nn.Module = model.heads["projection"]
    first, second = (projection(model.features(batch.u[view])).tolist() for view in learner.views)
    assert step.logs["loss/contrastive"].item() == pytest.approx(nt_xent(first, second, temperature), rel=1e-5)
    assert step.logs["loss/labeled"].item() == pytest.approx(F.cross_entropy(model(batch.x), batch.y).item(), rel=1e-5)
    assert step.loss.item() == pytest.approx(sum(value.item() for value in step.logs.values()), rel=1e-6)


def test_labels_train_the_classifier_and_not_the_network() -> None:
    learner, batch = SimCLR(TASK, NoGuidance(TASK)), make_batch()
    model = make_model(learner)
    gradients = []
    for y in (batch.y, batch.y.flip(0)):
        model.zero_grad()
        learner(model, batch._replace(y=y)).loss.backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    differs = {name for name in gradients[0] if not torch.equal(gradients[0][name], gradients[1][name])}
    assert differs == {"head.weight", "head.bias"}


def test_equal_views_of_unlike_images_have_the_smallest_loss() -> None:
    learner = SimCLR(TASK, NoGuidance(TASK), temperature=0.1)
    apart = F.one_hot(torch.arange(NUM_UNLABELED)).float()
    found = learner._contrastive(apart, apart)
    lost = learner._contrastive(apart, apart.roll(1, 0))
    assert found < 0.01 < 5 < lost


def test_a_batch_of_one_image_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"batch_unlabeled is 1; .* --set train\.batch_unlabeled=2"):
        SimCLR(TASK._replace(batch_unlabeled=1), NoGuidance(TASK))
