"""Learners that leave the weak views out of the backward pass (`weak_gradient=False`)."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.guidances import CADR, PRG, Chain, NoGuidance
from mnar.learners import ACR, CoMatch, FixMatch, FlexMatch, Learner, SimMatch
from mnar.models import MLP, Backbone, SmallCNN
from mnar.types import Batch, Task

NUM_CLASSES, NUM_LABELED, NUM_UNLABELED = 4, 6, 10
TASK = Task(NUM_CLASSES, 30, torch.arange(NUM_LABELED) % NUM_CLASSES, NUM_LABELED, NUM_UNLABELED)
LEARNERS: tuple[type[Learner], ...] = (FixMatch, FlexMatch, SimMatch, CoMatch, ACR)


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8)


def make_batch() -> Batch:
    torch.manual_seed(1)
    views = {view: images(NUM_UNLABELED) for view in ("weak", "strong", "strong2")}
    x_index = torch.arange(NUM_LABELED)
    return Batch(images(NUM_LABELED), x_index % NUM_CLASSES, x_index, views, torch.arange(NUM_UNLABELED))


def step_of(make: type[Learner], model: MLP | SmallCNN, **options: bool) -> tuple[float, dict[str, torch.Tensor]]:
    learner = make(TASK, NoGuidance(TASK), threshold=0.3, **options)
    torch.manual_seed(2)
    model.heads.update(learner.heads(model))
    model.zero_grad()
    loss = learner(model, make_batch()).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("make", LEARNERS)
def test_without_batch_norm_loss_and_gradients_equal_those_of_the_whole_batch(make: type[Learner]) -> None:
    model = MLP((1, 8, 8), NUM_CLASSES)
    loss, gradients = step_of(make, model)
    loss_without, gradients_without = step_of(make, model, weak_gradient=False)
    assert loss_without == pytest.approx(loss, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_without[name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("make", LEARNERS)
def test_with_batch_norm_only_the_gradient_differs(make: type[Learner]) -> None:
    model = SmallCNN((1, 8, 8), NUM_CLASSES)
    loss, gradients = step_of(make, model)
    loss_without, gradients_without = step_of(make, model, weak_gradient=False)
    assert loss_without == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(gradients_without["head.weight"], gradients["head.weight"], rtol=1e-3, atol=1e-5)
    first = "layers.0.weight"
    cosine = torch.cosine_similarity(gradients[first].flatten(), gradients_without[first].flatten(), dim=0)
    assert 0.5 < cosine < 1 - 1e-6


@pytest.mark.parametrize("make", LEARNERS)
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(make: type[Learner]) -> None:
    with FakeTensorMode():
        learner = make(TASK._replace(labeled_targets=torch.arange(NUM_LABELED) % NUM_CLASSES), NoGuidance(TASK))
        learner.weak_gradient = False
        model = SmallCNN((1, 8, 8), NUM_CLASSES)
        model.heads.update(learner.heads(model))
        for _ in range(2):
            learner(model, make_batch()).loss.backward()


def test_a_guidance_that_trains_the_weak_views_is_refused() -> None:
    with pytest.raises(ValueError, match=r"CADR trains the weak views; choose --set learner.weak_gradient=true"):
        FixMatch(TASK, CADR(TASK), weak_gradient=False)
    with pytest.raises(ValueError, match=r"Chain trains the weak views"):
        FixMatch(TASK, Chain(PRG(TASK), CADR(TASK)), weak_gradient=False)
    FixMatch(TASK, CADR(TASK, labeled_loss="inverse_propensity"), weak_gradient=False)


def test_a_network_with_unknown_layers_is_refused() -> None:
    learner = FixMatch(TASK, NoGuidance(TASK), weak_gradient=False)
    with pytest.raises(ValueError, match=r"Backbone cannot leave the weak views out of its backward pass"):
        learner.prepare(Backbone(torch.nn.Flatten(), (1, 8, 8), NUM_CLASSES))
    learner.prepare(SmallCNN((1, 8, 8), NUM_CLASSES))
