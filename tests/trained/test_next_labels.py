"""`next_file`: the samples to label next, their suggestions, and the order of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mnar
from mnar.own_data import inputs
from mnar.trained import next_labels
from mnar.trained.next_labels import next_file
from mnar.trained.relabel import relabel_file
from tests.trained.runs import NUM_LABELS, portfolio
from tests.trained.test_predict import rows_of


@pytest.mark.parametrize("run", ["digits_run", "network_run", "finished_run"])
def test_the_samples_are_of_the_pool_and_have_the_suggestion_of_the_model(
    run: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model, out = mnar.load(request.getfixturevalue(run)), tmp_path / "to_label.csv"
    chosen = next_file(model, out, budget=25)
    rows = rows_of(out)
    data, _ = next_labels.read_training_data(model)
    position = {int(number): row for row, number in enumerate(data.row_numbers)}
    places = [position[int(row["row"])] for row in rows]
    assert len(set(places)) == 25
    assert not data.is_labeled[places].any()
    assert isinstance(data.x, np.ndarray)
    probs = model.predict_proba(data.x[places])
    assert [row["suggestion"] for row in rows] == model.classes_[probs.argmax(1)].tolist()
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], probs.max(1), atol=2e-3)
    assert chosen.counts.sum() == 25
    assert chosen.num_pool == int((~data.is_labeled).sum())


def test_classes_with_few_labels_get_more_than_their_share(digits_run: Path, digits_file: Path, tmp_path: Path) -> None:
    next_file(mnar.load(digits_run), tmp_path / "to_label.csv", budget=100)
    with np.load(digits_file) as stored:
        truth = stored["truth"][[int(row["row"]) - 1 for row in rows_of(tmp_path / "to_label.csv")]]
    assert (truth >= 5).sum() > (truth < 5).sum(), "the digits from 5 on have fewer labels"


def test_the_whole_pool_can_be_chosen_and_a_large_pool_is_sampled(
    table_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mnar.load(table_run)
    assert next_file(model, tmp_path / "all.csv", budget=42).num_rows == 42
    monkeypatch.setattr(next_labels, "MOST_CANDIDATES", 20)
    chosen = next_file(model, tmp_path / "some.csv", budget=5)
    assert len(rows_of(tmp_path / "some.csv")) == 5
    assert "random sample of 20 of the 42" in chosen.notes[0]


def test_a_run_that_was_fitted_to_a_part_of_the_labels_knows_the_number_of_all_labels(
    digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MOST_LABELED", 120)
    model = mnar.load(portfolio(digits_file, tmp_path / "run"))
    assert model.calibration is not None
    assert len(model.calibration.y) == 2 * 120
    assert model.calibration.num_labels.tolist() == list(NUM_LABELS)
    mix = model.class_mix("labels")
    np.testing.assert_allclose(mix.shares, np.array(NUM_LABELS) / sum(NUM_LABELS))  # type: ignore[arg-type]
    assert next_file(model, tmp_path / "to_label.csv", budget=5).notes == ()
    assert relabel_file(model, tmp_path / "labels.csv").notes == []


def test_the_same_seed_gives_the_same_file(digits_run: Path, tmp_path: Path) -> None:
    model = mnar.load(digits_run)
    for name in ("one.csv", "two.csv"):
        next_file(model, tmp_path / name, budget=30, seed=3)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_a_note_says_that_tasks_of_rows_of_numbers_show_only_row_numbers(table_run: Path, tmp_path: Path) -> None:
    rng, y = np.random.default_rng(0), np.tile([0, 1, -1], 20)
    np.savez(tmp_path / "rows.npz", x=rng.normal(y[:, None], 0.1, (60, 2)).astype(np.float32), y=y)
    run = portfolio(tmp_path / "rows.npz", tmp_path / "run")
    of_rows = next_file(mnar.load(run), tmp_path / "rows.json", budget=3, format="label-studio")
    assert any("only row numbers" in note for note in of_rows.notes)
    of_table = next_file(mnar.load(table_run), tmp_path / "table.json", budget=3, format="label-studio")
    assert not any("only row numbers" in note for note in of_table.notes)
