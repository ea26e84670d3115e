"""`mnar predict`, `mnar relabel` and `mnar next`: their files, their output, and wrong options."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mnar.trained.result_file import ResultFile
from tests.support.command import Mnar
from tests.support.own_data_files import write_table


def lines_of(path: str) -> list[list[str]]:
    with Path(path).open(newline="") as file:
        return list(csv.reader(file))


def test_predict_writes_a_file_and_says_for_which_class_mix(mnar: Mnar, table_run: Path, table_file: Path) -> None:
    outcome = mnar("predict", table_run, table_file, "--out", "new/p.csv", "--top", "3", "--probabilities")
    assert outcome.code == 0
    header, *rows = lines_of("new/p.csv")
    assert header[:4] == ["row", "sample", "label", "confidence"]
    assert header[-3:] == ["p(ant)", "p(bee)", "p(cat)"]
    assert len(rows) == 150
    assert "estimated class mix of the pool" in outcome.output
    assert "150 predictions: new/p.csv" in outcome.output


def test_predict_with_another_class_mix_shifts_the_predictions(mnar: Mnar, table_run: Path, table_file: Path) -> None:
    Path("mix.csv").write_text("class,share\nbee,1\n")
    assert mnar("predict", table_run, table_file, "--out", "p.csv", "--prior", "mix.csv").code == 0
    assert {row[2] for row in lines_of("p.csv")[1:]} == {"bee"}


def test_an_existing_output_is_refused_before_the_work(mnar: Mnar, table_run: Path, table_file: Path) -> None:
    Path("p.csv").write_text("precious")
    outcome = mnar("predict", table_run, table_file, "--out", "p.csv")
    assert outcome.code == 1
    assert "p.csv exists" in outcome.errors
    assert "--overwrite" in outcome.errors
    assert mnar("relabel", table_run, "--out", "p.csv").code == 1
    assert mnar("next", table_run, "--out", "p.csv", "--budget", "3").code == 1
    assert Path("p.csv").read_text() == "precious"
    assert mnar("predict", table_run, table_file, "--out", "p.csv", "--overwrite").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prior", "unifrom"), "neither uniform, labels or pool nor a file"),
        (("--top", "9"), "--top is 9"),
        (("--id", "nokey"), "nokey"),
        (("--device", "abacus"), "unknown engine.device"),
    ],
)
def test_wrong_options_are_refused(
    mnar: Mnar, table_run: Path, finished_run: Path, table_file: Path, arguments: tuple[str, ...], message: str
) -> None:
    run = finished_run if "--device" in arguments else table_run
    outcome = mnar("predict", run, table_file, "--out", "p.csv", *arguments)
    assert outcome.code == 1
    assert message in outcome.errors
    assert not Path("p.csv").exists()


def test_relabel_prints_the_decisions_of_each_class(mnar: Mnar, table_run: Path) -> None:
    outcome = mnar("relabel", table_run, "--out", "labels.csv", "--precision", "0.8")
    assert outcome.code == 0
    header, *rows = lines_of("labels.csv")
    assert header == ["row", "sample", "label", "confidence", "second", "margin", "decision"]
    assert len(rows) == 42
    assert "expected precision" in outcome.output
    assert "42 labels: labels.csv" in outcome.output


def test_relabel_refuses_options_that_do_not_go_together(mnar: Mnar, table_run: Path, table_file: Path) -> None:
    assert "leave one of them out" in mnar("relabel", table_run, "--pool", table_file, "--data", table_file).errors
    assert "name it with --pool" in mnar("relabel", table_run, "--id", "key").errors
    assert "precision is 1.0" in mnar("relabel", table_run, "--precision", "1").errors


def test_next_writes_a_table_for_annotators(mnar: Mnar, table_run: Path) -> None:
    outcome = mnar("next", table_run, "--budget", "10", "--out", "to_label.csv")
    assert outcome.code == 0
    header, *rows = lines_of("to_label.csv")
    assert header == ["row", "sample", "label", "suggestion", "confidence", "reason"]
    assert len({row[0] for row in rows}) == len(rows) == 10
    assert all(row[2] == "" and row[3] in ("ant", "bee", "cat") and row[5] for row in rows)
    assert "10 samples to label, of 42 without a label: to_label.csv" in outcome.output


def test_next_writes_tasks_for_label_studio(mnar: Mnar, table_run: Path, photos_run: Path) -> None:
    assert mnar("next", table_run, "--budget", "5", "--format", "label-studio", "--out", "tasks.json").code == 0
    tasks = json.loads(Path("tasks.json").read_text())
    assert len(tasks) == 5
    assert "weight" in tasks[0]["data"]["text"]
    (prediction,) = tasks[0]["predictions"]
    assert prediction["result"][0]["type"] == "choices"
    choices = [choice.get("value") for choice in ElementTree.parse("tasks.xml").iter("Choice")]
    assert choices == ["ant", "bee", "cat"]
    prefix = ("--image-prefix", "/data/local-files/?d=photos/")
    assert mnar("next", photos_run, "--budget", "2", "--format", "label-studio", "--out", "p.json", *prefix).code == 0
    image = json.loads(Path("p.json").read_text())[0]["data"]["image"]
    assert image.startswith("/data/local-files/?d=photos/")
    assert image.endswith(".png")


def test_next_refuses_a_budget_that_the_pool_does_not_have(mnar: Mnar, table_run: Path) -> None:
    outcome = mnar("next", table_run, "--budget", "43")
    assert outcome.code == 1
    assert "42 samples without a label; choose a --budget from 1 to 42" in outcome.errors
    assert "from 1 to 42" in mnar("next", table_run, "--budget", "0").errors
    assert mnar("next", table_run).code == 0, "the default budget of 100 becomes the whole pool"
    assert "unknown --format 'xml'" in mnar("next", table_run, "--format", "xml").errors


def test_names_with_control_codes_and_formulas_are_harmless(mnar: Mnar, tmp_path: Path) -> None:
    names = {"ant": "=1+1", "bee": "\x1b[31mred", "cat": "<script>"}
    text = write_table(tmp_path / "plain.csv").read_text()
    for plain, odd in names.items():
        text = text.replace(f",{plain}\n", f",{odd}\n")
    (tmp_path / "odd.csv").write_text(text)
    assert mnar("train", "odd.csv", "--label", "kind", "--fast", "--out", "run").code == 0
    for arguments in (("predict", "run", "odd.csv"), ("relabel", "run"), ("next", "run", "--budget", "42")):
        outcome = mnar(*arguments, "--out", f"{arguments[0]}.csv")
        assert outcome.code == 0
        assert "\x1b" not in outcome.output + outcome.errors
        assert "<script>" in outcome.output
        cells = [cell for row in lines_of(f"{arguments[0]}.csv") for cell in row]
        assert "'=1+1" in cells
        assert not any(cell.startswith("=") for cell in cells)


def test_no_command_replaces_what_it_reads(mnar: Mnar, table_run: Path, table_file: Path, tmp_path: Path) -> None:
    data, run = Path(shutil.copy(table_file, tmp_path)), Path(shutil.copytree(table_run, tmp_path / "run"))
    (run / "portfolio.yaml").write_text((run / "portfolio.yaml").read_text().replace(str(table_file), str(data)))
    Path("mix.csv").write_text("class,share\nbee,1\n")
    shutil.copy(data, "other.csv")
    inputs = {path: path.read_bytes() for path in (data, Path("mix.csv"), *run.glob("*.*")) if path.is_file()}
    for out in inputs:
        if out.name == "predictions.csv":
            continue
        for arguments in (
            ("predict", run, data, "--prior", "mix.csv"),
            ("predict", run, "other.csv", "--prior", "mix.csv"),  # the training data are not replaced either
            ("relabel", run, "--prior", "mix.csv"),
            ("relabel", run, "--pool", data, "--prior", "mix.csv"),
            ("next", run, "--budget", "3"),
        ):
            if out.name == "mix.csv" and arguments[0] == "next":
                continue
            outcome = mnar(*arguments, "--out", out, "--overwrite")
            assert outcome.code == 1, (arguments, out)
            assert "which is not replaced" in outcome.errors
    assert inputs == {path: path.read_bytes() for path in inputs}


def test_links_and_devices_are_not_replaced(mnar: Mnar, table_run: Path, table_file: Path) -> None:
    Path("target.csv").write_text("precious")
    Path("link.csv").symlink_to("target.csv")
    os.mkfifo("pipe.csv")
    for out in ("link.csv", "pipe.csv"):
        outcome = mnar("predict", table_run, table_file, "--out", out, "--overwrite")
        assert outcome.code == 1
        assert "choose another --out" in outcome.errors
    assert Path("target.csv").read_text() == "precious"


def test_a_renamed_label_column_and_new_labels_are_noticed(mnar: Mnar, table_run: Path, table_file: Path) -> None:
    text = table_file.read_text()
    Path("renamed.csv").write_text(text.replace("kind", "species", 1))
    for command in ("relabel", "next"):
        assert "no sample of renamed.csv has a label" in mnar(command, table_run, "--data", "renamed.csv").errors
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if line.endswith(","))
    lines[first] += "ant"
    Path("more.csv").write_text("\n".join(lines) + "\n")
    for command in ("relabel", "next"):
        outcome = mnar(command, table_run, "--data", "more.csv", "--out", f"{command}.csv")
        assert "more.csv has 109 labels now, and had 108 when the model was trained" in outcome.output


def test_a_signal_stops_after_a_block_and_says_how_to_go_on(
    mnar: Mnar, digits_run: Path, digits_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnar.datasets.user_files.sample_blocks.arrays.ROWS_PER_BLOCK", 600)
    record = ResultFile.record

    def record_and_signal(result: ResultFile) -> None:
        record(result)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "record", record_and_signal)
        outcome = mnar("predict", digits_run, digits_file, "--out", "p.csv")
    assert outcome.code == 130
    assert "stopped after 600 rows, which are saved; repeat the command" in outcome.errors
    assert not Path("p.csv").exists()
    assert mnar("predict", digits_run, digits_file, "--out", "p.csv").code == 0
    assert len(lines_of("p.csv")) == 1 + 1797
