from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.config import RunConfig
from mnar.models import SmallCNN
from mnar.protocols import hold_out
from mnar.run import checkpoint, evaluate_run, new_run, resume_run
from mnar.run.assemble import make_split, make_trainer
from mnar.run.folder import RunFolder
from mnar.run.reader import read_run
from mnar.training.early_stopping import BestSoFar
from mnar.training.trainer import Interrupted
from mnar.types import DataSet, Split
from tests.support.equality import assert_same, assert_same_run
from tests.support.methods import SURE_UPS
from tests.support.watching import Watching

Configure = Callable[..., RunConfig]
HELD_OUT = ("train.validation=0.2", "train.patience=4", "train.ema=0.5")


@pytest.mark.parametrize("patience", [1, 3, 100])
def test_the_best_so_far_is_what_a_loop_with_an_early_stop_restores(patience: int) -> None:
    torch.manual_seed(0)
    model = SmallCNN((1, 4, 4), 3, width=2)
    x, y = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    best = BestSoFar(model, model, x, y, patience=patience)
    lowest, waited, restored = float("inf"), 0, copy.deepcopy(model.state_dict())
    num_better = 0
    for _ in range(60):
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor += (0.1 * torch.randn_like(tensor)).abs()
        best.update()
        with torch.no_grad():
            loss = F.cross_entropy(model.eval()(x), y).item()
        model.train()
        if waited < patience:
            waited += 1
            if loss < lowest:
                lowest, waited, restored = loss, 0, copy.deepcopy(model.state_dict())
                num_better += 1
    assert_same(dict(best.model.state_dict()), dict(restored))
    assert num_better >= 1
    assert waited == best.waited or waited == patience
    assert model.training, "as it was found"


def test_an_update_runs_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        model = SmallCNN((1, 4, 4), 3, width=2)
        best = BestSoFar.__new__(BestSoFar)  # a fake tensor cannot be copied deeply
        best.watched = best.network = model
        best.model, best.patience = SmallCNN((1, 4, 4), 3, width=2), 3
        best.x, best.y = torch.randn(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64)
        best.loss, best.waited = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        best.update()


@pytest.mark.parametrize(("num_labels", "share", "kept"), [(72, 0.1, 64), (40, 0.1, 36), (5, 0.1, 4), (2, 0.5, 1)])
def test_held_out_labels_are_no_labels_any_more_and_stay_unlabelled(num_labels: int, share: float, kept: int) -> None:
    rows = Split(np.arange(0, 3 * num_labels, 3), np.arange(4 * num_labels))
    left, held_out = hold_out(rows, share, seed=1)
    assert len(left.labeled_index) == kept
    assert sorted([*left.labeled_index, *held_out]) == rows.labeled_index.tolist()
    assert left.unlabeled_index is rows.unlabeled_index
    again, other = hold_out(rows, share, seed=1)[1], [hold_out(rows, share, seed=seed)[1] for seed in range(2, 9)]
    assert again.tolist() == held_out.tolist()
    assert any(one.tolist() != held_out.tolist() for one in other)


def test_nothing_left_to_train_on_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"train\.validation is 0\.9, and of 1 labels none would be left"):
        hold_out(Split(np.arange(1), np.arange(5)), 0.9, seed=1)


def test_training_never_sees_what_is_held_out(tiny: Configure, digits_data: DataSet) -> None:
    config = tiny(*HELD_OUT)
    rows = make_split(config, digits_data)
    trainer = make_trainer(config, digits_data, rows)
    left, held_out = hold_out(rows, 0.2, seed=config.seed)
    assert trainer.loader.num_labeled == len(left.labeled_index) == 57
    assert trainer.best is not None
    assert torch.equal(trainer.best.y, digits_data.train_y[torch.from_numpy(held_out)])
    assert trainer.learner.task.labeled_targets is not None
    assert len(trainer.learner.task.labeled_targets) == 57


@pytest.mark.usefixtures("without_report")
def test_a_class_whose_every_label_is_held_out_is_named(tiny: Configure, tmp_path: Path) -> None:
    display = Watching()
    new_run(tiny("train.validation=0.9", iterations=2), tmp_path / "run", display)
    lost = [text for text in display.warnings if "train.validation holds out every label of 9" in text]
    assert len(lost) == 1
    display = Watching()
    new_run(tiny(iterations=2), tmp_path / "other", display)
    assert display.warnings == []


@pytest.mark.usefixtures("without_report")
def test_a_run_scores_and_hands_out_the_best_and_resumes_exactly(tiny: Configure, tmp_path: Path) -> None:
    config = tiny(*HELD_OUT)
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        new_run(config, tmp_path / "run", Watching(signal_at=10))
    before = evaluate_run(tmp_path / "run")
    assert before["accuracy"] == RunFolder(tmp_path / "run").evaluations()[-1]["test"]["accuracy"]
    resume_run(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "straight")
    state = checkpoint.load(tmp_path / "run" / "state.pt")[0]
    assert state["best"]["waited"] >= 4, "it had stopped early"
    assert not torch.equal(state["best"]["model"]["head.weight"], state["average"]["head.weight"])
    scores = evaluate_run(tmp_path / "run")
    assert scores["accuracy"] == RunFolder(tmp_path / "run").evaluations()[-1]["test"]["accuracy"]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("settings", "last_step"),
    [
        pytest.param((*SURE_UPS, "learner.generations=2"), 80, id="the next generation"),
        pytest.param(("train.log_every=40",), 40, id="the next log"),
    ],
)
def test_a_run_that_goes_on_though_nothing_better_comes_is_not_finished_until_it_ends(
    settings: tuple[str, ...], last_step: int, tiny: Configure, tmp_path: Path
) -> None:
    config = tiny(*settings, *HELD_OUT, "train.patience=1", iterations=80)
    with pytest.raises(Interrupted):
        new_run(config, tmp_path, Watching(signal_at=30))
    best = checkpoint.load(tmp_path / "state.pt")[0]["best"]
    assert best["waited"] >= 1, "it has given up"
    assert not read_run(tmp_path).is_finished
    resume_run(tmp_path)
    assert read_run(tmp_path).is_finished
    lines = RunFolder(tmp_path).evaluations()
    assert [line["validation"]["is_over"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["step"] == last_step
