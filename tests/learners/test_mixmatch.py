from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.guidances import PRG, NoGuidance
from mnar.learners import mixmatch
from mnar.learners.mixing import mix
from mnar.learners.mixmatch import MixMatch
from mnar.types import Batch, Task
from tests.reference import mixmatch as literal
from tests.support.stand_ins import Dictated, Recorded

NUM_CLASSES, NUM_LABELED, NUM_UNLABELED, BATCH_UNLABELED = 4, 6, 30, 10
POOL = NUM_LABELED + 2 * BATCH_UNLABELED
TASK = Task(NUM_CLASSES, NUM_UNLABELED, batch_labeled=NUM_LABELED, batch_unlabeled=BATCH_UNLABELED)


def make_batch(seed: int = 1) -> Batch:
    torch.manual_seed(seed)
    return Batch(
        x=torch.randn(NUM_LABELED, 3),
        y=torch.randint(NUM_CLASSES, (NUM_LABELED,)),
        x_index=torch.arange(NUM_LABELED),
        u={view: torch.randn(BATCH_UNLABELED, 3) for view in ("weak", "weak2")},
        u_index=torch.arange(BATCH_UNLABELED),
    )


def weak_views(batch: Batch) -> Tensor:
    return torch.cat([batch.u["weak"], batch.u["weak2"]])


def given_draws(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Shares l as drawn, before the larger of l and 1-l is taken, and the order; the learner gets these."""
    torch.manual_seed(2)
    shares, order = torch.rand(POOL), torch.randperm(POOL)
    monkeypatch.setattr(mixmatch, "draw_mixing", lambda *_: (torch.maximum(shares, 1 - shares), order))
    return shares, order


@pytest.mark.parametrize("unlabeled_weight", [75.0, 0.0])
@pytest.mark.parametrize(("progress", "ramped"), [(0.0, 0.0), (0.125, 0.5), (0.25, 1.0), (0.9, 1.0)])
def test_mixmatch_equals_the_literal_formula(
    monkeypatch: pytest.MonkeyPatch, unlabeled_weight: float, progress: float, ramped: float
) -> None:
    shares, order = given_draws(monkeypatch)
    batch, model, table = make_batch(), Recorded(), torch.randn(NUM_UNLABELED, NUM_CLASSES).softmax(1)
    learner = MixMatch(TASK, Dictated(TASK, table), temperature=0.4, unlabeled_weight=unlabeled_weight, ramp=0.25)
    learner.progress.fill_(progress)
    step = learner(model, batch)
    expected = literal.mixmatch(
        lambda image: model.linear(torch.tensor(image)).tolist(),
        batch.x.tolist(),
        batch.y.tolist(),
        [batch.u["weak"].tolist(), batch.u["weak2"].tolist()],
        table[batch.u_index].tolist(),
        shares=shares.tolist(),
        partners=order.tolist(),
        temperature=0.4,
        unlabeled_weight=ramped * unlabeled_weight,
    )
    assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
    logs = {name: value.item() for name, value in step.logs.items()}
    assert logs == pytest.approx({"loss/labeled": expected.labeled, "loss/unlabeled": expected.unlabeled}, rel=1e-5)
    assert learner.pseudo_labels.tolist() == table[batch.u_index].argmax(1).tolist()


def test_mixmatch_shows_the_guidance_the_average_prediction_for_both_weak_views() -> None:
    batch, model = make_batch(), Recorded()
    guidance = Dictated(TASK, torch.full((NUM_UNLABELED, NUM_CLASSES), 1 / NUM_CLASSES))
    MixMatch(TASK, guidance)(model, batch)
    ((probs, index),) = guidance.seen
    expected = literal.average_prediction(
        lambda image: model.linear(torch.tensor(image)).tolist(),
        [batch.u["weak"].tolist(), batch.u["weak2"].tolist()],
    )
    torch.testing.assert_close(probs, torch.tensor(expected))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_mixmatch_makes_a_forward_to_guess_and_one_of_the_whole_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, order = given_draws(monkeypatch)
    batch, model = make_batch(), Recorded()
    MixMatch(TASK, NoGuidance(TASK))(model, batch)
    guessed, trained = model.inputs
    assert torch.equal(guessed, weak_views(batch))
    pool = torch.cat([batch.x, weak_views(batch)])
    torch.testing.assert_close(trained, mix([pool], torch.maximum(shares, 1 - shares), order))


def test_batch_norm_remembers_the_mixture_and_nothing_of_the_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    given_draws(monkeypatch)
    model = nn.Sequential(nn.BatchNorm1d(3), Recorded())
    fresh = copy.deepcopy(model[0])
    before: list[Tensor] = []
    model[0].register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    MixMatch(TASK, NoGuidance(TASK))(model, make_batch())
    fresh(before[-1])
    torch.testing.assert_close(model[0].running_mean, fresh.running_mean)
    torch.testing.assert_close(model[0].running_var, fresh.running_var)


def test_a_step_is_repeated_from_the_saved_generator_state_and_no_other() -> None:
    learner, model, batch = MixMatch(TASK, NoGuidance(TASK)), Recorded(), make_batch()
    state = torch.get_rng_state()
    first, second = learner(model, batch).loss, learner(model, batch).loss
    torch.set_rng_state(state)
    assert torch.equal(learner(model, batch).loss, first)
    assert torch.equal(learner(model, batch).loss, second)
    assert not torch.equal(first, second)


def test_two_steps_with_prg_run_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        learner, model = MixMatch(TASK, PRG(TASK)), nn.Sequential(nn.BatchNorm1d(3), Recorded())
        for _ in range(2):
            step = learner(model, make_batch())
            step.loss.backward()
            assert {value.shape for value in [step.loss, *step.logs.values()]} == {torch.Size([])}


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"alpha": -1.0}, {"unlabeled_weight": -1.0}, {"ramp": 0.0}, {"ramp": 2.0}]
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        MixMatch(TASK, NoGuidance(TASK), **options)
