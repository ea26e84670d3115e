"""Read annotations from CSV files and from exports of Label Studio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mnar.trained.merge.read_annotations import read_annotations


def task(number: int, *answers: Any, **data: Any) -> dict[str, Any]:
    """A task of Label Studio's JSON export; an answer is a class, a list of classes, or None if it was cancelled."""
    annotations = [
        {
            "id": 10 * number + place,
            "was_cancelled": answer is None,
            "result": []
            if answer is None
            else [
                {
                    "from_name": "label",
                    "to_name": "image",
                    "type": "choices",
                    "value": {"choices": answer if isinstance(answer, list) else [answer]},
                }
            ],
        }
        for place, answer in enumerate(answers)
    ]
    return {"id": number, "data": {"row": number, **data}, "annotations": annotations, "predictions": []}


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_the_csv_of_next_gives_row_sample_and_label_without_the_quotes_against_formulas(tmp_path: Path) -> None:
    path = tmp_path / "to_label.csv"
    path.write_text(
        "row;sample;label;suggestion;confidence;reason\r\n"
        "7.0;'=a.png;'=cat;dog;0.5;contested\r\n"
        "8; b.png ;;dog;0.5;contested\r\n",
        encoding="utf-8-sig",
    )
    first, second = read_annotations(path).entries
    assert (first.row, first.sample, first.label, first.id) == (7, "=a.png", "=cat", None)
    assert (second.row, second.sample, second.label) == (8, "b.png", "")
    assert first.where == f"{path}, line 2"


def test_the_second_column_of_next_holds_the_ids_if_it_is_not_called_sample(tmp_path: Path) -> None:
    path = tmp_path / "to_label.csv"
    path.write_text("row,passenger,label,suggestion,confidence,reason\n3,x9,yes,no,0.5,\n")
    read = read_annotations(path)
    assert (read.id_column, read.entries[0].id, read.entries[0].sample) == ("passenger", "x9", None)


def test_the_csv_export_of_label_studio_has_ids_and_cancelled_annotations(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    path.write_text(
        '"annotator","id","id_column","label","row","sample","sample_id","text","was_cancelled"\n'
        '1,901,"key","cat",3,"line 4","k7","weight: 1\ncolour: red","False"\n'
        '1,902,"key","",4,"line 5","k8","weight: 2","True"\n'
    )
    read = read_annotations(path)
    assert read.id_column == "key"
    assert [(a.row, a.sample, a.id, a.label, a.is_cancelled) for a in read.entries] == [
        (3, "line 4", "k7", "cat", False),
        (4, "line 5", "k8", "", True),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,answer\n1,a\n", "none is called label or choice"),
        ("name,label\n1,a\n", "none says which sample a label belongs to"),
        ("row,label\nseven,a\n", "line 2: the row is 'seven'; give the number of a row"),
        ("row,label\n-3,a\n", "the row is '-3'"),
        ("row,label\n", "a header and no rows"),
    ],
)
def test_a_csv_file_without_the_needed_columns_is_an_error_with_a_remedy(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_annotations(tmp_path / "a.csv")


def test_an_export_gives_one_entry_per_annotator_and_marks_cancelled_ones(tmp_path: Path) -> None:
    content = [
        task(1, "cat", "dog", sample="a.png"),
        task(2, None, sample="b.png"),
        task(3, sample="c.png"),
        task(4, ["cat", "dog"], sample="d.png"),
    ]
    entries = read_annotations(write_json(tmp_path / "export.json", content)).entries
    assert [(a.row, a.sample, a.label, a.is_cancelled) for a in entries] == [
        (1, "a.png", "cat", False),
        (1, "a.png", "dog", False),
        (2, "b.png", "", True),
        (3, "c.png", "", False),
        (4, "d.png", "cat", False),
        (4, "d.png", "dog", False),
    ]


def test_json_min_is_read_with_the_key_label_or_choice(tmp_path: Path) -> None:
    content = [
        {"id": 9, "row": 1, "sample": "line 2", "label": "cat", "annotator": 1},
        {"id": 8, "image": "/data/local-files/?d=photos/a%20b.png", "choice": "dog"},
        {"id": 7, "row": 3, "sample": "line 4", "choice": {"choices": ["cat", "dog"]}},
        {"id": 6, "row": 4, "sample": "line 5"},
    ]
    entries = read_annotations(write_json(tmp_path / "min.json", content)).entries
    assert [(a.row, a.sample, a.label) for a in entries] == [
        (1, "line 2", "cat"),
        (None, "photos/a b.png", "dog"),
        (3, "line 4", "cat"),
        (3, "line 4", "dog"),
        (4, "line 5", ""),
    ]


def test_the_id_column_comes_from_the_tasks(tmp_path: Path) -> None:
    content = [task(1, "cat", sample="line 2", sample_id="x1", id_column="key")]
    read = read_annotations(write_json(tmp_path / "export.json", content))
    assert (read.id_column, read.entries[0].id) == ("key", "x1")


def test_of_several_questions_the_one_that_the_user_names_is_the_label(tmp_path: Path) -> None:
    content = [task(1, "cat", sample="a")]
    (result,) = content[0]["annotations"][0]["result"]
    content[0]["annotations"][0]["result"] = [
        {**result, "from_name": "kind"},
        {**result, "from_name": "quality", "value": {"choices": ["blurred"]}},
        {"from_name": "comment", "type": "textarea", "value": {"text": ["nice"]}},
    ]
    path = write_json(tmp_path / "export.json", content)
    with pytest.raises(ValueError, match="answers several questions: kind, quality; name the question"):
        read_annotations(path)
    assert [a.label for a in read_annotations(path, label="quality").entries] == ["blurred"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a complete JSON file"),
        ("[1]", "entry 1 is int, not a task"),
        ("[]", "holds no annotations"),
        ('[{"data": {"row": 1}, "annotations": [5]}]', "numbers without their labels"),
        ('[{"data": {"row": [1]}, "annotations": []}]', "the row is"),
        ('[{"row": 1, "label": [{"x": 1}]}]', "is no class"),
        ("{}", r"export\.json is no export of Label Studio, because entry 1 names no sample"),
        ("[{}]", r"gives a list of tasks such as \{"),
        ('[{"data": 3}]', "is no export of Label Studio"),
        ('{"data": {"items": []}}', "is no export of Label Studio"),
        ('[{"row": 1, "label": "a"}, {"error": "none"}]', "because entry 2 names no sample"),
    ],
)
def test_a_damaged_export_is_an_error_with_a_remedy(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "export.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_annotations(tmp_path / "export.json")


def test_a_missing_file_and_another_kind_of_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no annotations at"):
        read_annotations(tmp_path / "none.csv")
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises(ValueError, match="save the annotations as a CSV file"):
        read_annotations(tmp_path / "a.xlsx")
