"""Own data as a data set: which labels are held out, how tables are encoded, and which data are not copied."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mnar.datasets.own_data import HELD_OUT, as_data_set, held_out_rows, own_data
from mnar.datasets.user_files import UNLABELED, PartlyLabeled, Table, read_data
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.protocols import split
from tests.support.own_data_files import NAMES, write_table

Labels = npt.NDArray[np.int64]
MODULE = import_module("mnar.datasets.own_data")  # the package has a function of the same name


def labels(*counts: int, unlabeled: int = 30) -> Labels:
    """Return as many labels of each class as `counts` says, in random order."""
    y = np.repeat([*range(len(counts)), UNLABELED], [*counts, unlabeled])
    return np.random.default_rng(1).permutation(y)


def data_of(y: Labels, notes: tuple[str, ...] = ()) -> PartlyLabeled:
    """Return data whose samples have one feature, the number of their row."""
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return PartlyLabeled(
        x, y, tuple(f"class {c}" for c in range(y.max() + 1)), [str(row) for row in range(len(y))], notes
    )


@pytest.mark.parametrize(
    ("counts", "share", "held_out"),
    [
        ((100, 50, 0, 5), 0.2, [20, 10, 0, 1]),
        ((100, 50, 4, 1), 0.2, [20, 10, 0, 0]),  # a class with fewer than five labels gives none
        ((40, 40, 40), 0.5, [20, 20, 20]),
        ((60, 40), 0.2, [12, 8]),  # 20 in total
        ((60, 37), 0.2, [0, 0]),  # 12 and 7 would be too few
        ((500, 500), 0.0, [0, 0]),
    ],
)
def test_a_share_of_each_class_is_held_out_if_that_is_enough(
    counts: tuple[int, ...], share: float, held_out: list[int]
) -> None:
    y = labels(*counts)
    rows = held_out_rows(y, share)
    assert (np.diff(rows) > 0).all()
    assert np.bincount(y[rows], minlength=len(counts)).tolist() == held_out
    assert np.array_equal(rows, held_out_rows(y, share)), "the same in every call"


def test_every_label_of_a_class_is_held_out_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    y, often = labels(60, 40), np.zeros(130)
    for seed in range(500):
        monkeypatch.setattr(MODULE, "SEED", seed)
        often[held_out_rows(y, 0.2)] += 1 / 500
    assert np.abs(often[y >= 0] - 0.2).max() < 0.09  # five standard deviations
    assert not often[y < 0].any()


@pytest.mark.parametrize("include_labeled", [True, False])
def test_samples_that_are_held_out_are_the_test_set_and_in_neither_part_of_the_split(include_labeled: bool) -> None:
    data = data_of(labels(70, 50, 3), notes=("something odd",))
    made = as_data_set(data, held_out=0.3)
    scored = made.test_x[:, 0].long()  # its row
    assert sorted(made.test_y.tolist()) == [0] * 21 + [1] * 15
    assert np.array_equal(made.test_y, data.y[scored])
    assert (made.train_y[scored] == HELD_OUT).all()
    others = np.setdiff1d(np.arange(len(data.y)), scored)
    assert np.array_equal(made.train_y[others], data.y[others])

    rows = split(made.train_y, None, seed=1, include_labeled=include_labeled)
    assert np.array_equal(rows.labeled_index, np.setdiff1d(np.flatnonzero(data.is_labeled), scored))
    pool = others if include_labeled else np.flatnonzero(~data.is_labeled)
    assert np.array_equal(rows.unlabeled_index, pool)
    assert made.notes[0] == "something odd"
    assert "scored on 36 held-out labels" in made.notes[1]
    assert np.array_equal(data.y, labels(70, 50, 3)), "the labels that were read do not change"


def test_too_few_labels_are_not_held_out_and_the_note_says_that_scores_are_too_high() -> None:
    data = data_of(labels(40, 40, 3))
    made = as_data_set(data)
    assert np.array_equal(made.train_y, data.y)
    assert np.array_equal(made.test_x[:, 0].long(), np.flatnonzero(data.is_labeled))
    assert np.array_equal(made.test_y, data.y[data.is_labeled])
    assert "too few labels to hold any out" in made.notes[-1]
    assert "scores are too high" in made.notes[-1]


def test_if_no_label_is_to_be_held_out_the_note_does_not_call_many_labels_few() -> None:
    note = as_data_set(data_of(labels(500, 500)), held_out=0).notes[-1]
    assert "scores are too high" in note
    assert "too few" not in note


@pytest.mark.parametrize("share", [-0.1, 1, 20])
def test_a_share_of_labels_that_cannot_be_held_out_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"held_out is {share}; expected a number of at least 0 and below 1"):
        as_data_set(data_of(labels(60, 40)), held_out=share)


def test_a_table_is_encoded_and_its_stored_encoding_encodes_the_rows_in_the_same_way(tmp_path: Path) -> None:
    data = read_data(write_table(tmp_path / "data.csv"), label="kind")
    made = as_data_set(data)
    assert isinstance(data.x, Table)
    assert made.encoding is not None
    assert made.train_x.dtype == torch.float32
    assert np.array_equal(TableEncoder.from_dict(made.encoding).transform(data.x), made.train_x)


def test_row_numbers_and_ids_are_carried_along_and_the_id_is_no_feature(tmp_path: Path) -> None:
    lines = write_table(tmp_path / "data.csv").read_text().splitlines()
    rows = [f"{row % 7}{row},{line}" for row, line in enumerate(lines[1:])]
    (tmp_path / "data.csv").write_text("\n".join([f"nr,{lines[0]}", *rows]) + "\n")
    made = own_data(tmp_path / "data.csv", label="kind", id="nr")
    assert made.ids == [row.partition(",")[0] for row in rows]
    assert made.id_name == "nr"
    assert list(made.row_numbers) == list(range(1, len(rows) + 1))
    assert made.encoding is not None
    assert made.encoding["numeric_names"] == ["weight", "length"]


@pytest.mark.parametrize("shape", [(150, 3), (150, 1, 4, 4)])
def test_features_and_images_are_taken_as_they_are(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8 if len(shape) == 4 else np.float32)
    data = data_of(labels(70, 50))._replace(x=x, class_names=("cat", "dog"))
    made = as_data_set(data)
    assert made.encoding is None
    assert np.array_equal(made.train_x, x)
    assert made.class_names == ("cat", "dog")


def test_images_in_a_read_only_file_are_not_copied_into_memory(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 256, (150, 1, 4, 4), np.uint8))
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    made = as_data_set(data_of(labels(70, 50))._replace(x=images))
    assert np.shares_memory(made.train_x.numpy(), images)
    assert [str(warning.message) for warning in recwarn] == []


# ---- the fingerprint, by which a resumed run recognises its data


def changed(values: npt.NDArray[Any], row: int) -> npt.NDArray[Any]:
    other = values.copy()
    other[row] = 1 - other[row]
    return other


@pytest.mark.parametrize("limit", [2**28, 100])
def test_the_fingerprint_covers_all_labels_and_samples_even_of_large_data(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(MODULE, "MAX_HASHED_BYTES", limit)
    data = data_of(labels(70, 50))
    prints = [
        as_data_set(each).fingerprint
        for each in (
            data,
            data._replace(y=changed(data.y, int(data.y.argmax()))),
            data._replace(x=changed(np.asarray(data.x), 0)),
            data._replace(x=np.asarray(data.x)[:-1], y=data.y[:-1]),
        )
    ]
    assert len(set(prints)) == 4
    assert as_data_set(data_of(labels(70, 50))).fingerprint == prints[0]


def test_the_fingerprint_covers_every_row_of_small_data() -> None:
    data = data_of(labels(70, 50))
    prints = {as_data_set(data._replace(x=changed(np.asarray(data.x), row))).fingerprint for row in range(150)}
    assert len(prints) == 150


# ---- from a source


def test_own_data_passes_on_every_option(tmp_path: Path) -> None:
    source = write_table(tmp_path / "data.csv")
    np.save(tmp_path / "features.npy", np.arange(300.0).reshape(150, 2))
    made = own_data(source, label="kind", ignore=("length",), held_out=0.5)
    assert made.class_names == NAMES
    assert torch.bincount(made.test_y).tolist() == [30, 22]
    assert made.encoding is not None
    assert made.encoding["numeric_names"] == ["weight"]
    assert own_data(source, label="kind", unlabeled=("bee",)).class_names == ("ant", "cat")
    assert own_data(source, label="kind", features=tmp_path / "features.npy").train_x[:, 0].tolist() == [
        *range(0, 300, 2)
    ]


def test_own_data_without_a_source_names_the_command_that_takes_one() -> None:
    with pytest.raises(FileNotFoundError, match="give a file or a folder with `mnar train DATA`"):
        own_data()
