"""`--schedule` of `mnar train` and `mnar bench`, and `mnar list schedules`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnar.run import RunFolder
from tests.support.command import TINY, Mnar
from tests.support.own_data_files import write_table


@pytest.mark.usefixtures("without_report")
def test_a_run_with_the_fast_schedule_says_so_when_it_starts_and_in_its_folder(mnar: Mnar, tmp_path: Path) -> None:
    trained = mnar("train", "--schedule", "fast", "--iterations", 6, *TINY)
    assert trained.code == 0
    assert "seed 1: 6 steps, schedule fast\n" in trained.output
    folder = tmp_path / "runs" / "digits-cadr-fixmatch-prg-fast-seed1"
    config = RunFolder(folder).config()
    assert (config.schedule, config.train.lr, config.train.schedule) == ("fast", 0.02, "linear")


@pytest.mark.usefixtures("without_report")
def test_a_run_without_a_schedule_names_none(mnar: Mnar) -> None:
    assert "seed 1: 6 steps\n" in mnar("train", "--iterations", 6, *TINY).output


@pytest.mark.parametrize("command", [("train",), ("bench", "digits/cadr-g20/fixmatch")])
def test_an_unknown_schedule_is_refused_with_the_choices(mnar: Mnar, command: tuple[str, ...]) -> None:
    refused = mnar(*command, "--schedule", "quick")
    assert refused.code == 1
    assert refused.errors == "error: unknown schedule 'quick'; choose from ['published', 'fast', 'fast_pretrained']\n"


def test_a_schedule_is_refused_with_own_data_and_when_a_run_is_resumed(mnar: Mnar, tmp_path: Path) -> None:
    write_table(tmp_path / "table.csv")
    refused = mnar("train", "table.csv", "--label", "kind", "--schedule", "fast")
    assert refused.code == 1
    assert refused.errors == "error: table.csv is your own data, so --schedule cannot be used; leave it out\n"
    refused = mnar("train", "--resume", "runs/none", "--schedule", "fast")
    assert refused.code == 1
    assert "leave out --schedule, or start a new run" in refused.errors


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[0.5, 1, 1, 1, 1, 1, 1]", "train.batch_stages has 7 stages, but train.iterations is 6"),
        ("[0, 1]", "train.batch_stages is [0, 1]; expected a list of numbers from 1e-06 to 1"),
        ("0.5", "train.batch_stages is 0.5; expected"),
    ],
)
def test_stages_that_cannot_be_trained_are_refused_before_anything_is_written(
    mnar: Mnar, tmp_path: Path, stages: str, message: str
) -> None:
    refused = mnar("train", "--iterations", 6, *TINY, "--set", f"train.batch_stages={stages}")
    assert refused.code == 1
    assert refused.errors.startswith(f"error: {message}")
    assert not (tmp_path / "runs").exists()


def test_the_list_of_schedules_has_all_with_their_meaning(mnar: Mnar) -> None:
    lines = mnar("list", "schedules").output.splitlines()
    assert lines[0] == "schedules  --schedule NAME"
    assert [line.split()[0] for line in lines[1:]] == ["published", "fast", "fast_pretrained"]
    assert "at most 131,072 steps" in lines[2]
    assert all(line in mnar("list").output for line in lines)
    refused = mnar("list", "schedules", "slow")
    assert refused.code == 1
    assert "none of the schedules begins with 'slow'" in refused.errors
