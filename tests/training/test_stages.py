from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from mnar.config import RunConfig
from mnar.run import Display, RunFolder, new_run, resume_run
from mnar.run.file_names import METRICS, MODEL
from mnar.training import rehearsal
from mnar.training.options import TrainOptions
from mnar.training.stages import Stage, part_end, plan_stages
from mnar.training.trainer import Interrupted, Trainer, train
from tests.support.equality import assert_same
from tests.support.methods import IMAGE_LEARNERS, method_settings
from tests.support.resuming import assert_resumes_exactly
from tests.support.watching import Notes

MakeTrainer = Callable[..., Trainer]
GROWING = "train.batch_stages=[0.25, 0.5, 1]"
FULL, HALF, QUARTER = (16, 32), (8, 16), (4, 8)  # labelled and unlabelled samples of the tests' small runs


def sizes_of(trainer: Trainer, num_steps: int) -> list[tuple[int, int]]:
    """The sizes of the batches that the loader makes."""
    sizes = []
    for step in range(num_steps):
        trainer.loader.seek(step)
        batch = trainer.loader.batch()
        assert {len(view) for view in batch.u.values()} <= {len(batch.u_index)}
        assert len(batch.x) == len(batch.y) == len(batch.x_index)
        sizes.append((len(batch.x), len(batch.u_index)))
    return sizes


@pytest.mark.parametrize("num_steps", [1, 7, 900, 2**20])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_parts_differ_by_at_most_one_step_and_end_with_the_last_step(num_parts: int, num_steps: int) -> None:
    ends = [0, *(part_end(part, num_parts, num_steps) for part in range(num_parts))]
    lengths = {end - began for began, end in pairwise(ends)}
    assert ends[-1] == num_steps
    assert max(lengths) - min(lengths) <= 1


def test_a_plan_has_the_rounded_sizes_and_equal_parts() -> None:
    plan = plan_stages((0.25, 0.5, 1.0), iterations=10, batch_labeled=3, batch_unlabeled=30)
    assert plan == (Stage(3, 1, 8), Stage(6, 2, 15), Stage(10, 3, 30))


def test_a_plan_starts_again_in_every_generation() -> None:
    plan = plan_stages((0.5, 1.0), iterations=12, batch_labeled=4, batch_unlabeled=8, generations=2)
    assert plan == (Stage(3, 2, 4), Stage(6, 4, 8), Stage(9, 2, 4), Stage(12, 4, 8))


def test_neighbouring_stages_of_the_same_size_are_one() -> None:
    assert plan_stages((1.0,), iterations=12, batch_labeled=4, batch_unlabeled=8, generations=5) == (Stage(12, 4, 8),)
    plan = plan_stages((0.5, 0.5, 1.0), iterations=12, batch_labeled=4, batch_unlabeled=8)
    assert plan == (Stage(8, 2, 4), Stage(12, 4, 8))


@pytest.mark.parametrize("iterations", [3, 9, 200])  # the rows of 64 steps are drawn together
def test_batches_have_the_sizes_of_their_stage(trainer_of: MakeTrainer, iterations: int) -> None:
    trainer = trainer_of(GROWING, iterations=iterations)
    ends = [iterations // 3, 2 * iterations // 3, iterations]
    expected = [QUARTER] * ends[0] + [HALF] * (ends[1] - ends[0]) + [FULL] * (ends[2] - ends[1])
    assert sizes_of(trainer, iterations) == expected
    assert [step for step in range(1, iterations) if trainer.loader.is_batch_changed(step)] == ends[:2]


def test_without_stages_the_rows_of_every_step_are_those_of_one_full_stage(trainer_of: MakeTrainer) -> None:
    plain, staged = trainer_of(iterations=90), trainer_of(GROWING, iterations=90)
    for step in (0, 29, 30, 59, 60, 64, 89):
        full, rows = plain.loader.indices(step), staged.loader.indices(step)
        assert (len(rows[0]), len(rows[1])) == (QUARTER if step < 30 else HALF if step < 60 else FULL)
        if step >= 60:
            assert all((a == b).all() for a, b in zip(full, rows, strict=True))


@pytest.mark.parametrize("steps", [[0, 3, 30, 64, 70, 89], [89, 3, 64, 30, 29, 60, 0]])
def test_the_rows_of_a_step_do_not_depend_on_the_steps_before(trainer_of: MakeTrainer, steps: list[int]) -> None:
    loader = trainer_of(GROWING, iterations=90).loader
    for step in steps:
        loader.seek(step)
        batch, (x_index, u_index) = loader.batch(), trainer_of(GROWING, iterations=90).loader.indices(step)
        assert batch.x_index.tolist() == x_index.tolist()
        assert batch.u_index.tolist() == u_index.tolist()


def test_samples_from_host_memory_are_those_of_the_device_in_every_stage(trainer_of: MakeTrainer) -> None:
    from mnar.training.loader import Staging

    trainer, other = trainer_of(GROWING, iterations=9), trainer_of(GROWING, iterations=9)
    other.loader._staging = Staging(other.loader._inputs, sum(FULL), torch.device("cpu"))
    for step in (0, 4, 8, 1):
        batches = []
        for loader in (trainer.loader, other.loader):
            torch.manual_seed(step)
            loader.seek(step)
            batches.append(loader.batch())
        assert_same(batches[1]._asdict(), batches[0]._asdict())


def test_the_images_of_a_line_of_metrics_are_those_of_the_batches(trainer_of: MakeTrainer) -> None:
    trainer, notes = trainer_of(GROWING, iterations=23), Notes()
    sizes = sizes_of(trainer, 23)
    train(trainer, notes)
    per_step = [labeled + 2 * unlabeled for labeled, unlabeled in sizes]  # a weak and a strong view
    assert [line["step"] for line in notes.lines] == [10, 20, 23]
    assert [line["images"] for line in notes.lines] == [sum(per_step[:step]) for step in (10, 20, 23)]
    counted = [sum(map(sum, line["matrices"]["pseudo_confusion"])) for line in notes.lines]
    unlabeled = [size for _, size in sizes]
    assert counted == [sum(unlabeled[:10]), sum(unlabeled[10:20]), sum(unlabeled[20:])]


class Steps(Notes):
    """Counts how often the loop made a new step function, which on a GPU is a CUDA graph."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.made_before: list[int] = []
        make = trainer.new_step

        def noting() -> Callable[[], None]:
            self.made_before.append(int(trainer.steps_done))
            return make()

        trainer.new_step = noting  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("settings", "made_before"),
    [
        ((), [0]),
        ((GROWING,), [0, 6, 12]),
        (("train.batch_stages=[1, 1, 0.5]",), [0, 12]),
        (("guidance.name=crest", "guidance.generations=2"), [0, 9]),
        (("guidance.name=crest", "guidance.generations=2", GROWING), [0, 3, 6, 9, 12, 15]),
    ],
)
def test_each_stage_and_each_generation_has_a_step_of_its_own(
    trainer_of: MakeTrainer, settings: tuple[str, ...], made_before: list[int]
) -> None:
    trainer = trainer_of(*settings, iterations=18)
    steps = Steps(trainer)
    train(trainer, steps)
    assert steps.made_before == made_before


class Stopping(Display):
    """Stops the run after a step."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at

    def stepped(self, step: int) -> None:
        if step == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("stop_at", [3, 7, 8, 13, 14, 15, 22])  # in each stage, and before and after its end
def test_a_run_interrupted_in_any_stage_ends_as_one_that_was_not(
    tmp_path: Path, tiny: Callable[..., RunConfig], stop_at: int
) -> None:
    """Stages end at the steps 7, 15 and 23. The files are compared byte by byte."""
    config = tiny(GROWING, iterations=23)
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted, match=f"stopped at step {stop_at} of 23"):
        new_run(config, tmp_path / "stopped", Stopping(stop_at))
    resume_run(tmp_path / "stopped")
    for name in (METRICS, MODEL):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


@pytest.mark.parametrize("learner", IMAGE_LEARNERS)
def test_every_learner_trains_through_all_stages_and_resumes_exactly(trainer_of: MakeTrainer, learner: str) -> None:
    settings = (*method_settings(learner), GROWING)
    assert_resumes_exactly(lambda: trainer_of(*settings, iterations=18), stop_after=10)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], r"has 0 stages; it must have 1 to 8"),
        ([1] * 9, r"has 9 stages; it must have 1 to 8"),
        ([0, 1], r"is \(0, 1\); expected a list of numbers from 1e-06 to 1"),
        ([-0.5, 1], r"is \(-0.5, 1\); expected a list of numbers from 1e-06 to 1"),
        ([1, 2], r"is \(1, 2\); expected a list of numbers from 1e-06 to 1"),
        ([0.001, 1], r"has the factor 0.001, with which an unlabelled batch of 448 would be empty"),
    ],
)
def test_factors_with_which_nothing_can_be_trained_are_refused(stages: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape("train.batch_stages ") + message):
        TrainOptions(batch_stages=tuple(stages))


def test_a_training_that_is_too_short_for_its_stages_is_refused(trainer_of: MakeTrainer) -> None:
    with pytest.raises(ValueError, match=r"has 3 stages, but train\.iterations is 2, .*choose more --iterations"):
        trainer_of(GROWING, iterations=2)
    crest = ("guidance.name=crest", "guidance.generations=3")
    with pytest.raises(ValueError, match=r"has 3 stages, but generation 1 of 3 has 2 steps"):
        trainer_of(*crest, GROWING, iterations=8)


@pytest.mark.parametrize(("learner", "smallest"), [("comatch", 2), ("remixmatch", 4)])
def test_a_stage_that_is_too_small_for_the_learner_is_refused(
    trainer_of: MakeTrainer, learner: str, smallest: int
) -> None:
    trainer_of(f"learner.name={learner}", f"train.batch_stages=[{smallest / 32}, 1]")
    with pytest.raises(ValueError, match=rf"a stage with {smallest - 1} of 32 unlabelled samples.*too small"):
        trainer_of(f"learner.name={learner}", f"train.batch_stages=[{(smallest - 1) / 32}, 1]")


@pytest.mark.parametrize(
    ("learner", "remedy"), [("fixmatch", "train.batch_unlabeled=16"), ("supervised", "train.batch_labeled=8")]
)
def test_a_batch_that_does_not_fit_into_memory_is_refused_before_the_first_step(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch, learner: str, remedy: str
) -> None:
    trainer, notes = trainer_of(f"learner.name={learner}", "guidance.name=none", GROWING), Notes()
    trainer.engine.fused = True  # as on a GPU, where the largest batch is rehearsed

    def too_large(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(rehearsal, "forward_and_backward", too_large)
    message = rf"16 labelled and 32 unlabelled samples.*does not fit into the memory of cpu.*--set {re.escape(remedy)}"
    with pytest.raises(ValueError, match=message):
        train(trainer, notes)
    assert notes.num_steps == 0


def test_the_rehearsal_has_the_largest_batch_and_the_first_batch_that_of_its_stage(
    trainer_of: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(GROWING)
    trainer.engine.fused = True
    seen: list[int] = []
    make_network = trainer.engine.network

    def watched(model: torch.nn.Module) -> torch.nn.Module:
        network = make_network(model)  # type: ignore[arg-type]
        network.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
        return network

    monkeypatch.setattr(trainer.engine, "network", watched)
    trainer.rehearse()
    assert seen == [FULL[0] + 2 * FULL[1]]
    assert len(trainer.loader.batch().x) == QUARTER[0]


def test_the_configuration_of_a_run_shows_its_stages(tmp_path: Path, tiny: Callable[..., RunConfig]) -> None:
    config = tiny(GROWING, iterations=6)
    new_run(config, tmp_path / "run")
    assert RunFolder(tmp_path / "run").config() == config
    assert config.train.batch_stages == (0.25, 0.5, 1.0)
    line = json.loads((tmp_path / "run" / METRICS).read_text().splitlines()[-1])
    assert line["images"] == 2 * sum(labeled + 2 * unlabeled for labeled, unlabeled in (QUARTER, HALF, FULL))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_stages_as_cuda_graphs_stay_close_to_stages_without_graphs(trainer_of: MakeTrainer) -> None:
    lines = []
    for graph in ("true", "false"):
        gpu = ("engine.device=cuda", "engine.precision=float32", "engine.compile=false", f"engine.cuda_graph={graph}")
        trainer, notes = trainer_of(*gpu, GROWING, iterations=30), Notes()
        torch.manual_seed(1)  # the same views
        train(trainer, notes)  # 10 steps per stage: three without a graph, then the capture and its replays
        assert int(trainer.steps_done) == 30
        lines.append(notes.lines)
    graphed, plain = ([line["train"]["loss"] for line in each] for each in lines)
    assert graphed == pytest.approx(plain, rel=0.02)
    assert [line["images"] for line in lines[0]] == [line["images"] for line in lines[1]]
