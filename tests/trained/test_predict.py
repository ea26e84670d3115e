"""`mnar.load` and `predict_file`: new data of every kind through the preprocessing of the training run."""

from __future__ import annotations

import csv
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import balanced_accuracy_score

import mnar
from mnar.datasets.user_files.sample_blocks import arrays
from mnar.own_data.portfolio.member import with_shares
from mnar.run import evaluate_run, read_run
from mnar.trained import TrainedModel, predict
from mnar.trained.export.model_card import model_card
from mnar.trained.predict import predict_file
from tests.trained.runs import portfolio


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def columns_of(path: Path) -> dict[str, list[str]]:
    """The columns of a table, as a dict, which is treated as a DataFrame."""
    rows = rows_of(path)
    return {name: [row[name] for row in rows] for name in rows[0]}


def digits(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    with np.load(path) as stored:
        return stored["x"], stored["truth"].astype(str)


# --- the model ---


@pytest.mark.parametrize("run", ["digits_run", "network_run"])
def test_a_loaded_model_predicts_the_true_classes_of_new_images(
    run: str, digits_file: Path, request: pytest.FixtureRequest
) -> None:
    model = mnar.load(request.getfixturevalue(run))
    x, truth = digits(digits_file)
    assert model.classes_.tolist() == [str(c) for c in range(10)]
    labels = model.predict(x)
    assert balanced_accuracy_score(truth, labels) > 0.8
    probs = model.predict_proba(x)
    assert probs.shape == (len(x), 10)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_array_equal(labels, model.classes_[probs.argmax(1)])
    features = model.features(x[:20])
    assert len(features) == 20
    assert np.isfinite(features).all()
    assert features.std() > 0


def test_a_benchmark_run_predicts_its_test_set_as_it_was_evaluated(finished_run: Path) -> None:
    model, data = mnar.load(str(finished_run)), mnar.datasets.digits()
    accuracy = (model.predict(data.test_x.numpy()).astype(int) == data.test_y.numpy()).mean()
    assert accuracy == pytest.approx(evaluate_run(finished_run)["accuracy"])
    assert accuracy == pytest.approx(read_run(finished_run).lines[-1]["test"]["accuracy"])


def test_the_portfolio_gives_the_labels_of_its_predictions_file_with_equal_classes(
    table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    """The run maximises the balanced accuracy, which is the prior "uniform"."""
    predict_file(mnar.load(table_run), table_file, tmp_path / "all.csv", prior="uniform")
    by_row = {row["row"]: row["label"] for row in rows_of(tmp_path / "all.csv")}
    written = rows_of(table_run / "predictions.csv")
    assert len(written) > 20
    assert [by_row[row["row"]] for row in written] == [row["label"] for row in written]


def test_a_portfolio_whose_data_all_have_labels_predicts_for_equal_classes_and_says_so(tmp_path: Path) -> None:
    y = np.repeat([0, 1], [90, 30])
    np.savez(tmp_path / "rows.npz", x=np.random.default_rng(0).normal(y[:, None], 1, (120, 2)), y=y)
    model = mnar.load(portfolio(tmp_path / "rows.npz", tmp_path / "run"))
    assert "equally frequent classes" in model.class_mix(None).description
    x = np.random.default_rng(1).normal(0.5, 1, (50, 2)).astype(np.float32)
    np.testing.assert_array_equal(model.predict_proba(x), model.predict_proba(x, prior="uniform"))
    np.testing.assert_allclose(model.predict_proba(x), model.predictor.probs(x, None))
    card = model_card(model, model.class_mix(None), "model.pt2", 0.0)
    assert "The probabilities are for equally frequent classes" in card
    assert "| 75.0% | no estimate | 50.0% |" in card


def test_a_prior_follows_bayes_rule(table_run: Path, table_file: Path) -> None:
    model = mnar.load(table_run)
    balanced = model.predict_proba(table_file, prior="uniform")
    shares = np.array([0.7, 0.2, 0.1])
    np.testing.assert_allclose(model.predict_proba(table_file, prior=shares.tolist()), with_shares(balanced, shares))
    pool = model.pool_shares
    assert pool is not None
    np.testing.assert_allclose(model.predict_proba(table_file), with_shares(balanced, pool.for_bayes_rule()))


def test_the_probabilities_of_a_network_follow_bayes_rule_between_two_priors(
    network_run: Path, digits_file: Path
) -> None:
    model, (x, _) = mnar.load(network_run), digits(digits_file)
    assert model.calibration is not None
    seen = np.bincount(model.calibration.y, minlength=10) > 0
    uniform, labels = (model.predict_proba(x[:200], prior=prior)[:, seen] for prior in ("uniform", "labels"))
    shares = (model.calibration.num_labels / model.calibration.num_labels.sum())[seen]
    mass = uniform.sum(1, keepdims=True)  # of the classes with held-out labels; the others keep their probability
    np.testing.assert_allclose(labels, with_shares(uniform, shares) * mass, rtol=1e-6)


# --- data of every kind ---


def test_images_may_be_arrays_files_folders_and_lists_of_paths(photos_run: Path, photos: Path, tmp_path: Path) -> None:
    model = mnar.load(photos_run)
    paths = sorted(photos.glob("*.png"))
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    expected = model.predict_proba(pixels)
    np.save(tmp_path / "images.npy", pixels)
    np.savez(tmp_path / "images.npz", x=pixels)
    for source in (photos, paths, [str(path) for path in paths], tmp_path / "images.npy", str(tmp_path / "images.npz")):
        np.testing.assert_allclose(model.predict_proba(source), expected)
    np.testing.assert_allclose(model.predict_proba(paths[3]), expected[3:4], rtol=1e-5)
    np.testing.assert_allclose(model.predict_proba(photos / "labels.csv"), expected)


def test_images_of_another_size_and_mode_are_converted(photos_run: Path, tmp_path: Path) -> None:
    model = mnar.load(photos_run)
    image = Image.fromarray(np.full((8, 8), 200, np.uint8))
    image.save(tmp_path / "small.png")
    image.resize((33, 21)).convert("RGB").save(tmp_path / "large.png")
    image.convert("RGBA").save(tmp_path / "transparent.png")
    paths = [tmp_path / name for name in ("small.png", "large.png", "transparent.png")]
    probs = model.predict_proba(paths)
    np.testing.assert_allclose(probs[1], probs[0], atol=0.02)
    np.testing.assert_allclose(probs[2], probs[0], atol=1e-6)
    colour = np.repeat(np.full((1, 16, 16, 1), 200, np.uint8), 3, 3)
    np.testing.assert_allclose(model.predict_proba(colour), probs[:1], atol=0.02)


def test_an_image_that_cannot_be_read_has_a_row_without_a_label(photos_run: Path, photos: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    (folder / "labels.csv").unlink()
    (folder / "005.png").write_bytes(b"not an image")
    model = mnar.load(photos_run)
    result = predict_file(model, folder, tmp_path / "out.csv")
    rows = rows_of(tmp_path / "out.csv")
    assert len(rows) == len(list(folder.glob("*.png"))) == result.num_rows
    assert [row["sample"] for row in rows if not row["label"]] == ["005.png"]
    assert result.counts.sum() == len(rows) - 1
    assert any("005.png" in note and "cannot be read" in note for note in result.notes)
    with pytest.raises(ValueError, match=r"005\.png cannot be read"):
        model.predict(folder)


def test_a_table_may_be_a_file_or_a_dataframe_with_its_columns_in_any_order(
    table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    model = mnar.load(table_run)
    expected = model.predict_proba(table_file)
    columns = columns_of(table_file)
    np.testing.assert_allclose(model.predict_proba(columns), expected)
    mixed = {name: columns[name] for name in ("colour", "length", "kind", "weight")}
    mixed["extra"] = ["1"] * len(expected)
    np.testing.assert_allclose(model.predict_proba(mixed), expected)
    with (tmp_path / "mixed.csv").open("w", newline="") as file:
        csv.writer(file).writerows([mixed, *zip(*mixed.values(), strict=True)])
    result = predict_file(model, tmp_path / "mixed.csv", tmp_path / "out.csv")
    assert any("extra" in note for note in result.notes)


def test_missing_columns_are_named(table_run: Path, table_file: Path) -> None:
    columns = columns_of(table_file)
    with pytest.raises(ValueError, match=r"'weight'.*'colour'|'colour'.*'weight'"):
        mnar.load(table_run).predict({"length": columns["length"]})


def test_unseen_categories_and_missing_cells_are_predicted(table_run: Path) -> None:
    columns = {"weight": [0.1, np.nan], "length": [0.2, 1.0], "colour": ["violet", None]}
    probs = mnar.load(table_run).predict_proba(columns)
    assert np.isfinite(probs).all()


def test_labels_of_the_new_data_are_not_looked_at(table_run: Path, table_file: Path) -> None:
    columns, model = columns_of(table_file), mnar.load(table_run)
    unknown = columns | {"kind": ["zebra"] * len(columns["kind"])}
    unlabeled = {name: cells for name, cells in columns.items() if name != "kind"}
    np.testing.assert_allclose(model.predict_proba(unknown), model.predict_proba(unlabeled))


@pytest.mark.parametrize(
    ("run", "data", "message"),
    [
        ("table_run", "missing.csv", "no data at"),
        ("table_run", np.zeros((3, 7)), r"shape \(3, 7\) .* takes the columns weight, length, colour"),
        ("table_run", [], "no samples"),
        ("digits_run", np.zeros((0, 8, 8), np.uint8), "has no rows"),
        ("digits_run", np.zeros((2, 8, 8)), "give images as uint8"),
        ("digits_run", np.zeros((2, 5)), "the model takes images of 8 × 8 pixels"),
        ("digits_run", np.zeros((8, 8, 3), np.uint8), "which is one image"),
    ],
)
def test_data_that_do_not_fit_are_refused(run: str, data: Any, message: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        mnar.load(request.getfixturevalue(run)).predict(data)


# --- the file ---


def test_the_file_lists_the_best_classes_and_all_probabilities(
    digits_run: Path, digits_file: Path, tmp_path: Path
) -> None:
    model, (x, _) = mnar.load(digits_run), digits(digits_file)
    np.save(tmp_path / "new.npy", x[:50])
    out = tmp_path / "out.csv"
    predict_file(model, tmp_path / "new.npy", out, top=3, probabilities=True)
    probs, rows = model.predict_proba(x[:50]), rows_of(out)
    for row, expected in zip(rows, probs, strict=True):
        best = np.argsort(-expected, kind="stable")[:3]
        assert [row["label"], row["label_2"], row["label_3"]] == [str(c) for c in best]
        assert float(row["confidence_2"]) == pytest.approx(expected[best[1]], abs=6e-5)
        np.testing.assert_allclose([float(row[f"p({c})"]) for c in range(10)], expected, atol=6e-7)
    assert [row["row"] for row in rows] == [str(number) for number in range(1, 51)]


def test_a_stopped_prediction_goes_on_and_gives_the_same_file(
    digits_run: Path, digits_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "ROWS_PER_BLOCK", 64)
    model = mnar.load(digits_run)
    predict_file(model, digits_file, tmp_path / "straight.csv")

    def stop(done: int, total: int | None) -> None:
        assert total == 1797
        if done >= 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_file(model, digits_file, tmp_path / "out.csv", on_rows=stop)
    seen: list[int] = []
    predict_file(model, digits_file, tmp_path / "out.csv", on_rows=lambda done, total: seen.append(done))
    assert seen[0] == 384
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "straight.csv").read_bytes()


def test_another_prior_does_not_continue_a_stopped_prediction(
    digits_run: Path, digits_file: Path, tmp_path: Path
) -> None:
    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    model, out = mnar.load(digits_run), tmp_path / "out.csv"
    with pytest.raises(KeyboardInterrupt):
        predict_file(model, digits_file, out, on_rows=stop)
    with pytest.raises(FileExistsError, match=r"other settings \(prior\)"):
        predict_file(model, digits_file, out, prior="uniform")


def test_cells_that_a_spreadsheet_would_run_get_a_quote(tmp_path: Path) -> None:
    block = predict.SampleBlock(np.zeros((2, 1)), ["=HYPERLINK(1)", "-5"], np.array([1, 2]), None)
    assert predict.sample_columns(block) == [["1", "2"], ["'=HYPERLINK(1)", "-5"]]


# --- run folders ---


def test_no_folder_an_empty_folder_and_an_unfinished_run_are_refused(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run at"):
        mnar.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        mnar.load(tmp_path)
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"unfinished .*mnar train --resume"):
        mnar.load(folder)


def test_a_model_file_that_is_not_ours_is_refused_and_never_unpickled(finished_run: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "executed",)

    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="damaged"):
        mnar.load(folder)
    save_file({"w": mnar.datasets.digits().test_x[:1].float()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="damaged"):
        mnar.load(folder)
    save_file({}, folder / "model.safetensors", {"mnar": json.dumps({"input_shape": [1, 8, 8]})})
    with pytest.raises(ValueError, match="damaged"):
        mnar.load(folder)
    (folder / "calibration.npz").write_bytes(pickle.dumps(Trap()))
    shutil.copy(finished_run / "model.safetensors", folder)
    with pytest.raises(ValueError, match=r"calibration\.npz is damaged"):
        mnar.load(folder)
    assert not (tmp_path / "executed").exists()


def test_a_run_of_an_older_version_predicts_without_another_class_mix(
    finished_run: Path, digits_file: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (folder / "calibration.npz").unlink()
    model, (x, _) = mnar.load(folder), digits(digits_file)
    np.testing.assert_allclose(model.predict_proba(x[:9]), mnar.load(finished_run).predict_proba(x[:9]))
    with pytest.raises(ValueError, match="older version"):
        model.predict_proba(x[:9], prior="uniform")


def test_a_trained_model_is_a_public_name_and_has_a_short_description(finished_run: Path) -> None:
    model = mnar.load(finished_run / "model.safetensors")
    assert isinstance(model, TrainedModel)
    assert repr(model) == f"TrainedModel('{finished_run}', images of 8 × 8 pixels, 10 classes)"
