from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mnar.datasets.user_files import UNLABELED, read_data, read_data_like
from mnar.datasets.user_files.table_encoder import TableEncoder
from tests.support.own_data_files import NAMES, write_images, write_table


@pytest.fixture
def model(tmp_path: Path) -> dict[str, Any]:
    """What a model file stores about a model that was trained on a table."""
    data = read_data(write_table(tmp_path / "training.csv"), label="kind")
    encoder = TableEncoder.fit(data.x)  # type: ignore[arg-type]
    shape = (len(encoder.feature_names),)
    return {"encoding": encoder.to_dict(), "input_shape": shape, "class_names": data.class_names}


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_training_file_itself_gives_the_encoding_of_the_training(tmp_path: Path, model: dict[str, Any]) -> None:
    source = tmp_path / "training.csv"
    trained_on, data = read_data(source, label="kind"), read_data_like(source, label="kind", **model)
    encoder = TableEncoder.from_dict(model["encoding"])
    assert isinstance(data.x, np.ndarray)
    assert data.x.dtype == np.float32
    assert np.array_equal(data.x, encoder.transform(trained_on.x))  # type: ignore[arg-type]
    assert np.array_equal(data.y, trained_on.y)
    assert list(data.row_names) == list(trained_on.row_names)


def test_columns_are_found_by_name_and_numbers_keep_the_scale_of_the_training(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    encoder = TableEncoder.from_dict(model["encoding"])
    means, stds = (dict(zip(encoder.numeric_names, values, strict=True)) for values in (encoder.means, encoder.stds))
    source = write(
        tmp_path / "new.csv",
        "note,kind,colour,length,nr,weight",
        f"x,bee,red,{means['length'] + stds['length']},a1,{means['weight'] - 2 * stds['weight']}",
        "y,,mauve,1,a2,1",
    )
    data = read_data_like(source, label="kind", id="nr", **model)
    assert isinstance(data.x, np.ndarray)
    first = dict(zip(encoder.feature_names, data.x[0].tolist(), strict=True))
    assert first == pytest.approx({"length": 1, "weight": -2, "colour = red": 1, "colour = blue": 0}, abs=1e-5)
    second = dict(zip(encoder.feature_names, data.x[1].tolist(), strict=True))
    assert (second["colour = red"], second["colour = blue"]) == (0, 0)  # a new category: missing
    assert data.y.tolist() == [1, UNLABELED]
    assert data.ids == ["a1", "a2"]
    assert list(data.row_numbers) == [1, 2]
    assert any("the model does not use these columns: note" in note for note in data.notes)


def test_one_row_of_one_class_and_a_file_without_labels_can_be_read(tmp_path: Path, model: dict[str, Any]) -> None:
    one = write(tmp_path / "one.csv", "weight,length,colour,kind", "1,1,red,cat")
    assert read_data_like(one, label="kind", **model).y.tolist() == [2]
    none = write(tmp_path / "none.csv", "weight,length,colour", "1,1,red", "1,2,blue")
    for options in ({}, {"label": "kind", "ignore": ("other",)}):
        data = read_data_like(none, **options, **model)
        assert data.y.tolist() == [UNLABELED] * 2
        assert any("there is no label column" in note for note in data.notes)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["weight,colour,kind", "1,red,ant"], r"new\.csv has no column 'length'; its columns are weight, colour, kind"),
        (
            ["weight,length,colour,kind", "1,1,red,ant", "1,1,red,cow"],
            r"new\.csv, column 'kind', line 3: label 'cow' is no class of the model, whose classes are ant, bee, "
            "cat; .*--unlabeled cow",
        ),
        (["weight,length,colour,kind", "1,tall,red,ant"], r"new\.csv, line 2: 'length' is 'tall', not a number"),
    ],
)
def test_a_file_that_does_not_fit_the_model_is_an_error(
    tmp_path: Path, model: dict[str, Any], lines: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_data_like(write(tmp_path / "new.csv", *lines), label="kind", **model)


def test_classes_that_are_numbers_match_with_and_without_decimals(tmp_path: Path, model: dict[str, Any]) -> None:
    numbered = {**model, "class_names": ("0", "1", "2")}
    source = write(tmp_path / "new.csv", "weight,length,colour,kind", "1,1,red,2.0", "1,1,red,", "1,1,red,0.0")
    assert read_data_like(source, label="kind", **numbered).y.tolist() == [2, UNLABELED, 0]


IMAGES = {"input_shape": (3, 6, 5), "class_names": NAMES}


def test_images_get_the_size_and_the_channels_of_the_model(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images")
    data, before = read_data_like(folder, **IMAGES), read_data(folder)
    assert isinstance(data.x, np.ndarray)
    assert data.x.shape == (len(before.y), 3, 6, 5)
    assert data.x.dtype == np.uint8
    assert np.array_equal(data.x[:, 0], data.x[:, 2])  # grey images became RGB
    assert np.array_equal(data.y, before.y)
    assert read_data(folder).x.shape[1:] == (1, 8, 8)  # the cache of the training data is not disturbed


def test_class_folders_may_be_fully_labelled_and_lack_classes(tmp_path: Path) -> None:
    for name in ("bee", "cat"):
        (tmp_path / "new" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9), "red").save(tmp_path / "new" / name / "1.png")
    data = read_data_like(tmp_path / "new", **IMAGES)
    assert data.y.tolist() == [1, 2]
    assert data.class_names == NAMES
    (tmp_path / "new" / "bee").rename(tmp_path / "new" / "cow")
    with pytest.raises(ValueError, match="'cow' is no class of the model"):
        read_data_like(tmp_path / "new", **IMAGES)


def test_arrays_of_images_are_resized_and_numbers_count_the_classes(tmp_path: Path) -> None:
    x = np.zeros((3, 12, 10), np.uint8)
    x[1] = 200
    np.savez(tmp_path / "new.npz", x=x, y=np.array([2, -1, 0]), nr=np.array([5, 6, 7]))
    data = read_data_like(tmp_path / "new.npz", id="nr", **IMAGES)
    assert isinstance(data.x, np.ndarray)
    assert data.x.shape == (3, 3, 6, 5)
    assert data.x.reshape(3, -1).tolist() == [[0] * 90, [200] * 90, [0] * 90]
    assert data.y.tolist() == [2, UNLABELED, 0]
    assert data.ids == ["5", "6", "7"]


def test_arrays_with_names_are_matched_by_name_and_need_no_y(tmp_path: Path) -> None:
    model = {"input_shape": (2,), "class_names": NAMES}
    np.savez(tmp_path / "new.npz", x=np.ones((2, 2)), y=np.array([0, 1]), classes=np.array(["cat", "ant"]))
    assert read_data_like(tmp_path / "new.npz", **model).y.tolist() == [2, 0]
    np.savez(tmp_path / "new.npz", x=np.ones((2, 2)))
    assert read_data_like(tmp_path / "new.npz", **model).y.tolist() == [UNLABELED] * 2


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((2, 3)), r"samples of shape \(3,\), but the model takes 2 features per sample"),
        (np.ones((2, 8, 8), np.uint8), r"samples of shape \(1, 8, 8\), but the model takes 2 features"),
        (np.array([[1, np.nan], [1, 1]]), "has missing values, but the model takes 2 features"),
    ],
)
def test_arrays_of_another_kind_are_an_error(tmp_path: Path, x: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "new.npz", x=x, y=np.array([0, 1]))
    with pytest.raises(ValueError, match=message):
        read_data_like(tmp_path / "new.npz", input_shape=(2,), class_names=NAMES)


def test_features_from_elsewhere_replace_the_columns_of_a_table(tmp_path: Path) -> None:
    source = write(tmp_path / "new.csv", "weight,kind", "1,cat", "1,ant")
    np.save(tmp_path / "new.npy", np.arange(6).reshape(2, 3))
    model = {"input_shape": (3,), "class_names": NAMES}
    data = read_data_like(source, label="kind", features=tmp_path / "new.npy", **model)
    assert data.x.tolist() == [[0, 1, 2], [3, 4, 5]]  # type: ignore[union-attr]
    assert data.y.tolist() == [2, 0]
    with pytest.raises(ValueError, match="is a table or has missing values, but the model takes 3 features per sample"):
        read_data_like(source, label="kind", **model)
