"""model.safetensors and program.py: all tensors of a program, and its operations as plain PyTorch code.

The code is generated from the `torch.export` program, so it needs torch but not the code of the model. It documents how
the tensors are used, for readers who compute with them elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor
from torch.export.graph_signature import InputKind

from mnar.atomic_write import write_atomically
from mnar.trained.export.samples import Arrays, Input

NAME, CODE = "model.safetensors", "program.py"
IGNORED = "_assert_tensor_metadata"
HEADER = '''"""The operations of an exported model, generated from its torch.export program. The tensors are in {file}.

`probabilities(tensors, {names})` takes the tensors, as `safetensors.torch.load_file` returns them, and a batch of
samples. It returns the probabilities [batch, classes].
"""

import torch
from torch import device, inf, nan


'''


def write_safetensors(
    program: torch.export.ExportedProgram, folder: Path, inputs: Sequence[Input], metadata: Mapping[str, str]
) -> None:
    """Write the tensors with the metadata, and the code."""
    # Copies, because safetensors refuses tensors that share memory.
    tensors = {target: tensor.detach().contiguous().clone() for _, target, tensor in _tensors(program)}
    # One metadata entry, because safetensors writes several entries in random order.
    write_atomically(folder / NAME, to_safetensors(tensors, {"export": json.dumps(dict(metadata))}))
    write_atomically(folder / CODE, code_of(program, inputs))


def load_safetensors(folder: Path, inputs: Sequence[Input]) -> Callable[[Arrays], npt.NDArray[np.float32]]:
    """Load the tensors and the code again and return their prediction function."""
    names: dict[str, object] = {}
    exec(compile((folder / CODE).read_text(), CODE, "exec"), names)
    probabilities, tensors = names["probabilities"], load_file(folder / NAME)
    assert callable(probabilities)

    def predict(samples: Arrays) -> npt.NDArray[np.float32]:
        probs: npt.NDArray[np.float32] = probabilities(tensors, *map(torch.from_numpy, samples)).numpy()
        return probs

    return predict


def code_of(program: torch.export.ExportedProgram, inputs: Sequence[Input]) -> str:
    """Return the source code of program.py."""
    names = ", ".join(one.name for one in inputs)
    lines = ["@torch.no_grad()", f"def probabilities(tensors, {names}):"]
    lines += [f"    {placeholder} = tensors[{target!r}]" for placeholder, target, _ in _tensors(program)]
    of_samples = zip(program.graph_signature.user_inputs, inputs, strict=True)
    lines += [f"    {placeholder} = {one.name}" for placeholder, one in of_samples]
    # The generated code begins with `def forward(self, ...):` and ends with a tuple of one result. Its checks of the
    # device are left out, so that the tensors may be on a GPU.
    generated = iter(program.graph_module.code.splitlines())
    for line in generated:
        if line.startswith("def forward("):
            break
    lines += [re.sub(r"return \((\w+),\)", r"return \1", line) for line in generated if IGNORED not in line]
    return HEADER.format(file=NAME, names=names) + "\n".join(lines).rstrip() + "\n"


def _tensors(program: torch.export.ExportedProgram) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the placeholder in the code, the name, and the value of each stored tensor."""
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            continue
        assert spec.target is not None
        values = program.constants if spec.kind == InputKind.CONSTANT_TENSOR else program.state_dict
        value = values[spec.target] if spec.target in values else program.constants[spec.target]
        yield spec.arg.name, spec.target, value
