"""`relabel_file`: labels for a pool with a decision, which resume after a kill and keep their promise."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

import mnar
from mnar.datasets.user_files.sample_blocks import arrays
from mnar.run.calibration_file import read_calibration, write_calibration
from mnar.trained.relabel import relabel_file
from tests.trained.test_predict import rows_of


def truth_of(digits_file: Path, rows: list[dict[str, str]]) -> list[str]:
    with np.load(digits_file) as stored:
        return [str(stored["truth"][int(row["row"]) - 1]) for row in rows]


@pytest.mark.parametrize("run", ["digits_run", "network_run"])
def test_the_training_pool_is_labelled_and_accepted_labels_are_as_precise_as_expected(
    run: str, digits_file: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    out = tmp_path / "labels.csv"
    result = relabel_file(mnar.load(request.getfixturevalue(run)), out, precision=0.9)
    rows = rows_of(out)
    with np.load(digits_file) as stored:
        assert [int(row["row"]) for row in rows] == (np.flatnonzero(stored["y"] < 0) + 1).tolist()
    truth = truth_of(digits_file, rows)
    accepted = [row["label"] == t for row, t in zip(rows, truth, strict=True) if row["decision"] == "accept"]
    assert len(accepted) == result.counts[:, 0].sum() > 300
    assert np.mean(accepted) == pytest.approx(result.decisions.expected_overall(result.counts[:, 0]), abs=0.06)
    others = [row["label"] == t for row, t in zip(rows, truth, strict=True) if row["decision"] != "accept"]
    assert np.mean(others) < np.mean(accepted)
    for row in rows:
        assert row["second"] != row["label"]
        assert 0 <= float(row["margin"]) <= float(row["confidence"]) <= 1


def test_a_higher_precision_accepts_fewer_labels(digits_run: Path, tmp_path: Path) -> None:
    model = mnar.load(digits_run)
    strict, loose = (
        relabel_file(model, tmp_path / f"{precision}.csv", precision=precision).counts[:, 0]
        for precision in (0.98, 0.9)
    )
    assert strict.sum() < loose.sum()
    assert (strict <= loose).all()


def test_a_further_pool_gets_a_class_mix_of_its_own(digits_run: Path, digits_file: Path, tmp_path: Path) -> None:
    """A pool of sevens and eights, although the training pool has all digits."""
    with np.load(digits_file) as stored:
        rows = np.flatnonzero(np.isin(stored["truth"], [7, 8]))
        np.save(tmp_path / "pool.npy", stored["x"][rows])
        share = (stored["truth"][rows] == 8).mean()
    result = relabel_file(mnar.load(digits_run), tmp_path / "labels.csv", source=tmp_path / "pool.npy")
    assert result.num_rows == len(rows)
    assert result.mix.shares is not None
    assert result.mix.shares[8] == pytest.approx(share, abs=0.1)
    assert result.mix.shares[[7, 8]].sum() > 0.8
    assert "estimated from these samples" in result.mix.description


def test_a_benchmark_run_labels_its_pool(finished_run: Path, tmp_path: Path) -> None:
    result = relabel_file(mnar.load(finished_run), tmp_path / "labels.csv", precision=0.6)
    split = mnar.run.RunFolder(finished_run).split()
    assert result.num_rows == sum(split["unlabeled"]) - sum(split["labeled"])  # labelled samples are in the pool too


def test_a_table_with_ids_is_labelled_by_them(table_run: Path, table_file: Path, tmp_path: Path) -> None:
    lines = table_file.read_text().splitlines()
    pool = tmp_path / "pool.csv"
    pool.write_text("\n".join([f"{lines[0]},key", *(f"{line},=k{i}" for i, line in enumerate(lines[1:]))]) + "\n")
    relabel_file(mnar.load(table_run), tmp_path / "labels.csv", source=pool, id="key")
    rows = rows_of(tmp_path / "labels.csv")
    assert [row["key"] for row in rows] == [f"'=k{i}" for i in range(len(lines) - 1)]


def test_a_stopped_command_gives_the_same_file_as_one_without_a_stop(
    network_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "ROWS_PER_BLOCK", 100)
    model = mnar.load(network_run)
    relabel_file(model, tmp_path / "straight.csv")
    for moment in (200, 500, 900):

        def stop(done: int, total: int | None, at: int = moment) -> None:
            if done >= at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            relabel_file(model, tmp_path / "stopped.csv", on_rows=stop)
        assert not (tmp_path / "stopped.csv").exists()
    relabel_file(model, tmp_path / "stopped.csv")
    assert (tmp_path / "stopped.csv").read_bytes() == (tmp_path / "straight.csv").read_bytes()


def test_too_few_labels_promise_nothing_and_say_so(table_run: Path, tmp_path: Path) -> None:
    result = relabel_file(mnar.load(table_run), tmp_path / "labels.csv", precision=0.999)
    assert result.counts[:, 0].sum() == 0
    assert {row["decision"] for row in rows_of(tmp_path / "labels.csv")} <= {"review", "reject"}
    assert any("too few to promise" in note for note in result.decisions.notes(("ant", "bee", "cat")))


def test_a_run_without_held_out_labels_or_of_an_older_version_is_refused(network_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(network_run, tmp_path / "run"))
    stored = read_calibration(folder)
    assert stored is not None
    write_calibration(folder, stored._replace(y=stored.y[:0], probs=stored.probs[:0]))
    with pytest.raises(ValueError, match="too few labels that its model was not trained on"):
        relabel_file(mnar.load(folder), tmp_path / "labels.csv")
    (folder / "calibration.npz").unlink()
    with pytest.raises(ValueError, match=r"older version.*mnar train --resume"):
        relabel_file(mnar.load(folder), tmp_path / "labels.csv")


def test_a_moved_file_is_found_with_root_and_a_file_without_a_pool_is_refused(
    table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copy(table_file, tmp_path / "moved.csv"))
    model = mnar.load(table_run)
    relabel_file(model, tmp_path / "moved_labels.csv", root=moved)
    relabel_file(model, tmp_path / "labels.csv")
    assert (tmp_path / "moved_labels.csv").read_bytes() == (tmp_path / "labels.csv").read_bytes()
    with moved.open(newline="") as file:
        header, *rows = csv.reader(file)
    labeled = [row for row in rows if row[-1]]
    with moved.open("w", newline="") as file:
        csv.writer(file).writerows([header, *labeled])
    with pytest.raises(ValueError, match=r"every sample .* has a label"):
        relabel_file(model, tmp_path / "none.csv", root=moved)
