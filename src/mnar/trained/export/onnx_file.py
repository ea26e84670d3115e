"""model.onnx: a program that ONNX Runtime and other runtimes execute without torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mnar.trained.export.samples import Arrays, Input

NAME = "model.onnx"
LARGE_TENSORS = f"{NAME}.data"  # torch writes this file beside a model that is too large for one file
OUTPUT = "probabilities"
NEEDED = ("onnxscript", "onnxruntime")


def check_onnx_packages() -> None:
    """Raise an error if a package is missing that the export needs."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"the export to ONNX needs the package {' and '.join(missing)}; install it with pip install 'mnar[onnx]', "
            "or choose --to pt2 or --to safetensors"
        )


def write_onnx(
    program: torch.export.ExportedProgram, folder: Path, inputs: Sequence[Input], metadata: Mapping[str, str]
) -> None:
    """Write the program. The metadata become metadata properties of the file."""
    check_onnx_packages()
    with _quiet():
        converted = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=[one.name for one in inputs],
            output_names=[OUTPUT],
        )
        assert converted is not None
        _name_batch_axis(converted)
        converted.model.metadata_props.update(metadata)
        converted.save(folder / NAME)


def load_onnx(folder: Path, inputs: Sequence[Input]) -> Callable[[Arrays], npt.NDArray[np.float32]]:
    """Load the file with ONNX Runtime and return its prediction function."""
    check_onnx_packages()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(folder / NAME, options, providers=["CPUExecutionProvider"])

    def predict(samples: Arrays) -> npt.NDArray[np.float32]:
        named = {one.name: array for one, array in zip(inputs, samples, strict=True)}
        probs: npt.NDArray[np.float32] = session.run([OUTPUT], named)[0]
        return probs

    return predict


def _name_batch_axis(converted: torch.onnx.ONNXProgram) -> None:
    """Call the first axis of inputs and outputs "batch" instead of a made-up name like "s15"."""
    graph = converted.model.graph
    first = graph.inputs[0].shape
    assert first is not None
    made_up = str(first[0])
    for value in (*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)):
        if value.shape is None:
            continue
        for axis, size in enumerate(value.shape):
            if str(size) == made_up:
                value.shape[axis] = "batch"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the remarks of the converter, e.g. that torchvision is not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
