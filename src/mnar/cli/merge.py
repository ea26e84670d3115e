"""`mnar merge`: read finished annotations back into the user's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mnar.cli.options import OWN_DATA_HELP, Ignore, Label, NoLabel, given_options
from mnar.terminal.console import say


def merge(
    source: Annotated[Path, typer.Argument(metavar="DATA", help=OWN_DATA_HELP)],
    annotations: Annotated[
        Path | None,
        typer.Argument(
            metavar="ANNOTATIONS",
            help="The CSV file of `mnar next` with its column `label` filled in, or an export of Label Studio (JSON, "
            "JSON-MIN or CSV). Another CSV file needs a column `label` and a column `row` or `sample`.",
        ),
    ] = None,
    label: Label = None,
    ignore: Ignore = None,
    unlabeled: NoLabel = None,
    id: Annotated[
        str | None, typer.Option("--id", help="A column that identifies the samples, in the data and in ANNOTATIONS.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing labels that differ.")] = False,
    majority: Annotated[
        bool,
        typer.Option(
            "--majority", help="If annotators disagree, merge the label that more than half of them gave to the sample."
        ),
    ] = False,
    new_classes: Annotated[
        bool, typer.Option("--new-classes", help="Allow classes that the data do not have yet.")
    ] = False,
    ignore_missing: Annotated[
        bool, typer.Option("--ignore-missing", help="Leave out annotations for samples that are not in the data.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    backup: Annotated[
        Path | None,
        typer.Option(
            help="Where to keep the old file. For class folders: the record of the moves. Default: DATA.bak-1, or the "
            "next number that is free."
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="New CSV file to write: what happened to the label of each sample.")
    ] = None,
    undo: Annotated[
        Path | None,
        typer.Option(
            metavar="BACKUP", help="Restore the data from the backup of an earlier merge. Takes no other option."
        ),
    ] = None,
) -> None:
    """Merge the labels of annotators into your data, so that `mnar train` can use them.

    Example: `mnar merge survey.csv to_label.csv --label vote`

    A table gets the labels in its label column; nothing else in the file changes. An image that the CSV file does not
    name gets a new row. In class folders, the images move to the folders of their classes. The old state is kept as a
    backup.

    A sample is found by its id or path; in a table without ids, its row number and its name must both fit. An
    annotation that was cancelled or has no label is skipped. These are reported and not merged: a label that differs
    from the existing one (see --overwrite), and different labels for one sample (see --majority). These stop the
    command before anything is changed: a sample that is not in the data (see --ignore-missing), and an unknown class
    (see --new-classes), which may be a spelling mistake.
    """
    from mnar.terminal.merge_summary import merge_lines
    from mnar.trained.merge import merge_annotations, undo_merge

    if undo is not None:
        if annotations is not None:
            raise ValueError(f"--undo restores {source} and reads no annotations; leave {annotations} out")
        switches = {
            "overwrite": overwrite,
            "majority": majority,
            "new-classes": new_classes,
            "ignore-missing": ignore_missing,
            "dry-run": dry_run,
        }
        given = {"label": label, "ignore": ignore, "unlabeled": unlabeled, "id": id, "backup": backup, "report": report}
        if extra := given_options(**given, **{name: is_on or None for name, is_on in switches.items()}):
            raise ValueError(
                f"--undo restores {source} as a whole, to which {', '.join(extra)} cannot be applied; leave it out"
            )
        say(f"restored from {undo}; the state before: {undo_merge(source, undo)}")
        return
    if annotations is None:
        raise ValueError(f"name the annotations to merge, e.g. `mnar merge {source} to_label.csv`")
    result = merge_annotations(
        source,
        annotations,
        label=label,
        ignore=tuple(ignore or ()),
        unlabeled=tuple(unlabeled or ()),
        id=id,
        overwrite=overwrite,
        majority=majority,
        ignore_missing=ignore_missing,
        new_classes=new_classes,
        backup=backup,
        report=report,
        dry_run=dry_run,
    )
    for line in merge_lines(result, source, dry_run=dry_run):
        say(line)
    if report is not None:
        say(f"outcome of each sample: {report}")
