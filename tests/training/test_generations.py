"""Training that begins anew: bounds, what is fresh in a generation, what is handed on, and resuming anywhere."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mnar.config import RunConfig
from mnar.guidances import GUIDANCES, Guidance
from mnar.learners import UPS
from mnar.run.assemble import make_split
from mnar.training.meters import Diverged
from mnar.training.trainer import Interrupted, Trainer, train
from mnar.types import DataSet, Predict, Selection, Task
from tests.support.equality import assert_same
from tests.support.methods import SURE_UPS, method_settings
from tests.support.watching import Notes, loaded

MakeTrainer = Callable[..., Trainer]
Configure = Callable[..., RunConfig]


class HandsOn(Guidance):
    """Counts batches and generations, and hands on the samples that are surest, after each generation more of them."""

    needs = frozenset({"relabel"})
    batches: Tensor
    age: Tensor

    def __init__(self, task: Task, *, generations: int = 3, num_handed: int = 20) -> None:
        super().__init__(task)
        self.generations, self.num_handed = generations, num_handed
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("age", torch.zeros((), dtype=torch.int64))
        self.counted: list[tuple[int, int]] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.batches += 1
        self.counted.append((int(self.age), int(self.batches)))
        return probs

    def relabel(self, predict: Predict, generation: int) -> Selection | None:
        self.age.fill_(generation + 1)
        if self.num_handed == 0:
            return None
        confidence, labels = torch.cat([logits[0] for _, logits in predict()]).softmax(1).max(1)
        rows = confidence.topk(self.num_handed * (generation + 1)).indices
        return Selection(rows, labels[rows])


@pytest.fixture(autouse=True)
def hands_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GUIDANCES, "hands_on", HandsOn)


FIXMATCH_THAT_HANDS_ON = ("learner.name=fixmatch", "guidance.name=hands_on")
# Every sample is selected, so a few steps change all of its state.
FLEXMATCH_THAT_HANDS_ON = ("learner.name=flexmatch", "learner.threshold=0.1", "guidance.name=hands_on")


@pytest.mark.parametrize(
    ("iterations", "generations"), [(30, 20), (20, 20), (7, 3), (100, 1), (41, 2), (1_048_576, 20)]
)
def test_generations_are_as_long_as_each_other_to_a_step_and_the_last_ends_with_the_run(
    trainer_of: MakeTrainer, iterations: int, generations: int
) -> None:
    trainer = trainer_of(*SURE_UPS, f"learner.generations={generations}", iterations=iterations)
    ends = [trainer.generation_end(generation) for generation in range(-1, generations)]
    assert (ends[0], ends[-1]) == (0, iterations)
    lengths = {end - began for began, end in pairwise(ends)}
    assert lengths <= {iterations // generations, iterations // generations + 1}


class Observed(Notes):
    """Also keeps what the trainer was at each step, and at the beginning of each generation but the first."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer = trainer
        self.steps: list[dict[str, float]] = []
        self.began: list[dict[str, Any]] = []

    def stepped(self, step: int) -> None:
        super().stepped(step)
        trainer = self.trainer
        progress, lr, num_labeled = trainer.learner.progress.item(), trainer.lr.item(), trainer.loader.num_labeled
        self.steps.append(
            {"generation": trainer.generation, "progress": progress, "lr": lr, "num_labeled": num_labeled}
        )

    def generation(self, number: int, selection: Selection | None) -> None:
        super().generation(number, selection)
        trainer = self.trainer
        assert number == trainer.generation
        assert_same(dict(trainer.average.model.state_dict()), dict(trainer.model.state_dict()))
        assert trainer.optimizer.state_dict()["state"] == {}
        assert all(group["lr"] is trainer.lr for group in trainer.optimizer.param_groups)
        self.began.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})


def test_a_run_of_30_steps_in_20_generations_has_them_all_and_each_has_its_own_ramp_and_schedule(
    trainer_of: MakeTrainer,
) -> None:
    trainer = trainer_of(*SURE_UPS, "learner.generations=20", "train.lr=0.1", iterations=30)
    notes = Observed(trainer)
    train(trainer, notes)
    assert list(notes.selections) == list(range(1, 20))
    began = 0
    for generation in range(20):
        steps = [step for step in notes.steps if step["generation"] == generation]
        assert len(steps) == trainer.generation_end(generation) - began
        began = trainer.generation_end(generation)
        for place, step in enumerate(steps):
            assert step["progress"] == pytest.approx(place / len(steps))
            assert step["lr"] == pytest.approx(0.1 * math.cos(7 * math.pi / 16 * place / len(steps)))
    assert notes.num_steps == 30


def test_every_generation_begins_with_a_fresh_network_of_its_own_draw(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(*SURE_UPS, "learner.generations=3", "train.ema=0.9", iterations=12)
    first = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    addresses = [parameter.data_ptr() for parameter in trainer.model.parameters()]
    notes = Observed(trainer)  # also looks at the average and the optimiser
    train(trainer, notes)
    assert len(notes.began) == 2
    for before, after in pairwise([first, *notes.began]):
        for name in first:
            drawn = "weight" in name and first[name].ndim > 1
            assert torch.equal(before[name], after[name]) != drawn or name == "head.bias", name
    trained = trainer.model.state_dict()
    assert not any(torch.equal(trained[name], notes.began[-1][name]) for name, _ in trainer.model.named_parameters())
    assert [p.data_ptr() for p in trainer.model.parameters()] == addresses, "in place: the engine has wrapped them"


def test_lines_of_metrics_name_the_generation_and_score_what_the_one_before_selected(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(*SURE_UPS, "learner.generations=3", "train.eval_every=3", iterations=12)
    notes, targets = Notes(), trainer.loader.unlabeled_targets
    train(trainer, notes)
    assert [(line["step"], line["generation"]) for line in notes.lines] == [
        *((3, 0), (4, 0)),  # every third step, and the last of each generation
        *((6, 1), (8, 1)),
        *((9, 2), (12, 2)),
    ]
    assert list(notes.saved) == [4, 7, 8, 12]
    for line in notes.lines:
        assert "pseudo" not in line, "no batch is labelled"
        if line["generation"] == 0:
            assert "selection" not in line
            continue
        selection = notes.selections[line["generation"]]
        assert selection is not None
        labels = selection.labels.tolist()
        assert line["selection"]["accepted"] == len(labels) > 0
        assert line["selection"]["share"] == pytest.approx([labels.count(c) / len(labels) for c in range(10)])
        right = (targets[selection.rows] == selection.labels).tolist()
        for label, precision in enumerate(line["selection"]["precision"]):
            hits = [hit for hit, given in zip(right, labels, strict=True) if given == label]
            assert precision == (pytest.approx(sum(hits) / len(hits)) if hits else None)


def test_a_learner_without_generations_says_nothing_of_them(trainer_of: MakeTrainer) -> None:
    notes = Notes()
    train(trainer_of(iterations=10), notes)
    assert notes.selections == {}
    assert {"generation", "selection"}.isdisjoint(notes.lines[-1])


def test_the_network_that_labels_is_the_one_that_was_trained_and_the_next_trains_on_its_labels(
    trainer_of: MakeTrainer,
) -> None:
    trainer = trainer_of(*SURE_UPS, "learner.generations=2", iterations=8)
    learner, seen = trainer.learner, dict[str, Any]()
    assert isinstance(learner, UPS)
    relabel = learner.relabel

    def watched(predict: Any, generation: int) -> Selection:
        seen["model"] = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        seen["generation"] = generation
        return relabel(predict, generation)

    learner.relabel = watched  # type: ignore[method-assign]
    notes = Notes()
    train(trainer, notes)
    trained = loaded(notes.saved[7])["model"]  # a step before
    assert seen["generation"] == 0
    assert not any(torch.equal(trained[name], seen["model"][name]) for name, _ in trainer.model.named_parameters())
    assert int(seen["model"]["layers.2.num_batches_tracked"]) == 4, "trained for all of its generation"
    selection = trainer.loader.selection
    assert selection is not None
    assert_same(selection._asdict(), notes.selections[1]._asdict())  # type: ignore[union-attr]


@pytest.mark.parametrize("method", [method_settings("ups", "prg"), FIXMATCH_THAT_HANDS_ON, FLEXMATCH_THAT_HANDS_ON])
@pytest.mark.parametrize("stop_after", [1, 3, 4, 5, 8, 11])
def test_a_run_stopped_at_any_step_of_any_generation_and_resumed_equals_one_that_was_not(
    trainer_of: MakeTrainer, method: tuple[str, ...], stop_after: int
) -> None:
    settings = (*method, "train.ema=0.5")  # generations end at 4, 8 and 12
    straight = Notes()
    train(trainer_of(*settings, iterations=12), straight)
    first, second = Notes(stop_after), Notes()
    with pytest.raises(Interrupted, match=f"stopped at step {stop_after} of 12"):
        train(trainer_of(*settings, iterations=12), first)
    resumed = trainer_of(*settings, iterations=12)
    resumed.load_state_dict(loaded(first.saved[stop_after]))
    train(resumed, second)
    assert first.lines + second.lines == straight.lines
    selections = first.selections | second.selections
    assert list(selections) == [1, 2]
    for number, selection in straight.selections.items():
        assert_same(selections[number]._asdict(), selection._asdict())  # type: ignore[union-attr]
    assert_same(loaded(second.saved[12]), loaded(straight.saved[12]))


def test_a_generation_that_diverges_in_its_last_step_labels_nobody(trainer_of: MakeTrainer) -> None:
    trainer, notes = trainer_of(*SURE_UPS, "learner.generations=2", iterations=12), Notes()
    healthy_step = trainer.step

    def step() -> None:
        healthy_step()
        if int(trainer.steps_done) == 6:
            trainer.model.head.bias.data.fill_(math.nan)  # after its loss, which was still a number

    trainer.step = step  # type: ignore[method-assign]
    with pytest.raises(Diverged, match="a parameter is not a finite number"):
        train(trainer, notes)
    assert notes.selections == {}
    assert list(notes.saved) == []


def test_a_trainer_with_generations_needs_a_function_that_makes_fresh_models(
    trainer_of: MakeTrainer, digits_data: DataSet
) -> None:
    made = trainer_of(*SURE_UPS, "learner.generations=2", iterations=8)
    with pytest.raises(ValueError, match="trains in generations; pass the trainer `fresh_model`"):
        Trainer(made.model, made.learner, made.loader, digits_data, made.options, made.engine)


# ---- a guidance that begins anew


@pytest.mark.parametrize("settings", [FIXMATCH_THAT_HANDS_ON, FLEXMATCH_THAT_HANDS_ON])
def test_a_guidance_relabels_with_all_state_as_at_first_and_what_it_sets_then_lasts_for_the_generation(
    trainer_of: MakeTrainer, settings: tuple[str, ...]
) -> None:
    trainer, notes = trainer_of(*settings, iterations=12), Notes()
    learner = trainer.learner
    at_first, found = copy.deepcopy(learner.state_dict()), dict[int, dict[str, Tensor]]()
    relabel = learner.relabel

    def watched(predict: Predict, generation: int) -> Selection | None:
        found[generation] = copy.deepcopy(learner.state_dict())
        return relabel(predict, generation)

    learner.relabel = watched  # type: ignore[method-assign]
    train(trainer, notes)
    assert_same(found, {0: at_first, 1: at_first})
    in_the_middle = loaded(notes.saved[7])["learner"]
    assert not any(torch.equal(in_the_middle[name], at_first[name]) for name in at_first), "a step changes all of it"
    assert isinstance(learner.guidance, HandsOn)
    assert learner.guidance.counted == [(generation, batch) for generation in range(3) for batch in (1, 2, 3, 4)]


def test_what_a_guidance_hands_on_joins_the_given_labels_of_the_next_generation_alone(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(*FIXMATCH_THAT_HANDS_ON, iterations=12)
    given, notes = trainer.loader.num_labeled, Observed(trainer)
    train(trainer, notes)
    assert [step["num_labeled"] for step in notes.steps] == [given] * 4 + [given + 20] * 4 + [given + 40] * 4
    assert len(notes.began) == 2, "each with a fresh network and optimiser"
    assert trainer.loader.selection is not None
    assert_same(trainer.loader.selection._asdict(), notes.selections[2]._asdict())  # type: ignore[union-attr]
    accepted = {line["generation"]: line.get("selection", {}).get("accepted", 0) for line in notes.lines}
    assert accepted == {0: 0, 1: 20, 2: 40}


def test_a_guidance_that_hands_nobody_on_still_begins_anew(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(*FIXMATCH_THAT_HANDS_ON, "guidance.num_handed=0", iterations=12)
    given, notes = trainer.loader.num_labeled, Observed(trainer)
    train(trainer, notes)
    assert notes.selections == {1: None, 2: None}
    assert trainer.loader.num_labeled == given
    assert [line["generation"] for line in notes.lines] == [0, 1, 2, 2]  # at steps 4, 8, 10 and 12
    assert not any("selection" in line for line in notes.lines)


def test_ups_keeps_its_state_and_its_guidances_from_one_generation_to_the_next(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of(*method_settings("ups", "prg"), iterations=12)
    learner = trainer.learner
    at_first, states = copy.deepcopy(learner.state_dict()), list[dict[str, Tensor]]()
    relabel = learner.relabel

    def watched(predict: Predict, generation: int) -> Selection | None:
        states.append(copy.deepcopy(learner.state_dict()))
        selection = relabel(predict, generation)
        states.append(copy.deepcopy(learner.state_dict()))
        return selection

    learner.relabel = watched  # type: ignore[method-assign]
    train(trainer, Notes())
    before_first, after_first, before_second, _ = states
    assert_same(before_first, at_first)
    assert_same(before_second, after_first)
    for name in ("negative", "guidance.bank", "guidance.batches"):
        assert not torch.equal(after_first[name], at_first[name]), name


# ---- predicting the whole unlabelled set


@pytest.fixture
def moved(trainer_of: MakeTrainer) -> Trainer:
    """After a few steps: the average is not the model, and the batch-norm statistics are not the first ones."""
    trainer = trainer_of("model.dropout=0.5", "train.ema=0.9")
    for step in range(4):
        trainer.loader.seek(step)
        trainer.step()
    return trainer


def predicted(trainer: Trainer, **options: Any) -> tuple[Tensor, Tensor]:
    parts = list(trainer.predict(**options))
    return torch.cat([rows for rows, _ in parts]), torch.cat([logits for _, logits in parts], dim=1)


def test_predictions_are_the_averaged_models_in_evaluation_for_each_row_in_order(moved: Trainer) -> None:
    rows, logits = predicted(moved)
    assert rows.tolist() == list(range(moved.loader.num_unlabeled))
    assert logits.shape == (1, moved.loader.num_unlabeled, 10)
    (_, images), *rest = moved.loader.unlabeled("id", batch=2000)
    assert rest == []
    with torch.no_grad():
        torch.testing.assert_close(logits[0], moved.average.model.eval()(images))
        assert not torch.allclose(logits[0], moved.model.eval()(images), atol=1e-3), "and not the model's"


@pytest.mark.parametrize(
    ("include_labeled", "validation", "num_left_out"), [("true", 0, 72), ("true", 0.25, 72), ("false", 0, 0)]
)
def test_without_the_labelled_ones_predictions_are_those_of_all_other_rows(
    trainer_of: MakeTrainer,
    tiny: Configure,
    digits_data: DataSet,
    include_labeled: str,
    validation: float,
    num_left_out: int,
) -> None:
    settings = f"split.include_labeled={include_labeled}", f"train.validation={validation}"
    trainer, split = trainer_of(*settings), make_split(tiny(*settings), digits_data)
    given = set(split.labeled_index.tolist())
    expected = [row for row, sample in enumerate(split.unlabeled_index.tolist()) if sample not in given]
    assert len(expected) == len(split.unlabeled_index) - num_left_out
    trainer.loader.adopt(Selection(torch.tensor(expected[:5]), torch.zeros(5, dtype=torch.int64)))  # not given ones
    rows, logits = predicted(trainer, labeled=False)
    assert rows.tolist() == expected
    _, of_all = predicted(trainer)
    torch.testing.assert_close(logits, of_all[:, rows])  # in other batches, so up to rounding


def test_each_generation_has_its_own_warm_up_before_refreshes(trainer_of: MakeTrainer) -> None:
    settings = ("guidance.name=darp+crest", "guidance.generations=2", "guidance.preceded_by.every=2")
    trainer = trainer_of(*settings, "guidance.preceded_by.warmup=0.5", iterations=20)
    due = {step for step in range(1, 11) if trainer.is_refresh_due(step)}
    trainer.generation = 1
    due |= {step for step in range(11, 21) if trainer.is_refresh_due(step)}
    assert due == {6, 8, 10, 16, 18, 20}


def test_without_dropout_passes_agree_and_draw_nothing(moved: Trainer) -> None:
    before = torch.get_rng_state()
    _, logits = predicted(moved, passes=2)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_with_dropout_passes_differ_around_the_prediction_without_and_batch_norm_stays_in_evaluation(
    moved: Trainer,
) -> None:
    statistics = {name: buffer.clone() for name, buffer in moved.average.model.named_buffers()}
    torch.manual_seed(0)
    _, logits = predicted(moved, passes=3, dropout=True)
    assert logits.shape[0] == 3
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not (logits[one] == logits[other]).all(1).any(), "a draw for each sample and pass"
    assert_same(dict(moved.average.model.named_buffers()), statistics)
    torch.manual_seed(0)
    rows, first = next(iter(moved.predict(passes=3, dropout=True)))
    assert torch.equal(first, logits[:, rows]), "what a batch gets does not hang on the batches after it"


@pytest.mark.parametrize("training", [True, False])
def test_the_averaged_model_is_in_the_mode_it_was_in_after_predicting(moved: Trainer, training: bool) -> None:
    moved.average.model.train(training)
    _, logits = predicted(moved, dropout=True)
    assert not logits.requires_grad
    assert {module.training for module in moved.average.model.modules()} == {training}
