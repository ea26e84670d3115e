"""Tasks for Label Studio."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mnar.trained.label_studio import LOCAL_FILES, TaskSample, configuration_path, write_tasks

AWKWARD = ('a "quoted" & <b>class</b>', "it's", "line\nbreak", "bell\a", "$50K", "ä€😀")


def test_tasks_have_the_fields_that_label_studio_imports(tmp_path: Path) -> None:
    samples = [
        TaskSample(7, "photos/a b.png", "cat", 0.75, 0.25, "few labels of class cat"),
        TaskSample(0, "c.png", "dog", 0.5, 0.5, id="x1"),
    ]
    out = tmp_path / "to_label.json"
    beside = write_tasks(
        out, samples, ["cat", "dog"], model_version="runs/a", kind="images", image_prefix=LOCAL_FILES, id_name="key"
    )
    assert beside == configuration_path(out) == tmp_path / "to_label.xml"
    first, second = json.loads(out.read_text())
    assert first == {
        "data": {
            "image": "/data/local-files/?d=photos/a%20b.png",
            "row": 7,
            "sample": "photos/a b.png",
            "uncertainty": 0.25,
            "reason": "few labels of class cat",
        },
        "predictions": [
            {
                "model_version": "runs/a",
                "score": 0.75,
                "result": [
                    {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}
                ],
            }
        ],
    }
    assert second["data"]["sample_id"] == "x1"
    assert second["data"]["id_column"] == "key"


def test_the_configuration_and_the_predictions_use_the_same_names_and_choices(tmp_path: Path) -> None:
    out = tmp_path / "tasks.json"
    samples = [TaskSample(1, "line 2", name, 0.5, 0.5, cells={"weight": "1", "colour": "red"}) for name in AWKWARD]
    view = ElementTree.parse(write_tasks(out, samples, AWKWARD, model_version="m", kind="table")).getroot()
    (text,), (choices,) = view.findall("Text"), view.findall("Choices")
    values = [choice.get("value") for choice in choices]
    assert (choices.get("name"), choices.get("toName"), text.get("value")) == ("label", text.get("name"), "$text")
    assert len(set(values)) == len(AWKWARD)
    for task, value in zip(json.loads(out.read_text()), values, strict=True):
        (result,) = task["predictions"][0]["result"]
        assert (result["from_name"], result["to_name"]) == (choices.get("name"), text.get("name"))
        assert result["value"]["choices"] == [value]
        assert task["data"]["text"] == "weight: 1\ncolour: red"
    unchanged = [name for name in AWKWARD if name not in ("bell\a", "$50K")]
    assert [value for value in values if value in AWKWARD] == unchanged, "a parser of XML gives the names back"
    assert "$" not in "".join(map(str, values)), "Label Studio replaces $name by the data of the task"


def test_an_image_without_a_prefix_keeps_its_path_as_given(tmp_path: Path) -> None:
    write_tasks(tmp_path / "t.json", [TaskSample(1, "a b.png", "x", 1, 0)], ["x"], model_version="m", kind="images")
    assert json.loads((tmp_path / "t.json").read_text())[0]["data"]["image"] == "a b.png"


def test_classes_that_look_alike_in_label_studio_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="differ only in characters that Label Studio cannot show"):
        write_tasks(tmp_path / "t.json", [], ["a\x01", "a\x02"], model_version="m", kind="table")
    assert not list(tmp_path.iterdir())


def test_images_without_a_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save them as image files, or write a CSV file instead"):
        write_tasks(tmp_path / "t.json", [TaskSample(7, "row 7", "x", 1, 0)], ["x"], model_version="m", kind="images")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.xml", "x.XML"])
def test_tasks_are_not_written_over_their_configuration(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"the ending \.xml; name a JSON file, e\.g\. .*x\.json"):
        write_tasks(
            tmp_path / name, [TaskSample(1, "a.png", "a", 0.5, 0.5)], ["a", "b"], model_version="m", kind="images"
        )
    assert list(tmp_path.iterdir()) == []
