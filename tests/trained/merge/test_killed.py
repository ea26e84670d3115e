"""A merge that is killed at any moment leaves the old or the new state, or a state that the next merge completes."""

from __future__ import annotations

import io
import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from mnar.trained.merge import merge_annotations, undo_merge
from mnar.trained.merge.moves import JOURNAL, complete_moves
from tests.support.killing import Trap, in_a_child, kill_me, was_killed
from tests.trained.merge.test_merge import TABLE, annotate, class_folders, snapshot

CALLS = ((os, "fsync"), (os, "replace"), (os, "unlink"), (os, "rename"), (os, "link"), (io, "open"))


def killed_at(moment: int, source: Path, answers: Path, label: str | None) -> bool:
    """Merge in a child process that is killed at this moment; return whether it was killed before its end."""

    def merge() -> None:
        trap, monkeypatch = Trap(moment, kill_me), pytest.MonkeyPatch()
        for owner, name in CALLS:
            monkeypatch.setattr(owner, name, trap.around(getattr(owner, name)))
        merge_annotations(source, answers, label=label)

    return was_killed(in_a_child(partial(merge)))


def test_a_table_has_the_old_or_the_new_content_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    answers = annotate(tmp_path / "a.csv", [(2, "line 3", "bee"), (3, "line 4", "ant")])
    new = TABLE.replace("2.5,,", "2.5,bee,").replace("3.5,?,", "3.5,ant,")
    seen, moment, killed = set(), 0, True
    while killed:
        moment += 1
        table = tmp_path / f"{moment}" / "animals.csv"
        table.parent.mkdir()
        table.write_text(TABLE)
        killed = killed_at(moment, table, answers, "kind")
        seen.add(table.read_text())
        backups = list(table.parent.glob("*.bak-*[0-9]"))
        assert [backup.read_text() for backup in backups] in ([], [TABLE])
        assert backups or table.read_text() == TABLE, "the new content has a backup of the old one"
        merge_annotations(table, answers, label="kind")
        assert table.read_text() == new
    assert seen == {TABLE, new}
    assert moment > 10


def test_the_next_merge_completes_moves_into_class_folders_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    original = class_folders(tmp_path / "original")
    names = [f"unlabeled/{name}.png" for name in ("0", "1", "2", "deep/3")]
    answers = annotate(tmp_path / "a.csv", [("", name, "bee") for name in names])
    straight = Path(shutil.copytree(original, tmp_path / "straight"))
    merge_annotations(straight, answers)
    half_done, moment, killed = 0, 0, True
    while killed:
        moment += 1
        folder = Path(shutil.copytree(original, tmp_path / f"{moment}"))
        killed = killed_at(moment, folder, answers, None)
        assert sorted(snapshot(folder).values()) == sorted(snapshot(original).values()), "no image is lost or doubled"
        half_done += snapshot(folder) not in (snapshot(original), snapshot(straight))
        merge_annotations(folder, answers)
        assert snapshot(folder) == snapshot(straight)
        assert not (folder / JOURNAL).exists()
        assert len(list(tmp_path.glob(f"{moment}.bak-*.json"))) == 1, "one record, from which the moves can be undone"
    assert half_done >= 3


def test_a_dry_run_does_not_complete_an_interrupted_merge(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    before = snapshot(folder)
    (folder / JOURNAL).write_text(
        '{"format": "mnar merge of class folders", "folder": "photos", "record": "%s", "moves": [["unlabeled/0.png", '
        '"bee/x.png"]]}' % (tmp_path / "record.json")
    )
    answers = annotate(tmp_path / "a.csv", [("", "unlabeled/1.png", "bee")])
    with pytest.raises(ValueError, match="was interrupted; repeat the command without --dry-run"):
        merge_annotations(folder, answers, dry_run=True)
    assert snapshot(folder) == before
    report = merge_annotations(folder, answers)
    assert "an earlier merge was interrupted, and its moves are complete now" in report.notes[0]
    assert (folder / "bee/x.png").is_file()
    assert (tmp_path / "record.json").is_file()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no record of moved files"),
        ('{"format": "other"}', "is no record of moved files"),
        (
            '{"format": "mnar merge of class folders", "record": "r", "moves": [["../a", "b"]]}',
            "leads out of the folder",
        ),
        (
            '{"format": "mnar merge of class folders", "record": "r", "moves": [["unlabeled/9.png", "bee/9.png"]]}',
            "has disappeared since",
        ),
        (
            '{"format": "mnar merge of class folders", "record": "r", "moves": [["unlabeled/0.png", "ant/0.png"]]}',
            "has appeared since",
        ),
        (
            '{"format": "mnar merge of class folders", "record": "r", "moves": [["unlabeled/0.png", "%s/0.png"]]}'
            % (300 * "c"),
            r"too long\). Remove the obstacle, or correct or remove this move in .*\.mnar-merge\.json",
        ),
        (
            '{"format": "mnar merge of class folders", "record": "r", "moves": [["unlabeled/0.png", "a\\u0000/0"]]}',
            r"delete .*\.mnar-merge\.json",
        ),
    ],
)
def test_a_journal_that_does_not_fit_the_folder_is_an_error_with_a_remedy(
    tmp_path: Path, content: str, message: str
) -> None:
    folder = class_folders(tmp_path / "photos")
    before = snapshot(folder)
    (folder / JOURNAL).write_text(content)
    with pytest.raises((ValueError, OSError), match=message):
        complete_moves(folder)
    assert snapshot(folder) == before


def test_undo_completes_an_interrupted_merge_before_it_moves_anything_back(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "photos")
    before = snapshot(folder)
    (first,) = merge_annotations(folder, annotate(tmp_path / "a.csv", [("", "unlabeled/0.png", "bee")])).backups
    second = tmp_path / "gone/record.json"  # its folder does not exist any more
    moves = [["unlabeled/1.png", "bee/x.png"]]
    content = {"format": "mnar merge of class folders", "folder": "photos", "record": str(second), "moves": moves}
    (folder / JOURNAL).write_text(json.dumps(content))
    undo_merge(folder, first)
    undo_merge(folder, tmp_path / "photos.bak-2.json")
    assert snapshot(folder) == before
