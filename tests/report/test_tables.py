import json
from pathlib import Path

import pytest

from mnar.report import Spread, by_setting, how_fast, over_runs, summary
from mnar.report.tables import about_schedules, is_short, run_rows, settings
from mnar.run.reader import read_run, read_runs
from mnar.training.headline import ACCURACY, BEST, FINAL
from tests.report.drawn import methods_of
from tests.report.made_up import run_with, write_run


def test_summary_equals_means_and_deviations_computed_by_hand() -> None:
    # Seed 1: the last 20 are ten times 0.80 and ten times 0.90, so their median is 0.85. A single 0.99 comes before.
    first = run_with("fixmatch", "prg", accuracy=[0.10, 0.99] + [0.80] * 10 + [0.90] * 10, seed=1)
    second = run_with("fixmatch", "prg", accuracy=[0.95] * 22, geometric_mean=[0.75] * 22, seed=2)
    (row,) = summary([first, second])

    assert (row.method, row.num_runs) == ("fixmatch + prg", 2)
    assert row.headline[ACCURACY].mean == pytest.approx((0.85 + 0.95) / 2)
    assert row.headline[ACCURACY].sd == pytest.approx(0.10 / 2**0.5)  # |a - b| / sqrt(2) for two values
    assert row.headline[FINAL].mean == pytest.approx((0.90 + 0.95) / 2)
    assert row.headline[BEST].mean == pytest.approx((0.99 + 0.95) / 2)
    assert row.headline["geometric_mean"].mean == pytest.approx((0.85 + 0.75) / 2)
    assert row.headline["balanced_accuracy"].mean == pytest.approx((0.9 + 0.5) / 2), "the recalls of both classes"
    assert "macro_f1" not in row.headline, "the runs have no precision"


def test_the_schedules_of_runs_are_named_unless_all_are_published() -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[0.5], seed=seed) for seed in (1, 2, 3)]
    assert about_schedules(runs) == ""
    for run in runs[:2]:
        run.config["schedule"] = "fast"
    assert about_schedules(runs).startswith("Training schedules: fast (2 runs), published (1 run). ")
    assert [row.method for row in summary(runs)] == ["fixmatch + prg (schedule=fast)", "fixmatch + prg"]


def test_runs_of_earlier_versions_have_the_method_of_runs_with_the_later_options() -> None:
    old, new = (run_with("fixmatch", "prg", accuracy=[0.5], seed=seed) for seed in (1, 2))
    new.config["train"] |= {"batch_stages": [1.0], "labeled_view": "auto"}
    new.config["learner"] |= {"weak_gradient": True}
    assert [(row.method, row.num_runs) for row in summary([old, new])] == [("fixmatch + prg", 2)]


def test_runs_are_summarised_by_the_figures_that_all_of_them_have() -> None:
    old, new = {FINAL: 0.5}, {FINAL: 0.7, "macro_f1": 0.4}
    assert over_runs([new]) == {FINAL: Spread(0.7, None), "macro_f1": Spread(0.4, None)}
    assert over_runs([new, old]).keys() == over_runs([old, new]).keys() == {FINAL}


def test_the_scores_of_a_method_are_those_of_its_finished_runs_or_of_all_runs_if_none_is_finished() -> None:
    runs = [run_with("fixmatch", "prg", accuracy=[score], seed=seed) for seed, score in ((1, 0.8), (2, 0.7), (3, 0.1))]
    runs[2].lines[-1]["step"] = 4
    (row,) = summary(runs)
    assert (row.num_runs, row.headline[FINAL].mean) == (2, pytest.approx(0.75))
    assert methods_of(runs)[0].progress == ""
    assert summary(runs[2:])[0].headline[FINAL].mean == 0.1
    assert methods_of(runs[2:])[0].progress == "at step 4 of 10"
    runs[1].lines[-1]["step"] = 8
    assert methods_of(runs[1:])[0].progress == "at steps 4 to 8 of 10"


@pytest.mark.parametrize(("num_evaluations", "expected"), [(30, True), (75, True), (76, False), (200, False)])
def test_a_run_is_short_if_its_last_20_evaluations_cover_more_than_a_quarter_of_it(
    num_evaluations: int, expected: bool
) -> None:
    # Twenty evaluations span 19 intervals, and 19 / 76 is a quarter.
    assert is_short(run_with("fixmatch", "none", accuracy=[0.5] * num_evaluations)) is expected


def test_one_run_has_no_deviation() -> None:
    (row,) = summary([run_with("supervised", "none", accuracy=[0.5, 0.625])])
    assert row.headline[FINAL] == Spread(0.625, None)
    assert row.headline[FINAL].percent == "62.5"


def test_a_spread_prints_as_percent_with_one_decimal() -> None:
    assert Spread.of([0.901, 0.921, 0.941]).percent == "92.1 ± 2.0"


def test_options_are_divided_into_those_that_differ_and_those_that_all_methods_share() -> None:
    runs = [run_with("fixmatch", "none", accuracy=[0.5]), run_with("fixmatch", "prg", accuracy=[0.5], seed=2)]
    different, shared = settings(methods_of(runs))
    added = {"guidance.smoothing": [None, 0.0], "guidance.pool_shares": [None, "uniform"]}  # in runs of any version
    assert different == {"guidance.name": ["none", "prg"], "guidance.alpha": [None, 1.0], **added}
    assert "learner.count_from" not in shared, "an option of FlexMatch, which FixMatch does not have"
    assert shared["learner.threshold"] == 0.95
    assert "seed" not in shared


def test_a_run_row_adds_up_the_sessions_of_the_run() -> None:
    run = run_with("fixmatch", "none", accuracy=[0.5])
    run.environment["sessions"] = [
        {"from_step": 0, "to_step": 5, "seconds": 60.0, "images_per_second": 100.0},
        {"from_step": 5, "to_step": 10, "seconds": 30.0, "images_per_second": 400.0},
    ]
    (row,) = run_rows(by_setting([run]))
    assert row.minutes == 1.5
    assert row.images_per_second == pytest.approx((60 * 100 + 30 * 400) / 90)
    assert row.finished


def test_run_rows_name_folders_relative_to_their_common_parent_for_relative_and_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "runs" / f"{seed}", seed=seed, num_evaluations=2)
    monkeypatch.chdir(tmp_path)
    runs = read_runs([Path("runs/1"), tmp_path / "runs/2"])
    assert [row.folder for row in run_rows(by_setting(runs))] == ["1", "2"]


def test_minutes_include_pretraining_and_images_per_second_do_not(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", num_evaluations=2)
    minutes, images_per_second = how_fast(read_run(folder))
    stage = write_run(folder / "pretraining", num_evaluations=2)
    environment = json.loads((stage / "environment.json").read_text())
    environment["sessions"] = [{"seconds": seconds, "images_per_second": 7.0} for seconds in (60.0, 30.0)]
    (stage / "environment.json").write_text(json.dumps(environment))
    assert how_fast(read_run(folder)) == (minutes + 1.5, images_per_second)


def test_a_run_that_took_no_time_has_no_speed() -> None:
    run = run_with("fixmatch", "none", accuracy=[0.5])
    run.environment["sessions"] = [{"from_step": 0, "to_step": 0, "seconds": 0.0, "images_per_second": 0.0}]
    assert how_fast(run) == (0.0, None)


def test_a_run_that_has_not_reached_its_last_step_is_unfinished() -> None:
    run = run_with("fixmatch", "none", accuracy=[0.5, 0.6])
    run.config["train"]["iterations"] = 1000
    assert not run_rows(by_setting([run]))[0].finished
