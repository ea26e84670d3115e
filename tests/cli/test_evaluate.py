"""`mnar eval`."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score

from mnar.datasets.user_files import read_data
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.recipes import configure
from mnar.run import evaluate_run, load_data, new_run
from mnar.run.folder import RunFolder
from mnar.run.model_file import read_model_input, read_weights
from mnar.training.metrics import overall_metrics, per_class_metrics
from tests.support.command import Mnar
from tests.support.own_data_files import NAMES, TABLE_COUNTS, write_images, write_table


def table_of(output: str) -> list[list[str]]:
    """The cells of the printed table, headings first."""
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in output.splitlines() if line[:1] in "│┃"]


def test_eval_prints_every_metric_of_the_last_evaluation(mnar: Mnar, finished_run: Path) -> None:
    outcome = mnar("eval", finished_run)
    assert outcome.code == 0, outcome.errors
    scores = evaluate_run(finished_run)
    headings, *rows = table_of(outcome.output)
    columns = per_class_metrics()
    assert headings == ["class", *(f"{metric.title} %" for metric in columns)]
    for label, row in enumerate(rows):
        assert row == [str(label), *(f"{100 * scores[metric.name][label]:.2f}" for metric in columns)]
    assert len(rows) == 10
    overall = "   ".join(f"{metric.title} {scores[metric.name]:.2%}" for metric in overall_metrics())
    assert "balanced accuracy" in overall
    assert outcome.output.splitlines()[-1] == overall
    recorded = RunFolder(finished_run).evaluations()[-1]["test"]
    assert {name: scores[name] for name in recorded} == recorded


def test_eval_prints_a_dash_for_a_value_that_is_not_defined(
    mnar: Mnar, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {**evaluate_run(finished_run), "auroc": [None] * 10}
    monkeypatch.setattr("mnar.run.evaluate_run", lambda *arguments, **options: scores)
    headings, *rows = table_of(mnar("eval", finished_run).output)
    assert {row[headings.index("AUROC %")] for row in rows} == {"–"}


def test_eval_and_resume_accept_engine_options_and_refuse_others(mnar: Mnar, finished_run: Path) -> None:
    for command in (("eval", finished_run), ("train", "--resume", finished_run)):
        unknown = mnar(*command, "--set", "engine.device=abacus")
        assert unknown.code == 1
        assert "unknown engine.device 'abacus'" in unknown.errors
        other = mnar(*command, "--set", "guidance.alpha=2")
        assert other.code == 1
        assert "--set guidance.alpha=2 would change the run" in other.errors


def test_a_folder_whose_name_looks_like_markup_is_printed_unchanged(mnar: Mnar, finished_run: Path) -> None:
    folder = Path(shutil.copytree(finished_run, "[bold]run"))
    evaluated = mnar("eval", folder)
    assert evaluated.code == 0, evaluated.errors
    assert "[bold]run" in evaluated.output


def test_eval_of_a_model_that_overflows_prints_scores(
    mnar: Mnar, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, "softmax", lambda logits, dim: real(logits * torch.inf, dim))
    outcome = mnar("eval", finished_run)
    assert outcome.code == 0, outcome.errors
    assert "calibration error nan%" in outcome.output


# ---- runs on the user's own data


def train_own_data(source: Path, folder: Path, *settings: str) -> None:
    """A short run without a baseline."""
    options = [
        "engine.device=cpu",
        "train.batch_unlabeled=8",
        "train.batch_labeled=8",
        "train.eval_every=60",
        "train.lr=0.05",
    ]
    config = configure(
        dataset="own_data",
        data=str(source),
        protocol="as_labeled",
        learner="supervised",
        iterations=60,
        settings=[*options, *settings],
    )
    new_run(config, folder)


TABLE_SETTINGS = ("dataset.label=kind", "model.name=mlp", "model.hidden=[8]")


@pytest.fixture(scope="module")
def table_run_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with animals.csv and a run on it."""
    folder = tmp_path_factory.mktemp("table")
    train_own_data(write_table(folder / "animals.csv"), folder / "run", *TABLE_SETTINGS)
    return folder


@pytest.fixture
def table_run(table_run_once: Path, tmp_path: Path) -> Path:
    """The same in the working directory. The configuration names the file in the other folder."""
    shutil.copytree(table_run_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def rewrite(path: Path, change: Callable[[list[dict[str, str]]], list[dict[str, str]]]) -> Path:
    """Write animals.csv with changed rows to another file."""
    with Path("animals.csv").open() as file:
        rows = change(list(csv.DictReader(file)))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return path


def numbers_of(output: str, title: str) -> float:
    return float(re.findall(rf"\b{title} ([\d.]+)%", output)[0])


def test_other_data_are_read_with_the_stored_encoding_and_all_their_labels_are_scored(
    mnar: Mnar, table_run: Path
) -> None:
    other = rewrite(Path("other.csv"), lambda rows: [{**row, "weight": str(10 * float(row["weight"]))} for row in rows])
    outcome = mnar("eval", "run", "--data", other)
    assert outcome.code == 0, outcome.errors
    assert f"scored on all {sum(TABLE_COUNTS[0])} labelled samples of other.csv" in outcome.output

    model = read_model_input(table_run)
    assert model is not None
    assert model["encoding"] is not None
    data = read_data(other, label="kind")
    encoded = TableEncoder.from_dict(model["encoding"]).transform(data.x)  # type: ignore[arg-type]
    x = (torch.from_numpy(encoded) - torch.tensor(model["mean"])) / torch.tensor(model["std"])
    logits = forward_by_hand(read_weights(table_run), x)
    predicted, is_labeled = logits.argmax(1).numpy(), data.is_labeled
    right = predicted[is_labeled] == data.y[is_labeled]
    assert numbers_of(outcome.output, "accuracy") == pytest.approx(100 * right.mean(), abs=0.01)
    balanced = balanced_accuracy_score(data.y[is_labeled], predicted[is_labeled])
    assert numbers_of(outcome.output, "balanced accuracy") == pytest.approx(100 * balanced, abs=0.01)
    assert right.mean() < evaluate_run(table_run, root=rewrite(Path("same.csv"), lambda rows: rows[:-1]))["accuracy"]


def forward_by_hand(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A perceptron: each weight matrix is followed by its bias and, except the last one, by a ReLU."""
    names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    layers = [*sorted({*names} - {"head"}), "head"]
    for layer in layers:
        x = x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        x = x if layer == layers[-1] else x.relu()
    return x


def test_the_data_of_the_run_at_another_place_are_scored_on_the_held_out_labels(mnar: Mnar, table_run: Path) -> None:
    here = mnar("eval", "run")
    moved = mnar("eval", "run", "--data", Path("animals.csv").rename("moved.csv"))
    assert here.code == moved.code == 0, here.errors + moved.errors
    assert moved.output == here.output
    assert "scored on 21 held-out labels" in here.output


def test_a_sample_with_fewer_rows_and_classes_is_scored_and_absent_classes_have_a_dash(
    mnar: Mnar, table_run: Path
) -> None:
    sample = rewrite(Path("sample.csv"), lambda rows: [row for row in rows if row["kind"] in ("ant", "bee")][:30])
    outcome = mnar("eval", "run", "--data", sample)
    assert outcome.code == 0, outcome.errors
    headings, *rows = table_of(outcome.output)
    assert [row[0] for row in rows] == [*NAMES]
    of_cat = dict(zip(headings, rows[2], strict=True))
    assert {of_cat[f"{name} %"] for name in ("precision", "recall", "AUROC")} == {"–"}
    recalls = [float(row[headings.index("recall %")]) for row in rows[:2]]
    assert numbers_of(outcome.output, "balanced accuracy") == pytest.approx(np.mean(recalls), abs=0.02)


def test_other_data_that_do_not_fit_are_refused_with_what_differs(mnar: Mnar, table_run: Path) -> None:
    without_weight = rewrite(Path("no_weight.csv"), lambda rows: [{**row, "weight": ""} for row in rows])
    text = without_weight.read_text().replace("weight", "height", 1)
    without_weight.write_text(text)
    unlabeled = rewrite(Path("unlabeled.csv"), lambda rows: [{**row, "kind": ""} for row in rows])
    unknown = rewrite(Path("unknown.csv"), lambda rows: [{**row, "kind": "emu"} for row in rows])
    for path, message in (
        (without_weight, "'weight'"),
        (unlabeled, "no sample of unlabeled.csv has a label, so there is nothing to score"),
        (unknown, "'emu'"),
    ):
        outcome = mnar("eval", "run", "--data", path)
        assert outcome.code == 1
        assert message in outcome.errors
        assert "damaged" not in outcome.errors


def test_data_that_changed_since_training_are_refused_with_the_command_that_scores_all_of_them(
    mnar: Mnar, table_run_once: Path, tmp_path: Path
) -> None:
    write_table(tmp_path / "animals.csv")
    train_own_data(tmp_path / "animals.csv", tmp_path / "run", *TABLE_SETTINGS)
    rewrite(Path("shorter.csv"), lambda rows: rows[:100]).rename("animals.csv")
    refused = mnar("eval", "run")
    assert refused.code == 1
    assert "animals.csv has changed since the run in run was trained" in refused.errors
    (remedy,) = re.findall(r"--data (\S+)", refused.errors)
    scored = mnar("eval", "run", "--data", remedy)
    assert scored.code == 0, scored.errors


def test_options_for_reading_need_other_data_and_replace_those_of_the_run(
    mnar: Mnar, table_run: Path, finished_run: Path
) -> None:
    assert "name these with --data" in mnar("eval", "run", "--label", "kind").errors
    assert "your own data" in mnar("eval", finished_run, "--data", ".", "--label", "kind").errors
    renamed = Path("renamed.csv")
    renamed.write_text(Path("animals.csv").read_text().replace("kind", "species", 1))
    outcome = mnar("eval", "run", "--data", renamed, "--label", "species")
    assert outcome.code == 0, outcome.errors
    assert f"scored on all {sum(TABLE_COUNTS[0])} labelled samples" in outcome.output


def test_images_of_another_size_are_resized_to_the_images_of_the_run(mnar: Mnar, tmp_path: Path) -> None:
    from PIL import Image

    write_images(tmp_path / "animals")
    train_own_data(tmp_path / "animals", tmp_path / "run", "model.name=small_cnn", "model.width=4")
    shutil.copytree("animals", "larger", ignore=shutil.ignore_patterns(".mnar-cache"))
    for path in Path("larger").glob("*.png"):
        Image.open(path).resize((16, 16), Image.Resampling.NEAREST).save(path)
    (Path("larger") / "extra.png").write_bytes((Path("larger") / "000.png").read_bytes())
    outcome = mnar("eval", "run", "--data", "larger")
    assert outcome.code == 0, outcome.errors
    assert "scored on all 22 labelled samples of larger" in outcome.output


def test_a_benchmark_with_other_classes_or_shapes_is_not_called_a_damaged_model(mnar: Mnar, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def write(name: str, num_features: int, num_classes: int) -> Path:
        y = np.arange(60) % num_classes
        x = rng.normal(size=(60, num_features)) + y[:, None]
        path = tmp_path / name
        np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
        return path

    config = configure(
        dataset="npz",
        data=str(write("three.npz", 4, 3)),
        learner="supervised",
        iterations=2,
        settings=["model.name=mlp", "model.hidden=[4]", "protocol.gamma=1", "engine.device=cpu"],
    )
    new_run(config, tmp_path / "run", data=load_data(config))
    for path, message in (
        (write("two.npz", 4, 2), "the model knows 3 classes, and the data have 2, the data lack '2'"),
        (write("wide.npz", 5, 3), "the model takes 4 features (encoded columns), and the data have 5 features"),
    ):
        outcome = mnar("eval", "run", "--data", path)
        assert outcome.code == 1
        assert message in outcome.errors.replace("\n", " ")
        assert "damaged" not in outcome.errors
