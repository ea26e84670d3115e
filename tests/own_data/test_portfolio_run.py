"""A run of the portfolio: its files, its predictions, resuming it, and scoring it on its own and on other data."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from mnar.datasets.user_files import read_data
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.own_data import inputs, portfolio_run
from mnar.own_data.portfolio.member import Fitted, Member, Samples
from mnar.own_data.portfolio.portfolio import TriedMember
from mnar.own_data.portfolio_model import read_portfolio_model
from mnar.own_data.portfolio_run import (
    Outcome,
    PortfolioConfig,
    PortfolioDisplay,
    evaluate_portfolio_run,
    new_portfolio_run,
    read_own_data,
    read_portfolio_config,
    resume_portfolio_run,
)
from mnar.run import evaluate_run, resume_run
from mnar.run.lock import InUse, locked
from mnar.run.model_file import read_model_input
from mnar.run.reader import find_runs
from mnar.trained.load import load
from mnar.training.trainer import Interrupted
from tests.report.made_up import write_run
from tests.support.killing import portfolio_under_fire
from tests.support.own_data_files import NAMES, write_clouds, write_images

pytestmark = pytest.mark.usefixtures("without_page")

LABELS = (30, 12, 4)
FILES = {
    "portfolio.yaml",
    "environment.json",
    "members",
    "choice.json",
    "calibration.npz",
    "model.safetensors",
    "predictions.csv",
}


@pytest.fixture
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the report, which takes a second per run; the tests of the command line look at a drawn report."""
    monkeypatch.setattr(portfolio_run, "write_own_data_report", lambda folder, page: None)


class Watching(PortfolioDisplay):
    """Keeps what it is told, and sends this process a signal after a fold of a member."""

    def __init__(self, signal_at: str | None = None, number: int = signal.SIGTERM) -> None:
        self.signal_at, self.number = signal_at, number
        self.fitted: list[str] = []
        self.lines: dict[str, TriedMember] = {}
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def fold_done(self, name: str, done: int, total: int) -> None:
        self.fitted.append(name)
        if name == self.signal_at:
            os.kill(os.getpid(), self.number)

    def tried(self, member: TriedMember) -> None:
        self.lines[member.name] = member

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def config_of(source: Path, **options: Any) -> PortfolioConfig:
    """Options of a quick run; the label of a table is in the column `kind`."""
    reading = {} if source.is_dir() else {"label": "kind", **options.pop("reading", {})}
    return PortfolioConfig(str(source), reading, **{"fast": "member" not in options, **options})


def run(source: Path, folder: Path, display: PortfolioDisplay | None = None, **options: Any) -> Outcome:
    config = config_of(source, **options)
    return new_portfolio_run(config, folder, display or PortfolioDisplay(), read_own_data(config))


def predictions_in(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def labels_in(folder: Path) -> list[str]:
    return [line["label"] for line in predictions_in(folder)]


def share_right(folder: Path, truth: list[str], num_labels: tuple[int, ...] = LABELS) -> float:
    return float(np.mean(np.array(labels_in(folder)) == truth[sum(num_labels) :]))


def choice_in(folder: Path) -> dict[str, Any]:
    """choice.json without the times, which no two runs share."""
    content: dict[str, Any] = json.loads((folder / "choice.json").read_text())
    for member in content["members"]:
        del member["seconds"]
    return content


def assert_same_result(folder: Path, other: Path) -> None:
    assert choice_in(folder) == choice_in(other)
    for name in ("model.safetensors", "predictions.csv"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "clouds.csv"
    write_clouds(path, LABELS)
    return path


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_clouds(tmp_path_factory.mktemp("same") / "clouds.csv", LABELS)


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A finished run. Tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio_run, "write_own_data_report", lambda folder, page: None)
        run(source, folder)
    return folder


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """A copy of `finished_once`."""
    return Path(shutil.copytree(finished_once, tmp_path / "run"))


# ---- the files of a run


def test_a_run_writes_its_files_and_predicts_the_true_classes(
    finished_once: Path, source: Path, truth: list[str]
) -> None:
    assert {path.name for path in finished_once.iterdir()} - {".lock"} == FILES
    assert {path.name for path in (finished_once / "members").iterdir()} == {"kernel.npz", "graph.npz"}
    assert share_right(finished_once, truth) > 0.95
    data = read_data(source, label="kind")
    unlabeled = np.flatnonzero(~data.is_labeled)
    assert [int(line["row"]) for line in predictions_in(finished_once)] == (unlabeled + 1).tolist()
    assert [line["sample"] for line in predictions_in(finished_once)] == [data.row_names[row] for row in unlabeled]


@pytest.mark.parametrize("kind", ["table", "images"])
def test_the_model_read_from_its_file_predicts_what_the_run_predicted(
    finished_once: Path, tmp_path: Path, kind: str
) -> None:
    folder = finished_once
    if kind == "images":
        folder = tmp_path / "run"
        run(write_images(tmp_path / "animals"), folder)
    data = read_own_data(read_portfolio_config(folder))
    pool = data.train_x[data.train_y < 0].numpy()
    predicted = read_portfolio_model(folder).predict(pool)
    lines = predictions_in(folder)
    assert len(lines) == len(pool) > 0
    assert [line["label"] for line in lines] == [data.class_names[label] for label in predicted.labels]
    assert [line["confidence"] for line in lines] == [f"{value:.4f}" for value in predicted.confidences]
    one_by_one = [read_portfolio_model(folder).predict(pool[i : i + 1]).labels[0] for i in range(4)]
    assert one_by_one == predicted.labels[:4].tolist()


def test_bright_images_are_told_apart_from_darker_ones(tmp_path: Path) -> None:
    """Cats are bright, with a mean of 190. Only 2 of the 22 labels are of cats, but 10 of the 14 images of the pool."""
    images = write_images(tmp_path / "animals")
    run(images, tmp_path / "run")
    lines = predictions_in(tmp_path / "run")
    brightness = [np.asarray(Image.open(images / line["sample"])).mean() for line in lines]
    assert [line["label"] == "cat" for line in lines] == [mean > 150 for mean in brightness]
    assert sum(mean > 150 for mean in brightness) == 10


def test_the_choice_file_says_what_the_outcome_says(source: Path, tmp_path: Path) -> None:
    outcome = run(source, tmp_path / "run", seed=2)
    content = json.loads((tmp_path / "run/choice.json").read_text())
    choice = outcome.choice
    assert (content["verdict"], content["reason"]) == (outcome.verdict, choice.reason)
    assert (tuple(content["warnings"]), tuple(content["chosen"])) == (outcome.warnings, choice.names)
    assert content["class_names"] == ["a", "b", "c"]
    assert content["balanced_accuracy"] == choice.balanced_accuracy._asdict()
    assert content["members"][1] == {
        **choice.members[1]._asdict(),
        "balanced_accuracy": choice.members[1].balanced_accuracy._asdict(),  # type: ignore[union-attr]
        "accuracy": choice.members[1].accuracy._asdict(),  # type: ignore[union-attr]
    }
    assert choice.shares is not None
    assert content["shares"]["low"] == choice.shares.low.tolist()
    stored = yaml.safe_load((tmp_path / "run/portfolio.yaml").read_text())
    assert (stored["source"], stored["seed"]) == (str(source.resolve()), 2)


def test_labels_missing_at_random_are_found_to_be_so_if_the_members_are_fitted_to_a_part_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MOST_LABELED", 300)
    classes = np.repeat([0, 1], [1800, 200])
    x = np.random.default_rng(0).normal(2.0 * classes[:, None], 1, (2000, 2))
    np.savez(tmp_path / "rows.npz", x=x, y=np.where(np.arange(2000) % 2, classes, -1))
    config = PortfolioConfig(str(tmp_path / "rows.npz"), fast=True)
    at_random = new_portfolio_run(config, tmp_path / "run", PortfolioDisplay(), read_own_data(config)).choice.at_random
    assert at_random is not None
    assert at_random.p_value > 0.1


def test_an_id_column_names_the_predictions_and_is_no_feature(tmp_path: Path) -> None:
    source, ids = tmp_path / "clouds.csv", [f"id{row * 7}" for row in range(sum(LABELS) + 60)]
    write_clouds(source, LABELS, more={"name": list(ids)})
    run(source, tmp_path / "run", reading={"id": "name"})
    lines = predictions_in(tmp_path / "run")
    assert list(lines[0]) == ["row", "name", "label", "confidence"]
    assert [line["name"] for line in lines] == ids[sum(LABELS) :]
    stored = read_model_input(tmp_path / "run")
    assert stored is not None
    assert stored["encoding"] is not None
    assert stored["encoding"]["numeric_names"] == ["x", "y", "z"]
    assert stored["encoding"]["categorical_names"] == []


class WritesAFile:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_no_file_of_a_run_is_unpickled(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = np.array([WritesAFile(tmp_path / "executed")], object)
    np.savez(finished / "members/kernel.npz", uses_pool=trap, seconds=trap, probs_labeled=trap, probs_pool=trap)
    np.savez(finished / "calibration.npz", y=trap, probs=trap)
    with pytest.raises(ValueError, match=r"calibration\.npz is damaged"):
        evaluate_portfolio_run(finished)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)  # calling it would fail
    display = Watching()
    resume_portfolio_run(finished, display)
    assert len(display.warnings) == 1
    assert evaluate_portfolio_run(finished)["accuracy"] > 0.9
    assert not (tmp_path / "executed").exists()


# ---- stopping and resuming


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_gives_the_resume_command_and_then_the_result_of_a_run_without_a_stop(
    source: Path, finished_once: Path, tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "a run"
    with pytest.raises(Interrupted, match=re.escape(f"Continue with: mnar train --resume '{folder}'")):
        run(source, folder, Watching("graph", number))
    assert not (folder / "model.safetensors").exists()
    display = Watching()
    resume_portfolio_run(folder, display)
    assert set(display.fitted) == {"graph"}, "the finished member is not tried again"
    assert list(display.lines) == ["kernel", "graph"], "but it is shown"
    assert_same_result(folder, finished_once)


def test_the_model_is_the_last_file_of_a_run(
    source: Path, finished_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(folder: Path, page: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(portfolio_run, "write_own_data_report", stop)
        with pytest.raises(KeyboardInterrupt):
            run(source, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} - {".lock"} == FILES - {"model.safetensors"}
    resume_portfolio_run(tmp_path / "run", PortfolioDisplay())
    assert_same_result(tmp_path / "run", finished_once)


def test_a_run_killed_with_9_again_and_again_gives_the_result_of_a_run_without_a_stop(
    source: Path, finished_once: Path, tmp_path: Path
) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh_process:
        kills = fresh_process.submit(portfolio_under_fire, config_of(source), tmp_path / "run", 1).result()
    assert kills >= 3
    assert_same_result(tmp_path / "run", finished_once)


def archive(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"", b"no archive", "half", archive(uses_pool=[1, 2], seconds=[1, 2])])
def test_a_damaged_result_of_a_member_is_tried_again_with_a_warning_that_names_it(
    finished: Path, finished_once: Path, content: bytes | str
) -> None:
    path = finished / "members/kernel.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if isinstance(content, str) else content)
    display = Watching()
    resume_portfolio_run(finished, display)
    assert display.warnings == [f"{path} is damaged; the member kernel is tried again"]
    assert set(display.fitted) == {"kernel"}
    assert_same_result(finished, finished_once)


def test_a_changed_result_of_a_member_is_found_by_its_digest_and_tried_again(
    finished: Path, finished_once: Path
) -> None:
    path = finished / "members/kernel.npz"
    with np.load(path) as stored:
        arrays = {**stored, "probs_labeled": stored["probs_labeled"][:, ::-1]}
    np.savez(path, **arrays)
    display = Watching()
    resume_portfolio_run(finished, display)
    assert display.warnings == [f"{path} is damaged; the member kernel is tried again"]
    assert_same_result(finished, finished_once)


def test_resuming_a_finished_run_fits_no_member_by_cross_validation_and_writes_lost_files_again(
    finished: Path, finished_once: Path
) -> None:
    for name in ("model.safetensors", "predictions.csv", "choice.json"):
        (finished / name).unlink()
    display = Watching()
    resume_portfolio_run(finished, display)
    assert display.fitted == []
    assert_same_result(finished, finished_once)


def without_a_row(text: str) -> str:
    return text.rpartition("\n1")[0] + "\n"


def without_a_label(text: str) -> str:
    return text.replace(",b\n", ",\n", 1)


def with_another_class(text: str) -> str:
    return text.replace(",c\n", ",d\n")


@pytest.mark.parametrize("change", [without_a_row, without_a_label, with_another_class])
def test_resuming_with_changed_data_is_refused_and_changes_no_file(
    source: Path, tmp_path: Path, change: Callable[[str], str]
) -> None:
    mine, folder = Path(shutil.copy(source, tmp_path)), tmp_path / "run"
    with pytest.raises(Interrupted):
        run(mine, folder, Watching("graph"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    mine.write_text(change(source.read_text()))
    assert mine.read_text() != source.read_text()
    with pytest.raises(
        ValueError, match=f"{re.escape(str(mine))} has changed since the run in {re.escape(str(folder))} was started"
    ):
        resume_portfolio_run(folder, Watching())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_run_is_resumed_with_data_that_have_moved(source: Path, finished_once: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copy(source, tmp_path))
    with pytest.raises(Interrupted):
        run(mine, tmp_path / "run", Watching("graph"))
    moved = mine.rename(tmp_path / "moved.csv")
    with pytest.raises(FileNotFoundError, match=r"clouds\.csv"):
        resume_portfolio_run(tmp_path / "run", Watching())
    resume_portfolio_run(tmp_path / "run", Watching(), root=moved)
    assert (tmp_path / "run/predictions.csv").read_bytes() == (finished_once / "predictions.csv").read_bytes()


def test_a_folder_that_contains_a_run_or_is_in_use_is_refused(source: Path, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match=f"already contains a run; continue it with .*--resume {finished}"):
        run(source, finished)
    with locked(finished), pytest.raises(InUse, match="is in use by process"):
        resume_portfolio_run(finished, Watching())


@pytest.mark.parametrize(
    "content", ["", "- 1", "source: x\nsauce: y", "{", "source: x\nminutes: -1", "[" * 5000, "source: !!timestamp x"]
)
def test_damaged_options_are_refused_with_the_name_of_the_file(finished: Path, content: str) -> None:
    (finished / "portfolio.yaml").write_text(content)
    with pytest.raises(ValueError, match=r"portfolio\.yaml is damaged \(.*\); restore the file, or start a new run"):
        resume_portfolio_run(finished, Watching())


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"reading": [1]}, "reading is [1], not options with their values"),
        ({"reading": "label"}, "reading is 'label', not options with their values"),
        ({"reading": {"lable": "kind"}}, "reading.lable is unknown; the options are label, ignore,"),
        ({"reading": {"ignore": "x"}}, "reading.ignore is 'x', not a list of texts"),
        ({"reading": {"size": True}}, "reading.size is True, not a whole number or null"),
        ({"source": 5}, "source is 5, not a text"),
        ({"source": None}, "source is None, not a text"),
        ({"seed": "1"}, "seed is '1', not a whole number"),
        ({"fast": 1}, "fast is 1, not true or false"),
        ({"minutes": "5"}, "minutes is '5', not a number or null"),
    ],
)
def test_an_edited_option_of_a_wrong_type_is_refused_with_its_name(
    finished: Path, entry: dict[str, Any], problem: str
) -> None:
    path = finished / "portfolio.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **entry}))
    for use in (read_portfolio_config, evaluate_portfolio_run, load):
        with pytest.raises(ValueError, match=rf"portfolio\.yaml is damaged \({re.escape(problem)}") as refused:
            use(finished)
        assert "\n" not in str(refused.value)


def test_a_run_without_its_options_is_said_to_be_a_portfolio_without_them(finished: Path) -> None:
    (finished / "portfolio.yaml").unlink()
    for use in (load, evaluate_run, resume_run):
        with pytest.raises(
            FileNotFoundError, match=r"portfolio\.yaml is missing in .*; restore the file, or start a new"
        ):
            use(finished)


@pytest.mark.parametrize("names", [["a"], 5, None])
def test_class_names_in_the_choice_that_are_not_those_of_the_model_are_refused(finished: Path, names: Any) -> None:
    (finished / "choice.json").write_text(json.dumps({**choice_in(finished), "class_names": names}))
    with pytest.raises(ValueError, match=r"class_names in choice\.json are not the classes of the model.*--resume"):
        evaluate_portfolio_run(finished)


# ---- unusual data


def test_if_every_row_has_a_label_there_is_no_prediction_and_the_verdict_says_why(tmp_path: Path) -> None:
    source = tmp_path / "clouds.csv"
    write_clouds(source, (20, 15, 10), num_pool=0)
    outcome = run(source, tmp_path / "run")
    assert outcome.verdict == "every sample has a label, so there was no pool that could help"
    assert (tmp_path / "run/predictions.csv").read_text().strip() == "row,sample,label,confidence"
    assert outcome.choice.names == ("kernel",)
    assert evaluate_portfolio_run(tmp_path / "run")["accuracy"] > 0.9


@pytest.mark.parametrize(
    "num_labels", [(30, 12, 1), (1, 1, 30), (1, 1), (2, 1, 1, 2, 1, 1), (9, 9, 9, 9, 9, 9)], ids=str
)
def test_classes_with_a_single_label_and_more_classes_than_folds_are_predicted(
    tmp_path: Path, num_labels: tuple[int, ...]
) -> None:
    source = tmp_path / "clouds.csv"
    truth = write_clouds(source, num_labels, distance=8.0)
    run(source, tmp_path / "run")
    assert share_right(tmp_path / "run", truth, num_labels) > 0.95
    scores = evaluate_portfolio_run(tmp_path / "run")
    assert np.sum(scores["confusion"]) == 2 * sum(num_labels), "two repeats of the cross-validation"


def test_a_class_without_any_label_is_never_predicted_and_has_no_recall(tmp_path: Path) -> None:
    images = write_images(tmp_path / "animals")
    (images / "classes.txt").write_text("\n".join(["asp", *NAMES]))
    run(images, tmp_path / "run")
    assert set(labels_in(tmp_path / "run")) <= {*NAMES}
    scores = evaluate_portfolio_run(tmp_path / "run")
    assert scores["class_names"] == ["asp", *NAMES]
    assert scores["recall"][0] is None or np.isnan(scores["recall"][0])
    assert scores["balanced_accuracy"] == pytest.approx(np.mean(scores["recall"][1:]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "column", ["constant", "1e18", "one of 1e18", "nearly constant", "infinite", "missing"], ids=lambda name: name
)
def test_a_column_of_constant_or_huge_values_neither_stops_nor_spoils_a_run(
    source: Path, finished_once: Path, truth: list[str], tmp_path: Path, column: str
) -> None:
    num_rows, rng = len(truth), np.random.default_rng(0)
    values: list[object] = {
        "constant": [7.5] * num_rows,
        "1e18": (1e18 * rng.normal(size=num_rows)).tolist(),
        "one of 1e18": [1e18, *[0.0] * (num_rows - 1)],
        "nearly constant": [1e18, *[1e18 * (1 + 1e-15)] * (num_rows - 1)],
        "infinite": ["inf", *[0.0] * (num_rows - 1)],
        "missing": [""] * num_rows,
    }[column]
    mine = tmp_path / "clouds.csv"
    write_clouds(mine, LABELS, more={"more": values})
    run(mine, tmp_path / "run")
    assert share_right(tmp_path / "run", truth) > 0.9
    if column in ("constant", "missing"):
        assert labels_in(tmp_path / "run") == labels_in(finished_once)


def test_constant_images_give_a_prediction_for_each(tmp_path: Path) -> None:
    images = write_images(tmp_path / "animals")
    for path in images.glob("*.png"):
        Image.new("L", (8, 8), 90).save(path)
    run(images, tmp_path / "run")
    assert len(labels_in(tmp_path / "run")) == 14


def test_labels_of_one_class_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    """The reader refuses such files as well; a class list can name a second class."""
    images = write_images(tmp_path / "animals", ((12, 0, 0), (2, 2, 10)))
    (images / "classes.txt").write_text("\n".join(NAMES))
    with pytest.raises(ValueError, match=r"every label is .*'ant'.*; label "):
        run(images, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- members


def failing(samples: Samples) -> Fitted:
    raise ValueError("the matrix\n is singular")


def test_a_member_that_fails_is_left_out_and_the_table_says_why(
    source: Path, finished_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = portfolio_run.members_for, Member("broken", "always fails", failing)
    monkeypatch.setattr(portfolio_run, "members_for", lambda *given, **options: (broken, *real(*given, **options)))
    display = Watching()
    outcome = run(source, tmp_path / "run", display)
    remark = "left out: could not be fitted (the matrix is singular)"
    assert display.lines["broken"].remark == remark
    assert {member.name: member.remark for member in outcome.choice.members} == {
        "broken": remark,
        "kernel": "",
        "graph": "",
    }
    assert labels_in(tmp_path / "run") == labels_in(finished_once)
    monkeypatch.setattr(portfolio_run, "members_for", lambda *given, **options: (broken,))
    with pytest.raises(ValueError, match=r"no member .* could be fitted: broken could not .* more time or more labels"):
        run(source, tmp_path / "second")


def test_a_short_time_limit_leaves_out_all_but_the_first_member(source: Path, tmp_path: Path) -> None:
    outcome = run(source, tmp_path / "run", minutes=1e-9)
    assert outcome.choice.names == ("kernel",)
    _, graph = outcome.choice.members
    assert re.fullmatch(r"left out: would need \d+ more seconds, but only \d+ are left", graph.remark)
    assert not (tmp_path / "run/members/graph.npz").exists()


def test_a_named_member_is_the_only_one_and_has_no_comparison(source: Path, tmp_path: Path, truth: list[str]) -> None:
    outcome = run(source, tmp_path / "run", member="linear")
    assert [member.name for member in outcome.choice.members] == ["linear"]
    assert outcome.verdict.startswith("there is no comparison with the labels alone")
    assert share_right(tmp_path / "run", truth) > 0.9


def test_a_member_that_does_not_suit_the_data_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    source = tmp_path / "clouds.csv"
    write_clouds(source, (20, 15), num_pool=0)
    with pytest.raises(ValueError, match=r"the member 'graph' does not suit these data; choose from .*'linear'"):
        run(source, tmp_path / "run", member="graph")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "recall"}, "unknown objective 'recall'; choose from"),
        ({"minutes": 0}, "minutes is 0; the time must be positive"),
        ({"minutes": float("nan")}, "minutes is nan; the time must be positive"),
        ({"minutes": 10**400}, "minutes is 1000.*000; the time must be positive and at most 1,000,000 minutes"),
        ({"iterations": 10**400}, "iterations is 1000.*000; it must be at least 1 and at most 1,000,000,000,000"),
        ({"seed": 10**5000}, "seed is a number with thousands of digits; choose one from 0 to"),
    ],
)
def test_a_wrong_option_is_refused_with_a_remedy(source: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(source, **options)


# ---- the objective


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Two normal distributions with the means -0.75 and 0.75: 100 labels of each; 90 % of the pool are "common"."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("overlapping") / "two.csv"
    truth = ["common"] * 100 + ["rare"] * 100 + ["common"] * 900 + ["rare"] * 100
    lines = ["x,kind"]
    for row, name in enumerate(truth):
        lines.append(f"{rng.normal(0.75 if name == 'rare' else -0.75):.4f},{name if row < 200 else ''}")
    path.write_text("\n".join(lines) + "\n")
    return path, truth[200:]


def test_the_objective_accuracy_follows_the_estimated_shares_and_the_other_warns_of_the_difference(
    overlapping: tuple[Path, list[str]], tmp_path: Path
) -> None:
    source, truth = overlapping
    outcomes, shares, accuracies, balanced = {}, {}, {}, {}
    for objective in ("balanced_accuracy", "accuracy"):
        outcomes[objective] = run(source, tmp_path / objective, objective=objective, member="kernel")
        labels = labels_in(tmp_path / objective)
        shares[objective] = labels.count("common") / len(labels)
        accuracies[objective] = accuracy_score(truth, labels)
        balanced[objective] = balanced_accuracy_score(truth, labels)
    # The rule that treats both classes alike is right for Phi(0.75) = 77 % of each: 0.9 * 77 % + 0.1 * 23 % = 72 %.
    assert shares["balanced_accuracy"] == pytest.approx(0.72, abs=0.05)
    assert shares["accuracy"] > 0.87
    assert accuracies["accuracy"] > accuracies["balanced_accuracy"] + 0.03
    assert balanced["balanced_accuracy"] > balanced["accuracy"] + 0.03

    (warning,) = outcomes["balanced_accuracy"].warnings
    assert f"{shares['balanced_accuracy']:.1%} of the predictions for the pool are common" in warning
    assert warning.endswith("--objective accuracy follows the estimated shares")
    assert outcomes["accuracy"].warnings == ()
    estimated = outcomes["balanced_accuracy"].choice.accuracy
    assert estimated.low < accuracies["balanced_accuracy"] < estimated.high


def test_the_mean_confidence_is_the_accuracy_on_the_pool(overlapping: tuple[Path, list[str]], tmp_path: Path) -> None:
    """With two such distributions, Bayes' rule would be right for 91 %, and the balanced rule for 77 %."""
    source, truth = overlapping
    for objective in ("balanced_accuracy", "accuracy"):
        run(source, tmp_path / objective, objective=objective, member="kernel")
        confidences = [float(line["confidence"]) for line in predictions_in(tmp_path / objective)]
        right = accuracy_score(truth, labels_in(tmp_path / objective))
        assert np.mean(confidences) == pytest.approx(right, abs=0.05)


# ---- scoring


def test_the_scores_of_a_run_are_those_of_its_cross_validation(finished_once: Path) -> None:
    scores = evaluate_portfolio_run(finished_once)
    choice = json.loads((finished_once / "choice.json").read_text())
    assert scores["balanced_accuracy"] == pytest.approx(choice["balanced_accuracy"]["value"])
    assert np.sum(scores["confusion"], 1).tolist() == [2 * count for count in LABELS]


def rewritten(source: Path, path: Path, change: Callable[[list[dict[str, str]]], list[dict[str, str]]]) -> Path:
    with source.open(newline="") as file:
        rows = change(list(csv.DictReader(file)))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_other_data_are_scored_on_all_labels_with_the_stored_encoding(
    finished_once: Path, source: Path, tmp_path: Path
) -> None:
    same = evaluate_portfolio_run(finished_once, root=source)
    assert np.sum(same["confusion"], 1).tolist() == [*LABELS]
    shuffled = rewritten(
        source,
        tmp_path / "shuffled.csv",
        lambda rows: [rows[i] for i in np.random.default_rng(0).permutation(len(rows))],
    )
    for other in (
        shuffled,
        rewritten(source, tmp_path / "turned.csv", lambda rows: [dict([*r.items()][::-1]) for r in rows]),
    ):
        again = evaluate_portfolio_run(finished_once, root=other)
        assert again["confusion"] == same["confusion"]

    def times_ten(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{**row, "x": str(10 * float(row["x"]))} for row in rows]

    larger = rewritten(source, tmp_path / "larger.csv", times_ten)
    scores = evaluate_portfolio_run(finished_once, root=larger)
    stored, model = read_model_input(finished_once), read_portfolio_model(finished_once)
    assert stored is not None
    assert stored["encoding"] is not None
    data = read_data(larger, label="kind")
    encoded = TableEncoder.from_dict(stored["encoding"]).transform(data.x)  # type: ignore[arg-type]
    predicted = model.predict(encoded[data.is_labeled]).labels
    assert scores["accuracy"] == pytest.approx(accuracy_score(data.y[data.is_labeled], predicted))
    assert scores["confusion"] != same["confusion"]


def test_other_data_that_do_not_fit_are_refused_and_not_called_a_damaged_model(
    finished_once: Path, source: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(source.read_text().replace("x,", "width,", 1))
    unlabeled = rewritten(source, tmp_path / "unlabeled.csv", lambda rows: [{**row, "kind": ""} for row in rows])
    unknown = rewritten(source, tmp_path / "unknown.csv", lambda rows: [{**row, "kind": "emu"} for row in rows])
    for other, message in ((renamed, "'x'"), (unlabeled, "nothing to score"), (unknown, "'emu'")):
        with pytest.raises(ValueError, match=message) as refused:
            evaluate_portfolio_run(finished_once, root=other)
        assert "damaged" not in str(refused.value)


def test_an_unfinished_run_and_damaged_files_are_refused_with_the_command_that_mends_them(finished: Path) -> None:
    remedy = re.escape(f"`mnar train --resume {finished}`")
    (finished / "calibration.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=rf"calibration\.npz is damaged \(.*\); write it again with {remedy}"):
        evaluate_portfolio_run(finished)
    (finished / "model.safetensors").write_bytes(b"no model")
    with pytest.raises(ValueError, match=f"the model in .* is damaged .*; write it again with {remedy}"):
        evaluate_portfolio_run(finished)
    (finished / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=f"is unfinished and has no model yet; finish it with {remedy}"):
        evaluate_portfolio_run(finished)
    resume_portfolio_run(finished, Watching())
    assert evaluate_portfolio_run(finished)["accuracy"] > 0.9


# ---- other commands


def test_a_search_for_runs_of_networks_leaves_out_the_portfolio_and_says_where_its_report_is(finished: Path) -> None:
    report = re.escape(str(finished / "report.html"))
    for folder in (finished, finished.parent):
        with pytest.raises(FileNotFoundError, match=f"is a run of the portfolio, whose report is {report}"):
            find_runs([folder])
    network = write_run(finished.parent / "network", num_evaluations=2)
    assert find_runs([finished.parent]) == [network]


def test_the_options_of_a_run_survive_their_file(source: Path, finished_once: Path) -> None:
    stored = read_portfolio_config(finished_once)
    assert asdict(stored) == {
        **asdict(config_of(source)),
        "source": str(source.resolve()),
        "fingerprint": read_own_data(config_of(source)).fingerprint,
    }
