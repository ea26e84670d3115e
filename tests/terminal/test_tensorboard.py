"""The values that TensorBoard shows; a run with TensorBoard is otherwise the same as one without."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock, call

import pytest

from mnar.config import RunConfig
from mnar.run import new_run, resume_run
from mnar.run.folder import RunFolder
from mnar.run.recorder import Display
from mnar.terminal.tensorboard import TensorBoard, scalars
from mnar.training.trainer import Interrupted
from tests.support.command import as_options, run_here
from tests.support.equality import assert_same_run
from tests.support.own_data_files import write_table
from tests.support.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")
Configure = Callable[..., RunConfig]
Shown = dict[str, list[tuple[int, float]]]  # steps and values by tag

NAMES, TEST_COUNTS = ["cat", "dog"], [6, 8]
LINE: dict[str, Any] = {
    "step": 40,
    "images": 4000,
    "test": {
        "accuracy": 0.75,
        "geometric_mean": 0.7,
        "precision": [0.8, 0.7],
        "recall": [0.5, 1.0],
        "predicted_share": [0.25, 0.75],
        "calibration_error": 0.1,
    },
    "train": {"loss": 1.5, "loss/labeled": 0.5, "guidance/transitions": 12.0},
    "pseudo": {"accepted": 9, "share": [0.0, 1.0], "error": [None, 0.0], "precision": [None, 0.5]},
}


def test_scalars_are_the_metrics_and_logs_of_an_evaluation_with_classes_by_name() -> None:
    expected = {
        "test/accuracy": 0.75,
        "test/geometric_mean": 0.7,
        "precision/cat": 0.8,
        "precision/dog": 0.7,
        "recall/cat": 0.5,
        "recall/dog": 1.0,
        "predicted_share/cat": 0.25,
        "predicted_share/dog": 0.75,
        "test/calibration_error": 0.1,
        "test/balanced_accuracy": 0.75,
        "test/macro_f1": pytest.approx((0.8 / 1.3 + 1.4 / 1.7) / 2),
        "train/loss": 1.5,
        "train/loss/labeled": 0.5,
        "train/guidance/transitions": 12.0,
        "pseudo_label_share/cat": 0.0,
        "pseudo_label_share/dog": 1.0,
    }
    assert scalars(LINE, NAMES, TEST_COUNTS) == expected
    without_pseudo_labels = {key: value for key, value in LINE.items() if key != "pseudo"}
    shares = {tag for tag in expected if tag.startswith("pseudo")}
    assert scalars(without_pseudo_labels, NAMES, TEST_COUNTS).keys() == expected.keys() - shares


def test_a_class_without_test_samples_is_left_out_of_derived_metrics() -> None:
    values = scalars(LINE, NAMES, [6, 0])
    assert (values["test/balanced_accuracy"], values["test/macro_f1"]) == (0.5, pytest.approx(0.8 / 1.3))


class ListingWriter:
    """Replaces SummaryWriter, so that these tests run without the extra, too."""

    opened: list[ListingWriter]

    def __init__(self, folder: str, *, purge_step: int) -> None:
        self.folder, self.purge_step, self.is_open = folder, purge_step, True
        self.waiting: list[tuple[str, float, int]] = []
        self.flushed: list[tuple[str, float, int]] = []
        self.opened.append(self)

    def __enter__(self) -> ListingWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_open = False

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.waiting.append((tag, value, step))

    def flush(self) -> None:
        self.flushed += self.waiting
        self.waiting.clear()


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[ListingWriter]:
    """The opened writers, in order."""
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = ListingWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ListingWriter, "opened", [], raising=False)
    return ListingWriter.opened


def test_every_call_is_passed_on_and_each_evaluation_is_written_and_flushed(
    tmp_path: Path, tiny: Configure, writers: list[ListingWriter]
) -> None:
    counts = {"labeled": [3, 3], "unlabeled": [5, 5], "test": TEST_COUNTS}
    split = {"dataset": "digits", "class_names": NAMES, "hash": "c0ffee", **counts}
    (tmp_path / "split.json").write_text(json.dumps(split))
    config, display = tiny(), Mock()
    with TensorBoard(display) as board:
        assert writers == [], "no file is written before the run has a folder"
        board.started(config, tmp_path, 28)
        board.stepped(29)
        board.progress(30, 99.5, {"loss": 1.0}, [0.5, 0.5])
        board.evaluation(LINE)
        board.note("generation 2 of 3 begins")
        board.warning("no pseudo-label for cat")
        (writer,) = writers
        assert writer.flushed == [(tag, value, 40) for tag, value in scalars(LINE, NAMES, TEST_COUNTS).items()]
        assert writer.is_open
    assert display.mock_calls == [
        call.started(config, tmp_path, 28),
        call.stepped(29),
        call.progress(30, 99.5, {"loss": 1.0}, [0.5, 0.5]),
        call.evaluation(LINE),
        call.note("generation 2 of 3 begins"),
        call.warning("no pseudo-label for cat"),
    ]
    assert (writer.folder, writer.purge_step) == (str(tmp_path / "tensorboard"), 29)
    assert not writer.is_open


def test_pretraining_and_baseline_are_written_into_their_own_run_folders(
    tmp_path: Path,
    writers: list[ListingWriter],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, run = write_table(tmp_path / "table.csv"), tmp_path / "run"
    settings = as_options(["engine.device=cpu", "learner.pretraining_epochs=1", "train.eval_every=2"])
    chosen = ("--label", "kind", "--learner", "vime", "--iterations", "4", "--out", run)
    outcome = run_here(capsys, monkeypatch, "train", table, "--tensorboard", *chosen, *settings)
    assert outcome.code == 0, outcome.errors
    assert [(writer.folder, {step for _, _, step in writer.flushed}) for writer in writers] == [
        (str(folder / "tensorboard"), {line["step"] for line in RunFolder(folder).evaluations()})
        for folder in (run / "pretraining", run, run / "supervised")
    ]


def test_a_run_that_does_not_start_writes_no_file(
    tmp_path: Path, tiny: Configure, writers: list[ListingWriter]
) -> None:
    (tmp_path / "config.yaml").touch()
    with (
        pytest.raises(FileExistsError, match="already contains a run"),
        TensorBoard(Display()) as board,
    ):
        new_run(tiny(), tmp_path, board)
    assert writers == []
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_the_error_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # hidden: importing it fails
    with pytest.raises(ValueError, match=r"--tensorboard needs the extra: pip install 'mnar\[tensorboard\]'"):
        TensorBoard(Display())


def shown_by_tensorboard(folder: Path) -> Shown:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reading.EventAccumulator(str(folder / "tensorboard"), size_guidance={reading.SCALARS: 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def values_of_metrics_file(folder: Path) -> Shown:
    """The values that metrics.jsonl determines."""
    split = json.loads((folder / "split.json").read_text())
    shown: Shown = {}
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        for tag, value in scalars(line, split["class_names"], split["test"]).items():
            shown.setdefault(tag, []).append((line["step"], pytest.approx(value)))
    return shown


def test_tensorboard_shows_each_evaluation_of_a_resumed_run_once_and_the_run_is_the_same(
    tmp_path: Path, tiny: Configure, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    with pytest.raises(Interrupted), TensorBoard(Watching(signal_at=30)) as board:
        new_run(tiny(), folder, board)
    assert [step for step, _ in shown_by_tensorboard(folder)["test/accuracy"]] == [10, 20, 30]
    (folder / "state.pt").unlink()  # back to the checkpoint of step 28, so that step 30 is evaluated a second time

    # TensorBoard reads event files in the order of their names, which begin with the second of their opening.
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)
    with TensorBoard(Display()) as board:
        resume_run(folder, board)
    assert_same_run(folder, finished_run)
    shown = shown_by_tensorboard(folder)
    assert [step for step, _ in shown["test/accuracy"]] == [10, 20, 30, 40]
    assert shown == values_of_metrics_file(folder)
