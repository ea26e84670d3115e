from __future__ import annotations

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.augment import Standardize
from mnar.guidances import NoGuidance
from mnar.learners.vime_self import VimeSelf
from mnar.models import MLP
from mnar.models.encoder_mlp import EncoderMLP
from mnar.types import Batch, Task
from tests.reference.vime import vime_self

NUM_CLASSES, NUM_ROWS, NUM_FEATURES = 3, 16, 7
TASK = Task(NUM_CLASSES, NUM_ROWS, batch_labeled=NUM_ROWS, batch_unlabeled=NUM_ROWS)


def make_batch(num_rows: int = NUM_ROWS) -> Batch:
    torch.manual_seed(1)
    # Few values, as in MNIST: many a stranger is equal to what stood there.
    x, marginal = torch.randint(3, (2, num_rows, NUM_FEATURES)) / 2
    return Batch(
        x=x,
        y=torch.zeros(num_rows, dtype=torch.int64),
        x_index=torch.arange(num_rows),
        u={"id": x, "marginal": marginal},
        u_index=torch.arange(num_rows),
    )


def make_model(learner: VimeSelf) -> tuple[EncoderMLP, list[Tensor]]:
    """A model with the learner's heads, and a list of what its encoder will be shown."""
    torch.manual_seed(0)
    model = EncoderMLP((NUM_FEATURES,), NUM_CLASSES, encoder_width=5, hidden=(4,))
    model.heads.update(learner.heads(model))
    learner.prepare(model)
    shown: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    return model, shown


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("feature_weight", [2.0, 0.5, 0.0])
def test_vime_self_equals_the_literal_formula(feature_weight: float, bounded: bool) -> None:
    batch = make_batch()
    learner = VimeSelf(TASK, NoGuidance(TASK), feature_weight=feature_weight, bounded=bounded)
    model, shown = make_model(learner)
    step = learner(model, batch)
    (corrupted,) = shown
    encoded = model.encoder(corrupted)
    expected = vime_self(
        batch.u["id"].tolist(),
        corrupted.tolist(),
        model.heads["mask"](encoded).tolist(),
        model.heads["feature"](encoded).tolist(),
        feature_weight=feature_weight,
        bounded=bounded,
    )
    assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
    logs = {name: value.item() for name, value in step.logs.items()}
    assert logs == pytest.approx({"loss/mask": expected.mask, "loss/feature": expected.feature}, rel=1e-5)


def test_masked_cells_are_the_marginal_view_and_all_others_the_row_itself() -> None:
    num_rows = 4000
    batch = make_batch(num_rows)
    batch = batch._replace(u={"id": batch.u["id"], "marginal": batch.u["id"] + 10})
    learner = VimeSelf(TASK, NoGuidance(TASK), mask_rate=0.3)
    model, shown = make_model(learner)
    for _ in range(2):
        learner(model, batch)
    first, second = (corrupted - batch.u["id"] for corrupted in shown)
    assert set(first.unique().tolist()) == {0, 10}
    share = (first == 10).float().mean(0)
    assert (share - 0.3).abs().max() < 4 * math.sqrt(0.3 * 0.7 / num_rows)  # in every column
    both = ((first == 10) & (second == 10)).float().mean()
    assert both.item() == pytest.approx(0.09, abs=0.01), "each step draws its own mask"


def test_gradients_reach_the_encoder_and_both_heads_and_nothing_else() -> None:
    learner = VimeSelf(TASK, NoGuidance(TASK))
    model, _ = make_model(learner)
    learner(model, make_batch()).loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith(("encoder.", "heads."))}
    assert all(p.grad.any() for p in (*model.encoder.parameters(), *model.heads.parameters()) if p.grad is not None)


def test_a_step_runs_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        learner = VimeSelf(TASK, NoGuidance(TASK))
        model, _ = make_model(learner)
        learner(model, make_batch()).loss.backward()


def test_labels_and_labelled_rows_take_no_part() -> None:
    learner = VimeSelf(TASK, NoGuidance(TASK))
    model, _ = make_model(learner)
    losses = []
    for batch in (make_batch(), make_batch()._replace(x=torch.full((1, 1), math.nan), y=torch.tensor([99]))):
        torch.manual_seed(2)
        losses.append(learner(model, batch).loss)
    assert torch.equal(losses[0], losses[1])
    assert learner.pseudo_labels.tolist() == [-1] * NUM_ROWS


def test_digits_are_learned_beyond_what_each_column_alone_tells() -> None:
    rows = torch.from_numpy(load_digits().data).float() / 16
    views = Standardize((0.0,) * 64, (1.0,) * 64, rows)
    task = Task(10, len(rows), batch_labeled=128, batch_unlabeled=128)
    torch.manual_seed(0)
    learner, model = VimeSelf(task, NoGuidance(task)), EncoderMLP((64,), 10)
    model.heads.update(learner.heads(model))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=0.9)

    def batch_of(index: Tensor) -> Batch:
        return Batch(rows[:0], index[:0], index[:0], {view: views(rows[index], view) for view in learner.views}, index)

    for _ in range(1000):
        loss = learner(model, batch_of(torch.randint(len(rows), (128,)))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    shown: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    logs = learner(model, batch_of(torch.arange(len(rows)))).logs
    changed = (shown[0] != rows).float().mean(0)
    entropy = torch.special.entr(changed) + torch.special.entr(1 - changed)
    # The best that can be done without looking at the row: how often a column changes, and its mean.
    assert logs["loss/mask"] < 0.97 * entropy.mean()
    assert logs["loss/feature"] < 0.5 * rows.var(0, correction=0).mean()


@pytest.mark.parametrize(
    "options", [{"mask_rate": 0.0}, {"mask_rate": 1.5}, {"feature_weight": -1.0}, {"feature_weight": math.inf}]
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        VimeSelf(TASK, NoGuidance(TASK), **options)


def test_a_model_without_encoder_is_refused_with_the_one_to_choose() -> None:
    learner, model = VimeSelf(TASK, NoGuidance(TASK)), MLP((NUM_FEATURES,), NUM_CLASSES)
    for check in (learner.heads, learner.prepare):
        with pytest.raises(ValueError, match=r"MLP has none; choose --set model\.name=encoder_mlp"):
            check(model)
