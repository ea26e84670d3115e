from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mnar.config import RunConfig
from mnar.guidances import GUIDANCES, Guidance
from mnar.learners import Learner
from mnar.models import MODELS
from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split, make_trainer
from mnar.training.meters import Diverged, Meters
from mnar.training.trainer import Interrupted, Trainer, train
from mnar.types import Batch, DataSet, Step, Task
from tests.support.equality import assert_same
from tests.support.methods import IMAGE_METHODS, method_settings
from tests.support.resuming import assert_resumes_exactly
from tests.support.stand_ins import Blank
from tests.support.watching import Notes, loaded

MakeTrainer = Callable[..., Trainer]
TWO_STEPS = (
    "engine.device=cpu",
    "train.iterations=2",
    "train.batch_labeled=8",
    "train.batch_unlabeled=8",
    "train.ema=0.9",
)


def test_the_loop_logs_evaluates_and_saves_when_told_and_at_the_end(trainer_of: MakeTrainer) -> None:
    notes = Notes()
    train(trainer_of(iterations=23), notes)
    assert [line["step"] for line in notes.lines] == [10, 20, 23]
    assert notes.progressed == [5, 15]  # an evaluation says more
    assert list(notes.saved) == [7, 14, 21, 23]
    assert notes.demanded == [23]
    assert notes.num_steps == 23


class Refreshed(Guidance):
    """Takes every sample for the class that its refreshments have got to; they are due after 10, 15 and 20 of 23."""

    batches: Tensor
    refreshments: Tensor

    def __init__(self, task: Task, *, every: int = 5, start: float = 0.3) -> None:
        super().__init__(task)
        self.refresh_every, self.refresh_from = every, start
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("refreshments", torch.zeros((), dtype=torch.int64))
        self.refreshed_after: list[int] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.batches += 1
        return torch.eye(self.task.num_classes)[self.refreshments.expand(len(probs))]

    def refresh(self) -> None:
        self.refreshments += 1
        self.refreshed_after.append(int(self.batches))


@pytest.mark.parametrize(
    ("guidance", "stops"),
    [(name, stops) for name in ("none", "prg", "refreshed") for stops in ((1,), (7, 3), (10,), (13, 4))]
    + [(name, (13, 4)) for name in GUIDANCES if name not in ("none", "prg")],
)
def test_a_stopped_and_resumed_run_equals_one_that_was_not(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, guidance: str, stops: tuple[int, ...]
) -> None:
    monkeypatch.setitem(GUIDANCES, "refreshed", Refreshed)
    settings, iterations = (f"guidance.name={guidance}",), 23
    straight = Notes()
    train(trainer_of(*settings, iterations=iterations), straight)

    lines, state, done = [], None, 0
    for stop_after in (*stops, None):
        trainer, notes = trainer_of(*settings, iterations=iterations), Notes(stop_after)
        if state is not None:
            trainer.load_state_dict(loaded(state))
        if stop_after is None:
            train(trainer, notes)
        else:
            done += stop_after
            with pytest.raises(Interrupted, match=f"stopped at step {done} of {iterations}"):
                train(trainer, notes)
            assert notes.demanded == [done]
        state = notes.saved[max(notes.saved)]
        lines += notes.lines
    assert lines == straight.lines
    assert state is not None
    assert_same(loaded(state), loaded(straight.saved[iterations]))


@pytest.mark.parametrize(
    ("every", "start", "due"),
    [
        (4, 0.0, [4, 8, 12, 16, 20, 24]),
        (4, 0.5, [12, 16, 20, 24]),
        (1, 0.9, [22, 23, 24]),
        (24, 1.0, [24]),
        (25, 0.0, []),
        (0, 0.0, []),
    ],
)
def test_a_guidance_is_refreshed_after_the_steps_that_are_due_resumed_or_not(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, every: int, start: float, due: list[int]
) -> None:
    monkeypatch.setitem(GUIDANCES, "refreshed", Refreshed)
    settings = ("guidance.name=refreshed", f"guidance.every={every}", f"guidance.start={start}")
    straight, stopped, resumed = (trainer_of(*settings, iterations=24) for _ in range(3))
    train(straight, Notes())
    notes = Notes(stop_after=12)
    with pytest.raises(Interrupted):
        train(stopped, notes)
    resumed.load_state_dict(loaded(notes.saved[12]))
    train(resumed, Notes())
    times = [trainer.learner.guidance.refreshed_after for trainer in (straight, stopped, resumed)]
    assert times == [due, [step for step in due if step <= 12], [step for step in due if step > 12]]


def test_a_stop_at_the_last_step_is_a_finished_run(trainer_of: MakeTrainer) -> None:
    notes = Notes(stop_after=9)
    train(trainer_of(iterations=9), notes)
    assert notes.demanded == [9]


def test_three_steps_equal_the_loop_written_out(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of("train.lr=0.1", "train.weight_decay=0.01", "train.ema=0.9")
    plain = copy.deepcopy(trainer.model)
    average = copy.deepcopy(plain)
    learner = copy.deepcopy(trainer.learner)
    norms = [p for norm in plain.modules() if isinstance(norm, nn.BatchNorm2d) for p in norm.parameters()]
    others = [p for p in plain.parameters() if all(p is not norm for norm in norms)]
    assert len(norms) == 6, "a weight and a bias in each of three layers"
    groups: list[dict[str, Any]] = [{"params": others, "weight_decay": 0.01}, {"params": norms}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    for t in range(3):
        trainer.loader.seek(t)
        draws = torch.get_rng_state()
        trainer.step()

        torch.set_rng_state(draws)  # the same crops and colours
        optimizer.zero_grad()
        learner(plain, trainer.loader.batch()).loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * math.cos(7 * math.pi * t / (16 * 40))
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), plain.parameters(), strict=True):
                mean.copy_(0.9 * mean + 0.1 * parameter)
            for kept, buffer in zip(average.buffers(), plain.buffers(), strict=True):
                kept.copy_(buffer)
    torch.testing.assert_close(dict(trainer.model.state_dict()), dict(plain.state_dict()))
    torch.testing.assert_close(dict(trainer.average.model.state_dict()), dict(average.state_dict()))


class NoHostSync(TorchDispatchMode):
    """Raises where a GPU would have to wait: a value is read back, or a shape depends on values."""

    FORBIDDEN = ("local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        assert not name.startswith(self.FORBIDDEN), name
        if name in ("index", "index_put"):
            indices = [index for index in args[1] if index is not None]
            assert not any(index.dtype == torch.bool for index in indices), "a boolean mask as an index"
        return func(*args, **(kwargs or {}))


def unchecked_one_hot(targets: Tensor, num_classes: int) -> Tensor:
    """As on a GPU: on a CPU, torch's own looks whether the targets are classes."""
    return (targets.unsqueeze(-1) == torch.arange(num_classes)).long()


@pytest.mark.parametrize(("learner", "guidance"), [*IMAGE_METHODS, ("fixmatch", "prg_last")])
def test_a_whole_step_never_waits_for_the_device(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, learner: str, guidance: str
) -> None:
    trainer = trainer_of(*method_settings(learner, guidance))
    monkeypatch.setattr(nn.functional, "one_hot", unchecked_one_hot)
    for step in range(3):
        trainer.loader.seek(step)
        with NoHostSync():
            trainer.step()
    with NoHostSync(), pytest.raises(AssertionError, match="local_scalar_dense"):
        trainer.lr.item()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_with_warm_up_and_clipping_never_waits_for_the_device(trainer_of: MakeTrainer, optimizer: str) -> None:
    careful = ("train.warmup=0.1", "train.max_grad_norm=0.5", f"train.optimizer={optimizer}")
    trainer = trainer_of(*careful, "model.norm=group")
    for step in range(3):
        trainer.loader.seek(step)
        with NoHostSync():
            trainer.step()


@pytest.mark.parametrize("schedule", ["cosine_to_zero", "linear"])
def test_a_step_of_a_schedule_that_ends_at_zero_never_waits_for_the_device(
    trainer_of: MakeTrainer, schedule: str
) -> None:
    trainer = trainer_of(f"train.schedule={schedule}", "train.labeled_view=strong")
    for step in range(3):
        trainer.loader.seek(step)
        with NoHostSync():
            trainer.step()


@pytest.mark.parametrize(
    ("learner", "chosen", "view"),
    [
        ("fixmatch", "auto", "weak"),
        ("fixmatch", "strong", "strong"),
        ("ups", "auto", "strong"),
        ("ups", "weak", "weak"),
        ("supervised", "strong", "strong"),
    ],
)
def test_labelled_samples_have_the_chosen_view_or_that_of_the_learner(
    trainer_of: MakeTrainer, learner: str, chosen: str, view: str
) -> None:
    trainer = trainer_of(f"learner.name={learner}", "guidance.name=none", f"train.labeled_view={chosen}")
    views: list[str] = []
    augment = trainer.loader.augment

    def noting(images: Tensor, name: str) -> Tensor:
        views.append(name)
        return augment(images, name)

    trainer.loader.augment = noting
    trainer.loader.seek(0)
    trainer.loader.batch()
    assert views == [view, *trainer.learner.views]


def test_a_view_of_the_labelled_samples_does_not_switch_off_the_second_view_silently(trainer_of: MakeTrainer) -> None:
    with pytest.raises(ValueError, match=r"trains two views of each labelled sample.*set train\.labeled_view=auto"):
        trainer_of("guidance.name=prg_balanced", "train.labeled_view=weak")


def test_labels_that_are_held_out_do_not_make_a_pool() -> None:
    config = configure(dataset="digits", protocol="as_labeled", settings=["train.validation=0.1"])
    data = load_data(config)
    with pytest.raises(ValueError, match=r"every sample has a label.*choose --learner supervised"):
        make_trainer(config, data, make_split(config, data))


def test_a_strong_view_of_the_rows_of_a_table_is_refused_with_a_remedy() -> None:
    config = configure(dataset="digits_tabular", settings=["train.labeled_view=strong"])
    data = load_data(config)
    message = r"train\.labeled_view is 'strong', but digits_tabular has tables.*choose --set train\.labeled_view=auto"
    with pytest.raises(ValueError, match=message):
        make_trainer(config, data, make_split(config, data))


class Rates(Notes):
    """Notes the learning rate of every step."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.trainer, self.rates = trainer, list[float]()

    def stepped(self, step: int) -> None:
        self.rates.append(float(self.trainer.lr))


FALLS: dict[str, Callable[[float], float]] = {  # the factor of the learning rate after a share of the steps
    "cosine": lambda share: math.cos(7 * math.pi / 16 * share),
    "cosine_to_zero": lambda share: (1 + math.cos(math.pi * share)) / 2,
    "linear": lambda share: 1 - share,
    "constant": lambda share: 1.0,
}


@pytest.mark.parametrize("schedule", FALLS)
def test_the_learning_rate_rises_linearly_and_then_follows_its_schedule(trainer_of: MakeTrainer, schedule: str) -> None:
    trainer = trainer_of(f"train.schedule={schedule}", "train.lr=0.01", "train.warmup=0.2", iterations=20)
    notes = Rates(trainer)
    train(trainer, notes)
    fall = [FALLS[schedule](step / 20) for step in range(20)]
    rise = [0.25, 0.5, 0.75, *[1.0] * 17]
    assert notes.rates == pytest.approx([0.01 * up * down for up, down in zip(rise, fall, strict=True)])


def test_every_generation_has_its_own_warm_up(trainer_of: MakeTrainer) -> None:
    options = ("train.schedule=constant", "train.lr=0.01", "train.warmup=0.2")
    trainer = trainer_of("guidance.name=crest", "guidance.generations=2", *options, iterations=20)
    notes = Rates(trainer)
    train(trainer, notes)
    assert notes.rates == pytest.approx([0.005, *[0.01] * 9] * 2)


def weights_of(trainer: Trainer) -> Tensor:
    return torch.cat([weights.detach().flatten() for weights in trainer.model.parameters()])


@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_a_clipped_gradient_has_the_largest_norm_and_the_direction_of_the_whole_one(
    trainer_of: MakeTrainer, limit: float
) -> None:
    """With a rate of 1 and neither momentum nor decay, a step of SGD subtracts the gradient."""
    plain_sgd = ("train.lr=1", "train.momentum=0", "train.weight_decay=0", "train.schedule=constant")
    changes = []
    for norm in (0, limit):
        trainer = trainer_of(*plain_sgd, f"train.max_grad_norm={norm}")
        before = weights_of(trainer)
        trainer.loader.seek(0)
        trainer.step()
        changes.append(weights_of(trainer) - before)
    whole, clipped = changes
    torch.testing.assert_close(clipped, whole * min(1.0, limit / float(whole.norm())), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
@pytest.mark.parametrize("schedule", FALLS)
def test_the_learning_rate_follows_its_schedule_to_the_last_step(
    trainer_of: MakeTrainer, optimizer: str, schedule: str
) -> None:
    settings = (f"train.optimizer={optimizer}", f"train.schedule={schedule}", "train.lr=0.01")
    trainer = trainer_of(*settings, iterations=10)
    train(trainer, Notes())
    rates = {float(group["lr"]) for group in trainer.optimizer.param_groups}
    assert list(rates) == [pytest.approx(0.01 * FALLS[schedule](0.9))]
    assert type(trainer.optimizer).__name__.lower() == optimizer


@pytest.mark.parametrize("learner", ["fixmatch", "supervised"])
def test_the_loss_that_is_logged_is_the_one_the_learner_returned(trainer_of: MakeTrainer, learner: str) -> None:
    trainer = trainer_of(f"learner.name={learner}", "guidance.name=none")
    losses = []
    trainer.learner.register_forward_hook(lambda module, inputs, step: losses.append(step.loss.item()))
    for step in range(3):
        trainer.loader.seek(step)
        trainer.step()
    assert trainer.meters.means()["loss"] == pytest.approx(sum(losses) / 3, rel=1e-6)


def in_colour(digits: DataSet) -> DataSet:
    """Digits of 16x16 pixels and three channels, and few to be tested on: small, but any model takes them."""
    train_x, test_x = digits.train_x.repeat(1, 3, 2, 2), digits.test_x[:50].repeat(1, 3, 2, 2)
    return digits._replace(
        train_x=train_x, test_x=test_x, test_y=digits.test_y[:50], mean=digits.mean * 3, std=digits.std * 3
    )


def assert_trains(config: RunConfig, data: DataSet) -> None:
    """Every parameter, and its average, is moved by the steps; the loss is a number."""
    trainer, notes = make_trainer(config, data, make_split(config, data)), Notes()
    before = copy.deepcopy(trainer.model)
    train(trainer, notes)
    assert math.isfinite(notes.lines[-1]["train"]["loss"])
    both = zip(trainer.model.parameters(), trainer.average.model.parameters(), strict=True)
    for (name, start), after in zip(before.named_parameters(), both, strict=True):
        assert not any(torch.equal(start, parameter) for parameter in after), name


@pytest.mark.parametrize("model", MODELS)
def test_two_steps_move_every_parameter_of_every_model(digits_data: DataSet, model: str) -> None:
    small = {"wide_resnet": ["model.depth=10", "model.width=1"], "small_cnn": ["model.width=4"]}
    settings = [f"model.name={model}", *small.get(model, []), *TWO_STEPS]
    assert_trains(configure(dataset="digits", settings=settings), in_colour(digits_data))


def test_two_steps_move_every_parameter_of_a_model_of_a_table(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table, labels = random.normal(size=(60, 5)), np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x_train=table, y_train=labels, x_test=table, y_test=labels)
    config = configure(
        dataset="npz",
        data=str(tmp_path / "own.npz"),
        learner="supervised",
        settings=["model.name=mlp", "model.hidden=[16]", "protocol.gamma=5", *TWO_STEPS],
    )
    assert_trains(config, load_data(config))


def test_a_line_of_metrics_holds_what_was_measured_since_the_last_one(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of()
    for step in range(3):
        trainer.loader.seek(step)
        trainer.step()
    line = trainer.evaluate(3)
    assert json.loads(json.dumps(line)) == line
    assert (line["step"], line["images"]) == (3, 3 * (16 + 2 * 32))
    assert set(line["train"]) == {
        "loss",
        "loss/labeled",
        "loss/unlabeled",
        "mask_rate",
        "guidance/empty_row_share",
        "guidance/transitions",
    }
    accepted = line["pseudo"]["accepted"]
    assert accepted == round(line["train"]["mask_rate"] * 3 * 32)
    assert sum(map(sum, line["matrices"]["pseudo_confusion"])) == 3 * 32
    assert sum(map(sum, line["matrices"]["test_confusion"])) == 500
    assert trainer.meters.num_steps == 0, "the meters start anew"


@pytest.mark.parametrize(
    "settings",
    [
        ("guidance.name=prg", "learner.threshold=0.1"),
        ("guidance.name=darp", "learner.threshold=0.1", "guidance.every=3", "guidance.warmup=0"),
        ("guidance.name=crest", "learner.threshold=0.1", "guidance.generations=3"),
        method_settings("ups"),
    ],
)
def test_without_the_truth_of_the_pool_all_is_the_same_but_how_right_its_pseudo_labels_are(
    tiny: Callable[..., RunConfig], digits_data: DataSet, settings: tuple[str, ...]
) -> None:
    config = tiny(*settings, iterations=12)
    rows = make_split(config, digits_data)
    found = torch.full_like(digits_data.train_y, -1)
    found[rows.labeled_index] = digits_data.train_y[rows.labeled_index]
    known, unknown = Notes(), Notes()
    for notes, targets in ((known, digits_data.train_y), (unknown, found)):
        train(make_trainer(config, digits_data._replace(train_y=targets), rows), notes)
    assert any(scores["accepted"] for line in known.lines for scores in pseudo_label_scores_of(line).values())
    for line, expected in zip(unknown.lines, known.lines, strict=True):
        if "selection" in line:  # which no sample with a label is in
            assert line["selection"]["error"] == line["selection"]["precision"] == [None] * 10
        for each in (line, expected):
            each.pop("matrices", None)
            for scores in pseudo_label_scores_of(each).values():
                del scores["error"], scores["precision"]
        assert line == expected


def pseudo_label_scores_of(line: dict[str, Any]) -> dict[str, Any]:
    return {kind: line[kind] for kind in ("pseudo", "selection") if kind in line}


def test_with_very_many_classes_no_matrices_are_kept(trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of()
    for most_classes, is_kept in ((10, True), (9, False)):
        monkeypatch.setattr("mnar.training.metrics_line.MOST_CLASSES_OF_A_MATRIX", most_classes)
        trainer.loader.seek(0)
        trainer.step()
        line = trainer.evaluate(1, is_last=True)
        assert ("matrices" in line) == is_kept
        assert len(line["test"]["recall"]) == len(line["pseudo"]["share"]) == 10


def test_matrices_are_kept_at_twenty_evaluations_and_the_last(trainer_of: MakeTrainer) -> None:
    trainer = trainer_of("train.eval_every=2", iterations=101)
    notes = Notes()
    train(trainer, notes)
    snapshots = [line["step"] for line in notes.lines if "matrices" in line]
    assert 20 <= len(snapshots) <= 21
    assert snapshots[-1] == 101


class Watched(nn.Module):
    """A network that counts its calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.num_calls = network, 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        logits: Tensor = self.network(x)
        return logits


class Watchful(Guidance):
    """Has every call of a network counted."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.watched: list[Watched] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        return probs

    def watch(self, network: nn.Module) -> nn.Module:
        self.watched.append(Watched(network))
        return self.watched[-1]


@pytest.mark.parametrize(("learner", "num_networks"), [("fixmatch", 1), ("mean_teacher", 2)])
def test_a_step_calls_network_and_teacher_as_the_guidance_watches_them_and_an_evaluation_does_not(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, learner: str, num_networks: int
) -> None:
    monkeypatch.setitem(GUIDANCES, "watchful", Watchful)
    watchful, plain = (trainer_of(f"learner.name={learner}", f"guidance.name={name}") for name in ("watchful", "none"))
    for trainer in (watchful, plain):
        torch.manual_seed(0)
        for step in range(3):
            trainer.loader.seek(step)
            trainer.step()
        trainer.evaluate(3)
    guidance = watchful.learner.guidance
    assert isinstance(guidance, Watchful)
    assert [watched.network for watched in guidance.watched] == [watchful.model, watchful.average.model][:num_networks]
    assert [watched.num_calls for watched in guidance.watched] == [3] * num_networks
    assert_same(dict(watchful.model.state_dict()), dict(plain.model.state_dict()))


class Towards(Guidance):
    """Of a network, every logit but that of one class is far too high."""

    def __init__(self, task: Task, *, favoured: int = 3) -> None:
        super().__init__(task)
        self.bias = torch.full((task.num_classes,), 1e4).index_fill_(0, torch.tensor(favoured), 0)

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        return probs

    def test_bias(self, network: nn.Module) -> Tensor:
        return self.bias


def test_a_test_bias_changes_what_is_predicted_and_nothing_of_the_training(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GUIDANCES, "towards", Towards)
    trainers, records = [trainer_of(f"guidance.name={name}", iterations=20) for name in ("towards", "none")], []
    for trainer in trainers:
        torch.manual_seed(0)
        records.append(Notes())
        train(trainer, records[-1])
    biased, plain = (loaded(notes.saved[20]) for notes in records)
    assert biased.pop("test_bias").tolist() == [1e4 if label != 3 else 0 for label in range(10)]
    assert plain.pop("test_bias") is None
    assert_same(biased, plain)
    assert [line["train"] for line in records[0].lines] == [line["train"] for line in records[1].lines]

    def predicted(notes: Notes, trainer: Trainer) -> list[set[int]]:
        evaluated = torch.tensor(notes.lines[-1]["matrices"]["test_confusion"]).sum(0).nonzero().flatten().tolist()
        labeled = torch.cat([logits[0].argmax(1) for _, logits in trainer.predict()]).tolist()
        return [set(evaluated), set(labeled)]

    assert predicted(records[0], trainers[0]) == [{3}, {3}]
    assert all(len(labels) > 1 for labels in predicted(records[1], trainers[1]))


@pytest.mark.parametrize("learner", ["fixmatch", "mean_teacher"])  # a teacher is in training between evaluations
def test_scores_and_predictions_are_those_of_the_averaged_models_logits_less_its_own_bias(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, learner: str
) -> None:
    monkeypatch.setitem(GUIDANCES, "blank", Blank)
    trainer = trainer_of(f"learner.name={learner}", "guidance.name=blank", "train.ema=0.9")
    for step in range(4):
        trainer.loader.seek(step)
        trainer.step()
    before = copy.deepcopy([dict(trainer.model.state_dict()), dict(trainer.average.model.state_dict())])
    was_training = trainer.average.model.training
    confusion = trainer.evaluate(4, is_last=True)["matrices"]["test_confusion"]
    logits = torch.cat([logits[0] for _, logits in trainer.predict()])
    assert_same([dict(trainer.model.state_dict()), dict(trainer.average.model.state_dict())], before)
    assert trainer.average.model.training == was_training == (learner == "mean_teacher")
    guidance = trainer.learner.guidance
    assert isinstance(guidance, Blank)
    assert set(guidance.modes) == {False}, "shown a network in evaluation"

    average = copy.deepcopy(trainer.average.model).eval()
    ((_, unlabeled),) = trainer.loader.unlabeled("id", batch=2000)
    with torch.no_grad():
        bias = 10 * average(torch.zeros(1, 1, 8, 8))
        torch.testing.assert_close(logits, average(unlabeled) - bias)
        tested = average(trainer.loader.augment(trainer.test_x, "id"))

    def confusion_of(labels: Tensor) -> list[list[int]]:
        pairs = list(zip(trainer.test_y.tolist(), labels.tolist(), strict=True))
        return [[pairs.count((truth, label)) for label in range(10)] for truth in range(10)]

    assert confusion == confusion_of((tested - bias).argmax(1))
    assert confusion != confusion_of(tested.argmax(1))


class Poisoned(Learner):
    """Its loss is not a number from a step on."""

    views = ()

    def __init__(self, healthy: Learner, good_steps: int) -> None:
        super().__init__(healthy.task, healthy.guidance)
        self.steps_left = good_steps

    def forward(self, model: nn.Module, batch: Batch) -> Step:
        self.steps_left -= 1
        loss = nn.functional.cross_entropy(model(batch.x), batch.y)
        if self.steps_left < 0:
            loss = loss * math.nan
        return Step(loss, {})


@pytest.mark.parametrize("good_steps", [0, 6, 7, 9, 10, 12])
def test_a_loss_that_is_not_a_number_stops_training_before_anything_bad_is_kept(
    trainer_of: MakeTrainer, good_steps: int
) -> None:
    trainer, notes = trainer_of("learner.name=supervised", "guidance.name=none"), Notes()
    trainer.learner = Poisoned(trainer.learner, good_steps)
    with pytest.raises(Diverged, match="not a finite number"):
        train(trainer, notes)
    assert int(trainer.steps_done) <= good_steps + 5, "noticed at the next log"
    for state in notes.saved.values():
        assert all(torch.isfinite(weights).all() for weights in loaded(state)["model"].values())
    assert all(step <= good_steps for step in notes.saved)
    assert all(line["step"] <= good_steps for line in notes.lines)


def test_meters_are_means_of_the_logs_and_counts_of_the_pseudo_labels() -> None:
    meters = Meters(3, torch.device("cpu"))
    for loss in (1.0, 2.0, 6.0):
        meters.add({"loss": torch.tensor(loss), "mask_rate": torch.tensor(loss / 10)})
    assert meters.means() == pytest.approx({"loss": 3.0, "mask_rate": 0.3})
    meters.add_pseudo_labels(torch.tensor([0, 2, -1, 2]), torch.tensor([0, 1, 1, 2]))
    assert meters.pseudo_confusion.dtype == torch.int64, "whole, however many"
    assert meters.pseudo_confusion.tolist() == [[1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0]]
    assert meters.pseudo_label_share() == pytest.approx([1 / 3, 0, 2 / 3])

    other = Meters(3, torch.device("cpu"))
    other.load_state_dict(copy.deepcopy(meters.state_dict()))
    for each in (meters, other):
        each.add({"loss": torch.tensor(7.0), "mask_rate": torch.tensor(0.7)})
    assert other.means() == meters.means() == pytest.approx({"loss": 4.0, "mask_rate": 0.4})

    meters.reset()
    assert meters.means() == {"loss": 0.0, "mask_rate": 0.0}
    assert meters.pseudo_label_share() == [0, 0, 0]


def test_meters_count_pseudo_labels_of_unknown_truth_in_a_row_of_their_own() -> None:
    meters = Meters(2, torch.device("cpu"), knows_all=False)
    meters.add_pseudo_labels(torch.tensor([0, 1, -1, 1, 1, -1]), torch.tensor([0, 0, 1, -1, -2, -1]))
    assert meters.pseudo_confusion.tolist() == [[1, 1, 0], [0, 0, 1], [0, 2, 1]]
    assert meters.pseudo_label_share() == [1 / 4, 3 / 4]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_meters_notice_a_loss_that_is_not_a_number(loss: float) -> None:
    meters = Meters(3, torch.device("cpu"))
    meters.add({"loss": torch.tensor(1.0)})
    meters.add({"loss": torch.tensor(loss)})
    with pytest.raises(Diverged, match="not a finite number"):
        meters.means()


def test_a_rehearsal_changes_nothing(trainer_of: MakeTrainer) -> None:
    cold, warm = trainer_of(), trainer_of()
    warm.engine.fused = True  # as on a GPU; without one the modules take plain operations all the same
    before = torch.get_rng_state()
    warm.rehearse()
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(warm.state_dict(), cold.state_dict())


@pytest.mark.parametrize("learner", ["fixmatch", "flexmatch", "simmatch", "comatch", "acr"])
def test_a_run_with_muon_and_without_weak_gradients_resumes_exactly(
    trainer_of: Callable[..., Trainer], learner: str
) -> None:
    settings = (f"learner.name={learner}", "learner.weak_gradient=false", "train.optimizer=muon", "train.lr=0.02")
    assert_resumes_exactly(lambda: trainer_of(*settings, iterations=9), stop_after=5)
