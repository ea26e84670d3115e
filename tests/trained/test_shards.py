"""`mnar predict` and `mnar relabel` with a folder of shards, on one machine: the rows of one file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import mnar
from mnar.trained.predict import predict_file
from mnar.trained.relabel import relabel_file
from tests.support.command import run_here
from tests.support.killing import in_a_child, kill_me, was_killed
from tests.trained.pools import array_pool, csv_pool, parquet_pool
from tests.trained.test_predict import rows_of


def assert_same_rows_but_names(sharded: Path, whole: Path) -> None:
    """The sample is called "part-0.csv, line 2" instead of "line 2"."""
    rows, expected = rows_of(sharded), rows_of(whole)
    assert all(row["sample"].startswith("part-") for row in rows)
    assert [row | {"sample": ""} for row in rows] == [row | {"sample": ""} for row in expected]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_in_shards_gets_the_rows_of_one_file(
    kind: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    whole, shards = (csv_pool if kind == "csv" else parquet_pool)(table_file, tmp_path)
    model = mnar.load(table_run)
    for source, out in ((whole, "whole.csv"), (shards, "shards.csv")):
        predict_file(model, source, tmp_path / out, top=2, probabilities=True)
        relabel_file(model, tmp_path / f"labels-{out}", source=source, precision=0.8)
    assert_same_rows_but_names(tmp_path / "shards.csv", tmp_path / "whole.csv")
    assert_same_rows_but_names(tmp_path / "labels-shards.csv", tmp_path / "labels-whole.csv")
    assert {row["decision"] for row in rows_of(tmp_path / "labels-shards.csv")} >= {"accept", "review"}


@pytest.mark.parametrize(("run", "kind"), [("digits_run", "npz"), ("network_run", "npy")])
def test_images_in_array_shards_get_the_rows_of_one_file(
    run: str, kind: str, digits_file: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole, shards = array_pool(digits_file, tmp_path, kind)
    model = mnar.load(request.getfixturevalue(run))
    for source, out in ((whole, "whole.csv"), (shards, "shards.csv")):
        relabel_file(model, tmp_path / out, source=source, precision=0.8)
    assert_same_rows_but_names(tmp_path / "shards.csv", tmp_path / "whole.csv")
    assert (model.predict(shards) == model.predict(whole)).all()


def test_a_killed_command_goes_on_with_the_shards_that_are_left(
    table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    predict_file(mnar.load(table_run), shards, tmp_path / "straight.csv")
    ends = [30, 60, 90, 120, 150]  # rows at the end of each shard

    def killed_after(num_rows: int) -> None:
        def kill(done: int, total: int | None) -> None:
            if done == num_rows:
                kill_me()

        predict_file(mnar.load(table_run), shards, tmp_path / f"{num_rows}.csv", on_rows=kill)

    assert len(rows_of(tmp_path / "straight.csv")) == 150
    for end in ends[1:4]:
        assert was_killed(in_a_child(partial(killed_after, end)))
        seen: list[int] = []
        out = tmp_path / f"{end}.csv"
        predict_file(mnar.load(table_run), shards, out, on_rows=lambda done, total, seen=seen: seen.append(done))
        assert seen[0] <= end + 30, "finished shards that were recorded are not read again"
        assert out.read_bytes() == (tmp_path / "straight.csv").read_bytes()


def test_a_changed_shard_is_not_continued(table_run: Path, table_file: Path, tmp_path: Path) -> None:
    _, shards = csv_pool(table_file, tmp_path)

    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    model, out = mnar.load(table_run), tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        predict_file(model, shards, out, on_rows=stop)
    content = (shards / "part-0.csv").read_text()
    (shards / "part-0.csv").write_text(content.replace("red", "rad"))  # as many bytes as before
    seen: list[int] = []
    predict_file(model, shards, out, on_rows=lambda done, total: seen.append(done))
    assert seen[0] == 30, "the command starts anew"


@pytest.mark.parametrize("command", ["predict", "relabel"])
def test_an_output_in_the_folder_of_the_shards_is_refused_before_the_work(
    command: str,
    table_run: Path,
    table_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    before = sorted(shards.iterdir())
    arguments = ("predict", table_run, shards) if command == "predict" else ("relabel", table_run, "--pool", shards)
    outcome = run_here(capsys, monkeypatch, *arguments, "--out", shards / "out.csv")
    assert outcome.code == 1
    assert "whose files are the shards of the pool; choose --out in another folder" in outcome.errors
    assert sorted(shards.iterdir()) == before
