"""Merge finished annotations into the user's data: `mnar merge`.

read_annotations.py reads the annotations, open_labels.py the labels that the data have, plan.py decides what changes,
and one file per kind of data writes the changes: csv_table.py, image_csv.py, class_folders.py, npz_file.py and
parquet_file.py. checked_paths.py, new_classes.py and backup_check.py refuse what would damage the data.
"""

from mnar.trained.merge.merge import MergeReport, merge_annotations, undo_merge, write_report

__all__ = ["MergeReport", "merge_annotations", "undo_merge", "write_report"]
