"""Export the model of a run: a folder with the model file, a description, a model card and an example."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mnar.atomic_write import PART, check_writable, flush_folder, write_atomically
from mnar.run.file_names import resume_command
from mnar.run.model_file import read_model_input
from mnar.trained.class_mix import ClassMix, Prior
from mnar.trained.export import model_card, onnx_file, pt2_file, safetensors_file
from mnar.trained.export.description import description_of, metadata_of
from mnar.trained.export.example import EXAMPLE, example_code
from mnar.trained.export.program import make_program, traced
from mnar.trained.export.samples import Arrays, Input, encoded, inputs_of, kind_of, made_up_samples
from mnar.trained.load import load
from mnar.trained.model import TrainedModel

Target = Literal["onnx", "safetensors", "pt2"]
Write = Callable[[torch.export.ExportedProgram, Path, Sequence[Input], Mapping[str, str]], None]
Load = Callable[[Path, Sequence[Input]], Callable[[Arrays], npt.NDArray[np.float32]]]

PREPROCESSING = "preprocessing.json"
TOLERANCE = 1e-4  # the largest difference between a probability of the export and one of the run
NUM_CHECKED = 128
DIFFERS = (
    f"This is more than {TOLERANCE:.0e}. There are three possible reasons. A sample has several equally near "
    "neighbours: the member graph takes some of them, and the export takes their mean. A number lies on the threshold "
    "of a tree. Or the run computes in bfloat16: the export computes in float32."
)
NUM_TRACED = 3  # samples with which the program is traced; torch treats batches of 0 and 1 as special


class Format(NamedTuple):
    """One format: its main file, and the functions that write and load it."""

    file: str
    write: Write
    load: Load


FORMATS: dict[Target, Format] = {
    "onnx": Format(onnx_file.NAME, onnx_file.write_onnx, onnx_file.load_onnx),
    "safetensors": Format(safetensors_file.NAME, safetensors_file.write_safetensors, safetensors_file.load_safetensors),
    "pt2": Format(pt2_file.NAME, pt2_file.write_pt2, pt2_file.load_pt2),
}
BYTECODE = "__pycache__"  # Python writes this folder when example.py imports program.py
FILES_OF_EXPORTS = {
    *(known.file for known in FORMATS.values()),
    *(onnx_file.LARGE_TENSORS, safetensors_file.CODE, PREPROCESSING, EXAMPLE, model_card.NAME, BYTECODE),
}
MOST_LISTED = 5  # names of files in an error message


class Exported(NamedTuple):
    """What `export_run` did."""

    folder: Path
    files: tuple[str, ...]
    mix: ClassMix
    from_run: float  # largest difference of a probability: the exported file and the model of the run
    from_torch: float  # largest difference of a probability: the exported file and the same program in torch
    num_checked: int
    remarks: tuple[str, ...]  # what the user should know about the check


def default_folder(run: Path, to: Target) -> Path:
    """Return the folder that an export is written to: RUN/export-onnx."""
    return run / f"export-{to}"


def export_run(
    run: Path, to: Target, out: Path | None = None, *, prior: Prior | None = None, overwrite: bool = False
) -> Exported:
    """Export the model of a finished run.

    out          the folder to write; None: `default_folder`
    prior        the class mix that the probabilities are for, as in `TrainedModel.predict_proba`
    overwrite    replace an earlier export

    The exported file is loaded again and compared with the model of the run. A difference of more than TOLERANCE
    between the file and the same program in torch is an error.
    """
    if to not in FORMATS:
        raise ValueError(f"unknown format {to!r}; choose from {', '.join(FORMATS)}")
    if to == "onnx":
        onnx_file.check_onnx_packages()  # before the work and not after it
    model = load(run, device="cpu")
    out = default_folder(model.run, to) if out is None else Path(out)
    check_output(out, overwrite=overwrite)
    mix, stored, inputs = model.class_mix(prior), read_model_input(model.run), inputs_of(model.inputs)
    assert stored is not None, "`load` refuses an unfinished run"
    try:
        program = make_program(model, stored, mix)
    except RuntimeError as error:  # weights that do not fit the network
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the model in {model.run} is damaged ({reason}); write it again with `{resume_command(model.run)}`"
        ) from error
    samples = made_up_samples(model.inputs, stored, NUM_CHECKED, np.random.default_rng(0))
    tensors = tuple(map(torch.from_numpy, samples))
    with torch.no_grad():
        in_torch = program(*tensors).numpy()
    description = description_of(model, stored, mix, FORMATS[to].file)
    with new_folder(out) as folder:
        try:
            in_export = traced(program, tuple(tensor[:NUM_TRACED] for tensor in tensors))
            FORMATS[to].write(in_export, folder, inputs, metadata_of(description))
            predict = FORMATS[to].load(folder, inputs)
        except RuntimeError as error:  # torch knows no counterpart of an operation
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"the model of {model.run} cannot be exported to {to} ({reason}); choose another format with --to"
            ) from error
        from_torch, from_run = _check(predict, model, mix, samples, in_torch, out)
        write_atomically(folder / PREPROCESSING, json.dumps(description, indent=1))
        write_atomically(folder / EXAMPLE, example_code(to, kind_of(model.inputs)))
        write_atomically(folder / model_card.NAME, model_card.model_card(model, mix, FORMATS[to].file, from_run))
        files = tuple(sorted(path.name for path in folder.iterdir()))
    remarks = (DIFFERS,) if from_run > TOLERANCE else ()
    return Exported(out, files, mix, from_run, from_torch, NUM_CHECKED, remarks)


def check_output(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot be written, or that contains files that no export writes.

    An export that a killed command has put aside comes back first.
    """
    part, old = temporary_folders(out)
    for leftover in (part, old):
        if foreign := _foreign_files(leftover):
            raise FileExistsError(f"{leftover} is in the way and contains {foreign}, which no export writes; rename it")
    if _is_export(old) and not os.path.lexists(out):
        old.rename(out)
    if out.is_dir() and any(out.iterdir()):
        if not _is_export(out):
            raise FileExistsError(f"{out} exists and contains something else than an export; choose another --out")
        if not overwrite:
            raise FileExistsError(f"{out} already contains an export; choose another --out, or add --overwrite")
        if foreign := _foreign_files(out):
            raise FileExistsError(
                f"{out} contains {foreign}, which no export writes; move this to another folder, or choose another "
                "--out"
            )
    elif os.path.lexists(out) and not out.is_dir():
        raise FileExistsError(f"{out} is a file; choose a folder with --out")
    check_writable(part / PREPROCESSING)


def temporary_folders(out: Path) -> tuple[Path, Path]:
    """Return the folders beside `out` that hold the new export until it is complete, and the old one meanwhile.

    Their names are none that a user gives to the copy of an export, such as OUT.old.
    """
    out = out.resolve()  # a link stays a link
    return out.parent / f".{out.name}.mnar-export{PART}", out.parent / f".{out.name}.mnar-export.old"


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside `out`. When the block ends without an error, the folder replaces `out`.

    The caller has called `check_output`.
    """
    out, (part, old) = out.resolve(), temporary_folders(out)
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    try:
        part.mkdir(parents=True)
        yield part
        for path in part.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        flush_folder(part)
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)  # the export before `out`, of a process that was killed
            out.rename(old)
        part.rename(out)
        flush_folder(out.parent)
    except OSError as error:
        error.filename, error.filename2 = str(out), None  # the error of a full disk does not name the file
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if out.exists():
            shutil.rmtree(old, ignore_errors=True)
        elif old.exists():
            old.rename(out)


def _is_export(folder: Path) -> bool:
    return (folder / PREPROCESSING).is_file() and (folder / model_card.NAME).is_file()


def _foreign_files(folder: Path) -> str:
    """Return the names of some files in an existing folder that no export writes, as text for a message."""
    if not folder.is_dir():
        return "something else than files" if os.path.lexists(folder) else ""
    foreign = sorted(
        path.name
        for path in folder.iterdir()
        if path.name.removesuffix(PART) not in FILES_OF_EXPORTS or (path.is_dir() and path.name != BYTECODE)
    )
    more = f" and {len(foreign) - MOST_LISTED} more" if len(foreign) > MOST_LISTED else ""
    return f"{', '.join(foreign[:MOST_LISTED])}{more}"


def _check(
    predict: Callable[[Arrays], npt.NDArray[np.float32]],
    model: TrainedModel,
    mix: ClassMix,
    samples: Arrays,
    in_torch: npt.NDArray[np.float32],
    out: Path,
) -> tuple[float, float]:
    """Return the largest differences of the loaded file from the program in torch and from the model of the run."""
    exported = predict(samples)
    alone = predict(tuple(array[:1] for array in samples))  # any batch size must work
    from_torch = float(max(np.abs(exported - in_torch).max(), np.abs(alone - in_torch[:1]).max()))
    if not from_torch <= TOLERANCE:
        raise ValueError(
            f"the exported file in {out} predicts other probabilities than the model (largest difference "
            f"{from_torch:.1e}, allowed {TOLERANCE:.0e}); nothing was written. Choose another format with --to"
        )
    of_run = model.predictor.probs(encoded(model.inputs, samples), mix.shares)
    return from_torch, float(np.abs(exported - of_run).max())
