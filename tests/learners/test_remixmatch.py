from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.guidances import PRG, NoGuidance
from mnar.learners import remixmatch
from mnar.learners.remixmatch import ReMixMatch, turn_by_quarters
from mnar.models import Classifier
from mnar.types import Batch, Task
from tests.reference import remixmatch as literal
from tests.support.stand_ins import Dictated

NUM_CLASSES, NUM_LABELED, NUM_UNLABELED, BATCH_UNLABELED = 4, 6, 30, 10
SIZE, NUM_FEATURES = 3, 5
TASK = Task(NUM_CLASSES, NUM_UNLABELED, batch_labeled=NUM_LABELED, batch_unlabeled=BATCH_UNLABELED)


class Linear(Classifier):
    """A linear model with a rotation head, that keeps its inputs; a batch norm where asked for."""

    def __init__(self, learner: ReMixMatch, *, norm: bool = False, size: int = SIZE) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)
        self.norm = nn.BatchNorm2d(1) if norm else nn.Identity()
        self.linear = nn.Linear(size * size, NUM_FEATURES)
        self.heads.update(learner.heads(self))
        self.inputs: list[Tensor] = []

    def features(self, x: Tensor) -> Tensor:
        self.inputs.append(x)
        features: Tensor = self.linear(self.norm(x).flatten(1))
        return features


def make_batch(strong_views: int = 2, *, shape: tuple[int, ...] = (1, SIZE, SIZE), seed: int = 1) -> Batch:
    torch.manual_seed(seed)
    strong = ("strong", *(f"strong{number}" for number in range(2, strong_views + 1)))
    return Batch(
        x=torch.randn(NUM_LABELED, *shape),
        y=torch.randint(NUM_CLASSES, (NUM_LABELED,)),
        x_index=torch.arange(NUM_LABELED),
        u={view: torch.randn(BATCH_UNLABELED, *shape) for view in ("weak", *strong)},
        u_index=torch.arange(BATCH_UNLABELED),
    )


def given_draws(monkeypatch: pytest.MonkeyPatch, strong_views: int) -> tuple[Tensor, Tensor]:
    """Shares l as drawn, before the larger of l and 1-l is taken, and the order; the learner gets these."""
    torch.manual_seed(2)
    num_rows = NUM_LABELED + (1 + strong_views) * BATCH_UNLABELED
    shares, order = torch.rand(num_rows), torch.randperm(num_rows)
    monkeypatch.setattr(remixmatch, "draw_mixing", lambda *_: (torch.maximum(shares, 1 - shares), order))
    return shares, order


@pytest.mark.parametrize("strong_views", [1, 2, 3])
@pytest.mark.parametrize(("progress", "ramped"), [(0.0, 0.0), (0.125, 0.5), (0.9, 1.0)])
def test_remixmatch_equals_the_literal_formula(
    monkeypatch: pytest.MonkeyPatch, strong_views: int, progress: float, ramped: float
) -> None:
    shares, order = given_draws(monkeypatch, strong_views)
    batch, table = make_batch(strong_views), torch.randn(NUM_UNLABELED, NUM_CLASSES).softmax(1)
    weights = {"unlabeled_weight": 1.5, "strong_weight": 0.3, "rotation_weight": 0.7}
    learner = ReMixMatch(TASK, Dictated(TASK, table), strong_views=strong_views, temperature=0.4, ramp=0.25, **weights)
    learner.progress.fill_(progress)
    model = Linear(learner)
    step = learner(model, batch)

    def classify(image: literal.Image) -> list[float]:
        return model(torch.tensor(image)[None, None])[0].tolist()

    def tell_rotation(image: literal.Image) -> list[float]:
        return model.heads["rotation"](model.features(torch.tensor(image)[None, None]))[0].tolist()

    expected = literal.remixmatch(
        classify,
        tell_rotation,
        batch.x[:, 0].tolist(),
        batch.y.tolist(),
        batch.u["weak"][:, 0].tolist(),
        [batch.u[view][:, 0].tolist() for view in learner.views[1:]],
        table[batch.u_index].tolist(),
        shares=shares.tolist(),
        partners=order.tolist(),
        temperature=0.4,
        unlabeled_weight=ramped * weights["unlabeled_weight"],
        strong_weight=ramped * weights["strong_weight"],
        rotation_weight=weights["rotation_weight"],
    )
    assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
    logs = {name.removeprefix("loss/"): value.item() for name, value in step.logs.items()}
    assert {"loss": step.loss.item()} | logs == pytest.approx(expected._asdict(), rel=1e-5)
    assert learner.pseudo_labels.tolist() == table[batch.u_index].argmax(1).tolist()


def test_remixmatch_shows_the_guidance_the_weak_views_softmax_and_rows() -> None:
    guidance = Dictated(TASK, torch.full((NUM_UNLABELED, NUM_CLASSES), 1 / NUM_CLASSES))
    learner, batch = ReMixMatch(TASK, guidance), make_batch()
    model = Linear(learner)
    learner(model, batch)
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model(batch.u["weak"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_remixmatch_makes_a_forward_of_the_anchor_and_one_of_all_else() -> None:
    learner, batch = ReMixMatch(TASK, NoGuidance(TASK)), make_batch()
    model = Linear(learner)
    learner(model, batch)
    anchor, trained = model.inputs
    assert torch.equal(anchor, batch.u["weak"])
    _, strong, turned = trained.split([NUM_LABELED + 3 * BATCH_UNLABELED, BATCH_UNLABELED, BATCH_UNLABELED])
    assert torch.equal(strong, batch.u["strong"])
    assert torch.equal(turned, turn_by_quarters(batch.u["strong"])[0])


def test_batch_norm_remembers_the_training_forward_and_nothing_of_the_anchor() -> None:
    learner = ReMixMatch(TASK, NoGuidance(TASK))
    model = Linear(learner, norm=True)
    fresh = copy.deepcopy(model.norm)
    learner(model, make_batch())
    fresh(model.inputs[-1])
    torch.testing.assert_close(model.norm.running_mean, fresh.running_mean)
    torch.testing.assert_close(model.norm.running_var, fresh.running_var)


def test_gradients_reach_the_model_and_the_rotation_head_at_every_stage_of_the_ramp() -> None:
    learner = ReMixMatch(TASK, PRG(TASK))
    for progress in (0.0, 1.0):
        learner.progress.fill_(progress)
        model = Linear(learner, norm=True)
        learner(model, make_batch()).loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("num_images", [4, 7, 8, 10])
def test_quarters_are_turned_as_the_literal_loop_does(num_images: int) -> None:
    torch.manual_seed(0)
    images = torch.randn(num_images, 1, SIZE, SIZE)
    turned, turns = turn_by_quarters(images)
    assert turns.tolist() == [literal.quarter_of(position, num_images) for position in range(num_images)]
    for image, was_turned, times in zip(images[:, 0].tolist(), turned[:, 0].tolist(), turns.tolist(), strict=True):
        for _ in range(times):
            image = literal.turn(image)
        assert was_turned == image


def test_all_images_stay_channels_last_if_they_came_so() -> None:
    learner, batch = ReMixMatch(TASK, NoGuidance(TASK)), make_batch(shape=(3, SIZE, SIZE))
    channels_last = {"memory_format": torch.channels_last}
    batch = batch._replace(
        x=batch.x.contiguous(**channels_last),
        u={view: images.contiguous(**channels_last) for view, images in batch.u.items()},
    )
    model = Linear(learner)
    model.linear = nn.Linear(3 * SIZE * SIZE, NUM_FEATURES)
    learner(model, batch)
    assert [images.is_contiguous(**channels_last) for images in model.inputs] == [True, True]


def test_a_step_is_repeated_from_the_saved_generator_state_and_no_other() -> None:
    learner, batch = ReMixMatch(TASK, NoGuidance(TASK)), make_batch()
    learner.progress.fill_(1.0)
    model = Linear(learner)
    state = torch.get_rng_state()
    first, second = learner(model, batch).loss, learner(model, batch).loss
    torch.set_rng_state(state)
    assert torch.equal(learner(model, batch).loss, first)
    assert torch.equal(learner(model, batch).loss, second)
    assert not torch.equal(first, second)


def test_two_steps_with_prg_run_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        learner = ReMixMatch(TASK, PRG(TASK))
        model = Linear(learner, norm=True)
        for _ in range(2):
            step = learner(model, make_batch())
            step.loss.backward()
            assert {value.shape for value in [step.loss, *step.logs.values()]} == {torch.Size([])}


def test_the_number_of_strong_views_names_the_views() -> None:
    views = {number: ReMixMatch(TASK, NoGuidance(TASK), strong_views=number).views for number in (1, 2, 9)}
    assert views[1] == ("weak", "strong")
    assert views[2] == ReMixMatch.views == ("weak", "strong", "strong2")
    assert views[9][-2:] == ("strong8", "strong9")


@pytest.mark.parametrize(
    "options",
    [
        {"strong_views": 0},
        {"strong_views": 101},
        {"temperature": 0.0},
        {"alpha": 0.0},
        {"unlabeled_weight": -1.0},
        {"strong_weight": -1.0},
        {"rotation_weight": -1.0},
        {"ramp": 0.0},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        ReMixMatch(TASK, NoGuidance(TASK), **options)


def test_a_batch_that_has_no_four_quarters_is_refused() -> None:
    task = TASK._replace(batch_unlabeled=3)
    with pytest.raises(ValueError, match=r"batch_unlabeled is 3.*at least 4"):
        ReMixMatch(task, NoGuidance(task))


def test_images_that_are_not_square_are_refused() -> None:
    learner = ReMixMatch(TASK, NoGuidance(TASK))
    learner.check_sample({"strong": torch.zeros(2, 1, 9, 9)})
    with pytest.raises(ValueError, match=r"1x9.*square"):
        learner.check_sample({"strong": torch.zeros(2, 1, 1, 9)})
