"""Read finished annotations back into the user's data, so that `mnar train` can use the new labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mnar.atomic_write import write_atomically
from mnar.datasets.user_files.spreadsheet_cells import safe_cell
from mnar.trained.merge.backup import free_backup, replacing
from mnar.trained.merge.backup_check import check_backup_of
from mnar.trained.merge.checked_paths import check_paths
from mnar.trained.merge.class_folders import ClassFolders
from mnar.trained.merge.moves import JOURNAL, complete_moves, is_record, move_files, reversed_moves
from mnar.trained.merge.open_labels import open_labels
from mnar.trained.merge.plan import Outcome, Plan, plan_merge
from mnar.trained.merge.read_annotations import read_annotations


@dataclass(frozen=True)
class MergeReport:
    """What a merge has done, or would do."""

    plan: Plan
    backups: list[Path] = field(default_factory=list)  # of the old state; empty if nothing was written
    notes: list[str] = field(default_factory=list)

    @property
    def num_merged(self) -> int:
        """The number of samples that get a new label."""
        return len(self.plan.changes)


def merge_annotations(
    source: Path,
    annotations: Path,
    *,
    label: str | None = None,
    ignore: Sequence[str] = (),
    unlabeled: Sequence[str] = (),
    id: str | None = None,
    overwrite: bool = False,
    majority: bool = False,
    ignore_missing: bool = False,
    new_classes: bool = False,
    backup: Path | None = None,
    report: Path | None = None,
    dry_run: bool = False,
) -> MergeReport:
    """Merge the annotations of a CSV file or an export of Label Studio into the data at `source`.

    label, ignore, unlabeled, id   how to read the data, as for `read_data`
    overwrite, majority, ignore_missing, new_classes   what to merge, as for `plan_merge`
    backup    where to keep the old file; for class folders, the record of the moves. Default: a free name beside it
    report    a new CSV file to write: what happened to the label of each sample
    dry_run   change nothing in the data

    All checks come before the first change: after an error, the data are as before.
    """
    source, annotations = Path(source), Path(annotations)
    backup, report = (None if path is None else Path(path) for path in (backup, report))
    check_paths(source, annotations, backup, report)
    read = read_annotations(annotations, label=label, id=id)
    notes = _complete_earlier_merge(source, dry_run=dry_run)
    store = open_labels(source, label=label, ignore=ignore, unlabeled=unlabeled, id=id or read.id_column)
    plan = plan_merge(
        read.entries,
        store.samples,
        overwrite=overwrite,
        majority=majority,
        ignore_missing=ignore_missing,
        new_classes=new_classes,
    )
    if plan.num_moved:
        notes.append(
            f"{plan.num_moved:,} samples are in other rows than the annotations say: the data were reordered, and the "
            "samples were found by their names or ids"
        )
    store.check(plan.changes, plan.new_classes)
    backups: list[Path] = []
    if plan.changes and not dry_run:
        backups = store.write(plan.changes, plan.new_classes, backup)
        if isinstance(store, ClassFolders):
            notes.append("the images are in another order now: if you train with --features, compute the file again")
    if report is not None:
        write_report(report, plan.outcomes)
    return MergeReport(plan, backups, notes)


def _complete_earlier_merge(source: Path, *, dry_run: bool) -> list[str]:
    """Complete a merge into class folders that was killed, and return a note on it."""
    if not (source / JOURNAL).is_file():
        return []
    if dry_run:
        raise ValueError(
            f"an earlier merge into {source} was interrupted; repeat the command without --dry-run, which completes it"
        )
    return [f"an earlier merge was interrupted, and its moves are complete now: {complete_moves(source.resolve())}"]


def undo_merge(source: Path, backup: Path) -> Path:
    """Restore the state that a backup of an earlier merge holds; return a backup of the present state.

    For a file of labels, name that file: labels.csv, and not its folder. For class folders, name the folder.
    """
    source, backup = Path(source), Path(backup)
    for path in (source, backup):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; name the data, and the backup that the merge has printed")
    if source.is_dir():
        if not backup.is_file() or not is_record(backup):
            raise ValueError(
                f"{backup} is no record of moved images; to restore a file, name the file instead of {source}"
            )
        folder = source.resolve()
        complete_moves(folder)  # of a merge that was interrupted; its journal must not be overwritten
        moves = reversed_moves(backup)
        if not moves:
            raise ValueError(f"{backup} lists no moved images; name the record that the merge has printed")
        blocked = [move for move in moves if not (folder / move.old).exists() or (folder / move.new).exists()]
        if blocked:
            raise ValueError(
                f"{folder / blocked[0].old} cannot move back to {blocked[0].new}, because files were changed since "
                f"({len(blocked):,} of {len(moves):,} moves); undo later merges first"
            )
        record = free_backup(folder, ".json")
        move_files(folder, moves, record)
        return record
    check_backup_of(source, backup)
    kept = free_backup(source)
    with replacing(source, kept) as file:
        file.write(backup.read_bytes())
    return kept


def write_report(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write one line per sample: what happened to its label."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["row", "sample", "outcome", "label", "existing_label", "detail"])
    for entry in outcomes:
        cells = [entry.sample, entry.outcome, entry.label, entry.existing, entry.detail]
        writer.writerow([entry.row or "", *map(safe_cell, cells)])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue())
