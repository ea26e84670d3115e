"""What an export refuses, what it writes, and that it writes all or nothing."""

from __future__ import annotations

import json
import pickle
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from mnar.trained import load
from mnar.trained.export import export_run, onnx_file
from mnar.trained.export.export_run import temporary_folders
from mnar.trained.export.model_card import plain_text
from mnar.trained.export.scores import class_scores
from tests.support.command import failing_with
from tests.trained.export.conftest import HOSTILE, Export, with_members

FILES = ("MODEL_CARD.md", "example.py", "model.pt2", "preprocessing.json")
# The package exports a function of the same name.
export_run_module: Any = import_module("mnar.trained.export.export_run")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def export_marked(folder: Path) -> None:
    """Make a folder look like an export, with a file that an overwriting export removes."""
    folder.mkdir()
    for name in ("MODEL_CARD.md", "preprocessing.json", "model.onnx"):
        (folder / name).write_text("old")


def test_an_export_lies_in_the_run_folder_unless_the_user_names_another_place(linear_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(linear_run, tmp_path / "run"))
    exported = export_run(run, "pt2")
    assert exported.folder == run / "export-pt2"
    assert tuple(names_in(exported.folder)) == exported.files == FILES
    elsewhere = export_run(run, "pt2", tmp_path / "new" / "place")
    assert tuple(names_in(elsewhere.folder)) == FILES


def test_an_existing_export_is_replaced_only_with_overwrite(linear_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_marked(out)
    with pytest.raises(FileExistsError, match=r"already contains an export.*--overwrite"):
        export_run(linear_run, "pt2", out)
    assert (out / "model.onnx").exists()
    export_run(linear_run, "pt2", out, overwrite=True)
    assert tuple(names_in(out)) == FILES
    assert names_in(tmp_path) == ["out"]


def test_a_folder_with_other_files_is_never_replaced(linear_run: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "precious.png").write_text("")
    with pytest.raises(FileExistsError, match="something else than an export"):
        export_run(linear_run, "pt2", tmp_path / "photos", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        export_run(linear_run, "pt2", tmp_path / "file", overwrite=True)
    assert names_in(tmp_path) == ["file", "photos"]


@pytest.mark.parametrize("had_export", [True, False])
def test_a_full_disk_leaves_the_old_export_or_nothing(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had_export: bool
) -> None:
    out = tmp_path / "out"
    if had_export:
        export_marked(out)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_run_module, "write_atomically", no_space)
    with pytest.raises(OSError, match="No space left") as caught:
        export_run(linear_run, "pt2", out, overwrite=True)
    assert caught.value.filename == str(out)
    assert names_in(tmp_path) == (["out"] if had_export else [])
    if had_export:
        assert "model.onnx" in names_in(out)


def test_an_exported_file_that_predicts_something_else_is_refused(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = export_run_module.FORMATS["pt2"]

    def wrong(folder: Path, inputs: Any) -> Any:
        predict = right.load(folder, inputs)
        return lambda samples: predict(samples) + 2e-4

    monkeypatch.setitem(export_run_module.FORMATS, "pt2", right._replace(load=wrong))
    with pytest.raises(ValueError, match=r"predicts other probabilities.*2\.0e-04, allowed 1e-04"):
        export_run(linear_run, "pt2", tmp_path / "out")
    assert names_in(tmp_path) == []


def test_a_difference_from_the_run_is_pointed_out(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_run_module, "_check", lambda *_: (0.0, 1e-3))
    exported = export_run(linear_run, "pt2", tmp_path / "out")
    assert "equally near neighbours" in exported.remarks[0]


def test_an_unfinished_run_is_refused(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"unfinished.*mnar train --resume"):
        export_run(stopped, "pt2", tmp_path / "out")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        export_run(tmp_path, "pt2", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="there is no run"):
        export_run(tmp_path / "absent", "pt2", tmp_path / "out")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path("exploded").write_text, ("",))


@pytest.mark.parametrize("kind", ["pickle", "foreign", "cut off"])
@pytest.mark.parametrize("source", ["linear_run", "finished_run"])  # a portfolio and a network
def test_a_model_file_that_is_not_ours_is_refused_and_never_unpickled(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: str
) -> None:
    run = Path(shutil.copytree(request.getfixturevalue(source), tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    path = run / "model.safetensors"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb()))
    elif kind == "foreign":
        save_file({"x": np.zeros(3)}, path)
    else:
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"damaged.*mnar train --resume"):
        export_run(run, "pt2", tmp_path / "out")
    assert names_in(tmp_path) == ["run"]


def test_a_member_whose_weights_do_not_fit_is_a_damaged_model(features_run: Path, tmp_path: Path) -> None:
    run = with_members(Path(shutil.copytree(features_run, tmp_path / "run")), "network")
    arrays = {name: tensor.numpy() for name, tensor in load_file(run / "model.safetensors").items()}
    metadata = {"mnar": _metadata(run)}
    arrays["member0.weights.head.bias"] = np.zeros(7, np.float32)
    save_file(arrays, run / "model.safetensors", metadata)
    with pytest.raises(ValueError, match=r"damaged.*head\.bias"):
        export_run(run, "pt2", tmp_path / "out")


def _metadata(run: Path) -> str:
    from safetensors import safe_open

    with safe_open(run / "model.safetensors", framework="numpy") as file:
        return str(file.metadata()["mnar"])


def test_without_the_onnx_packages_the_error_names_the_extra(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'mnar\[onnx\]'.*--to pt2"):
        export_run(linear_run, "onnx", tmp_path / "out")


@pytest.mark.parametrize("prior", ["uniform", "labels", "pool"])
@pytest.mark.parametrize("source", ["linear_run", "table_network_run"])
def test_the_class_mix_that_the_user_names_is_inside(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, prior: str
) -> None:
    run = request.getfixturevalue(source)
    exported = export_run(run, "pt2", tmp_path / "out", prior=prior)
    assert exported.from_run < 1e-6
    expected = load(run).class_mix(prior).shares
    assert expected is not None
    about = json.loads((exported.folder / "preprocessing.json").read_text())
    np.testing.assert_allclose(about["class_mix"]["shares"], expected)
    buffers = torch.export.load(exported.folder / "model.pt2").state_dict
    if source == "linear_run":
        np.testing.assert_allclose(buffers["mix.shares"], expected)


def test_the_scores_of_the_card_are_those_of_the_stored_predictions(odd_run: Path) -> None:
    model = load(odd_run)
    uniform = model.class_mix("uniform")
    scores, stored = class_scores(model, uniform), model.calibration
    assert scores is not None
    assert stored is not None
    predicted = stored.probs.argmax(1)  # stored as if classes were equally frequent
    recalls = [np.mean(predicted[stored.y == c] == c) for c in range(3)]
    np.testing.assert_allclose(scores.recall, recalls)
    assert scores.accuracy == pytest.approx(np.mean(recalls))  # with equally frequent classes both are the same
    assert scores.num_scored.sum() == len(stored.y) // stored.repeats
    # Of equally many rows per class, the share of right ones among those that are predicted as class 0.
    called_first = [np.mean(predicted[stored.y == c] == 0) for c in range(3)]
    assert scores.precision[0] == pytest.approx(called_first[0] / sum(called_first))


def test_the_card_shows_hostile_class_names_as_text(odd_run: Path, exported: Export) -> None:
    card = (exported(odd_run, "pt2").folder / "MODEL_CARD.md").read_text()
    assert "<script" not in card
    assert "\x1b" not in card
    assert "&lt;script&gt;a\\|b\\*c\\*\ufffd\\[31m" in card
    rows = [line for line in card.splitlines() if line.startswith("| &lt;script")]
    assert [len(row.replace("\\|", "").split("|")) for row in rows] == [7, 6]  # one cell per column of each table
    assert HOSTILE in json.loads((exported(odd_run, "pt2").folder / "preprocessing.json").read_text())["class_names"]


def test_the_card_has_every_section_of_a_run(odd_run: Path, finished_run: Path, exported: Export) -> None:
    for run in (odd_run, finished_run):
        card = (exported(run, "pt2").folder / "MODEL_CARD.md").read_text()
        titles = [line.removeprefix("## ") for line in card.splitlines() if line.startswith("## ")]
        assert titles == [
            *("Purpose", "Data", "Training", "Class mix", "Metrics", "Limits", "Use", "Licence", "Provenance")
        ]
        assert "Licence of the model: *fill in*" in card
        assert str(run.parent) not in card, "no path of the user's machine"
    assert "cross-validation" in (exported(odd_run, "pt2").folder / "MODEL_CARD.md").read_text()
    assert "test set of the benchmark" in card


@pytest.mark.parametrize("text", ["a\nb", "a\r\tb", "<b>", "&amp;", "\u202eabc", "`x`", "[x](y)", "a|b", "$x$"])
def test_plain_text_has_no_markup_and_one_line(text: str) -> None:
    shown = plain_text(text)
    assert "\n" not in shown
    assert "\r" not in shown
    assert "\u202e" not in shown
    assert "<" not in shown
    for special in "`[]|$":
        assert shown.count(special) == shown.count(f"\\{special}")


def test_the_tensors_of_safetensors_are_those_of_the_members(linear_run: Path, exported: Export) -> None:
    folder = exported(linear_run, "safetensors").folder
    tensors, model = load_file(folder / "model.safetensors"), load(linear_run)
    linear = model.predictor.model.portfolio.members[0]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(tensors["classifier.members.0.weights"], linear.weights)
    np.testing.assert_array_equal(tensors["classifier.members.0.bias"], linear.bias)
    assert "import mnar" not in (folder / "program.py").read_text()


def test_a_model_that_torch_cannot_convert_is_an_error_with_a_remedy(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such operation\nlong details")

    right = export_run_module.FORMATS["pt2"]
    monkeypatch.setitem(export_run_module.FORMATS, "pt2", right._replace(write=fail))
    with pytest.raises(ValueError, match=r"cannot be exported to pt2 \(no such operation\); choose another format"):
        export_run(linear_run, "pt2", tmp_path / "out")
    assert names_in(tmp_path) == []


def test_what_a_killed_export_left_behind_is_removed(linear_run: Path, tmp_path: Path) -> None:
    for folder in temporary_folders(tmp_path / "out"):
        export_marked(folder)
    with pytest.raises(FileExistsError, match=r"already contains an export.*--overwrite"):
        export_run(linear_run, "pt2", tmp_path / "out")  # the old export is in its place again
    export_run(linear_run, "pt2", tmp_path / "out", overwrite=True)
    assert names_in(tmp_path) == ["out"]
    assert tuple(names_in(tmp_path / "out")) == FILES


def test_the_only_copy_that_a_kill_between_two_renames_left_survives_an_export_that_fails(
    linear_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_marked(temporary_folders(tmp_path / "out")[1])
    monkeypatch.setattr(export_run_module, "write_atomically", failing_with(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        export_run(linear_run, "pt2", tmp_path / "out", overwrite=True)
    assert names_in(tmp_path) == ["out"]
    assert "model.onnx" in names_in(tmp_path / "out")


def test_folders_that_the_user_has_named_like_temporary_ones_are_kept(linear_run: Path, tmp_path: Path) -> None:
    for name in ("out.old", "out.part"):  # e.g. after `mv out out.old`
        export_marked(tmp_path / name)
    export_run(linear_run, "pt2", tmp_path / "out")
    assert names_in(tmp_path) == ["out", "out.old", "out.part"]
    for name in ("out.old", "out.part"):
        assert "model.onnx" in names_in(tmp_path / name)
    for folder in temporary_folders(tmp_path / "out"):
        folder.mkdir()
        (folder / "mine.txt").write_text("")
        with pytest.raises(FileExistsError, match=r"is in the way and contains mine\.txt.*rename it"):
            export_run(linear_run, "pt2", tmp_path / "out", overwrite=True)
        assert names_in(folder) == ["mine.txt"]
        shutil.rmtree(folder)


def test_an_export_with_files_of_the_user_is_never_replaced(linear_run: Path, tmp_path: Path) -> None:
    out = export_run(linear_run, "safetensors", tmp_path / "out").folder
    (out / "__pycache__").mkdir()  # of example.py
    (out / "__pycache__" / "program.cpython-312.pyc").write_text("")
    for name in ("predictions.csv", "notes.txt"):
        (out / name).write_text("mine")
    with pytest.raises(FileExistsError, match=r"contains notes\.txt, predictions\.csv, which no export writes; move"):
        export_run(linear_run, "pt2", out, overwrite=True)
    assert (out / "predictions.csv").read_text() == "mine"
    for name in ("predictions.csv", "notes.txt"):
        (out / name).unlink()
    export_run(linear_run, "pt2", out, overwrite=True)
    assert tuple(names_in(out)) == FILES


def test_a_link_to_an_export_stays_a_link(linear_run: Path, tmp_path: Path) -> None:
    export_marked(tmp_path / "out")
    (tmp_path / "link").symlink_to("out")
    export_run(linear_run, "pt2", tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert tuple(names_in(tmp_path / "out")) == FILES
    assert names_in(tmp_path) == ["link", "out"]
