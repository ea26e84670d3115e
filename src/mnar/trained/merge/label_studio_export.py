"""Read annotations from an export of Label Studio: JSON, or JSON-MIN with one entry per annotation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mnar.atomic_write import from_json
from mnar.trained.label_studio import CONTROL
from mnar.trained.merge.annotation import Annotation, Annotations, row_number

CHOICES = "choices"
NAMES_OF_SAMPLES = ("row", "sample", "sample_id", "image")  # keys in the data of a task
WANTED = 'a list of tasks such as {"data": {"row": 1}, "annotations": [...]}'


def read_label_studio(path: Path, *, label: str | None, id: str | None) -> Annotations:
    """Read an export of Label Studio.

    `label` is the name of the choices in the labelling configuration, if it is not "label" or "choice". `id` is the
    column of ids, which tasks of `mnar next` name themselves.
    """
    try:
        content = from_json(path.read_bytes())
    except ValueError as error:  # also bytes that are not UTF-8
        raise ValueError(f"{path} is not a complete JSON file ({error}); export the annotations again") from error
    tasks = content if isinstance(content, list) else [content]
    names = (CONTROL, "choice", *([label] if label else []))
    entries = []
    for position, task in enumerate(tasks, 1):
        if not isinstance(task, dict):
            raise ValueError(
                f"{path}, entry {position} is {type(task).__name__}, not a task; export from Label Studio as JSON, "
                f"which gives {WANTED}"
            )
        if not _is_task(task, names):
            raise ValueError(
                f"{path} is no export of Label Studio, because entry {position} names no sample and has no "
                f"annotation; export from Label Studio as JSON, which gives {WANTED}"
            )
        where = f"{path}, task {task.get('id', position)}"
        entries += list(_annotations_of(task, names, where))
    columns = {column for task in tasks if (column := _data(task).get("id_column"))}
    return Annotations(entries, id or (min(map(str, columns)) if len(columns) == 1 else None))


def _annotations_of(task: dict[str, Any], names: tuple[str, ...], where: str) -> Iterator[Annotation]:
    """Yield the annotations of a task. A task without annotations gives one without a label."""
    data = _data(task)
    sample = data.get("sample")
    unlabeled = Annotation(
        where,
        label="",
        row=row_number(data.get("row"), where),
        sample=str(sample) if sample is not None else _path_of(data.get("image")),
        id=None if data.get("sample_id") is None else str(data["sample_id"]),
        cells=data["cells"] if isinstance(data.get("cells"), dict) else None,
    )
    if data is task:  # JSON-MIN: the data and the answer stand side by side
        found = next((task[name] for name in names if name in task), None)
        for text in _texts(found, where):
            yield unlabeled._replace(label=text, is_cancelled=bool(task.get("was_cancelled")))
        return
    answers = task.get("annotations", [])
    if not isinstance(answers, list):
        raise ValueError(f"{where}: its annotations are no list; export the annotations again as JSON")
    if not answers:
        yield unlabeled
    for answer in answers:
        if not isinstance(answer, dict):  # an export without details has the numbers of the annotations only
            raise ValueError(f"{where}: its annotations are numbers without their labels; export as JSON or JSON-MIN")
        if answer.get("was_cancelled"):
            yield unlabeled._replace(is_cancelled=True)
        else:
            for text in _choices(answer.get("result"), names, where):
                yield unlabeled._replace(label=text)


def _is_task(task: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Whether an entry is a task of an export, and not part of some other JSON file."""
    data = _data(task)
    answers = names if data is task else ("annotations",)
    return any(name in data for name in NAMES_OF_SAMPLES) or any(name in task for name in answers)


def _data(task: Any) -> dict[str, Any]:
    """Return the data of a task; in JSON-MIN, the task itself holds them."""
    if not isinstance(task, dict):
        return {}
    data = task.get("data")
    return data if isinstance(data, dict) else task


def _choices(results: Any, names: tuple[str, ...], where: str) -> list[str]:
    """Return the chosen classes of one annotation, [""] if there is none."""
    chosen: dict[str, list[str]] = {}
    for result in results if isinstance(results, list) else []:
        if isinstance(result, Mapping) and result.get("type") == CHOICES:
            value = result.get("value")
            texts = _texts(value.get(CHOICES) if isinstance(value, Mapping) else None, where)
            chosen.setdefault(str(result.get("from_name")), []).extend(texts)
    if len(chosen) > 1:
        known = [name for name in names if name in chosen]
        if not known:
            raise ValueError(
                f"{where} answers several questions: {', '.join(sorted(chosen))}; name the question whose answer is "
                "the label with --label"
            )
        return chosen[known[0]]
    return next(iter(chosen.values()), [""])


def _texts(found: Any, where: str) -> list[str]:
    """Return the chosen texts of an answer, [""] if there is none."""
    if found is None:
        return [""]
    if isinstance(found, Mapping):  # JSON-MIN writes several choices as {"choices": [...]}
        found = found.get(CHOICES)
    texts = found if isinstance(found, list) else [found]
    if not all(isinstance(text, str | int | float) for text in texts):
        raise ValueError(f"{where}: the answer {found!r} is no class; use choices with one choice per class")
    return [str(text).strip() for text in texts] or [""]


def _path_of(image: object) -> str | None:
    """Return the path of an image in a task that `mnar next` did not write; an address of local files contains it."""
    if not isinstance(image, str):
        return None
    inner = parse_qs(urlsplit(image).query).get("d") if "?" in image else None
    return inner[0] if inner else image
