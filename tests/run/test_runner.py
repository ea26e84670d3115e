"""A run folder: what it holds, and what is refused before one is made."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from mnar.config import RunConfig
from mnar.guidances import GUIDANCES, Guidance
from mnar.learners import LEARNERS
from mnar.recipes import configure
from mnar.run import checkpoint, evaluate_run, new_run, resume_run, runner
from mnar.run.assemble import load_data, make_model, make_split
from mnar.run.folder import RunFolder
from mnar.training.meters import Diverged
from mnar.training.trainer import Interrupted, Trainer
from mnar.types import DataSet, Task
from tests.support.equality import assert_same_run
from tests.support.stand_ins import Blank
from tests.support.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")
Configure = Callable[..., RunConfig]


def test_a_run_folder_holds_what_the_design_says(finished_run: Path) -> None:
    names = {path.name for path in finished_run.iterdir()}
    assert names == {
        ".lock",
        "config.yaml",
        "split.json",
        "environment.json",
        "metrics.jsonl",
        "state.pt",
        "state.previous.pt",
        "model.safetensors",
        "calibration.npz",
    }
    split = json.loads((finished_run / "split.json").read_text())
    assert split["labeled"] == [20, 15, 11, 8, 6, 4, 3, 2, 2, 1]
    assert sum(split["unlabeled"]) == 1297
    assert sum(split["test"]) == 500
    assert len(split["hash"]) == 64
    assert [line["step"] for line in RunFolder(finished_run).evaluations()] == [10, 20, 30, 40]
    environment = json.loads((finished_run / "environment.json").read_text())
    (session,) = environment["sessions"]
    assert (session["from_step"], session["to_step"]) == (0, 40)
    for machine in (environment, session):
        assert (machine["torch"], machine["device"]) == (torch.__version__, platform.machine())
        assert {"mnar", "commit", "python", "threads"} <= set(machine)


def test_a_run_repeated_gives_the_same_files_and_another_seed_others(
    finished_run: Path, tmp_path: Path, tiny: Configure
) -> None:
    new_run(tiny(), tmp_path / "again")
    assert_same_run(tmp_path / "again", finished_run)
    sections = tiny().to_dict() | {"seed": 2}
    new_run(RunConfig.from_dict(sections), tmp_path / "other")
    for name in ("split.json", "metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "other" / name).read_bytes() != (finished_run / name).read_bytes()


def test_the_model_file_scores_as_the_last_evaluation_did_and_says_what_it_needs(
    finished_run: Path, tiny: Configure
) -> None:
    scores = evaluate_run(finished_run)
    last = RunFolder(finished_run).evaluations()[-1]
    assert {name: scores[name] for name in last["test"]} == last["test"]
    assert scores["confusion"] == last["matrices"]["test_confusion"]
    with safe_open(finished_run / "model.safetensors", "pt") as file:
        needs = json.loads(file.metadata()["mnar"])
        assert set(file.keys()) == set(make_model(tiny(), load_data(tiny())).state_dict())
    assert needs["class_names"] == [str(digit) for digit in range(10)]
    assert needs["input_shape"] == [1, 8, 8]
    options = {"width": 4, "dropout": 0.0, "norm": "batch", "stages": 0, "positions": 4}
    assert needs["model"] == {"name": "small_cnn", **options}


# ---- folders


def test_a_folder_that_holds_a_run_is_refused_with_the_command_that_resumes(stopped: Path, tiny: Configure) -> None:
    metrics = (stopped / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match=rf"already contains a run; .*mnar train --resume {stopped}"):
        new_run(tiny(), stopped)
    assert (stopped / "metrics.jsonl").read_bytes() == metrics


def test_a_folder_with_other_things_or_a_file_is_refused_and_left_alone(tmp_path: Path, tiny: Configure) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(FileExistsError, match="not an empty folder; choose another --out"):
            new_run(tiny(), out)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    for use in (resume_run, evaluate_run):
        with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config\.yaml"):
            use(tmp_path)


def test_a_damaged_configuration_is_refused_with_its_path(stopped: Path) -> None:
    (stopped / "config.yaml").write_text("train: [")
    with pytest.raises(ValueError, match=str(stopped / "config.yaml")):
        resume_run(stopped)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("protocol.gamma=0", "gamma"),
        ("protocol.gamma=-3", "gamma"),
        (
            "protocol.gamma=1000",
            r"class 0 was asked for 1000 .*choose fewer labels: .* protocol\.gamma",
        ),
        ("train.batch_unlabeled=5000", "batch_unlabeled is 5000, but there are 1297"),
        ("guidance.window=0", r"guidance\.window .*is 0; expected"),
        ("guidance.alpha=-1", r"guidance\.alpha .*is -1; expected"),
        ("learner.threshold=2", r"learner\.threshold .*is 2; expected"),
        ("learner.name=comatch train.batch_unlabeled=1", "batch_unlabeled is 1; CoMatch .* take at least 2"),
        ("learner.name=remixmatch train.batch_unlabeled=3", "batch_unlabeled is 3; ReMixMatch .* take at least 4"),
        # 7 labels for 10 classes
        ("learner.name=simmatch train.validation=0.9", r"no labelled image of class \[.*9\]; .* or choose fixmatch"),
        ("learner.name=simmatch guidance.preceded_by=null guidance.window=0", r"guidance\.window .*is 0; expected"),
        ("learner.name=comatch guidance.name=prg guidance.preceded_by.window=0", r"guidance\.window .*is 0; expected"),
        ("learner.name=ups learner.generations=41", "iterations is 40, .* 41 generations; choose more steps, or"),
        ("guidance.name=crest guidance.generations=41", r"fewer generations with --set guidance\.generations=2"),
        (
            "guidance.name=prg guidance.preceded_by.name=crest guidance.preceded_by.generations=41",
            r"fewer generations with --set guidance\.preceded_by\.generations=2",
        ),
        (
            "learner.name=acr train.validation=0.9",
            r"no labelled sample of class \d, .*; ACR uses .*\. train\.validation=0\.9 holds out some labels",
        ),
        (
            "learner.name=mixmatch guidance.name=prg guidance.preceded_by.name=adello",
            "MixMatch does not support ADELLO, which",
        ),
        ("learner.name=ups model.dropout=0", r"the model has none; use --set model\.dropout=0\.3"),
        ("learner.name=ups guidance.name=prg guidance.alpha=-1", r"guidance\.alpha .*is -1; expected"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    tmp_path: Path, tiny: Configure, settings: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        new_run(tiny(*settings.split()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_padding_that_the_images_are_too_small_for_is_refused_before_anything_is_written(
    tmp_path: Path, tiny: Configure
) -> None:
    config = tiny("augment.padding=8", "augment.padding_mode=reflect")
    with pytest.raises(ValueError, match="reflect padding of 8 pixels needs larger images than 8x8"):
        new_run(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_guidance_for_a_learner_without_pseudo_labels_is_refused(tmp_path: Path) -> None:
    config = configure(learner="supervised", guidance="prg")
    with pytest.raises(ValueError, match="supervised makes no pseudo-labels to guide; choose --guidance none"):
        new_run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


SUITABLE = {
    kind: sorted(name for name, made in LEARNERS.items() if kind in made.suits) for kind in ("images", "tables")
}


@pytest.mark.parametrize("learner", sorted(set(SUITABLE["images"]) - set(SUITABLE["tables"])))
def test_a_table_for_a_learner_of_images_is_refused_with_those_that_suit_before_anything_is_written(
    tmp_path: Path, learner: str
) -> None:
    table, labels = np.arange(120.0).reshape(60, 2), np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x_train=table, y_train=labels, x_test=table, y_test=labels)
    settings = ["model.name=mlp", "protocol.gamma=5", "train.batch_unlabeled=8", "engine.device=cpu"]
    config = configure(dataset="npz", data=str(tmp_path / "own.npz"), learner=learner, settings=settings)
    choices = re.escape(f"choose --learner from {SUITABLE['tables']}")
    with pytest.raises(ValueError, match=rf"{learner} is for images, but npz has tables; {choices}"):
        new_run(config, tmp_path / "run")
    assert {"pseudo_label", "supervised", "vime"} <= set(SUITABLE["tables"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("learner", sorted(set(SUITABLE["tables"]) - set(SUITABLE["images"])))
def test_images_for_a_learner_of_tables_are_refused_with_those_that_suit_before_anything_is_written(
    tmp_path: Path, learner: str
) -> None:
    config = configure(dataset="digits", learner=learner, settings=["engine.device=cpu"])
    choices = re.escape(f"choose --learner from {SUITABLE['images']}")
    with pytest.raises(ValueError, match=rf"{learner} is for tables, but digits has images; {choices}"):
        new_run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_none_before_prg_is_prg_alone_and_none_after_a_learner_is_the_learner_alone(
    tmp_path: Path, tiny: Configure
) -> None:
    for name in ("prg", "none+prg"):
        new_run(tiny("learner.name=fixmatch", f"guidance.name={name}", iterations=10), tmp_path / name)
    new_run(tiny("learner.name=simmatch", "guidance.name=none+prg", iterations=10), tmp_path / "simmatch")
    alone, chained, simmatch = (RunFolder(tmp_path / name).evaluations() for name in ("prg", "none+prg", "simmatch"))
    assert chained == alone
    assert {name for name in simmatch[0]["train"] if name.startswith("guidance/")} == {
        name for name in alone[0]["train"] if name.startswith("guidance/")
    }


def test_looking_at_the_views_before_a_run_draws_nothing_from_its_random_numbers(
    tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run(tiny(iterations=3), tmp_path / "checked")
    monkeypatch.setattr(runner, "_check_views", lambda *parts: None)
    new_run(tiny(iterations=3), tmp_path / "unchecked")
    assert_same_run(tmp_path / "checked", tmp_path / "unchecked")


# ---- what a guidance is given, and what comes of it


class Equipped(Guidance):
    """Keeps what the assembler gives it."""

    needs = frozenset({"relabel"})

    def __init__(
        self, task: Task, *, target: Literal["oracle", "labeled"] | tuple[float, ...] = "labeled", generations: int = 1
    ) -> None:
        super().__init__(task)
        self.target, self.generations = target, generations
        self.prepared: list[Any] = []

    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        return probs

    def prepare(self, samples: Tensor, view: Callable[[Tensor], Tensor]) -> None:
        self.prepared.append((samples, view(samples)))


@pytest.fixture
def equipped(trainer_of: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Equipped]:
    """The guidance of a run, as the assembler has made it."""
    monkeypatch.setitem(GUIDANCES, "equipped", Equipped)

    def make(*settings: str) -> Equipped:
        guidance = trainer_of("guidance.name=equipped", *settings).learner.guidance
        assert isinstance(guidance, Equipped)
        return guidance

    return make


def test_a_guidance_is_prepared_once_with_raw_samples_and_what_makes_input_of_them(
    equipped: Callable[..., Equipped], digits_data: DataSet
) -> None:
    ((samples, made),) = equipped().prepared
    assert samples.dtype == torch.uint8
    assert torch.equal(samples, digits_data.train_x[: len(samples)])
    mean, std = (torch.tensor(of).view(1, -1, 1, 1) for of in (digits_data.mean, digits_data.std))
    torch.testing.assert_close(made, (samples / 255 - mean) / std)


def test_the_oracle_is_the_class_mix_of_the_unlabelled_set_and_nobody_else_is_told(
    equipped: Callable[..., Equipped], tiny: Configure, digits_data: DataSet
) -> None:
    pool = digits_data.train_y[torch.from_numpy(make_split(tiny(), digits_data).unlabeled_index)].tolist()
    assert equipped("guidance.target=oracle").target == tuple(pool.count(label) for label in range(10))
    assert equipped().target == "labeled"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("learner.name=simmatch", r"SimMatch does not support .*trains in generations \(relabel\); choose another"),
        ("learner.name=ups", r"UPS does not support .*trains in generations \(relabel\); choose another learner"),
        ("guidance.generations=41", r"iterations is 40, .* 41 generations; .* --set guidance\.generations=2"),
    ],
)
def test_a_guidance_that_its_run_cannot_serve_is_refused_before_anything_is_written(
    tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch, settings: str, message: str
) -> None:
    monkeypatch.setitem(GUIDANCES, "equipped", Equipped)
    with pytest.raises(ValueError, match=message):
        new_run(tiny("guidance.name=equipped", settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("validation", [0, 0.2])
def test_a_run_with_a_test_bias_is_scored_without_it_cut_off_or_finished(
    tmp_path: Path, tiny: Configure, monkeypatch: pytest.MonkeyPatch, validation: float
) -> None:
    monkeypatch.setitem(GUIDANCES, "blank", Blank)
    settings = ("train.eval_every=1", "train.ema=0.5", f"train.validation={validation}")
    folder = tmp_path / "blank"
    with pytest.raises(Interrupted):
        new_run(tiny("guidance.name=blank", *settings, iterations=12), folder, Watching(signal_at=7))
    assert not (folder / "model.safetensors").exists()
    new_run(tiny("guidance.name=none", *settings, iterations=12), tmp_path / "none")
    for last_step in (8, 12):
        lines, unbiased = (RunFolder(run).evaluations()[:last_step] for run in (folder, tmp_path / "none"))
        assert [line["train"] for line in lines] == [line["train"] for line in unbiased]
        assert lines[-1]["step"] == last_step
        scores = evaluate_run(folder)
        assert {name: scores[name] for name in lines[-1]["test"]} == lines[-1]["test"] != unbiased[-1]["test"]
        if last_step < 12:
            resume_run(folder)
    assert (folder / "model.safetensors").exists()


# ---- what goes wrong while training


@pytest.mark.parametrize("eval_every", [1, 2, 3, 10])
def test_a_run_that_diverges_keeps_its_last_good_checkpoint_and_says_what_to_try(
    tmp_path: Path, tiny: Configure, eval_every: int
) -> None:
    folder = tmp_path / "run"
    config = tiny("train.lr=1e15", "train.save_every=1", f"train.eval_every={eval_every}", "train.log_every=1")
    with pytest.raises(Diverged) as caught:
        new_run(config, folder)
    state, problems = checkpoint.load(folder / "state.pt")
    assert problems == []
    assert state["steps_done"] >= 1
    kept = rf"in {folder}; the checkpoint of step {state['steps_done']} is kept\. .*--set train\.lr=0\.01 --out"
    assert re.search(rf"not a finite number after step \d+ {kept}", str(caught.value))
    assert all(torch.isfinite(weights).all() for weights in state["model"].values())
    assert not (folder / "model.safetensors").exists()


def test_a_run_that_diverges_before_its_first_checkpoint_says_that_there_is_none(
    tmp_path: Path, tiny: Configure
) -> None:
    with pytest.raises(Diverged, match=r"not a finite number after step .*; there is no checkpoint yet\. .*train\.lr="):
        new_run(tiny("train.lr=1e15", "train.save_every=1000", "train.log_every=1"), tmp_path / "run")
    assert not (tmp_path / "run" / "state.pt").exists()


def test_a_run_cut_off_is_scored_as_far_as_it_has_got(stopped: Path) -> None:
    assert not (stopped / "model.safetensors").exists()
    before = evaluate_run(stopped)
    resume_run(stopped)
    after = evaluate_run(stopped)
    assert sum(map(sum, before["confusion"])) == 500
    assert before["confusion"] != after["confusion"]


def test_a_run_without_a_checkpoint_has_nothing_to_score(stopped: Path) -> None:
    for state in stopped.glob("state*.pt"):
        state.unlink()
    with pytest.raises(FileNotFoundError, match="has no model and no checkpoint yet; train it further with"):
        evaluate_run(stopped)
