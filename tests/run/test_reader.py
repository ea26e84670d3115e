import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mnar.run.reader import find_runs, read_run, read_runs
from tests.report.made_up import ALIGNED, run_with, write_run


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


def test_an_environment_without_a_commit_is_one_of_an_unknown_commit(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    environment = json.loads((folder / "environment.json").read_text())
    del environment["commit"]
    (folder / "environment.json").write_text(json.dumps(environment))
    assert read_run(folder).environment["commit"] is None


def test_damage_before_the_last_line_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    first, *rest = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([first, "{half", *rest]))
    with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl"):
        read_run(folder)


@pytest.mark.parametrize("text", ["learner: {", "learner: !!timestamp x"])
def test_a_configuration_that_is_not_yaml_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    (folder / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml is damaged: not YAML \(.*\); restore it"):
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
    with pytest.raises(ValueError, match=re.escape(name)) as error:
        read_run(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("name", "entry", "value", "said"),
    [
        ("environment.json", None, [], "its content is '[]'"),
        ("environment.json", "sessions", None, "sessions is missing"),
        ("environment.json", "sessions", 3, "sessions is '3'"),
        ("environment.json", "sessions", [{"seconds": 3}], "an item of sessions.images_per_second is missing"),
        ("environment.json", "device", None, "device is missing"),
        ("environment.json", "commit", 7, "commit is '7'"),
        ("split.json", None, None, "its content is missing"),
        ("split.json", "class_names", None, "class_names is missing"),
        ("split.json", "labeled", ["many"] * 10, "an item of labeled is 'many'"),
        ("split.json", "test", [36], "test has 1 counts for 10 classes"),
        ("config.yaml", None, "fixmatch", "its content is 'fixmatch'"),
        ("config.yaml", "protocol", None, "protocol is missing"),
        ("config.yaml", "learner", "fixmatch", "learner is 'fixmatch'"),
        ("config.yaml", "learner", {"threshold": 0.95}, "learner.name is missing"),
        ("config.yaml", "guidance", {"name": "prg", "preceded_by": "none"}, "guidance.preceded_by is 'none'"),
        (
            "config.yaml",
            "guidance",
            {"name": "prg", "preceded_by": {"window": 32}},
            "guidance.preceded_by.name is missing",
        ),
        ("config.yaml", "train", {"iterations": "all"}, "train.iterations is 'all'"),
        ("config.yaml", "train", {"iterations": 9, "eval_every": 0}, "train.eval_every is 0"),
        ("config.yaml", "train", {"iterations": -1, "eval_every": 1}, "train.iterations is -1"),
        ("config.yaml", "seed", "one", "seed is 'one'"),
    ],
)
def test_an_entry_that_is_missing_or_of_another_kind_is_an_error_that_names_file_entry_and_remedy(
    tmp_path: Path, name: str, entry: str | None, value: Any, said: str
) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    content = yaml.safe_load((folder / name).read_text())
    (folder / name).write_text(json.dumps(value if entry is None else content | {entry: value}))  # JSON is YAML, too
    with pytest.raises(ValueError, match=f"{re.escape(str(folder / name))} is damaged: {re.escape(said)}; restore it"):
        read_run(folder)


def with_section(section: str, **entries: Any) -> str:
    line: dict[str, Any] = {"step": 3, "test": {"accuracy": 0.5, "geometric_mean": 0.5}}
    if section == "pseudo":
        line[section] = dict.fromkeys(("share", "error", "precision"), [0.5] * 10)
    line[section] = {**line.get(section, {}), **entries}
    return json.dumps(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("3", "its content is '3'"),
        ("null", "its content is missing"),
        ('{"test": {"accuracy": 0.5, "geometric_mean": 0.5}}', "step is missing"),
        ('{"step": 3}', "test is missing"),
        ('{"step": 3, "test": {"accuracy": 0.5}}', "test.geometric_mean is missing"),
        (
            '{"step": 3, "test": {"accuracy": 0.5, "geometric_mean": 0.5, "recall": [0.5, "x"]}}',
            "test.recall has entries that are not finite numbers",
        ),
        (with_section("test", accuracy=float("inf")), "test.accuracy is inf"),
        (with_section("test", calibration_error=-math.inf), "test.calibration_error has entries that are not finite"),
        (with_section("test", recall=[0.5] * 9), "test.recall has 9 entries for 10 classes"),
        (with_section("test", recall=[0.5] * 10, precision=[0.5] * 10), "test.predicted_share is missing"),
        (
            with_section("test", recall=[0.5] * 9 + [None], precision=[0.5] * 10, predicted_share=[0.1] * 10),
            "test.recall has an entry without a number",
        ),
        (with_section("train", loss=[[]]), "train.loss is not a number"),
        (with_section("test", calibration_error=[[]]), "test.calibration_error is not a list"),
        (with_section("train", loss=10**400), "train.loss has entries that are not finite numbers"),
        (with_section("pseudo", share=[0.1] * 9), "pseudo.share has 9 entries for 10 classes"),
        (with_section("pseudo", error=["1"] * 10), "pseudo.error has entries that are not finite numbers"),
        (with_section("guidance", pool_share={}), "guidance.pool_share has entries that are not finite numbers"),
        (with_section("matrices", transitions=[[1]] * 9 + [[1, 2]]), "matrices.transitions has rows of different"),
        (
            with_section("matrices", transitions=[[1e39] * 10] * 10),
            "matrices.transitions has entries that are too large",
        ),
        (with_section("matrices", transitions=[[]]), "matrices.transitions has 1 entries for 10 classes"),
        ('{"step": 3, "test": {"accuracy": 0, "geometric_mean": 0}, "pseudo": 5}', "pseudo is '5'"),
        (with_section("validation", loss=None), "validation.loss is missing"),
    ],
)
def test_a_line_that_is_no_evaluation_is_an_error_that_names_it(tmp_path: Path, line: str, said: str) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    first, _, *rest = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([first, line, *rest]))
    with pytest.raises(ValueError, match=rf"line 2 of .*metrics\.jsonl is damaged: {re.escape(said)}.*; restore it"):
        read_run(folder)


@pytest.mark.parametrize(
    ("count", "said"), [(10**30, "an item of unlabeled is 1000"), (-1, "unlabeled has a count of -1")]
)
def test_a_count_that_no_data_can_have_is_an_error_that_names_it(tmp_path: Path, count: int, said: str) -> None:
    path = write_run(tmp_path / "run", num_evaluations=3) / "split.json"
    split = {name: value for name, value in json.loads(path.read_text()).items() if name != "digest"}
    path.write_text(json.dumps({**split, "unlabeled": [count, *split["unlabeled"][1:]]}))
    with pytest.raises(ValueError, match=rf"split\.json is damaged: {said}.*; restore it"):
        read_run(path.parent)


@pytest.mark.parametrize("name", ["config.yaml", "split.json", "environment.json", "metrics.jsonl"])
def test_a_file_that_is_not_text_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=3)
    (folder / name).write_bytes(b"\x80\xff\n" * 3)
    with pytest.raises(ValueError, match=re.escape(str(folder / name))):
        read_run(folder)


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("learner", "guidance", "before", "label"),
    [
        ("fixmatch", "prg_last", None, "fixmatch + prg_last"),
        ("supervised", "none", None, "supervised"),
        ("fixmatch", "distribution_alignment", None, "fixmatch + distribution_alignment"),
        ("fixmatch", "prg", ALIGNED, "fixmatch + distribution_alignment + prg"),
        ("fixmatch", "prg", {"name": "none"}, "fixmatch + prg"),
        ("simmatch", "distribution_alignment", None, "simmatch"),
        ("simmatch", "prg", ALIGNED, "simmatch + prg"),
        ("simmatch", "prg_last", {"name": "prg", "preceded_by": ALIGNED}, "simmatch + prg + prg_last"),
        ("simmatch", "none", None, "simmatch without distribution_alignment"),
        ("simmatch", "prg", None, "simmatch without distribution_alignment + prg"),
        ("simmatch", "prg", {"name": "none"}, "simmatch without distribution_alignment + prg"),
        ("fixmatch", "tracking", None, "fixmatch + tracking"),
        ("simmatch", "distribution_alignment", {"name": "prg"}, "simmatch + prg + distribution_alignment"),
    ],
)
def test_the_label_is_the_learner_and_what_differs_from_its_own_guidance(
    learner: str, guidance: str, before: dict[str, Any] | None, label: str
) -> None:
    assert run_with(learner, guidance, accuracy=[0.5], preceded_by=before).label == label


def test_a_series_has_the_steps_that_recorded_it_and_nan_for_null(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=2)
    lines = [
        {"step": 1, "test": {"accuracy": 0.1, "geometric_mean": 0.1}},
        json.loads(with_section("pseudo", error=[None, *[0.25] * 9])) | {"step": 2},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    steps, errors = read_run(folder).series("pseudo", "error")
    assert steps.tolist() == [2]
    np.testing.assert_array_equal(errors, [[np.nan, *[0.25] * 9]])


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Runs as `mnar bench` leaves them, one with a stage that came first."""
    for guidance, seed in (("none", 1), ("prg", 10), ("prg", 2)):
        folder = tmp_path / "bench" / "runs" / guidance / f"seed-{seed}"
        write_run(folder, "fixmatch", guidance, seed=seed, num_evaluations=2)
    write_run(tmp_path / "bench" / "runs" / "none" / "seed-1" / "pretraining", num_evaluations=2)
    (tmp_path / "bench" / "results.json").write_text("{}")
    return tmp_path / "bench"


def test_runs_are_found_at_any_depth_in_natural_order_and_each_once(bench: Path) -> None:
    runs = bench / "runs"
    expected = [runs / "none" / "seed-1", runs / "prg" / "seed-2", runs / "prg" / "seed-10"]
    assert find_runs([bench]) == expected
    assert find_runs([runs / "prg" / "seed-10", bench]) == [expected[2], *expected[:2]]
    assert [run.folder for run in read_runs([bench])] == expected


def test_a_run_still_in_its_pretraining_is_left_out_with_a_warning_and_its_stage_is_no_run(bench: Path) -> None:
    begun = bench / "runs" / "none" / "seed-1"
    (begun / "metrics.jsonl").unlink()
    (begun / "environment.json").unlink()
    with pytest.warns(UserWarning, match=f"left out: {re.escape(str(begun))} has no evaluation in metrics.jsonl yet"):
        assert [run.folder.parent.name for run in read_runs([bench])] == ["prg", "prg"]
    with pytest.raises(ValueError, match="no evaluation in metrics"):
        read_runs([begun])


@pytest.mark.parametrize("is_shorter", [False, True])
def test_of_two_copies_of_a_run_the_one_that_got_further_is_kept_with_a_warning_that_names_the_other(
    tmp_path: Path, is_shorter: bool
) -> None:
    first, copy = (write_run(tmp_path / name, num_evaluations=3) for name in ("first", "second"))
    other_seed = write_run(tmp_path / "third", seed=2, num_evaluations=3)
    kept, left_out = (copy, first) if is_shorter else (first, copy)
    if is_shorter:
        (first / "metrics.jsonl").write_text((copy / "metrics.jsonl").read_text().splitlines()[0])
    with pytest.warns(UserWarning, match=f"left out: {re.escape(str(left_out))} .* {re.escape(str(kept))}"):
        assert [run.folder for run in read_runs([tmp_path])] == [kept, other_seed]


@pytest.mark.parametrize("has_metrics", [False, True])
def test_a_folder_without_runs_is_an_error_that_names_it(tmp_path: Path, has_metrics: bool) -> None:
    folder = tmp_path
    if has_metrics:
        folder = write_run(tmp_path / "run", num_evaluations=2)
        (folder / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match=f"no run folder in {re.escape(str(folder))}: no folder there"):
        find_runs([folder])
    with pytest.raises(FileNotFoundError, match="no run folder at nowhere"):
        find_runs([Path("nowhere")])


def test_a_run_not_evaluated_yet_is_left_out_with_a_warning_if_there_are_others(bench: Path) -> None:
    begun = bench / "runs" / "prg" / "seed-2"
    (begun / "metrics.jsonl").write_text("")
    (begun / "environment.json").unlink()
    with pytest.warns(UserWarning, match=f"left out: {re.escape(str(begun))}"):
        assert len(read_runs([bench])) == 2
    with pytest.raises(ValueError, match="no evaluation in metrics"):
        read_runs([begun])


@pytest.mark.parametrize(
    ("name", "content"), [("split.json", '{"dataset"'), ("metrics.jsonl", "{bad\n{}\n"), ("config.yaml", "")]
)
def test_a_damaged_run_below_a_folder_is_left_out_with_a_warning_that_names_the_file_and_an_error_if_named_itself(
    bench: Path, name: str, content: str
) -> None:
    damaged = bench / "runs" / "prg" / "seed-2"
    (damaged / name).write_text(content)
    with pytest.warns(UserWarning, match=f"left out: .*{re.escape(name)}"):
        assert [run.folder.name for run in read_runs([bench])] == ["seed-1", "seed-10"]
    with pytest.raises(ValueError, match=re.escape(name)):
        read_runs([bench, damaged])
    for folder in (bench / "runs" / "none" / "seed-1", bench / "runs" / "prg" / "seed-10"):
        shutil.rmtree(folder)
    with pytest.raises(ValueError, match=re.escape(name)):
        read_runs([bench])
