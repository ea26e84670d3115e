from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar import distributed
from mnar.guidances import PRG, NoGuidance
from mnar.learners.flexmatch import FlexMatch
from mnar.models import SmallCNN
from mnar.types import Batch, Task
from tests.reference.flexmatch import LiteralFlexMatch
from tests.support.stand_ins import Recorded, Told

NUM_CLASSES, NUM_LABELED, NUM_UNLABELED, BATCH_UNLABELED = 4, 6, 30, 10
THRESHOLD = 0.75  # a number that float32 holds, so a confidence can equal it
# None but the threshold itself is a small fraction, which a class threshold would equal but for rounding.
LEVELS = torch.tensor([0.31415, 0.41421, 0.51962, 0.61803, THRESHOLD, 0.86603])
TASK = Task(NUM_CLASSES, NUM_UNLABELED, batch_labeled=NUM_LABELED, batch_unlabeled=BATCH_UNLABELED)


def make_batch(seed: int) -> Batch:
    """Of any size; its samples repeat across batches and within them."""
    generator = torch.Generator().manual_seed(seed)
    size = int(torch.randint(1, BATCH_UNLABELED + 1, (), generator=generator))
    views = {view: torch.randn(size, 3, generator=generator, requires_grad=True) for view in ("weak", "strong")}
    return Batch(
        x=torch.randn(NUM_LABELED, 3, generator=generator),
        y=torch.randint(NUM_CLASSES, (NUM_LABELED,), generator=generator),
        x_index=torch.arange(NUM_LABELED),
        u=views,
        u_index=torch.randint(NUM_UNLABELED, (size,), generator=generator),
    )


def make_rows(size: int, seed: int) -> Tensor:
    """Class 0 is predicted most often and class 3 hardly; confidences below, at and above the threshold."""
    generator = torch.Generator().manual_seed(1000 + seed)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 3])[torch.randint(10, (size,), generator=generator)]
    confidence = LEVELS[torch.randint(len(LEVELS), (size,), generator=generator)]
    rows = ((1 - confidence) / (NUM_CLASSES - 1)).unsqueeze(1).repeat(1, NUM_CLASSES)
    return rows.scatter(1, labels.unsqueeze(1), confidence.unsqueeze(1))


def labels_and_confidences(*pairs: tuple[int, bool]) -> Tensor:
    rows = torch.full((len(pairs), NUM_CLASSES), 0.1)
    for row, (label, confident) in zip(rows, pairs, strict=True):
        row[label] = 0.9 if confident else 0.4
    return rows


def make_learner(**options: Any) -> tuple[FlexMatch, Told]:
    guidance = Told(TASK)
    return FlexMatch(TASK, guidance, **{"threshold": THRESHOLD, **options}), guidance


def step_with(learner: FlexMatch, guidance: Told, rows: Tensor, index: list[int]) -> None:
    """One step in which sample index[i] is rectified to rows[i]."""
    batch = make_batch(0)
    views = {view: torch.zeros(len(index), 3) for view in learner.views}
    guidance.answer = rows
    learner(Recorded(), batch._replace(u=views, u_index=torch.tensor(index)))


def assert_counts_are_those_of_the_selected(learner: FlexMatch) -> None:
    counter = Counter(learner.selected[:NUM_UNLABELED].tolist())
    assert learner.counts.tolist() == [counter[c] for c in range(-1, NUM_CLASSES)]


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("unlabeled_weight", [1.0, 0.25])
@pytest.mark.parametrize("count_from", ["rectified", "raw"])
def test_flexmatch_equals_the_literal_dict_and_counter_over_300_steps(
    warmup: bool, unlabeled_weight: float, count_from: str
) -> None:
    options = {"unlabeled_weight": unlabeled_weight, "warmup": warmup, "count_from": count_from}
    learner, guidance = make_learner(**options)
    oracle = LiteralFlexMatch(NUM_CLASSES, NUM_UNLABELED, threshold=THRESHOLD, **options)  # type: ignore[arg-type]
    model, lowered, repeats, disagree = Recorded(), 0, 0, 0
    for seed in range(300):
        batch = make_batch(seed)
        batch = batch._replace(u={**batch.u, "weak": 8 * batch.u["weak"]})  # many raw predictions are sure, too
        guidance.answer = make_rows(len(batch.u_index), seed)
        step = learner(model, batch)
        raw = guidance.seen[-1][0]
        expected = oracle(
            model.linear(batch.x).tolist(),
            batch.y.tolist(),
            raw.tolist(),
            guidance.answer.tolist(),
            model.linear(batch.u["strong"]).tolist(),
            batch.u_index.tolist(),
        )
        assert step.loss.item() == pytest.approx(expected.loss, rel=1e-5)
        assert {name: value.item() for name, value in step.logs.items()} == pytest.approx(
            {
                "loss/labeled": expected.labeled,
                "loss/unlabeled": expected.unlabeled,
                "mask_rate": expected.mask_rate,
                "selected_share": len(oracle.selected) / NUM_UNLABELED,
            },
            rel=1e-5,
            abs=1e-7,
        )
        assert learner.pseudo_labels[: len(batch.u_index)].tolist() == expected.pseudo_labels
        selected = [oracle.selected.get(i, -1) for i in range(NUM_UNLABELED)]
        assert learner.selected[:NUM_UNLABELED].tolist() == selected
        assert_counts_are_those_of_the_selected(learner)
        thresholds = [oracle.class_threshold(c) for c in range(NUM_CLASSES)]
        assert learner.class_thresholds.tolist() == pytest.approx(thresholds, rel=1e-6)
        lowered += int((learner.pseudo_labels >= 0).sum() > (guidance.answer.max(1).values >= THRESHOLD).sum())
        repeats += int(len(set(batch.u_index.tolist())) < len(batch.u_index))
        disagree += int(((raw.max(1).values >= THRESHOLD) & (raw.argmax(1) != guidance.answer.argmax(1))).sum())
    assert lowered > 50, "class thresholds below the fixed one decide"
    assert repeats > 100
    assert disagree > 100, "sure predictions that the guidance changes: the two counts differ"


def test_the_last_confident_row_of_a_repeated_sample_decides() -> None:
    learner, guidance = make_learner()
    rows = labels_and_confidences((2, True), (0, True), (1, True), (3, False), (1, False), (3, True))
    step_with(learner, guidance, rows, [7, 7, 7, 7, 4, 29])
    assert learner.selected[7] == 1
    assert learner.selected[4] == -1
    assert learner.selected[29] == 3
    assert learner.counts.tolist() == [NUM_UNLABELED - 2, 0, 1, 0, 1]


def test_a_selection_stays_until_another_confident_class_takes_its_place() -> None:
    learner, guidance = make_learner()
    history = [(True, 2, 2), (False, 1, 2), (True, 1, 1), (False, 0, 1)]
    for confident, label, expected in history:
        step_with(learner, guidance, labels_and_confidences((label, confident)), [5])
        assert learner.selected[5] == expected
        assert_counts_are_those_of_the_selected(learner)


def test_the_mask_uses_the_counts_of_the_steps_before() -> None:
    learner, guidance = make_learner(warmup=False)
    rows = labels_and_confidences((0, True), (1, False))
    step_with(learner, guidance, rows, [0, 1])
    assert learner.pseudo_labels[:2].tolist() == [0, 1], "nothing is counted yet: all thresholds are 0"
    assert learner.class_thresholds.tolist() == [THRESHOLD, 0, 0, 0]
    step_with(learner, guidance, labels_and_confidences((0, False), (1, False)), [2, 3])
    assert learner.pseudo_labels[:2].tolist() == [-1, 1]


def test_the_thresholds_of_hand_counted_classes_with_and_without_warmup() -> None:
    """Of 30 samples, class 0 has 4, class 1 has 2, 24 have none; M(1/2) = 1/3, M(4/24) = 1/11, M(2/24) = 1/23."""
    rows = labels_and_confidences(*[(0, True)] * 4, *[(1, True)] * 2)
    for warmup, expected in ((False, [1, 1 / 3, 0, 0]), (True, [1 / 11, 1 / 23, 0, 0])):
        learner, guidance = make_learner(warmup=warmup)
        step_with(learner, guidance, rows, list(range(6)))
        assert (learner.class_thresholds / THRESHOLD).tolist() == pytest.approx(expected)


def test_counts_of_raw_predictions_have_the_class_before_the_guidance() -> None:
    """The guidance turns every sure prediction for class 0 into a sure pseudo-label of class 2."""
    task = TASK._replace(batch_unlabeled=2)
    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]])  # sure of class 0, and unsure
    for count_from, counts in (("rectified", [28, 0, 0, 2, 0]), ("raw", [29, 1, 0, 0, 0])):
        guidance = Told(task)
        guidance.answer = labels_and_confidences((2, True), (2, True))
        learner = FlexMatch(task, guidance, threshold=THRESHOLD, count_from=count_from)  # type: ignore[arg-type]
        batch = make_batch(0)
        views = {"weak": logits, "strong": torch.zeros(2, NUM_CLASSES)}
        learner(
            torch.nn.Identity(), batch._replace(x=torch.zeros(6, NUM_CLASSES), u=views, u_index=torch.tensor([3, 8]))
        )
        assert learner.pseudo_labels[:2].tolist() == [2, 2], "the training uses the rectified class either way"
        assert learner.counts.tolist() == counts


def test_both_counts_are_equal_without_a_guidance() -> None:
    learners = [
        FlexMatch(TASK, NoGuidance(TASK), threshold=0.4, count_from=count_from)  # type: ignore[arg-type]
        for count_from in ("rectified", "raw")
    ]
    model = Recorded()
    for seed in range(20):
        steps = [learner(model, make_batch(seed)) for learner in learners]
        assert torch.equal(steps[0].loss, steps[1].loss)
    assert torch.equal(learners[0].selected, learners[1].selected)
    assert learners[0].counts[0] < NUM_UNLABELED, "something was selected"


def test_two_processes_select_what_one_that_sees_the_whole_batch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes take turns: each is shown what the other one has."""
    rows = labels_and_confidences((2, True), (0, True), (1, True), (3, True), (1, False), (3, True))
    index = [7, 8, 9, 8, 7, 9]  # samples 7, 8 and 9 stand on both
    alone, guidance = make_learner()
    step_with(alone, guidance, rows, index)
    labels = [2, 0, 1, 3, -1, 3]
    for rank in range(2):
        share = slice(3 * rank, 3 * rank + 3)
        whole = {tuple(labels[share]): labels, tuple(index[share]): index}

        def gather(local: Tensor, whole: dict[tuple[int, ...], list[int]] = whole, **_: object) -> Tensor:
            return torch.tensor(whole[tuple(local.tolist())], dtype=local.dtype)

        monkeypatch.setattr(distributed, "gather", gather)
        learner, guidance = make_learner()
        step_with(learner, guidance, rows[share], index[share])
        assert torch.equal(learner.selected, alone.selected)
        assert torch.equal(learner.counts, alone.counts)


def test_flexmatch_makes_one_forward_and_shows_the_guidance_the_weak_views_softmax_once() -> None:
    learner, guidance = make_learner()
    batch, model = make_batch(3), Recorded()
    guidance.answer = make_rows(len(batch.u_index), 3)
    learner(model, batch)
    (images,) = model.inputs
    assert torch.equal(images, torch.cat([batch.x, batch.u["weak"], batch.u["strong"]]))
    ((probs, index),) = guidance.seen
    torch.testing.assert_close(probs, model.linear(batch.u["weak"]).detach().softmax(1))
    assert not probs.requires_grad
    assert torch.equal(index, batch.u_index)


def test_no_gradient_goes_through_a_pseudo_label() -> None:
    batch, model = make_batch(3), Recorded()
    FlexMatch(TASK, NoGuidance(TASK))(model, batch).loss.backward()  # no sample is selected yet, so all are used
    weak, strong = batch.u["weak"].grad, batch.u["strong"].grad
    assert weak is not None
    assert weak.abs().sum() == 0
    assert strong is not None
    assert (strong.abs().sum(1) > 0).all()


@pytest.mark.parametrize("guidance", [NoGuidance, PRG])
def test_state_dict_into_a_fresh_learner_continues_bit_for_bit(guidance: Any) -> None:
    learner, resumed = (FlexMatch(TASK, guidance(TASK), threshold=0.4) for _ in range(2))
    addresses = {name: buffer.data_ptr() for name, buffer in learner.named_buffers()}
    model = Recorded()
    for seed in range(20):
        learner(model, make_batch(seed))
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    for seed in range(20, 40):
        step, again = learner(model, make_batch(seed)), resumed(model, make_batch(seed))
        assert torch.equal(step.loss, again.loss)
        assert step.logs == again.logs
    assert {name: buffer.data_ptr() for name, buffer in learner.named_buffers()} == addresses, "changed in place"
    assert list(learner.parameters()) == []
    assert learner.counts[0] < NUM_UNLABELED, "something was selected"


@pytest.mark.parametrize("options", [{}, {"warmup": False}, {"count_from": "raw"}])
def test_two_steps_run_on_fake_tensors_and_gradients_reach_every_parameter(options: dict[str, Any]) -> None:
    with FakeTensorMode():
        learner, model = FlexMatch(TASK, PRG(TASK), **options), SmallCNN((1, 8, 8), NUM_CLASSES, width=4)
        for _ in range(2):
            views = {view: torch.randn(BATCH_UNLABELED, 1, 8, 8) for view in learner.views}
            y = torch.randint(NUM_CLASSES, (NUM_LABELED,))
            x, x_index, u_index = torch.randn(NUM_LABELED, 1, 8, 8), torch.arange(6), torch.arange(BATCH_UNLABELED)
            step = learner(model, Batch(x, y, x_index, views, u_index))
            step.loss.backward()
            assert {value.shape for value in step.logs.values()} == {torch.Size([])}
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("options", [{"threshold": -0.1}, {"threshold": 1.5}, {"unlabeled_weight": -1.0}])
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        FlexMatch(TASK, NoGuidance(TASK), **options)  # type: ignore[arg-type]


def test_an_unknown_count_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"count_from is 'soft'; choose from \['rectified', 'raw'\]"):
        FlexMatch(TASK, NoGuidance(TASK), count_from="soft")  # type: ignore[arg-type]
