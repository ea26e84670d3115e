"""How a source is recognised, which options it accepts, and features that replace its samples."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mnar import cli
from mnar.datasets.user_files import Table, read_data
from tests.support.own_data_files import NAMES, write_images, write_table

FEW = ((2, 2, 1), (1, 1, 2))
MODULE = import_module("mnar.datasets.user_files.read_data")  # the package has a function of the same name
FEATURES = np.arange(18.0).reshape(9, 2)  # one row for each of the 9 samples


def image_folder(folder: Path) -> Path:
    return write_images(folder / "photos", FEW)


def csv_of_paths(folder: Path) -> Path:
    return write_images(folder / "photos", FEW) / "labels.csv"


def class_folders(folder: Path) -> Path:
    photos = write_images(folder / "photos", FEW)
    for line in (photos / "labels.csv").read_text().split()[1:]:
        name, label = line.split(",")
        (photos / (label or "unlabeled")).mkdir(exist_ok=True)
        (photos / name).rename(photos / (label or "unlabeled") / name)
    (photos / "labels.csv").unlink()
    return photos


def arrays(folder: Path) -> Path:
    np.savez(folder / "data.npz", x=FEATURES, y=np.array(["ant", "ant", "bee", "bee", "cat", *[""] * 4]))
    return folder / "data.npz"


def table(folder: Path) -> Path:
    path = write_table(folder / "data.csv", FEW)
    path.write_text(path.read_text().replace("kind", "label"))
    return path


def arrays_in_capitals(folder: Path) -> Path:
    return arrays(folder).rename(folder / "DATA.NPZ")


def table_with_tabs(folder: Path) -> Path:
    path = table(folder)
    path.write_text(path.read_text().replace(",", "\t"))
    return path.rename(folder / "data.TSV")


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (image_folder, "images"),
        (csv_of_paths, "images"),
        (class_folders, "images"),
        (arrays, "features"),
        (arrays_in_capitals, "features"),
        (table, "table"),
        (table_with_tabs, "table"),
    ],
)
def test_every_kind_of_source_is_recognised_and_has_the_labels_it_was_written_with(
    tmp_path: Path, write: Callable[[Path], Path], kind: str
) -> None:
    data = read_data(write(tmp_path))
    assert data.kind == kind
    assert data.class_names == NAMES
    assert np.bincount(data.y + 1).tolist() == [4, 2, 2, 1]
    assert len(data.row_names) == 9


@pytest.mark.parametrize("file", ["dataset_info.json", "dataset_dict.json"])
def test_a_folder_that_hugging_face_wrote_is_recognised_although_it_contains_a_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    table(tmp_path)
    (tmp_path / file).write_text("{}")
    data = read_data(tmp_path / "data.csv")
    monkeypatch.setattr(MODULE, "read_huggingface", lambda source, label: data._replace(notes=(label,)))
    assert read_data(tmp_path, label="kind").notes == ("kind",)


# ---- options are applied or refused


@pytest.mark.parametrize("write", [image_folder, csv_of_paths, class_folders, arrays, table])
def test_the_user_can_name_texts_that_mean_no_label_in_every_kind_of_source(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    data = read_data(write(tmp_path), unlabeled=("bee ",))
    assert data.class_names == ("ant", "cat")
    assert np.bincount(data.y + 1).tolist() == [6, 2, 1]


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (image_folder, {"ignore": ("weight",)}, "photos is images with a CSV file, to which --ignore cannot"),
        (class_folders, {"label": "kind"}, "photos is a folder of class folders, to which --label cannot"),
        (class_folders, {"ignore": ("kind",)}, "photos is a folder of class folders, to which --ignore cannot"),
        (arrays, {"label": "kind", "size": 8}, r"data\.npz is an \.npz file, to which --label and --size cannot"),
        (arrays, {"ignore": ("kind",)}, r"data\.npz is an \.npz file, to which --ignore cannot"),
        (table, {"size": 8}, r"data\.csv is a table, to which --size cannot"),
    ],
)
def test_an_option_that_does_not_apply_to_the_source_is_refused_with_both_named(
    tmp_path: Path, write: Callable[[Path], Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"{message} be applied; leave it out$"):
        read_data(write(tmp_path), **options)


@pytest.mark.parametrize("write", [image_folder, class_folders, arrays, table])
def test_the_default_of_every_option_changes_nothing(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source = write(tmp_path)
    kept = read_data(source, label=None, ignore=(), unlabeled=(), size=None, features=None)
    assert np.array_equal(kept.y, read_data(source).y)


def test_a_csv_whose_column_of_paths_is_ignored_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("file,weight,label\na.txt,1,ant\nb.txt,2,bee\nc.txt,3,\n")
    data = read_data(path, ignore=("file",))
    assert isinstance(data.x, Table)
    assert data.x.numeric_names == ("weight",)


@pytest.mark.parametrize(
    ("hidden", "name", "package", "extra"),
    [
        ("pyarrow.parquet", "data.parquet", "pyarrow", "fast"),
        ("pyarrow.parquet", "data.PQ", "pyarrow", "fast"),
        ("datasets", "data/dataset_info.json", "datasets", "hf"),
    ],
)
def test_without_an_extra_the_command_line_says_in_one_line_how_to_install_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hidden: str,
    name: str,
    package: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    source = tmp_path / name if hidden == "pyarrow.parquet" else tmp_path / "data"
    monkeypatch.setattr(sys, "argv", ["mnar", "inspect", str(source)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert (
        f"error: reading {source} needs the package {package}: pip install 'mnar[{extra}]'" in capsys.readouterr().err
    )


def test_label_column_ignored_columns_and_texts_for_no_label_of_a_table_are_the_named_ones(tmp_path: Path) -> None:
    data = read_data(write_table(tmp_path / "data.csv", FEW), label="kind", ignore=("length",), unlabeled=("bee",))
    assert isinstance(data.x, Table)
    assert (data.x.numeric_names, data.x.categorical_names) == (("weight",), ("colour",))
    assert data.class_names == ("ant", "cat")
    assert np.bincount(data.y + 1).tolist() == [6, 2, 1]


@pytest.mark.parametrize("write", [image_folder, csv_of_paths, class_folders])
def test_images_have_the_requested_size_and_progress_is_reported(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    reports: list[tuple[int, int]] = []
    data = read_data(write(tmp_path), size=6, progress=lambda done, total: reports.append((done, total)))
    assert isinstance(data.x, np.ndarray)
    assert data.x.shape == (9, 1, 6, 6)
    assert reports[-1] == (18, 18)


@pytest.mark.parametrize("name", ["data.xlsx", "data", "data.npy"])
def test_a_file_of_another_kind_is_refused_with_the_kinds_that_can_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a,label\n1,cat\n")
    with pytest.raises(
        ValueError, match=rf"{name} is none of \.csv, \.tsv, \.txt, \.parquet, \.pq or \.npz; save it as"
    ):
        read_data(tmp_path / name)


def test_a_missing_source_is_an_error_that_lists_what_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"no data at {tmp_path / 'absent'}; name a folder of images with"):
        read_data(tmp_path / "absent")


def test_a_csv_in_a_folder_is_found_whatever_the_case_of_its_name(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    (folder / "labels.csv").rename(folder / "LABELS.CSV")
    assert read_data(folder).class_names == NAMES


# ---- features that were computed elsewhere


def save(path: Path, values: npt.ArrayLike) -> Path:
    np.save(path, np.asarray(values))
    return path


@pytest.mark.parametrize("write", [image_folder, arrays, table])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int16, np.uint8])
def test_features_replace_the_samples_and_labels_and_names_stay(
    tmp_path: Path, write: Callable[[Path], Path], dtype: npt.DTypeLike
) -> None:
    source = write(tmp_path)
    before = read_data(source)
    data = read_data(source, features=save(tmp_path / "features.npy", FEATURES.astype(dtype)))
    assert data.kind == "features"
    assert isinstance(data.x, np.ndarray)
    assert data.x.dtype == np.float32
    assert np.array_equal(data.x, FEATURES)
    assert np.array_equal(data.y, before.y)
    assert data.class_names == before.class_names
    assert data.notes == before.notes
    assert list(data.row_names) == list(before.row_names)
    assert list(data.row_numbers) == list(before.row_numbers)


OBJECTS = np.empty((9, 2), object)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (FEATURES[:8], r"has shape \(8, 2\) .*with 9 rows, one for each sample"),
        (FEATURES[:, 0], r"has shape \(9,\)"),
        (FEATURES.astype(str), "and type <U"),
        (FEATURES + 1j, "and type complex128"),
        (np.where(FEATURES == 7, np.nan, FEATURES), "not finite numbers; fill them in"),
        (np.where(FEATURES == 7, np.inf, FEATURES), "not finite numbers; fill them in"),
        (OBJECTS, r"is not a complete \.npy file of numbers \(values of type object are not plain .*numpy\.save"),
    ],
)
def test_features_that_do_not_fit_are_an_error_that_names_their_file(
    tmp_path: Path, values: npt.NDArray[np.generic], message: str
) -> None:
    features = save(tmp_path / "features.npy", values)
    with pytest.raises(ValueError, match=f"{features}.*{message}"):
        read_data(arrays(tmp_path), features=features)


@pytest.mark.parametrize("content", [None, b"weight,length\n1,2\n", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_array_is_an_error_that_names_it(tmp_path: Path, content: bytes | None) -> None:
    features = tmp_path / "features.npy"
    if content is not None:
        features.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{features} is not a complete \.npy file of numbers"):
        read_data(arrays(tmp_path), features=features)


def test_an_empty_file_of_features_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "features.npy").touch()
    with pytest.raises(ValueError, match=r"features\.npy is not a complete \.npy file of numbers"):
        read_data(arrays(tmp_path), features=tmp_path / "features.npy")


def test_an_archive_of_features_is_an_error_that_names_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "features.npz", FEATURES)
    with pytest.raises(ValueError, match=r"features\.npz is not a complete \.npy file of numbers"):
        read_data(arrays(tmp_path), features=tmp_path / "features.npz")


@pytest.mark.filterwarnings("ignore:overflow")
def test_features_beyond_float32_are_an_error_that_names_their_file(tmp_path: Path) -> None:
    features = save(tmp_path / "features.npy", FEATURES * 1e38)
    with pytest.raises(ValueError, match=f"{features}.*not finite"):
        read_data(arrays(tmp_path), features=features)
