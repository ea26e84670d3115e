"""`mnar merge`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Mnar

TABLE = "weight,kind\n1.5,ant\n2.5,\n3.5,\n4.5,bee\n"


def test_merge_prints_what_was_merged_and_what_was_left_out(mnar: Mnar, tmp_path: Path) -> None:
    (tmp_path / "animals.csv").write_text(TABLE)
    (tmp_path / "a.csv").write_text("row,sample,label\n1,line 2,bee\n2,line 3,bee\n3,line 4,ant\n3,line 4,bee\n")
    tried = mnar("merge", "animals.csv", "a.csv", "--label", "kind", "--dry-run")
    assert tried.code == 0, tried.errors
    assert "labels that would be merged into animals.csv: 1 (1 of class bee)" in tried.output
    assert "row 2, line 3: no label -> bee" in tried.output
    assert (tmp_path / "animals.csv").read_text() == TABLE
    merged = mnar("merge", "animals.csv", "a.csv", "--label", "kind", "--majority", "--report", "merge.csv")
    assert merged.code == 0, merged.errors
    for text in (
        "labels merged into animals.csv: 1 (1 of class bee)",
        "which was kept (--overwrite replaces it): 1",
        "annotations for a sample that another annotation names too: 1",
        "row 1, line 2: ant in the data, bee in the annotations",
        "row 3, line 4: ant | bee",
        "backup: animals.csv.bak-1",
        "outcome of each sample: merge.csv",
    ):
        assert text in merged.output
    assert (tmp_path / "animals.csv").read_text() == TABLE.replace("2.5,", "2.5,bee")
    assert (tmp_path / "merge.csv").read_text().count("\n") == 4
    undone = mnar("merge", "animals.csv", "--undo", "animals.csv.bak-1")
    assert undone.code == 0, undone.errors
    assert (tmp_path / "animals.csv").read_text() == TABLE


def test_names_with_control_codes_and_markup_are_printed_as_text(mnar: Mnar, tmp_path: Path) -> None:
    (tmp_path / "animals.csv").write_text("x,label\n1,\x1b[31mred\n2,[bold]\n3,\n")
    (tmp_path / "a.csv").write_text("row,label\n3,\x1b[31mred\n2,\x1b[31mred\n")
    merged = mnar("merge", "animals.csv", "a.csv")
    assert merged.code == 0, merged.errors
    assert "\x1b" not in merged.output
    assert "[bold] in the data" in merged.output
    assert (tmp_path / "animals.csv").read_text().endswith("3,\x1b[31mred\n")


def test_merge_without_annotations_or_with_too_many_arguments_is_an_error(mnar: Mnar, tmp_path: Path) -> None:
    (tmp_path / "animals.csv").write_text(TABLE)
    refused = mnar("merge", "animals.csv")
    assert (refused.code, "name the annotations to merge" in refused.errors) == (1, True)
    refused = mnar("merge", "animals.csv", "a.csv", "--undo", "animals.csv.bak-1")
    assert (refused.code, "reads no annotations" in refused.errors) == (1, True)
    refused = mnar("merge", "animals.csv", "--undo", "animals.csv.bak-1")
    assert (refused.code, "animals.csv.bak-1 does not exist" in refused.errors) == (1, True)


@pytest.mark.parametrize(
    "options",
    [
        *(("--dry-run",), ("--overwrite",), ("--majority",), ("--new-classes",), ("--ignore-missing",)),
        *(("--label", "kind"), ("--id", "x"), ("--ignore", "x"), ("--unlabeled", "x")),
        *(("--backup", "b.csv"), ("--report", "r.csv")),
    ],
)
def test_undo_with_another_option_is_refused_and_changes_nothing(
    mnar: Mnar, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "animals.csv").write_text(TABLE)
    (tmp_path / "animals.csv.bak-1").write_text(TABLE.replace("bee", ""))
    refused = mnar("merge", "animals.csv", "--undo", "animals.csv.bak-1", *options)
    assert (refused.code, f"{options[0]} cannot be applied; leave it out" in refused.errors) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["animals.csv", "animals.csv.bak-1"]
    assert (tmp_path / "animals.csv").read_text() == TABLE


def test_the_report_never_replaces_the_data_the_annotations_or_the_backup(mnar: Mnar, tmp_path: Path) -> None:
    answers = "row,sample,label\n2,line 3,bee\n"
    (tmp_path / "animals.csv").write_text(TABLE)
    (tmp_path / "a.csv").write_text(answers)
    given = ("merge", "animals.csv", "a.csv", "--label", "kind")
    for options in (("--report", "animals.csv"), ("--report", "a.csv"), ("--backup", "r.csv", "--report", "./r.csv")):
        refused = mnar(*given, *options)
        assert (refused.code, "another file" in refused.errors or "different files" in refused.errors) == (1, True)
        assert (tmp_path / "animals.csv").read_text() == TABLE
        assert (tmp_path / "a.csv").read_text() == answers
        assert not (tmp_path / "r.csv").exists()
    refused = mnar("merge", "animals.csv", "--undo", "a.csv")
    assert (refused.code, "a.csv is no backup of animals.csv" in refused.errors) == (1, True)
    assert (tmp_path / "animals.csv").read_text() == TABLE
