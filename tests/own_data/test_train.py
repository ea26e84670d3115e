"""Training on own data: a pool without known classes, the labels-only baseline, the verdict and the predictions."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from mnar.config import RunConfig
from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files import Table, read_data
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.own_data import network_predictor, train
from mnar.own_data.confidence import NetworkCalibration, estimated_pool_shares
from mnar.own_data.inspection import inspect_data
from mnar.own_data.train import Verdict, compare, configure_own_data, finish_own_data, inspect_files
from mnar.run import new_run, resume_run
from mnar.run.assemble import load_data, make_augment, make_model
from mnar.run.folder import RunFolder
from mnar.run.model_file import read_weights
from mnar.run.recorder import Display
from mnar.training.trainer import Interrupted
from mnar.types import DataSet
from tests.report.made_up import write_run
from tests.support.equality import assert_same_run
from tests.support.own_data_files import IMAGE_COUNTS, NAMES, TABLE_COUNTS, write_images, write_table
from tests.support.watching import Watching

pytestmark = pytest.mark.usefixtures("without_report")

QUICK = (
    "engine.device=cpu",
    "learner.threshold=0.4",
    "train.batch_labeled=8",
    "train.batch_unlabeled=8",
    "train.eval_every=4",
    "train.save_every=3",
)
QUICK_TABLE = (*QUICK, "model.hidden=[8]")
QUICK_IMAGES = (*QUICK, "model.name=small_cnn", "model.width=4")
CREST = ("guidance.name=crest", "guidance.generations=3")
HELD_OUT = [12, 9, 0]  # of the table's labels, a fifth where there are five or more


def config_of(source: Path, *settings: str, **chosen: Any) -> RunConfig:
    parts: dict[str, Any] = {"reading": {}, "learner": None, "guidance": None, "iterations": 12, "seed": None, **chosen}
    return configure_own_data(source, settings=settings, on_stage=lambda what, done, total: None, **parts)[0]


def table_config(source: Path, *settings: str) -> RunConfig:
    return config_of(source, *QUICK_TABLE, *settings, reading={"label": "kind"})


def image_config(source: Path, *settings: str) -> RunConfig:
    return config_of(source, *QUICK_IMAGES, *settings)


def finish_run(folder: Path, display: Display) -> Verdict | None:
    return finish_own_data(folder, display, load_data(RunFolder(folder).config()))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "animals.csv")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images whose class list has one class without a label, "emu"."""
    folder = write_images(tmp_path_factory.mktemp("images") / "animals")
    (folder / "classes.txt").write_text("\n".join([*NAMES, "emu"]))
    return folder


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory, table: Path) -> Path:
    """A run on the table with baseline and predictions. Tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "write_run_report", lambda folder, **options: None)
        new_run(table_config(table), folder)
        finish_run(folder, Watching())
    return folder


@pytest.fixture
def trained(finished_once: Path, tmp_path: Path) -> Path:
    """A copy of `finished_once` as it was before the baseline started."""
    folder = Path(shutil.copytree(finished_once, tmp_path / "run"))
    shutil.rmtree(folder / "supervised")
    for name in ("predictions.csv", "report.html"):
        (folder / name).unlink()
    return folder


# ---- configuration


def test_the_default_configuration_depends_on_the_kind_of_data_and_options_override_it(
    table: Path, images: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "features.npy", np.zeros((150, 3)))
    of_table = config_of(table, reading={"label": "kind"})
    assert (of_table.learner.name, of_table.guidance.full_name, of_table.model.name) == (
        "pseudo_label",
        "simpro",
        "mlp",
    )
    of_features = config_of(table, reading={"label": "kind", "features": tmp_path / "features.npy"})
    assert (of_features.learner.name, of_features.model.name) == ("pseudo_label", "mlp")
    of_images = config_of(images)
    assert (of_images.learner.name, of_images.guidance.full_name) == ("fixmatch", "prg_last")
    assert of_images.train.batch_unlabeled == sum(IMAGE_COUNTS[1]), "the batch is not larger than the pool"
    for config in (of_table, of_features, of_images):
        assert (config.dataset.name, config.protocol.name, config.train.iterations) == ("own_data", "as_labeled", 12)
        assert RunConfig.from_yaml(config.to_yaml()) == config

    chosen = config_of(table, "train.lr=0.5", reading={"label": "kind"}, learner="supervised", iterations=30, seed=7)
    assert (chosen.learner.name, chosen.guidance.full_name, chosen.seed) == ("supervised", "none", 7)
    assert (chosen.train.iterations, chosen.train.lr) == (30, 0.5)
    assert config_of(images, guidance="none").guidance.full_name == "none"


@pytest.mark.parametrize(
    ("pool", "expected"),
    [((40, 30, 2), "prg_last"), ((20, 20, 30), "cadr"), ((5, 5, 32), "simpro")],
    ids=["like the labels", "more cats", "nearly all cats"],
)
def test_the_guidance_of_a_table_is_the_one_that_the_inspection_recommends(
    tmp_path: Path, pool: tuple[int, ...], expected: str
) -> None:
    source = write_table(tmp_path / "animals.csv", (TABLE_COUNTS[0], pool))
    recommended = inspect_data(read_data(source, label="kind")).recommendation
    assert recommended is not None
    assert recommended.guidance == expected
    reading = {"label": "kind"}
    assert config_of(source, reading=reading).guidance.full_name == expected
    assert config_of(source, reading=reading, learner="pseudo_label").guidance.full_name == "none"
    assert config_of(source, reading=reading, guidance="darp").guidance.full_name == "darp"
    assert config_of(source, "guidance.name=darp", reading=reading).guidance.full_name == "darp"


def test_the_learning_rate_comes_from_a_range_test_unless_the_user_names_it(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suggest(config: RunConfig, data: DataSet) -> RunConfig:
        return replace(config, train=replace(config.train, lr=0.0123))

    monkeypatch.setattr(train, "with_suggested_rate", suggest)
    assert config_of(table, reading={"label": "kind"}).train.lr == 0.0123
    assert config_of(table, "train.lr=0.5", reading={"label": "kind"}).train.lr == 0.5


def test_the_option_iterations_overrides_the_default_number_of_steps_of_the_learner(table: Path) -> None:
    assert config_of(table, reading={"label": "kind"}, learner="vime", iterations=30).train.iterations == 30


def test_zero_iterations_are_refused(table: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.iterations is 0; expected a whole number from 1"):
        config_of(table, reading={"label": "kind"}, iterations=0)


def test_source_and_features_are_found_again_from_any_folder(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(150, 3)))
    monkeypatch.chdir(table.parent)
    shutil.copy(tmp_path / "features.npy", "features.npy")
    reading = {"label": "kind", "ignore": ("length",), "unlabeled": ("cat",), "features": Path("features.npy")}
    config = config_of(Path(table.name), reading=reading)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "features.npy").unlink()
    data = load_data(RunConfig.from_yaml(config.to_yaml()))
    assert data.train_x.shape == (150, 3)
    assert data.class_names == ("ant", "bee")


def test_the_data_handed_on_are_those_that_the_configuration_names(table: Path) -> None:
    for settings in (("dataset.ignore=[length]", "dataset.unlabeled=[cat]"), ("dataset.held_out=0.5",)):
        config, data = configure_own_data(
            table,
            reading={"label": "kind"},
            learner=None,
            guidance=None,
            iterations=None,
            seed=None,
            settings=settings,
            on_stage=lambda what, done, total: None,
        )
        again = load_data(RunConfig.from_yaml(config.to_yaml()))
        assert (data.fingerprint, data.class_names, data.notes) == (again.fingerprint, again.class_names, again.notes)
        assert torch.equal(data.train_y, again.train_y)


# ---- a pool whose true classes are unknown


@pytest.mark.parametrize("settings", [(), CREST])
@pytest.mark.parametrize("kind", ["table", "images"])
def test_an_interrupted_and_resumed_run_on_own_data_equals_an_uninterrupted_run(
    table: Path, images: Path, tmp_path: Path, kind: str, settings: tuple[str, ...]
) -> None:
    config = table_config(table, *settings) if kind == "table" else image_config(images, *settings)
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        new_run(config, tmp_path / "stopped", Watching(signal_at=4))
    assert not (tmp_path / "stopped/model.safetensors").exists()
    resume_run(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")

    lines = RunFolder(tmp_path / "straight").evaluations()
    assert [line["step"] for line in lines] == [4, 8, 12]
    for line in lines:
        assert math.isfinite(line["train"]["loss"])
        assert line["pseudo"]["accepted"] > 0
        assert sum(line["pseudo"]["share"]) == pytest.approx(1)
    selections = [line["selection"] for line in lines if "selection" in line]
    assert len(selections) == (2 if settings == CREST else 0)
    for scores in selections:
        assert sum(scores["share"]) == pytest.approx(1)
        assert scores["error"] == [None] * len(scores["share"]), "the true classes are unknown"


@pytest.mark.parametrize("include_labeled", ["true", "false"])
def test_the_error_of_pseudo_labels_is_unknown_also_if_the_pool_includes_the_labelled_samples(
    images: Path, tmp_path: Path, include_labeled: str
) -> None:
    settings = ("learner.threshold=0", f"split.include_labeled={include_labeled}")
    new_run(image_config(images, *settings), tmp_path / "run")
    for line in RunFolder(tmp_path / "run").evaluations():
        assert sum(line["pseudo"]["share"]) == pytest.approx(1)
        assert line["pseudo"]["accepted"] == 4 * 8
        assert line["pseudo"]["error"] == line["pseudo"]["precision"] == [None] * 4
    assert np.shape(RunFolder(tmp_path / "run").evaluations()[-1]["matrices"]["pseudo_confusion"]) == (4, 5)


def test_the_split_file_counts_labelled_held_out_and_unknown_samples(finished_once: Path, table: Path) -> None:
    split = json.loads((finished_once / "split.json").read_text())
    left = [count - held_out for count, held_out in zip(TABLE_COUNTS[0], HELD_OUT, strict=True)]
    assert (split["class_names"], split["labeled"], split["test"]) == ([*NAMES], left, HELD_OUT)
    assert (split["unlabeled"], split["unknown"]) == (left, sum(TABLE_COUNTS[1]))
    assert split["data_hash"] == as_data_set(read_data(table, label="kind")).fingerprint


def test_the_model_file_of_a_table_says_how_new_rows_become_features(finished_once: Path, table: Path) -> None:
    data = read_data(table, label="kind")
    assert isinstance(data.x, Table)
    with safe_open(finished_once / "model.safetensors", "pt") as file:
        needs = json.loads(file.metadata()["mnar"])
    assert TableEncoder.from_dict(needs["encoding"]) == TableEncoder.fit(data.x)
    assert needs["class_names"] == [*NAMES]


def one_label_less(line: str) -> str:
    return line.replace("ant", "")


def another_number(line: str) -> str:
    return "0.125," + line.partition(",")[2]


@pytest.mark.parametrize("change", [one_label_less, another_number])
def test_resuming_with_changed_data_is_refused_and_changes_no_file(
    tmp_path: Path, change: Callable[[str], str]
) -> None:
    source, folder = write_table(tmp_path / "animals.csv"), tmp_path / "run"
    with pytest.raises(Interrupted):
        new_run(table_config(source), folder, Watching(signal_at=8))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    whole = source.read_text()
    line = next(line for line in whole.splitlines() if line.endswith(",ant"))
    source.write_text(whole.replace(line, change(line), 1))
    with pytest.raises(
        ValueError, match=f"differ from the data that the run in {folder} started with .* start a new run"
    ):
        resume_run(folder)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {**after, ".lock": b""} == {**before, ".lock": b""}
    source.write_text(whole)
    resume_run(folder)
    assert (folder / "model.safetensors").exists()


def one_sample_more(source: Path) -> None:
    source.write_text(source.read_text() + "0.5,0.5,red,\n")


def one_level_more(source: Path) -> None:
    source.write_text(source.read_text().replace("red,\n", "green,\n"))


def another_class_name(source: Path) -> None:
    source.write_text(source.read_text().replace("cat", "dog"))


@pytest.mark.parametrize("change", [one_sample_more, one_level_more])
def test_resuming_with_data_of_another_size_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    assert_resuming_is_refused_after(change, tmp_path)


def test_resuming_with_other_class_names_is_refused(tmp_path: Path) -> None:
    assert_resuming_is_refused_after(another_class_name, tmp_path)


def assert_resuming_is_refused_after(change: Callable[[Path], None], folder: Path) -> None:
    source = write_table(folder / "animals.csv")
    with pytest.raises(Interrupted):
        new_run(table_config(source, "guidance.name=prg_last"), folder / "run", Watching(signal_at=8))
    change(source)
    with pytest.raises(ValueError, match=r"differ from the data that the run in .* started with"):
        resume_run(folder / "run")


def test_the_target_oracle_is_refused_if_the_true_classes_are_unknown(table: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="oracle"):
        new_run(table_config(table, "guidance.name=darp", "guidance.target=oracle"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- after the run


def test_the_baseline_has_the_same_split_and_differs_only_in_learner_and_guidance(finished_once: Path) -> None:
    baseline = finished_once / "supervised"
    assert (baseline / "split.json").read_bytes() == (finished_once / "split.json").read_bytes()
    with_pool, alone = RunFolder(finished_once).config(), RunFolder(baseline).config()
    assert (alone.learner.name, alone.guidance.full_name) == ("supervised", "none")
    assert {text.split(".")[0] for text in with_pool.differences(alone)} == {"learner", "guidance"}


def test_the_baseline_of_a_run_with_a_first_stage_has_none_because_that_stage_sees_the_pool(
    images: Path, tmp_path: Path
) -> None:
    settings = ("train.pretraining=4", "train.lr=0.01")
    new_run(image_config(images, *settings), tmp_path / "run")
    finish_run(tmp_path / "run", Display())
    baseline = tmp_path / "run" / "supervised"
    assert (tmp_path / "run" / "pretraining").exists()
    assert RunFolder(baseline).config().train.pretraining == 0
    assert not (baseline / "pretraining").exists()


def test_finish_interrupted_in_the_baseline_continues_there_and_gives_the_same_result(
    trained: Path, finished_once: Path
) -> None:
    run = {path.name: path.read_bytes() for path in trained.iterdir()}
    with pytest.raises(Interrupted):
        finish_run(trained, Watching(signal_at=8))
    assert not (trained / "predictions.csv").exists()
    second = Watching()
    verdict = finish_run(trained, second)
    assert second.began_at == 9
    assert verdict is not None
    assert_same_run(trained / "supervised", finished_once / "supervised")
    assert verdict[:4] == compare(finished_once, finished_once / "supervised")[:4]
    assert (trained / "predictions.csv").read_bytes() == (finished_once / "predictions.csv").read_bytes()
    assert {name: (trained / name).read_bytes() for name in run} == run, "the run itself stays as it was"


def test_the_resume_command_after_an_interrupted_baseline_names_the_folder_of_the_main_run(trained: Path) -> None:
    with pytest.raises(Interrupted, match=rf"mnar train --resume {trained}$"):
        finish_run(trained, Watching(signal_at=8))


def test_a_second_finish_trains_nothing_and_writes_the_same_predictions(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finish_run(trained, Watching())
    predictions = (trained / "predictions.csv").read_bytes()
    (trained / "predictions.csv").unlink()
    for name in ("new_run", "resume_run"):
        monkeypatch.setattr(train, name, None)  # calling it would fail
    assert finish_run(trained, Watching()) == first
    assert (trained / "predictions.csv").read_bytes() == predictions


@pytest.mark.parametrize("kind", ["table", "images"])
def test_predictions_have_one_line_per_unlabelled_sample_with_class_and_confidence_of_the_model(
    finished_once: Path, table: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(network_predictor, "BATCH_ON_CPU", 5)  # several batches
    if kind == "table":
        folder, data = Path(shutil.copytree(finished_once, tmp_path / "run")), read_data(table, label="kind")
    else:
        folder, data = tmp_path / "run", read_data(images)
        new_run(image_config(images), folder)
    train.write_predictions(folder, load_data(RunFolder(folder).config()))

    config = RunFolder(folder).config()
    samples = load_data(config)
    model = make_model(config, samples).eval()
    model.load_state_dict(read_weights(folder))
    with torch.no_grad():
        probs = model(make_augment(config, samples)(samples.train_x, "id")).softmax(1)
    expected = [
        (data.row_names[row], data.class_names[int(probs[row].argmax())])
        for row in np.flatnonzero(~data.is_labeled).tolist()
    ]
    with (folder / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["sample"], line["label"]) for line in lines] == expected
    assert len(lines) == sum((TABLE_COUNTS if kind == "table" else IMAGE_COUNTS)[1])
    assert [int(line["row"]) for line in lines] == (np.flatnonzero(~data.is_labeled) + 1).tolist()
    in_pool = probs[torch.from_numpy(~data.is_labeled)].double()
    predicted = in_pool.argmax(1)
    if kind == "table":  # the confidences are calibrated on the held-out labels; images are too few to hold some out
        with torch.no_grad():
            held_out = model(make_augment(config, samples)(samples.test_x, "id")).softmax(1).double()
        y = samples.test_y.numpy()
        shares = estimated_pool_shares(held_out.numpy(), y, in_pool.numpy())
        calibration = NetworkCalibration.fit(held_out.numpy(), y)
        assert shares is not None
        assert calibration is not None
        in_pool = torch.from_numpy(calibration(in_pool.numpy(), shares.for_bayes_rule()))
    confidences = in_pool[torch.arange(len(lines)), predicted].tolist()
    assert [float(line["confidence"]) for line in lines] == pytest.approx(confidences, abs=1e-3)


def test_predicting_with_a_damaged_model_file_is_refused_with_the_resume_command(trained: Path) -> None:
    (trained / "model.safetensors").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"the model in .* is damaged.*; write it again with `mnar train --resume"):
        train.write_predictions(trained, load_data(RunFolder(trained).config()))


# ---- verdict


def made_up_run(folder: Path, recall: list[float], split: dict[str, Any]) -> Path:
    """Write a run folder whose last evaluation has these recalls; the evaluation before it has others."""
    write_run(folder, class_names=("ant", "bee", "cat"), num_evaluations=2)
    lines = RunFolder(folder).evaluations()
    lines[-1]["test"]["recall"] = recall
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = json.loads((folder / "split.json").read_text()) | {"test_is_trained_on": False} | split
    (folder / "split.json").write_text(json.dumps(counts))
    return folder


TEST = {"labeled": [80, 40, 5], "test": [100, 50, 0]}


@pytest.mark.parametrize(
    ("recall", "split", "says"),
    [
        # 3.1, -2.9, 1.7 and -1.7 standard errors
        (
            [0.85, 0.7, 0.0],
            TEST,
            r"77\.5% with .*, 60\.0% with the labels alone \(150 held-out labels\): the unlabelled samples helped$",
        ),
        (
            [0.5, 0.35, 0.0],
            TEST,
            r"42\.5% with .* \(150 held-out labels\): the unlabelled samples made the model worse; use the model in ",
        ),
        ([0.8, 0.6, 0.0], TEST, r"70\.0% with .*: 150 held-out labels are too few to show whether .* helped"),
        ([0.6, 0.4, 0.0], TEST, r"50\.0% with .*: 150 held-out labels are too few to show whether .* helped"),
        (
            [0.9, 0.8, 1.0],
            {"labeled": [10, 8, 2], "test": [10, 8, 2], "test_is_trained_on": True},
            r"90\.0% with .*60\.0% with the labels alone, measured on the training labels: there are too few labels",
        ),
    ],
)
def test_the_verdict_is_help_or_harm_if_the_difference_exceeds_two_standard_errors(
    tmp_path: Path, recall: list[float], split: dict[str, Any], says: str
) -> None:
    alone = [0.7, 0.5, 0.6]  # the recall of cats counts only if some cats are scored
    run, baseline = made_up_run(tmp_path / "run", recall, split), made_up_run(tmp_path / "alone", alone, split)
    verdict = compare(run, baseline)
    assert re.search(says, verdict.text), verdict.text
    assert (str(baseline) in verdict.text) == ("worse" in says)
    classes = [c for c in range(3) if split["test"][c]]
    assert verdict.with_pool == pytest.approx(sum(recall[c] for c in classes) / len(classes))
    assert verdict.labels_alone == pytest.approx(sum(alone[c] for c in classes) / len(classes))
    # A recall is a share of n labels, so its variance is p (1 - p) / n, with p by Laplace's rule. The variance of the
    # mean over k classes is the sum of these variances, divided by k².
    variance = 0.0
    for c in classes:
        n = split["test"][c]
        for r in (recall, alone):
            p = (r[c] * n + 1) / (n + 2)
            variance += p * (1 - p) / n / len(classes) ** 2
    assert verdict.error == pytest.approx(math.sqrt(variance))
    assert verdict.num_scored == sum(split["test"])
    assert verdict.predictions == run / "predictions.csv"


def test_with_half_of_the_labels_held_out_a_large_gain_is_reported_as_help(tmp_path: Path) -> None:
    half = {"labeled": [50, 50, 50], "test": [50, 50, 50]}  # --set dataset.held_out=0.5
    verdict = compare(*(made_up_run(tmp_path / str(recall), [recall] * 3, half) for recall in (0.9, 0.5)))
    assert verdict.text.endswith("(150 held-out labels): the unlabelled samples helped")


def test_one_more_correct_label_is_not_reported_as_help(tmp_path: Path) -> None:
    split = {"labeled": [80, 80, 5], "test": [20, 20, 1]}
    verdict = compare(*(made_up_run(tmp_path / str(cats), [1.0, 1.0, cats], split) for cats in (1.0, 0.0)))
    assert not verdict.text.endswith("samples helped")


# ---- inspection


def test_an_inspection_is_written_as_json_and_reports_the_progress_of_both_stages(images: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.random.default_rng(0).normal(size=(36, 2)))
    shown: list[tuple[str, int, int]] = []
    inspection = inspect_files(
        images,
        tmp_path / "new/inspect.json",
        reading={"features": tmp_path / "features.npy"},
        seed=0,
        on_stage=lambda *step: shown.append(step),
    )
    assert json.loads((tmp_path / "new/inspect.json").read_text()) == json.loads(json.dumps(inspection.to_json()))
    assert (inspection.kind, inspection.num_labeled, inspection.num_unlabeled) == ("features", 22, 14)
    assert inspection.never_labeled == ("emu",)
    assert {what for what, _, _ in shown} == {"reading", "estimating"}
    assert all(0 <= done <= total for _, done, total in shown)
