import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnar.report import by_method, read_run
from tests.report.made_up import run_with, write_run


def test_a_half_written_last_line_is_ignored(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 720, "test": {"accur')
    assert [line["step"] for line in read_run(folder).lines] == [120, 240, 360, 480, 600]


def test_labels_selected_between_generations_are_drawn_as_pseudo_labels(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    selected = [line.pop("pseudo") for line in lines]
    for line, selection in zip(lines[1:], selected[1:], strict=True):
        line["selection"] = selection
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps, shares = read_run(folder).series("pseudo", "share")
    assert steps.tolist() == [line["step"] for line in lines[1:]]
    assert shares.tolist() == [selection["share"] for selection in selected[1:]]


def test_damage_before_the_last_line_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    first, *rest = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([first, "{half", *rest]))
    with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl"):
        read_run(folder)


@pytest.mark.parametrize("name", ["config.yaml", "split.json", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [None, ""])
def test_a_missing_or_empty_file_is_an_error_that_names_file_and_folder(
    tmp_path: Path, name: str, content: str | None
) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"{re.escape(name)}.*{re.escape(str(folder))}"):
        read_run(folder)


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_run(tmp_path / "nowhere")


ALIGNED = {"name": "distribution_alignment", "window": 32}


@pytest.mark.parametrize(
    ("learner", "guidance", "after", "label"),
    [
        ("fixmatch", "prg_last", None, "fixmatch + prg_last"),
        ("supervised", "none", None, "supervised"),
        ("fixmatch", "distribution_alignment", None, "fixmatch + distribution_alignment"),
        ("fixmatch", "prg", ALIGNED, "fixmatch + distribution_alignment + prg"),
        ("fixmatch", "prg", {"name": "none"}, "fixmatch + prg"),
        ("simmatch", "distribution_alignment", None, "simmatch"),
        ("simmatch", "prg", ALIGNED, "simmatch + prg"),
        ("simmatch", "prg_last", {"name": "prg", "after": ALIGNED}, "simmatch + prg + prg_last"),
        ("simmatch", "none", None, "simmatch without distribution_alignment"),
        ("simmatch", "prg", None, "simmatch without distribution_alignment + prg"),
        ("simmatch", "prg", {"name": "none"}, "simmatch without distribution_alignment + prg"),
        ("simmatch", "distribution_alignment", {"name": "prg"}, "simmatch + prg + distribution_alignment"),
    ],
)
def test_the_label_is_the_learner_and_what_differs_from_its_own_guidance(
    learner: str, guidance: str, after: dict[str, Any] | None, label: str
) -> None:
    assert run_with(learner, guidance, accuracy=[0.5], after=after).label == label


def test_a_series_has_the_steps_that_recorded_it_and_nan_for_null(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=2)
    lines = [
        {"step": 1, "test": {"accuracy": 0.1}},
        {"step": 2, "test": {"accuracy": 0.2}, "pseudo": {"error": [None, 0.25]}},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    steps, errors = read_run(folder).series("pseudo", "error")
    assert steps.tolist() == [2]
    np.testing.assert_array_equal(errors, [[np.nan, 0.25]])


def test_runs_that_differ_in_their_seed_alone_share_a_method() -> None:
    runs = [run_with("fixmatch", name, accuracy=[0.5], seed=seed) for seed in (1, 2) for name in ("none", "prg")]
    assert {name: [run.config["seed"] for run in group] for name, group in by_method(runs).items()} == {
        "fixmatch": [1, 2],
        "fixmatch + prg": [1, 2],
    }


def test_seeds_run_on_other_machines_share_a_method() -> None:
    here, there = (run_with("fixmatch", "prg", accuracy=[0.5], seed=seed) for seed in (1, 2))
    here.config["engine"] = {"device": "cpu", "compile": False}
    there.config["engine"] = {"device": "cuda", "compile": True}
    there.config["dataset"]["root"] = "/mnt/data"
    assert here.method == there.method
    assert by_method([here, there]) == {"fixmatch + prg": [here, there]}


def test_equal_labels_are_told_apart_by_the_settings_that_differ() -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=alpha) for alpha in (1.0, 3.0)]
    assert list(by_method(runs)) == ["fixmatch + prg (guidance.alpha=1.0)", "fixmatch + prg (guidance.alpha=3.0)"]


def test_chains_with_equal_labels_are_told_apart_by_the_options_within_them() -> None:
    runs = [run_with("simmatch", "prg", accuracy=[0.5], after={**ALIGNED, "window": window}) for window in (32, 64)]
    assert list(by_method(runs)) == [
        "simmatch + prg (guidance.after.window=32)",
        "simmatch + prg (guidance.after.window=64)",
    ]


def test_a_setting_that_is_null_equals_one_that_is_absent() -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], seed=1), run_with("fixmatch", "prg", accuracy=[0.5], seed=2)]
    runs[0].config["guidance"]["warmup"] = None
    assert len(by_method(runs)) == 1
