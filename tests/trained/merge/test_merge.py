"""Merge annotations into every kind of data."""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mnar.datasets.user_files import read_data
from mnar.trained.label_studio import TaskSample, write_tasks
from mnar.trained.merge import merge_annotations, undo_merge, write_report
from mnar.trained.merge.moves import FORMAT, JOURNAL
from tests.support.own_data_files import write_images, write_table

TABLE = 'weight,kind,"note, long"\n1.5,ant,"a ""b"""\n2.5,,\n3.5,?,x\n4.5,bee,\n'


def annotate(path: Path, rows: Sequence[Sequence[object]], header: Sequence[str] = ("row", "sample", "label")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def counts(report: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in report.plan.outcomes:
        found[entry.outcome] = found.get(entry.outcome, 0) + 1
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "animals.csv"
    path.write_text(TABLE)
    return path


def class_folders(root: Path, num_unlabeled: int = 4) -> Path:
    for number in range(6):
        name = f"{('ant', 'bee')[number % 2]}/{number}.png"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(root / name)
    (root / "unlabeled/deep").mkdir(parents=True)
    for number in range(num_unlabeled):
        image = Image.fromarray(np.full((8, 8), 100 + number, np.uint8))
        image.save(root / f"unlabeled/{'deep/' if number == 3 else ''}{number}.png")
    return root


def snapshot(folder: Path) -> dict[str, bytes]:
    """The images of a folder and their contents."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.png"))}


# Tables


def test_a_table_gets_the_labels_and_keeps_every_other_byte_and_a_backup(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee"), (3, "line 4", "ant"), (4, "line 5", "")])
    report = merge_annotations(table, answers, label="kind")
    assert table.read_text() == TABLE.replace("2.5,,", "2.5,bee,").replace("3.5,?,", "3.5,ant,")
    assert report.backups == [tmp_path / "animals.csv.bak-1"]
    assert report.backups[0].read_text() == TABLE
    assert counts(report) == {"merged": 2, "empty": 1}


def test_a_second_merge_of_the_same_file_changes_nothing_and_makes_no_backup(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee")])
    merge_annotations(table, answers, label="kind")
    report = merge_annotations(table, answers, label="kind")
    assert (counts(report), report.backups) == ({"unchanged": 1}, [])
    assert not (tmp_path / "animals.csv.bak-2").exists()


def test_a_dry_run_reports_the_same_and_writes_nothing(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee")])
    before = sorted(tmp_path.iterdir())
    report = merge_annotations(table, answers, label="kind", dry_run=True)
    assert (report.num_merged, report.backups) == (1, [])
    assert (table.read_text(), sorted(tmp_path.iterdir())) == (TABLE, before)


def test_an_existing_label_is_kept_and_reported_unless_overwrite_is_given(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(1, "line 2", "bee"), (2, "line 3", "ant")])
    report = merge_annotations(table, answers, label="kind")
    (conflict,) = report.plan.with_outcome("conflict")
    assert (conflict.row, conflict.sample, conflict.existing, conflict.label) == (1, "line 2", "ant", "bee")
    assert table.read_text() == TABLE.replace("2.5,,", "2.5,ant,")
    report = merge_annotations(table, answers, label="kind", overwrite=True)
    assert counts(report) == {"merged": 1, "unchanged": 1}
    assert "1.5,bee," in table.read_text()


def test_annotators_who_disagree_are_reported_and_a_majority_is_merged_on_request(table: Path, tmp_path: Path) -> None:
    rows = [
        (2, "line 3", "bee"),
        (2, "line 3", "ant"),
        (2, "line 3", "bee"),
        (3, "line 4", "ant"),
        (3, "line 4", "bee"),
    ]
    answers = annotate(tmp_path / "a.csv", rows)
    report = merge_annotations(table, answers, label="kind")
    assert [entry.label for entry in report.plan.with_outcome("disagreement")] == ["bee | ant", "ant | bee"]
    assert (table.read_text(), report.plan.num_repeated) == (TABLE, 3)
    report = merge_annotations(table, answers, label="kind", majority=True)
    assert counts(report) == {"merged": 1, "disagreement": 1}, "one to one is no majority"
    assert "2.5,bee," in table.read_text()


def test_annotations_for_samples_that_are_not_there_stop_the_merge_and_are_named(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee"), (9, "line 10", "ant"), (8, "line 9", "")])
    with pytest.raises(
        ValueError, match=r"1 of 3 annotations are for samples that are not in .*row 9, line 10"
    ) as caught:
        merge_annotations(table, answers, label="kind")
    assert "--ignore-missing" in str(caught.value)
    assert table.read_text() == TABLE
    report = merge_annotations(table, answers, label="kind", ignore_missing=True)
    assert counts(report) == {"missing": 1, "empty": 1, "merged": 1}


def test_a_row_whose_name_does_not_fit_is_not_merged(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 7", "bee")])
    with pytest.raises(ValueError, match=r"row 2 of .* is 'line 3'"):
        merge_annotations(table, answers, label="kind")


def test_ids_find_the_samples_of_a_reordered_file_and_a_note_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("key,x,label\nk3,3,\nk1,1,no\nk2,2,\n")
    answers = annotate(tmp_path / "b.csv", [(2, "k2", "yes"), (3, "k3", "no")], ("row", "key", "label"))
    report = merge_annotations(path, answers, id="key", new_classes=True)
    assert path.read_text() == "key,x,label\nk3,3,no\nk1,1,no\nk2,2,yes\n"
    assert "2 samples are in other rows" in report.notes[0]


def test_an_id_that_occurs_twice_is_told_apart_by_the_row_which_must_have_the_id(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = "key,x,label\nk1,3,no\nk1,1,\nk2,2,yes\n"
    path.write_text(text)
    answers = annotate(tmp_path / "b.csv", [(2, "k1", "yes")], ("row", "key", "label"))
    merge_annotations(path, answers, id="key")
    assert path.read_text() == text.replace("k1,1,", "k1,1,yes")
    answers = annotate(tmp_path / "b.csv", [(3, "k1", "yes")], ("row", "key", "label"))
    with pytest.raises(ValueError, match=r"row 3 of .* is 'k2'"):
        merge_annotations(path, answers, id="key")


def test_the_ids_of_a_file_of_next_are_found_without_an_option(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("key,x,label\nk3,3,yes\nk1,1,no\nk2,2,\n")
    header = ("row", "key", "label", "suggestion", "confidence", "reason")
    answers = annotate(tmp_path / "b.csv", [(1, "k2", "yes", "no", "0.5", "")], header)
    merge_annotations(path, answers)
    assert path.read_text().endswith("k2,2,yes\n")


def test_an_unknown_class_stops_the_merge_with_similar_names_unless_new_classes_are_allowed(
    table: Path, tmp_path: Path
) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "Bee "), (3, "line 4", "wasp")])
    with pytest.raises(ValueError, match=r"'Bee' \(.*a.csv, line 2, did you mean 'bee'\?\); 'wasp'") as caught:
        merge_annotations(table, answers, label="kind")
    assert "--new-classes" in str(caught.value)
    assert table.read_text() == TABLE
    report = merge_annotations(table, answers, label="kind", new_classes=True)
    assert report.plan.new_classes == ["Bee", "wasp"]
    assert "3.5,wasp," in table.read_text()


def test_a_class_that_is_a_number_may_be_written_with_a_zero_decimal(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,label\n1,3.0\n2,5.0\n3,\n4,3.0\n")
    answers = annotate(tmp_path / "b.csv", [(3, "line 4", "5.0"), (4, "line 5", "3")])
    assert counts(merge_annotations(path, answers)) == {"merged": 1, "unchanged": 1}
    assert path.read_text() == "x,label\n1,3.0\n2,5.0\n3,5\n4,3.0\n"


def test_label_studio_tasks_of_a_table_come_back_and_a_changed_row_is_noticed(table: Path, tmp_path: Path) -> None:
    cells = {"weight": "2.5", "kind": "", "note, long": ""}
    out = tmp_path / "tasks.json"
    write_tasks(
        out, [TaskSample(2, "line 3", "ant", 0.5, 0.5, cells=cells)], ["ant", "bee"], model_version="m", kind="table"
    )
    tasks = json.loads(out.read_text())
    choice = {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": ["bee"]}}
    tasks[0]["annotations"] = [{"was_cancelled": False, "result": [choice]}]
    export = tmp_path / "export.json"
    export.write_text(json.dumps(tasks))
    merge_annotations(table, export, label="kind")
    assert "2.5,bee," in table.read_text()
    table.write_text(TABLE.replace("2.5", "9.5"))
    with pytest.raises(ValueError, match=r"row 2 of .* has other cells in weight"):
        merge_annotations(table, export, label="kind")


def test_a_class_with_characters_that_xml_forbids_comes_back_as_the_class(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,label\n1,$50K\n2,bell\a\n3,\n4,\n")
    export = tmp_path / "export.json"
    entries = [{"row": 3, "sample": "line 4", "label": "＄50K"}, {"row": 4, "sample": "line 5", "label": "bell\ufffd"}]
    export.write_text(json.dumps(entries))
    merge_annotations(path, export)
    assert path.read_text() == "x,label\n1,$50K\n2,bell\a\n3,$50K\n4,bell\a\n"


def test_what_means_no_label_in_the_data_means_it_in_the_annotations(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "?"), (3, "line 4", "undecided")])
    report = merge_annotations(table, answers, label="kind", unlabeled=["undecided"])
    assert counts(report) == {"empty": 2}


def test_the_label_column_of_the_annotations_may_have_the_name_of_that_of_the_data(table: Path, tmp_path: Path) -> None:
    merge_annotations(table, annotate(tmp_path / "a.csv", [(2, "ant")], ("row", "kind")), label="kind")
    assert "2.5,ant," in table.read_text()


def test_training_reads_the_merged_labels(tmp_path: Path) -> None:
    path = write_table(tmp_path / "animals.csv")
    before = read_data(path, label="kind")
    pool = np.flatnonzero(~before.is_labeled)
    rows = [(before.row_numbers[row], before.row_names[row], "cat") for row in pool]
    merge_annotations(path, annotate(tmp_path / "a.csv", rows), label="kind")
    after = read_data(path, label="kind")
    assert (after.y[pool] == after.class_names.index("cat")).all()
    assert (after.y[before.is_labeled] == before.y[before.is_labeled]).all()


# Backups


def test_an_older_backup_is_never_overwritten_and_a_named_one_is_used_or_refused(table: Path, tmp_path: Path) -> None:
    (tmp_path / "animals.csv.bak-1").write_text("older")
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee")])
    with pytest.raises(FileExistsError, match="exists already; name another file"):
        merge_annotations(table, answers, label="kind", backup=tmp_path / "animals.csv.bak-1")
    assert merge_annotations(table, answers, label="kind").backups == [tmp_path / "animals.csv.bak-2"]
    assert (tmp_path / "animals.csv.bak-1").read_text() == "older"
    answers = annotate(tmp_path / "a.csv", [(3, "line 4", "bee")])
    named = tmp_path / "mine"
    assert merge_annotations(table, answers, label="kind", backup=named).backups == [named]
    assert "3.5,?," in named.read_text()


def test_undo_restores_a_file_and_keeps_the_merged_one(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee")])
    (backup,) = merge_annotations(table, answers, label="kind").backups
    merged = table.read_text()
    kept = undo_merge(table, backup)
    assert (table.read_text(), kept.read_text(), backup.read_text()) == (TABLE, merged, TABLE)


def test_undo_refuses_every_file_that_is_no_backup_of_the_data(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee")])
    longer, binary = tmp_path / "longer.csv", tmp_path / "binary.csv"
    longer.write_text(TABLE + "5.5,bee,\n")
    binary.write_bytes(b"\0\1\2")
    before = sorted(tmp_path.iterdir())
    for path, message in (
        (table, "is the file with the data"),
        (tmp_path, "is no file"),
        (answers, r"it has row, sample, label, 1 rows, and the data have weight, kind, note, long, 4 rows"),
        (longer, "5 rows"),
        (binary, "is no backup of"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            undo_merge(table, path)
        assert "animals.csv.bak-1" in str(caught.value), "the remedy"
    assert (table.read_text(), sorted(tmp_path.iterdir())) == (TABLE, before)


def test_undo_takes_a_backup_of_another_name_with_the_same_columns_and_rows(table: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    kept = tmp_path / "elsewhere/kept.csv"
    merge_annotations(table, annotate(tmp_path / "a.csv", [(2, "line 3", "bee")]), label="kind", backup=kept)
    undo_merge(table, kept)
    assert table.read_text() == TABLE


def test_undo_compares_the_arrays_of_an_npz_file_and_the_classes_of_a_list(tmp_path: Path) -> None:
    path, other, kept = tmp_path / "a.npz", tmp_path / "other.npz", tmp_path / "kept"
    np.savez(path, x=np.zeros((3, 2)), y=np.array(["a", "b", ""]))
    merge_annotations(path, annotate(tmp_path / "a.csv", [(3, "row 3", "a")]), backup=kept)
    merged = path.read_bytes()
    for arrays in ({"x": np.zeros((3, 2))}, {"x": np.zeros((2, 2)), "y": np.array(["a", "b"])}):
        np.savez(other, allow_pickle=False, **arrays)
        with pytest.raises(ValueError, match=r"other\.npz is no backup of"):
            undo_merge(path, other)
        assert path.read_bytes() == merged
    undo_merge(path, kept)
    assert read_data(path).y.tolist() == [0, 1, -1]
    classes, fewer = tmp_path / "classes.txt", tmp_path / "fewer"
    classes.write_text("ant\nbee\n")
    fewer.write_text("cat\n")
    with pytest.raises(ValueError, match="it lists other classes"):
        undo_merge(classes, fewer)
    fewer.write_text("ant\n")
    undo_merge(classes, fewer)
    assert classes.read_text() == "ant\n"


def test_undo_compares_the_columns_of_a_parquet_file(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    parquet.write_table(arrow.table({"x": [1, 2], "label": ["a", None]}), path)
    parquet.write_table(arrow.table({"z": [1, 2], "label": ["a", None]}), other)
    with pytest.raises(ValueError, match="it has z, label, 2 rows, and the data have x, label, 2 rows"):
        undo_merge(path, other)
    parquet.write_table(arrow.table({"x": [1, 2], "label": ["a", "b"]}), other)
    undo_merge(path, other)
    assert path.read_bytes() == other.read_bytes()


def test_outputs_replace_no_file_and_a_refusal_comes_before_any_change(table: Path, tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee")])
    (tmp_path / "link.csv").symlink_to(table)
    other, new = tmp_path / "other.csv", tmp_path / "r.csv"
    other.write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for options, message in (
        ({"report": table}, r"--report .*animals\.csv is the file with the data"),
        ({"report": tmp_path / "link.csv"}, r"--report .*link\.csv is the file with the data"),
        ({"report": answers}, "is the file with the annotations"),
        ({"report": other}, "exists already; remove the file, or name another with --report"),
        ({"report": new, "backup": new}, "--report and --backup are both"),
        ({"report": tmp_path / "animals.csv.bak-1"}, "is the name of a backup"),
        ({"report": new, "backup": tmp_path / "r.csv.part"}, "are temporary; choose another name"),
        ({"backup": table}, "--backup .* is the file with the data"),
        ({"backup": answers}, "--backup .* is the file with the annotations"),
        ({"backup": other}, "exists already"),
    ):
        with pytest.raises((ValueError, FileExistsError), match=message):
            merge_annotations(table, answers, label="kind", **options)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    merge_annotations(table, answers, label="kind", report=tmp_path / "new/r.csv", backup=tmp_path / "kept.csv")
    assert (tmp_path / "kept.csv").read_text() == TABLE
    assert "2,line 3,merged,bee" in (tmp_path / "new/r.csv").read_text()


def test_a_report_in_the_folder_of_the_data_is_refused_because_it_would_be_read_as_data(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    before = snapshot(folder)
    answers = annotate(tmp_path / "a.csv", [("", "unlabeled/0.png", "bee")])
    with pytest.raises(ValueError, match="name a file outside of"):
        merge_annotations(folder, answers, report=folder / "merge.csv")
    assert (snapshot(folder), (folder / "merge.csv").exists()) == (before, False)


def test_the_data_cannot_be_their_own_annotations(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("row,label\n1,a\n2,b\n")
    with pytest.raises(ValueError, match="is the file with the data, so it cannot be the annotations too"):
        merge_annotations(table, table, label="label")
    folder = write_images(tmp_path / "photos")
    with pytest.raises(ValueError, match="is the file with the data, so it cannot be the annotations too"):
        merge_annotations(folder, folder / "labels.csv")


@pytest.mark.parametrize("name", ["=cmd|x", "+a", "@a", "-a", "'=a", "a\tb", "a\nb", "a\u2028b", "a\x1b[31m"])
def test_a_new_class_that_is_a_formula_or_has_control_characters_is_refused_and_an_old_one_is_kept(
    table: Path, tmp_path: Path, name: str
) -> None:
    export = tmp_path / "export.json"
    export.write_text(json.dumps([{"row": 2, "label": name}]))
    with pytest.raises(ValueError, match=r"export\.json, task 1: the new class .* (begins like|contains)") as caught:
        merge_annotations(table, export, label="kind", new_classes=True)
    assert "Give the class another name" in str(caught.value)
    assert table.read_text() == TABLE
    with table.open("a", newline="") as file:
        csv.writer(file).writerow(["5.5", name, ""])
    assert merge_annotations(table, export, label="kind").num_merged == 1
    assert read_data(table, label="kind").class_names.count(name) == 1


def test_a_negative_number_is_no_formula(table: Path, tmp_path: Path) -> None:
    merge_annotations(table, annotate(tmp_path / "a.csv", [(2, "line 3", "-5")]), label="kind", new_classes=True)
    assert "2.5,-5," in table.read_text()


def test_a_full_disk_leaves_the_data_as_they_were_and_no_backup(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee")])
    before = sorted(tmp_path.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        merge_annotations(table, answers, label="kind")
    assert caught.value.filename == str(table)
    assert (table.read_text(), sorted(tmp_path.iterdir())) == (TABLE, before)


def test_the_file_keeps_its_permissions_and_a_link_stays_a_link(table: Path, tmp_path: Path) -> None:
    table.chmod(0o640)
    (tmp_path / "elsewhere").mkdir()
    real = table.rename(tmp_path / "elsewhere/real.csv")
    table.symlink_to(real)
    merge_annotations(table, annotate(tmp_path / "a.csv", [(2, "line 3", "bee")]), label="kind")
    assert table.is_symlink()
    assert (real.stat().st_mode & 0o777, "2.5,bee," in real.read_text()) == (0o640, True)


# Images with a CSV file


def test_images_get_labels_by_path_and_an_unlisted_image_gets_a_row(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos")
    text = (folder / "labels.csv").read_text()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "new, one.png")
    data = read_data(folder)
    row = int(np.flatnonzero(~data.is_labeled & (np.array(data.row_numbers) > 0))[0])
    name, number = data.row_names[row], data.row_numbers[row]
    answers = annotate(tmp_path / "a.csv", [(number, name, "cat"), (0, "new, one.png", "bee")])
    report = merge_annotations(folder, answers)
    assert (folder / "labels.csv").read_text() == text.replace(f"{name},\n", f"{name},cat\n") + '"new, one.png",bee\n'
    assert report.backups == [folder / "labels.csv.bak-1"]
    after = read_data(folder)
    labels = dict(zip(after.row_names, after.y.tolist(), strict=True))
    assert (labels[name], labels["new, one.png"]) == (2, 1)
    assert counts(merge_annotations(folder, answers)) == {"unchanged": 2}, "the new row is found by its path"


def test_all_rows_of_an_image_are_overwritten_because_two_labels_would_be_an_error(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos")
    with (folder / "labels.csv").open("a") as file:
        file.write("000.png,ant\n000.png,\n")
    (folder / "labels.csv").write_text((folder / "labels.csv").read_text().replace("000.png,bee", "000.png,ant"))
    label = read_data(folder).y[0]
    new = ("ant", "bee", "cat")[(label + 1) % 3]
    merge_annotations(folder, annotate(tmp_path / "a.csv", [(1, "000.png", new)]), overwrite=True)
    assert read_data(folder).y[0] == (label + 1) % 3


def test_a_new_class_is_added_to_the_list_of_classes(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos")
    (folder / "classes.txt").write_bytes(b"ant\r\nbee\r\ncat")
    data = read_data(folder)
    row = int(np.flatnonzero(~data.is_labeled)[0])
    answers = annotate(tmp_path / "a.csv", [(data.row_numbers[row], data.row_names[row], "dog")])
    with pytest.raises(ValueError, match="'dog'"):
        merge_annotations(folder, answers)
    report = merge_annotations(folder, answers, new_classes=True)
    assert (folder / "classes.txt").read_bytes() == b"ant\r\nbee\r\ncat\r\ndog\r\n"
    assert set(report.backups) == {folder / "labels.csv.bak-1", folder / "classes.txt.bak-1"}
    assert read_data(folder).class_names == ("ant", "bee", "cat", "dog")


# Class folders


def test_an_image_moves_to_its_class_and_undo_moves_it_back(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    (folder / "bee/0.png").write_bytes((folder / "ant/0.png").read_bytes())  # the name is taken
    before = snapshot(folder)
    data = read_data(folder)
    names = ("unlabeled/0.png", "unlabeled/1.png", "unlabeled/deep/3.png")
    rows = [(list(data.row_names).index(name) + 1, name, "bee") for name in names]
    answers = annotate(tmp_path / "a.csv", [*rows, (1, "ant/2.png", "bee")])
    report = merge_annotations(folder, answers)
    after = snapshot(folder)
    moved = {"bee/0-2.png": names[0], "bee/1-2.png": names[1], "bee/deep/3.png": names[2]}
    kept = {name: content for name, content in before.items() if name not in names}
    assert after == kept | {new: before[old] for new, old in moved.items()}
    assert counts(report) == {"merged": 3, "conflict": 1}
    (record,) = report.backups
    assert record == tmp_path / "photos.bak-1.json"
    undo_merge(folder, record)
    assert snapshot(folder) == before


def test_a_moved_image_is_recognised_by_its_former_path(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    answers = annotate(tmp_path / "a.csv", [(9, "unlabeled/0.png", "bee")])
    merge_annotations(folder, answers)
    assert counts(merge_annotations(folder, answers)) == {"unchanged": 1}
    again = annotate(tmp_path / "b.csv", [(9, "unlabeled/0.png", "ant")])
    merge_annotations(folder, again, overwrite=True)
    assert (folder / "ant/0-2.png").is_file(), "ant/0.png is another image"
    assert counts(merge_annotations(folder, again)) == {"unchanged": 1}


def test_a_new_class_gets_a_folder_and_impossible_names_of_folders_are_refused(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    before = snapshot(folder)
    (folder / "notes").write_text("a file")
    for name in ("a/b", "a\\b", ".hidden", "..", "Unknown", "c" * 300, "ä" * 101, "a\u00a0b", "notes"):
        answers = annotate(tmp_path / "a.csv", [(1, "unlabeled/0.png", name)])
        with pytest.raises(ValueError, match="cannot be the name of a class folder"):
            merge_annotations(folder, answers, new_classes=True)
    export = tmp_path / "export.json"
    export.write_text(json.dumps([{"sample": "unlabeled/0.png", "label": "a\0b"}]))
    with pytest.raises(ValueError, match=r"the new class 'a\\x00b' contains a control character"):
        merge_annotations(folder, export, new_classes=True)
    assert snapshot(folder) == before
    assert not (folder / JOURNAL).exists()
    merge_annotations(folder, annotate(tmp_path / "a.csv", [("", "unlabeled/0.png", "cat")]), new_classes=True)
    assert (folder / "cat/0.png").is_file()
    assert "cat" in read_data(folder).class_names


def test_a_file_that_cannot_move_is_refused_before_any_file_moves(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    (folder / "bee/deep").write_text("a file where the merge needs a folder")
    before = snapshot(folder)
    answers = annotate(tmp_path / "a.csv", [("", "unlabeled/0.png", "bee"), ("", "unlabeled/deep/3.png", "bee")])
    with pytest.raises(ValueError, match=r"cannot be moved to bee/deep/3\.png .*Rename the file or the class"):
        merge_annotations(folder, answers)
    assert (snapshot(folder), (folder / JOURNAL).exists()) == (before, False)


def test_undo_takes_only_a_record_of_moves_that_can_be_undone(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    before = snapshot(folder)
    record = tmp_path / "record.json"
    for moves, message in (([], "lists no moved images"), ([["unlabeled/9.png", "bee/9.png"]], "cannot move back")):
        record.write_text(json.dumps({"format": FORMAT, "record": "r", "moves": moves}))
        with pytest.raises(ValueError, match=message):
            undo_merge(folder, record)
    for path in (annotate(tmp_path / "a.csv", [(1, "x", "a")]), folder):
        with pytest.raises(ValueError, match="is no record of moved images"):
            undo_merge(folder, path)
    assert snapshot(folder) == before


def test_a_link_is_not_moved(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    (folder / "unlabeled/link.png").symlink_to("../ant/0.png")
    with pytest.raises(ValueError, match="is a link and cannot be moved"):
        merge_annotations(folder, annotate(tmp_path / "a.csv", [("", "unlabeled/link.png", "bee")]))


# Arrays


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_gets_the_labels_and_keeps_its_other_arrays_as_bytes(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    x = np.random.default_rng(0).normal(size=(5, 3))
    save(path, x=x, y=np.array([0, 1, -1, -1, 1], np.int8), classes=np.array(["ant", "bee"]), other=np.arange(3.0))
    members = {}
    with zipfile.ZipFile(path) as file:
        members = {info.filename: (info.compress_type, file.read(info)) for info in file.infolist()}
    answers = annotate(tmp_path / "a.csv", [(3, "row 3", "bee"), (4, "row 4", "wasp")])
    report = merge_annotations(path, answers, new_classes=True)
    with zipfile.ZipFile(path) as file:
        after = {info.filename: (info.compress_type, file.read(info)) for info in file.infolist()}
    assert {name for name in members if members[name] != after[name]} == {"y.npy", "classes.npy"}
    assert [kind for kind, _ in after.values()] == [kind for kind, _ in members.values()]
    with np.load(path) as arrays:
        assert arrays["y"].tolist() == [0, 1, 1, 2, 1]
        assert arrays["y"].dtype == np.int8
        assert arrays["classes"].tolist() == ["ant", "bee", "wasp"]
    assert read_data(report.backups[0].rename(tmp_path / "old.npz")).y.tolist() == [0, 1, -1, -1, 1]


def test_labels_of_an_npz_file_keep_their_kind(tmp_path: Path) -> None:
    x = np.zeros((4, 2))
    answers = annotate(tmp_path / "a.csv", [(3, "row 3", "30")])
    for y, expected in (
        (np.array([10, 30, -1, 10]), [10, 30, 30, 10]),
        (np.array([10, 30, np.nan, 10]), [10, 30, 30, 10]),
        (np.array(["10", "30", "", "10"]), ["10", "30", "30", "10"]),
    ):
        path = tmp_path / "a.npz"
        np.savez(path, x=x, y=y)
        merge_annotations(path, answers)
        with np.load(path) as arrays:
            assert arrays["y"].tolist() == expected
            assert arrays["y"].dtype == y.dtype
    np.savez(path, x=x, y=np.array(["a", "b", "", "a"]))
    merge_annotations(path, annotate(tmp_path / "a.csv", [(3, "row 3", "longer")]), new_classes=True)
    assert read_data(path).class_names == ("a", "b", "longer")


def test_a_label_that_is_no_number_is_refused_for_an_npz_file_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2)), y=np.array([1, 2, -1]))
    content = path.read_bytes()
    with pytest.raises(ValueError, match="y holds numbers, but the annotations have the class 'ant'"):
        merge_annotations(path, annotate(tmp_path / "a.csv", [(3, "row 3", "ant")]), new_classes=True)
    np.savez(path, x=np.zeros((3, 2)), y=np.array([1, 2, -1], np.int8))
    with pytest.raises(ValueError, match="int8, which has no number 300"):
        merge_annotations(path, annotate(tmp_path / "a.csv", [(3, "row 3", "300")]), new_classes=True)
    np.savez(path, x=np.zeros((3, 2)), y=np.array([1, 2, -1]))
    assert path.read_bytes() == content


def test_an_array_of_ids_finds_the_rows_of_an_npz_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((3, 2)), y=np.array(["a", "b", ""]), key=np.array([7, 8, 9]))
    answers = annotate(tmp_path / "a.csv", [(1, "9", "a")], ("row", "key", "label"))
    merge_annotations(path, answers, id="key")
    assert read_data(path).y.tolist() == [0, 1, 0]


# Parquet and Hugging Face


def test_a_parquet_file_gets_the_labels_and_keeps_its_types(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    answers = annotate(tmp_path / "a.csv", [(3, "row 3", "5")])
    for labels in (
        arrow.array(["3", "5", None], arrow.string()),
        arrow.array([3, 5, None], arrow.int32()),
        arrow.array([3.0, 5.0, None], arrow.float64()),
        arrow.array(["3", "5", None]).dictionary_encode(),
    ):
        table = arrow.table({"x": [1.5, 2.5, 3.5], "label": labels})
        parquet.write_table(table, path, compression="gzip")
        (backup,) = merge_annotations(path, answers).backups
        after = parquet.read_table(path)
        assert after.schema == table.schema
        assert after.column("x").equals(table.column("x"))
        assert [str(value).removesuffix(".0") for value in after.column("label").to_pylist()] == ["3", "5", "5"]
        assert parquet.ParquetFile(path).metadata.row_group(0).column(0).compression == "GZIP"
        assert parquet.read_table(backup).equals(table)


def test_a_hugging_face_folder_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_text("{}")
    with pytest.raises(ValueError, match=r"save it as a table first, e.g. data.to_parquet"):
        merge_annotations(tmp_path / "data", annotate(tmp_path / "a.csv", [(1, "row 1", "a")]))


def test_an_option_that_does_not_apply_is_refused(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    with pytest.raises(ValueError, match="a folder of class folders, to which --label and --id cannot be applied"):
        merge_annotations(folder, annotate(tmp_path / "a.csv", [(1, "x", "a")]), label="kind", id="key")
    with pytest.raises(FileNotFoundError, match="no data at"):
        merge_annotations(tmp_path / "none.csv", tmp_path / "a.csv")


def test_the_report_has_one_line_per_sample_and_no_formula(table: Path, tmp_path: Path) -> None:
    table.write_text(TABLE + "5.5,=bee,\n")
    answers = annotate(tmp_path / "a.csv", [(1, "line 2", "=bee"), (2, "line 3", "bee")])
    report = merge_annotations(table, answers, label="kind")
    write_report(tmp_path / "merge.csv", report.plan.outcomes)
    with (tmp_path / "merge.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["row", "sample", "outcome", "label", "existing_label", "detail"],
            ["1", "line 2", "conflict", "'=bee", "ant", ""],
            ["2", "line 3", "merged", "bee", "", ""],
        ]
