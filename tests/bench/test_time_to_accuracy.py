"""benchmarks/time_to_accuracy.py on run folders that no training wrote, so that every time is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.time_to_accuracy import NEVER, clock, main, timed

from mnar.bench import parallel
from mnar.recipes import configure
from mnar.run.reader import read_run
from tests.bench.benches import OTHER, RECIPE, STEPS, TINY, Here, make_up

TEN_STEPS = ("train.iterations=100", "train.eval_every=10")  # ten evaluations in a run


def made_run(
    folder: Path,
    accuracies: Sequence[float],
    sessions: Sequence[tuple[int, int, float]],
    *,
    seed: int = 1,
    schedule: str | None = None,
    images: Sequence[int] = (),
    settings: Sequence[str] = TEN_STEPS,
) -> Path:
    """A run with an evaluation every ten steps and with these sessions: first step, last step, seconds."""
    config = configure(dataset="digits", guidance="prg", schedule=schedule, seed=seed, settings=settings)
    make_up(folder, config, accuracies, is_done=False)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, number in zip(lines, images or [10 * line["step"] for line in lines], strict=True):
        line["images"] = number
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = json.loads((folder / "environment.json").read_text())
    environment["sessions"] = [
        {"from_step": first, "to_step": last, "seconds": seconds, "images_per_second": 1.0}
        for first, last, seconds in sessions
    ]
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9]


def test_first_touch_and_headline_median_are_those_counted_by_hand(tmp_path: Path) -> None:
    accuracies = [0.5, 0.91, 0.5, 0.5, 0.92, 0.92, 0.92, 0.92, 0.94, 0.5]
    run = timed(read_run(made_run(tmp_path / "run", accuracies, [(0, 100, 600.0)])), (90.0, 94.0, 99.0))
    # A minute per evaluation. The medians so far are 0.5, 0.705, 0.5, 0.5, 0.5, 0.705, 0.91, 0.915, 0.92, 0.915.
    assert run.reached[90.0] == pytest.approx((2, 7))
    assert run.reached[94.0] == pytest.approx((9, NEVER))
    assert run.reached[99.0] == (NEVER, NEVER)
    assert (run.minutes, run.ms_per_step) == pytest.approx((10, 6000))
    assert (run.accuracy, run.final, run.geometric_mean) == pytest.approx((0.915, 0.5, 0.4575))
    assert run.is_finished


def test_the_median_covers_twenty_evaluations(tmp_path: Path) -> None:
    settings = ("train.iterations=300", "train.eval_every=10")
    folder = made_run(tmp_path / "run", [0.5] * 10 + [0.95] * 20, [(0, 300, 1800.0)], settings=settings)
    # The 21st evaluation is the first with ten values of 0.5 or fewer among the last twenty: 9 of 0.5 and 11 of 0.95.
    assert timed(read_run(folder), (95.0,)).reached[95.0] == pytest.approx((11, 21))


def test_resumed_and_repeated_steps_cost_their_time(tmp_path: Path) -> None:
    # Steps 40 to 50 were trained twice: the second session started from an older checkpoint.
    sessions = [(0, 50, 300.0), (40, 60, 60.0), (60, 60, 6.0), (60, 100, 400.0)]
    run = read_run(made_run(tmp_path / "run", RISING, sessions))
    minutes = clock(run)
    assert [60 * minutes(step) for step in (10, 40, 50, 60, 70, 100)] == pytest.approx([60, 240, 330, 360, 466, 766])
    measured = timed(run, (40.0, 50.0))
    assert [60 * reached.first for reached in measured.reached.values()] == pytest.approx([240, 330])
    assert measured.minutes == pytest.approx(766 / 60)
    assert measured.ms_per_step == pytest.approx(766_000 / 110)


def test_time_follows_the_images_if_batches_grow(tmp_path: Path) -> None:
    # The last 50 steps have batches that are three times as large, so they take three quarters of the time.
    images = [100, 200, 300, 400, 500, 800, 1100, 1400, 1700, 2000]
    minutes = clock(read_run(made_run(tmp_path / "run", RISING, [(0, 100, 400.0)], images=images)))
    assert [60 * minutes(step) for step in (10, 50, 60, 100)] == pytest.approx([20, 100, 160, 400])


def test_evaluations_after_the_last_checkpoint_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = made_run(tmp_path / "some", RISING[:8], [(0, 70, 70.0)])
    measured = timed(read_run(some), (70.0, 80.0))
    assert (measured.final, measured.is_finished) == (0.7, False)
    assert (measured.reached[70.0].first, measured.reached[80.0].first) == (pytest.approx(70 / 60), NEVER)
    none = made_run(tmp_path / "none", RISING[:2], [(0, 0, 1.0)], seed=2)
    main([str(some), str(none), "--targets", "70"])
    shown = capsys.readouterr()
    assert f"left out: {none} has no checkpoint after its first evaluation yet" in shown.err
    assert "1 (1 unfinished)" in shown.out


def test_a_row_is_the_median_over_seeds_and_counts_the_seeds_that_reached_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run(tmp_path / "seed1", [0.9] * 10, [(0, 100, 600.0)], seed=1)
    made_run(tmp_path / "seed2", [0.5] * 3 + [0.93] * 7, [(0, 100, 1200.0)], seed=2)
    made_run(tmp_path / "seed3", [0.5] * 10, [(0, 100, 300.0)], seed=3)
    main([str(tmp_path), "--json", str(tmp_path / "all.json")])
    heading, _, row = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()
    ]
    cells = dict(zip(heading, row, strict=True))
    assert cells["method"] == "digits, cadr γ=20: fixmatch + prg"
    assert (cells["schedule"], cells["seeds"]) == ("published", "3")
    assert cells["min to 90 %, first"] == "8.0 (2/3)"  # 1, 8 and never
    assert cells["min to 93 %, first"] == "– (1/3)"
    assert cells["min to 94 %, median"] == "– (0/3)"
    assert (cells["min in total"], cells["ms per step"], cells["GM"]) == ("10.0", "6000.00", "45.0")
    (method,) = json.loads((tmp_path / "all.json").read_text())
    reached = {run["seed"]: run["reached"]["93"] for run in method["runs"]}
    assert reached[1] == {"first": None, "median": None}
    assert reached[2] == pytest.approx({"first": 8.0, "median": 14.0})  # 4 of 7 evaluations are 0.93


def test_runs_with_another_schedule_are_a_row_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for schedule, seconds in (("published", 600.0), ("fast", 60.0)):
        made_run(tmp_path / schedule, [0.9] * 10, [(0, 100, seconds)], schedule=schedule)
    main([str(tmp_path), "--targets", "90"])
    cells = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()[2:]]
    assert sorted((row[2], row[4]) for row in cells) == [("fast", "0.1 (1/1)"), ("published", "1.0 (1/1)")]


def test_recipes_are_trained_once_and_then_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "ChildProcess", Here)
    settings = [part for setting in TINY for part in ("--set", setting)]
    command = ["--recipes", RECIPE, OTHER, "--seeds", "1", "--first-seed", "2", "--iterations", str(STEPS)]
    command += ["--out", str(tmp_path), *settings]
    main(command)
    first = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in first.splitlines()[2:]] == [RECIPE, OTHER]
    models = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert {path.parent.name for path in models} == {"seed-2"}
    main(command)
    assert capsys.readouterr().out == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")} == models


def test_sessions_without_steps_are_refused_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", RISING, [(0, 100, 1.0)])
    environment: dict[str, Any] = json.loads((folder / "environment.json").read_text())
    del environment["sessions"][0]["from_step"]
    (folder / "environment.json").write_text(json.dumps(environment))
    with pytest.raises(ValueError, match=r"environment\.json lacks the steps of a session .*; train the run again"):
        timed(read_run(folder), (90.0,))


@pytest.mark.parametrize(
    ("command", "message"),
    [([], "either run folders or --recipes"), (["--recipes", RECIPE], "--recipes needs --out")],
)
def test_a_command_that_names_no_runs_is_refused(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(command)
    assert message in capsys.readouterr().err


def broken(folder: Path, name: str) -> Path:
    """A run folder in which one file is missing."""
    made_run(folder, RISING, [(0, 100, 1.0)])
    (folder / name).unlink()
    return folder


def test_runs_that_cannot_be_measured_are_one_line_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "nowhere": f"error: no run folder at {tmp_path / 'nowhere'}; give the folder",
        tmp_path / "empty": f"error: no run folder in {tmp_path / 'empty'}: no folder there has a config.yaml; give",
        broken(tmp_path / "no_metrics", "metrics.jsonl"): "no_metrics has no evaluation in metrics.jsonl yet; train",
        broken(
            tmp_path / "no_times", "environment.json"
        ): f"environment.json is missing in {tmp_path / 'no_times'}; restore",
        made_run(tmp_path / "unsaved", RISING[:2], [(0, 0, 1.0)]): "error: no run has an evaluation with a time, so",
    }
    for folder, message in cases.items():
        with pytest.raises(SystemExit) as leaving:
            main([str(folder)])
        shown = capsys.readouterr()
        assert (leaving.value.code, shown.out) == (2, "")
        *notes, last = shown.err.splitlines()
        assert last.startswith("error: ")
        assert message in last
        assert all(note.startswith("left out: ") for note in notes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--seeds", "0"], "error: no seed was given; choose at least one seed"),
        (["--schedule", "slow"], "error: unknown schedule 'slow'; choose from"),
        (["--set", "train.batch_stages=[0.1, 0.2, 0.5, 1]", "--iterations", "3"], "error: train.batch_stages has 4"),
    ],
)
def test_recipes_that_cannot_be_trained_are_one_line_with_exit_code_2(
    given: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--recipes", RECIPE, "--out", str(tmp_path / "out"), *given])
    (line,) = capsys.readouterr().err.splitlines()
    assert leaving.value.code == 2
    assert line.startswith(message)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["0.9", "1", "0", "-5", "100.5", "nan", "inf", "ninety"])
def test_a_target_that_is_no_percentage_is_refused_with_its_value_and_an_example(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([str(tmp_path), f"--targets={target}"])
    assert leaving.value.code == 2
    assert f"'{target}' is not an accuracy in percent, larger than 1 and at most 100" in capsys.readouterr().err


def test_a_folder_with_a_damaged_run_beside_whole_ones_names_the_damaged_run_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run(tmp_path / "whole", [0.95] * 10, [(0, 100, 600.0)])
    damaged = broken(tmp_path / "damaged", "metrics.jsonl")
    main([str(tmp_path)])
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith(f"left out: {damaged} ")
    assert "1.0 (1/1)" in shown.out
