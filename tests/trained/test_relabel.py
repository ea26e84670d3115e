"""`relabel_file`: labels for a pool with a decision, which resume after a kill and keep their promise."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import mnar
from mnar.datasets.user_files.sample_blocks import arrays
from mnar.own_data.confidence import NetworkCalibration, held_out_probabilities
from mnar.own_data.decisions import ACCEPT, Decisions, fit_decisions
from mnar.own_data.network_predictor import NetworkPredictor
from mnar.run.calibration_file import read_calibration, write_calibration
from mnar.trained import relabel
from mnar.trained.export.scores import class_scores
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


def overconfident(num_samples: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Predictions of four classes by an overconfident network, and the true classes."""
    y = rng.permutation(np.arange(num_samples) % 4)
    odds = np.exp(3 * (1.2 * np.eye(4)[y] + rng.normal(size=(num_samples, 4))))
    return odds / odds.sum(1, keepdims=True), y


def test_the_promise_of_a_network_with_40_held_out_labels_is_kept_on_average() -> None:
    """With one calibration for all held-out labels, the promise is 3 points too high."""
    equal, too_high = np.full(4, 0.25), []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        (probs, y), (pool, truth) = overconfident(40, rng), overconfident(4000, rng)
        fitted = NetworkCalibration.fit(probs, y)
        network = NetworkPredictor(torch.nn.Identity(), lambda x: x, torch.device("cpu"), fitted)
        in_pool = network.reweighted(pool, equal)
        differences = []
        for held_out in (network.held_out_probs(probs, y, equal), network.reweighted(probs, equal)):
            decisions = fit_decisions(held_out, y, equal, precision=0.7, pool_probs=in_pool)
            decided = decisions.decide(in_pool)
            accepted = decided.codes == ACCEPT
            counts = np.bincount(decided.labels[accepted], minlength=4)
            differences.append(decisions.expected_overall(counts) - np.mean((decided.labels == truth)[accepted]))
        too_high.append(differences)
    out_of_fold, all_labels = np.mean(too_high, axis=0)
    assert abs(out_of_fold) < 0.01
    assert all_labels > 0.025


def test_the_promise_and_the_card_of_a_network_use_no_calibration_by_the_label_itself(
    network_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, used = mnar.load(network_run), []

    def fit(balanced: npt.NDArray[np.float64], *rest: Any, **options: Any) -> Decisions:
        used.append(balanced)
        return fit_decisions(balanced, *rest, **options)

    monkeypatch.setattr(relabel, "fit_decisions", fit)
    relabel_file(model, tmp_path / "labels.csv")
    stored, mix = model.calibration, model.class_mix("uniform")
    assert stored is not None
    assert mix.shares is not None
    out_of_fold = held_out_probabilities(stored.probs, stored.y, mix.shares)
    assert out_of_fold is not None
    np.testing.assert_array_equal(used[0], out_of_fold)
    scores, is_right = class_scores(model, mix), out_of_fold.argmax(1) == stored.y
    assert scores is not None
    np.testing.assert_allclose(scores.recall, [is_right[stored.y == c].mean() for c in range(10)])


@pytest.mark.parametrize("counts", [(1, 1), (60, 1)])
def test_a_fold_without_which_one_class_is_left_is_calibrated_by_all_labels(counts: tuple[int, int]) -> None:
    y = np.repeat([0, 1], counts)
    first = np.random.default_rng(0).uniform(0.2, 0.9, len(y))
    probs, shares = np.stack([first, 1 - first], 1), np.full(2, 0.5)
    fitted = NetworkCalibration.fit(probs, y)
    assert fitted is not None
    of_all, found = fitted(probs, shares), held_out_probabilities(probs, y, shares)
    assert found is not None
    np.testing.assert_array_equal(found[y == 1], of_all[y == 1])
    is_by_all = (found == of_all).all(1)
    assert np.count_nonzero(~is_by_all) >= 0.75 * counts[0] - 1, "the other folds have labels of both classes"


def test_held_out_labels_of_one_class_are_not_calibrated() -> None:
    probs, y = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0, 0])
    assert held_out_probabilities(probs, y, np.full(2, 0.5)) is None


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
