from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.guidances import PRG, Guidance, NoGuidance, Tracking
from mnar.learners.vime import Vime, corrupt
from mnar.models import MLP
from mnar.models.encoder_mlp import EncoderMLP
from mnar.types import Batch, Task
from tests.reference.vime import vime

NUM_CLASSES, NUM_FEATURES, NUM_LABELED, NUM_UNLABELED, BATCH_UNLABELED = 4, 6, 5, 30, 8
TASK = Task(NUM_CLASSES, NUM_UNLABELED, batch_labeled=NUM_LABELED, batch_unlabeled=BATCH_UNLABELED)


class Watched(Guidance):
    """Gives back rows of a table, and remembers what it was shown."""

    def __init__(self, task: Task, table: Tensor) -> None:
        super().__init__(task)
        self.table = table
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.seen.append((probs, index))
        return self.table[index]


class WatchedNone(NoGuidance):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.seen.append((probs, index))
        return super().forward(probs, index)


def make_batch(seed: int = 1) -> Batch:
    torch.manual_seed(seed)
    return Batch(
        x=torch.rand(NUM_LABELED, NUM_FEATURES),
        y=torch.randint(NUM_CLASSES, (NUM_LABELED,)),
        x_index=torch.arange(NUM_LABELED),
        u={"id": torch.rand(BATCH_UNLABELED, NUM_FEATURES)},
        u_index=torch.randperm(NUM_UNLABELED)[:BATCH_UNLABELED],
    )


def make_model(learner: Vime) -> tuple[EncoderMLP, list[Tensor]]:
    """A prepared model, and a list of what it will be shown."""
    torch.manual_seed(0)
    model = EncoderMLP((NUM_FEATURES,), NUM_CLASSES, hidden=(5,))
    learner.prepare(model)
    shown: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    return model, shown


def make_table() -> Tensor:
    torch.manual_seed(3)
    return torch.rand(NUM_UNLABELED, NUM_CLASSES).softmax(1)


@pytest.mark.parametrize("unlabeled_weight", [1.0, 0.25])
@pytest.mark.parametrize("copies", [3, 2])
@pytest.mark.parametrize("consistency", ["var", "mse", "ce", "ce with a guidance"])
def test_vime_equals_the_literal_formula(consistency: str, copies: int, unlabeled_weight: float) -> None:
    batch, table = make_batch(), make_table()
    guidance = NoGuidance(TASK) if len(consistency) <= 3 else Watched(TASK, table)
    consistency = consistency[:3].strip()
    learner = Vime(TASK, guidance, copies=copies, consistency=consistency, unlabeled_weight=unlabeled_weight)  # type: ignore[arg-type]
    model, shown = make_model(learner)
    step = learner(model, batch)

    (rows,) = shown
    assert torch.equal(rows[: NUM_LABELED + BATCH_UNLABELED], torch.cat([batch.x, batch.u["id"]])), (
        "one forward for all"
    )
    logits = model(rows).tolist()
    clean, corrupted = logits[NUM_LABELED:][:BATCH_UNLABELED], logits[NUM_LABELED + BATCH_UNLABELED :]
    rectified = torch.tensor(clean).softmax(1) if isinstance(guidance, NoGuidance) else table[batch.u_index]
    expected = vime(
        logits[:NUM_LABELED],
        batch.y.tolist(),
        [corrupted[copy * BATCH_UNLABELED :][:BATCH_UNLABELED] for copy in range(copies)],
        rectified.tolist(),
        consistency=consistency,
        unlabeled_weight=unlabeled_weight,
    )
    assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
    logs = {name: value.item() for name, value in step.logs.items()}
    assert logs == pytest.approx({"loss/labeled": expected.labeled, "loss/unlabeled": expected.unlabeled}, rel=1e-4)
    assert learner.pseudo_labels.tolist() == rectified.argmax(1).tolist()


def test_auto_is_var_without_a_guidance_and_ce_with_one() -> None:
    assert Vime(TASK, NoGuidance(TASK)).consistency == "var"
    assert Vime(TASK, PRG(TASK)).consistency == "ce"


@pytest.mark.parametrize("consistency", ["var", "mse", "ce"])
def test_the_guidance_is_shown_the_clean_rows_softmax_once(consistency: Any) -> None:
    batch, guidance = make_batch(), WatchedNone(TASK)
    learner = Vime(TASK, guidance, consistency=consistency)
    model, _ = make_model(learner)
    learner(model, batch)
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model(batch.u["id"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


@pytest.mark.parametrize("consistency", ["var", "mse", "ce"])
def test_gradients_come_from_labelled_rows_and_copies_only_and_the_encoder_stays_frozen(consistency: Any) -> None:
    learner = Vime(TASK, NoGuidance(TASK), consistency=consistency)
    model, _ = make_model(learner)
    logits: list[Tensor] = []

    def keep(_: object, inputs: object, output: Tensor) -> None:
        output.retain_grad()
        logits.append(output)

    model.register_forward_hook(keep)
    learner(model, make_batch()).loss.backward()
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    assert all(p.grad is not None and p.grad.any() for p in (*model.layers.parameters(), *model.head.parameters()))
    assert logits[0].grad is not None
    labeled, clean, copies = logits[0].grad.split([NUM_LABELED, BATCH_UNLABELED, 3 * BATCH_UNLABELED])
    assert labeled.any()
    assert not clean.any(), "no gradient goes through a pseudo-label"
    assert copies.any()


def test_a_corrupted_column_is_the_batchs_turned_by_an_own_number_of_rows() -> None:
    torch.manual_seed(0)
    num_rows, num_columns, copies = 7, 300, 4
    table = torch.arange(num_rows)[:, None] + 100.0 * torch.arange(num_columns)
    donors = (corrupt(table, copies, mask_rate=1.0) - 100 * torch.arange(num_columns)).tolist()
    shifts = []
    for copy in donors:
        for column in zip(*copy, strict=True):
            shift = column[0]
            assert list(column) == [(row + shift) % num_rows for row in range(num_rows)]
            shifts.append(shift)
    # Uniform, and independent of the column beside it: 1200 draws of 7, and 1199 neighbours of 49.
    for counts, size in ((Counter(shifts), num_rows), (Counter(pairwise(shifts)), num_rows**2)):
        expected = sum(counts.values()) / size
        chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
        assert len(counts) == size
        assert chi_square < size - 1 + 4 * math.sqrt(2 * (size - 1))


def test_cells_are_overwritten_at_the_mask_rate_and_kept_otherwise() -> None:
    torch.manual_seed(0)
    num_rows, num_columns, copies = 50, 400, 2
    table = torch.rand(num_rows, num_columns)
    changed = corrupt(table, copies, mask_rate=0.3) != table
    expected = 0.3 * (1 - 1 / num_rows)  # a turn by no rows changes nothing
    assert changed.float().mean((1, 2)).tolist() == pytest.approx([expected] * copies, abs=0.02)
    both = (changed[0] & changed[1]).float().mean()
    assert both.item() == pytest.approx(expected**2, abs=0.01), "each copy has its own mask"
    assert torch.equal(corrupt(table, copies, mask_rate=0.0), table.expand(copies, -1, -1))


@pytest.mark.parametrize("guidance", [NoGuidance, PRG])
def test_two_steps_run_on_fake_tensors_so_nothing_reads_a_value_back(guidance: type[Guidance]) -> None:
    with FakeTensorMode():
        learner = Vime(TASK, guidance(TASK))
        model, _ = make_model(learner)
        for _ in range(2):
            batch = make_batch()._replace(u_index=torch.arange(BATCH_UNLABELED))
            learner(model, batch).loss.backward()


def test_state_dict_into_a_fresh_learner_continues_bit_for_bit() -> None:
    learner, resumed = Vime(TASK, PRG(TASK)), Vime(TASK, PRG(TASK))
    model, _ = make_model(learner)
    for seed in range(4):
        learner(model, make_batch(seed))
    resumed.load_state_dict(learner.state_dict())
    for seed in range(4, 8):
        step, again = learner(model, make_batch(seed)), resumed(model, make_batch(seed))  # that seeds the masks, too
        assert torch.equal(step.loss, again.loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_rate": 0.0}, "mask_rate is 0"),
        ({"copies": 0}, "copies is 0"),
        ({"copies": 1}, "set copies to 2 or more for consistency 'var'"),
        ({"consistency": "kl"}, "consistency is 'kl'; choose from"),
        ({"unlabeled_weight": -1.0}, "unlabeled_weight is -1"),
        ({"pretraining_epochs": 0}, "pretraining_epochs is 0"),
        ({"feature_weight": math.nan}, "feature_weight is nan"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vime(TASK, NoGuidance(TASK), **options)


def test_tracking_changes_no_pseudo_label_and_no_loss() -> None:
    assert Vime(TASK, Tracking(TASK)).consistency == Vime(TASK, NoGuidance(TASK)).consistency == "var"
    assert Vime(TASK, PRG(TASK)).consistency == "ce"


@pytest.mark.parametrize("consistency", ["var", "mse"])
def test_a_guidance_with_a_consistency_that_has_no_pseudo_label_is_refused(consistency: Any) -> None:
    with pytest.raises(ValueError, match=f"consistency is '{consistency}'.*choose consistency=ce"):
        Vime(TASK, PRG(TASK), consistency=consistency)


def test_a_batch_of_one_row_is_refused() -> None:
    task = TASK._replace(batch_unlabeled=1)
    with pytest.raises(ValueError, match="batch_unlabeled=2 or more"):
        Vime(task, NoGuidance(task))


def test_a_model_without_encoder_is_refused_with_the_one_to_choose() -> None:
    with pytest.raises(ValueError, match=r"MLP has none; choose --set model\.name=encoder_mlp"):
        Vime(TASK, NoGuidance(TASK)).prepare(MLP((NUM_FEATURES,), NUM_CLASSES))
