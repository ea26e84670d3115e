"""model.pt2: a program of `torch.export`, which torch loads without the code of the model."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mnar.atomic_write import write_atomically
from mnar.trained.export.samples import Arrays, Input

NAME = "model.pt2"


def write_pt2(
    program: torch.export.ExportedProgram, folder: Path, inputs: Sequence[Input], metadata: Mapping[str, str]
) -> None:
    """Write the program. The metadata become extra files in the archive."""
    buffer = io.BytesIO()  # torch would turn the error of a full disk into one that does not say so
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own deprecated calls
        torch.export.save(program, buffer, extra_files=dict(metadata))
    write_atomically(folder / NAME, buffer.getvalue())


def load_pt2(folder: Path, inputs: Sequence[Input]) -> Callable[[Arrays], npt.NDArray[np.float32]]:
    """Load the file again and return its prediction function.

    An archive may contain pickled parts. The export loads only a file that it has just written itself.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.load(folder / NAME).module()

    def predict(samples: Arrays) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            probs: npt.NDArray[np.float32] = program(*map(torch.from_numpy, samples)).numpy()
        return probs

    return predict
