"""The library `datasets` is optional, so most tests use a stand-in with the few methods that the reader calls."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from mnar.datasets.user_files.huggingface import read_huggingface
from mnar.datasets.user_files.model_inputs import ModelInputs
from mnar.datasets.user_files.partly_labeled import Table
from mnar.datasets.user_files.table_encoder import TableEncoder

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3), np.uint8)
CODES = [0, 1, -1, None, 2, 0]
CLASSES = ["emu", "cat", "dog", "yak"]


class Value:
    """The feature of numbers and texts."""


class ClassLabel:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class Image:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class StandIn:
    """A datasets.Dataset that stores images as files and, unlike the library, never decodes them."""

    def __init__(self, columns: dict[str, list[Any]], **features: Any) -> None:
        self.columns = columns
        self.features = {name: features.get(name, Value()) for name in columns}

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return [self._value(key, row) for row in range(len(self))]
        return {name: self._value(name, key) for name in self.columns}

    def _value(self, name: str, row: int) -> Any:
        assert not getattr(self.features[name], "decode", False), "the library would decode the image by its own rules"
        return self.columns[name][row]

    def with_format(self, kind: None) -> StandIn:
        return self

    def select_columns(self, names: list[str]) -> StandIn:
        return StandIn({name: self.columns[name] for name in names}, **self.features)

    def cast_column(self, name: str, feature: Any) -> StandIn:
        return StandIn(self.columns, **(self.features | {name: feature}))


def png(pixels: np.ndarray) -> dict[str, Any]:
    file = BytesIO()
    PillowImage.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def images(**columns: list[Any]) -> StandIn:
    columns = {"image": [png(pixels) for pixels in PIXELS], "label": CODES} | columns
    return StandIn(columns, image=Image(), label=ClassLabel(CLASSES))


def test_images_are_decoded_and_all_class_names_are_kept_even_without_a_label() -> None:
    data = read_huggingface(images())
    assert data.kind == "images"
    assert np.array_equal(data.x, PIXELS.transpose(0, 3, 1, 2))  # type: ignore[arg-type]
    assert data.y.tolist() == [0, 1, -1, -1, 2, 0]
    assert data.class_names == tuple(CLASSES)


def test_texts_are_labels_too() -> None:
    texts = ["b", "a", "", None, "?", "b"]
    data = read_huggingface(StandIn(images().columns | {"label": texts}, image=Image()))
    assert data.y.tolist() == [1, 0, -1, -1, -1, 1]
    assert data.class_names == ("a", "b")


def test_a_class_can_be_named_as_no_label() -> None:
    data = read_huggingface(images(), unlabeled=["cat"])
    assert data.y.tolist() == [0, -1, -1, -1, 1, 0]
    assert data.class_names == ("emu", "dog", "yak")


def test_a_column_of_files_is_images_as_well(tmp_path: Path) -> None:
    PillowImage.fromarray(PIXELS[1]).save(tmp_path / "1.png")
    files = [png(PIXELS[0]), {"bytes": None, "path": str(tmp_path / "1.png")}]
    data = read_huggingface(StandIn({"picture": files, "y": ["a", "b"]}, picture={"bytes": Value(), "path": Value()}))
    assert np.array_equal(data.x, PIXELS[:2].transpose(0, 3, 1, 2))  # type: ignore[arg-type]


def test_images_of_several_sizes_become_one_size_and_that_is_noted() -> None:
    data = read_huggingface(images(image=[png(PIXELS[row, : 8 - row]) for row in range(6)]))
    assert isinstance(data.x, np.ndarray)
    assert data.x.shape == (6, 3, 64, 64)
    assert any("3×9 to 8×9" in note for note in data.notes)


def test_images_have_the_size_asked_for() -> None:
    data = read_huggingface(images(), size=5)
    assert isinstance(data.x, np.ndarray)
    assert data.x.shape == (6, 3, 5, 5)


def test_rows_without_a_readable_image_are_left_out_and_listed() -> None:
    stored = images().columns["image"]
    cut_off = {"bytes": stored[4]["bytes"][:-200], "path": None}
    broken = [{"bytes": b"no image", "path": None}, stored[1], None, stored[3], cut_off, stored[5]]
    data = read_huggingface(images(image=broken))
    assert np.array_equal(data.x, PIXELS[[1, 3, 5]].transpose(0, 3, 1, 2))  # type: ignore[arg-type]
    assert data.y.tolist() == [1, -1, 0]
    assert list(data.row_names) == ["row 2", "row 4", "row 6"]
    assert list(data.row_numbers) == [2, 4, 6]
    (note,) = data.notes
    assert note.startswith("3 files cannot be read")
    assert all(f"row {row} (" in note for row in (1, 3, 5))


def test_without_images_the_other_columns_are_a_table() -> None:
    columns = {
        "size": [1.5, None, 2.5, 3.5],
        "colour": [0, 1, -1, 0],
        "place": ["sea", "hill", None, "sea"],
        "vector": [[1.0, 2.0], [3.0, 5.0], [4.0, 6.0], [0.0, 7.0]],
        "kind": [1, 0, -1, 1],
    }
    source = StandIn(columns, colour=ClassLabel(["red", "blue"]), kind=ClassLabel(CLASSES))
    assert read_huggingface(source, label="kind", ignore=["vector", "place"]).x.categorical_names == ("colour",)  # type: ignore[union-attr]
    table = read_huggingface(source, label="kind").x
    assert isinstance(table, Table)
    assert table.numeric_names == ("size", "vector[0]", "vector[1]")
    np.testing.assert_array_equal(table.numeric[:, 0], [1.5, np.nan, 2.5, 3.5])
    np.testing.assert_array_equal(table.numeric[:, 1:], columns["vector"])
    assert table.categorical_names == ("colour", "place")
    assert [table.categories[0][code] for code in table.categorical[[0, 1], 0]] == ["red", "blue"]
    assert table.categorical[2].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (images(), {"label": "kind"}, "has no column 'kind'; its columns are image, label"),
        (images(), {"ignore": ["picture"]}, "has no column 'picture'"),
        (
            StandIn({"a": [1, 2], "y": ["u", "v"]}),
            {"size": 9},
            "no column of images, but --size applies to images only",
        ),
        (images(label=[0, 1, 4, None, 2, 0]), {}, r"column 'label'\[2\] is 4.0; .*0 to 3"),
        (images(label=[None] * 6), {}, "no row has a label"),
        (images(image=[None] * 6), {}, "no image that can be read"),
        (StandIn({"a": [1, 2], "b": [1, 2]}), {}, "which column is the label.*--label: a, b"),
        (StandIn({"v": [[1.0], [1.0, 2.0]], "y": ["a", "b"]}), {}, "lists in column 'v' are not all numbers of one"),
        (StandIn({"x": [], "y": []}), {}, "has no rows"),
        ({"train": images(), "test": images()}, {}, r"splits train, test; .*data\['train'\]"),
        (iter([]), {}, "give a datasets.Dataset, not a streaming data set"),
    ],
)
def test_what_cannot_be_read_is_named(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_huggingface(source, **options)


def test_two_columns_of_images_are_an_error() -> None:
    source = StandIn({"a": [png(PIXELS[0])] * 2, "b": [None] * 2, "y": ["u", "v"]}, a=Image(), b=Image())
    with pytest.raises(ValueError, match=r"which column holds the images.*--ignore: a, b"):
        read_huggingface(source)
    assert read_huggingface(source, ignore=["b"]).kind == "images"


def test_the_only_split_is_taken() -> None:
    assert read_huggingface({"train": images()}).y.tolist() == [0, 1, -1, -1, 2, 0]


def test_the_library_itself_gives_the_same_from_an_object_and_from_its_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    stored = datasets.Dataset.from_dict({"image": images().columns["image"], "label": CODES}, features=features)
    stored.save_to_disk(tmp_path / "data")
    for source in (stored, stored.with_format("numpy"), tmp_path / "data"):
        data = read_huggingface(source)
        assert np.array_equal(data.x, PIXELS.transpose(0, 3, 1, 2))  # type: ignore[arg-type]
        assert data.y.tolist() == [0, 1, -1, -1, 2, 0]
        assert data.class_names == tuple(CLASSES)
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        read_huggingface(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is not a complete data set"):
        read_huggingface(tmp_path)


def test_ids_are_carried_along_and_follow_the_readable_images() -> None:
    stored = images().columns["image"]
    data = read_huggingface(images(image=[None, *stored[1:]], nr=[10, 11, 12, None, 14, 15]), id="nr")
    assert data.ids == ["11", "12", "", "14", "15"]
    assert list(data.row_numbers) == [2, 3, 4, 5, 6]
    assert any("1 rows have no id" in note for note in data.notes)


def test_images_for_a_trained_model_get_its_shape_and_its_class_numbers() -> None:
    like = ModelInputs((1, 4, 5), ("dog", "cat", "emu"))
    data = read_huggingface(images(), like=like)
    assert data.x.shape == (6, 1, 4, 5)  # type: ignore[union-attr]
    assert data.y.tolist() == [2, 1, -1, -1, 0, 2]
    without_labels = StandIn({"image": images().columns["image"]}, image=Image())
    assert read_huggingface(without_labels, like=like).y.tolist() == [-1] * 6


def test_a_table_for_a_trained_model_has_its_columns_in_its_order() -> None:
    schema = Table(np.array([[0.0], [1.0]]), np.array([[0], [1]]), ("size",), ("place",), (("sea", "hill"),))
    like = ModelInputs((3,), ("a", "b"), TableEncoder.fit(schema))
    columns = {"place": ["hill", "moon"], "other": [1, 2], "size": [3.0, None], "y": ["b", None]}
    data = read_huggingface(StandIn(columns), like=like)
    assert isinstance(data.x, Table)
    np.testing.assert_array_equal(data.x.numeric, [[3], [np.nan]])
    assert data.x.categorical_names == ("place",)
    assert data.y.tolist() == [1, -1]
