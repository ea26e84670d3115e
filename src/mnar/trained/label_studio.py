"""Write tasks for the annotation tool Label Studio: samples to label, each with the model's prediction.

The tasks are a JSON file in Label Studio's basic format. The labelling configuration is an XML file of the same name
beside it. `mnar merge` reads the export of Label Studio back: JSON, JSON-MIN or CSV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from mnar.atomic_write import write_atomically

CONTROL = "label"  # the name of the choices in the labelling configuration; exports use it as key or column
LOCAL_FILES = "/data/local-files/?d="  # the address under which Label Studio serves files of its own machine
# XML 1.0 forbids these characters, even in an escaped form.
FORBIDDEN_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
REPLACEMENT = "\ufffd"
# Label Studio replaces $name in the text of a choice by the task's data. The wide dollar sign is left as it is.
DOLLAR, WIDE_DOLLAR = "$", "\uff04"


class TaskSample(NamedTuple):
    """A sample that an annotator is asked to label."""

    row: int  # row of the file from 1, without a header; 0: the sample has no row
    sample: str  # its name: a path, or e.g. "line 7"
    suggestion: str  # the class that the model predicts
    confidence: float
    uncertainty: float  # the higher, the more useful is a label
    reason: str = ""  # why this sample should be labelled, in plain words
    cells: Mapping[str, str] | None = None  # the columns of a table
    id: str | None = None  # the cell of the id column, if the user named one


def write_tasks(
    out: Path,
    samples: Sequence[TaskSample],
    class_names: Sequence[str],
    *,
    model_version: str,
    kind: Literal["images", "table"],
    image_prefix: str = "",
    id_name: str | None = None,
) -> Path:
    """Write the tasks to `out` and the labelling configuration beside it; return the path of the configuration.

    `image_prefix` is put before the path of each image, e.g. LOCAL_FILES; the path is then escaped as part of an
    address. `id_name` is the name of the id column.
    """
    if kind == "images" and any(sample.sample == f"row {sample.row}" for sample in samples):
        raise ValueError(
            "these images are rows of one file, and Label Studio shows only images that have a path or an address; "
            "save them as image files, or write a CSV file instead"
        )
    texts = choice_texts(class_names)
    configuration = labeling_configuration(list(texts.values()), kind)
    tasks = [_task(sample, texts, model_version, kind, image_prefix, id_name) for sample in samples]
    beside = configuration_path(out)
    # The configuration comes first: a process that is killed in between leaves no tasks without a configuration.
    write_atomically(beside, configuration)
    write_atomically(out, json.dumps(tasks, indent=1) + "\n")
    return beside


def configuration_path(out: Path) -> Path:
    """Return the path of the labelling configuration that belongs to the tasks in `out`."""
    if out.suffix.lower() == ".xml":
        raise ValueError(
            f"the tasks cannot be written to {out}, because Label Studio's labelling configuration gets the ending "
            f".xml; name a JSON file, e.g. {out.with_suffix('.json')}"
        )
    return out.with_suffix(".xml")


def labeling_configuration(choices: Sequence[str], kind: Literal["images", "table"]) -> str:
    """Return the labelling configuration: the sample, and one choice per class."""
    shown = '<Image name="image" value="$image"/>' if kind == "images" else '<Text name="text" value="$text"/>'
    lines = [f"    <Choice value={quoteattr(text)}/>" for text in choices]
    opening = f'  <Choices name="{CONTROL}" toName="{_shown_name(kind)}" choice="single" showInline="true">'
    return "\n".join(["<View>", f"  {shown}", opening, *lines, "  </Choices>", "</View>", ""])


def choice_texts(class_names: Sequence[str]) -> dict[str, str]:
    """Return the text of the choice for each class. Two classes whose choices would look the same are an error."""
    texts = {name: choice_text(name) for name in class_names}
    names: dict[str, str] = {}
    for name, text in texts.items():
        if names.setdefault(text, name) != name:
            raise ValueError(
                f"the classes {names[text]!r} and {name!r} differ only in characters that Label Studio cannot show; "
                "rename one of them, or write a CSV file instead"
            )
    return texts


def choice_text(class_name: str) -> str:
    """Return a class name without characters that XML forbids or that Label Studio would interpret."""
    return FORBIDDEN_IN_XML.sub(REPLACEMENT, class_name).replace(DOLLAR, WIDE_DOLLAR)


def _shown_name(kind: str) -> str:
    return "image" if kind == "images" else "text"


def _task(
    sample: TaskSample,
    texts: Mapping[str, str],
    model_version: str,
    kind: Literal["images", "table"],
    image_prefix: str,
    id_name: str | None,
) -> dict[str, Any]:
    """Return one task: the data that the annotator sees, and the prediction of the model."""
    data: dict[str, Any] = {}
    if kind == "images":
        path = sample.sample
        data["image"] = image_prefix + quote(path) if image_prefix else path
    else:
        cells = sample.cells or {}
        data |= {"text": "\n".join(f"{name}: {cell}" for name, cell in cells.items()) or sample.sample}
        data |= {"cells": dict(cells)} if cells else {}
    # The key "id" would not survive: an export in JSON-MIN puts the number of the task there.
    data |= {"row": sample.row, "sample": sample.sample}
    if sample.id is not None:
        data |= {"sample_id": sample.id, "id_column": id_name}
    data |= {"uncertainty": round(sample.uncertainty, 6), "reason": sample.reason}
    result = {
        "from_name": CONTROL,
        "to_name": _shown_name(kind),
        "type": "choices",
        "value": {"choices": [texts[sample.suggestion]]},
    }
    prediction = {"model_version": model_version, "score": round(sample.confidence, 6), "result": [result]}
    return {"data": data, "predictions": [prediction]}
