"""Make the user's network: call a function of the user's module, and load weights. Nothing is downloaded."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
NESTED = ("state_dict", "model", "model_state_dict")  # where checkpoints of training scripts keep the weights
MOST_LISTED = 3
USER_ERRORS = (Exception, SystemExit)  # the code is the user's, so any error is possible, also sys.exit()


@contextmanager
def without_downloads() -> Iterator[None]:
    """Let no code in the `with` block download anything: no name of a host is looked up.

    Hugging Face libraries are told so, because they would otherwise try several times.
    """

    def refuse(host: object, *rest: object, **options: object) -> Any:
        raise OSError(f"mnar features downloads nothing, and the network asked for {host}; use files of this machine")

    real, before = socket.getaddrinfo, {name: os.environ.get(name) for name in OFFLINE}
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    socket.getaddrinfo = refuse
    try:
        yield
    finally:
        socket.getaddrinfo = real
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def make_network(model: str, weights: Path | None = None) -> nn.Module:
    """Return the network that MODULE:FACTORY makes, in evaluation mode.

    MODULE is a module that Python can import, or the path of a .py file. FACTORY is a function or class that is called
    without arguments, or the name of a network. `weights` are loaded into the network.
    """
    module_name, colon, factory_name = model.rpartition(":")
    if not colon or not module_name or not factory_name:
        raise ValueError(
            f"--model is {model!r}; give MODULE:FACTORY, e.g. my_network.py:make or torchvision.models:resnet18"
        )
    made: Any = _module(module_name)
    for part in factory_name.split("."):
        if not hasattr(made, part):
            raise ValueError(f"--model {model}: {module_name} has no {factory_name}; name a function of the module")
        made = getattr(made, part)
    if not isinstance(made, nn.Module) and callable(made):
        try:
            made = made()
        except USER_ERRORS as error:
            raise ValueError(
                f"--model {model}: calling {factory_name}() failed with {problem_of(error)}; correct the function, "
                "which must work without arguments and without a download"
            ) from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"--model {model} makes {type(made).__name__}; return an nn.Module")
    if weights is not None:
        _load_weights(made, weights)
    return made.eval().requires_grad_(False)


def problem_of(error: BaseException) -> str:
    """Return an error of the user's code in one line: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _module(name: str) -> Any:
    """Import a module by its name or its path. Code beside a file, or in the working directory, can be imported."""
    path = Path(name)
    is_file = name.endswith(".py")
    if is_file and not path.is_file():
        raise FileNotFoundError(f"--model names the file {path}, which does not exist; check the path")
    beside = str(path.resolve().parent) if is_file else str(Path.cwd())
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        if not is_file:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except USER_ERRORS as error:
        remedy = "correct the file" if is_file else "install the package, or give the path of a .py file"
        raise ValueError(f"--model: {name} cannot be imported ({problem_of(error)}); {remedy}") from error
    return module


def _load_weights(network: nn.Module, path: Path) -> None:
    """Load weights from a .safetensors file, or from a file of torch.save. No code in the file is ever run."""
    weights = _read_weights(path)
    own = network.state_dict()
    problems = [f"{name} is missing" for name in own if name not in weights]
    problems += [f"{name} is not in the network" for name in weights if name not in own]
    problems += [
        f"{name} has shape {tuple(tensor.shape)} in the file and {tuple(own[name].shape)} in the network"
        for name, tensor in weights.items()
        if name in own and tensor.shape != own[name].shape
    ]
    if problems:
        more = f" and {len(problems) - MOST_LISTED} more" if len(problems) > MOST_LISTED else ""
        raise ValueError(
            f"the weights in {path} do not fit the network: {', '.join(problems[:MOST_LISTED])}{more}; make the same "
            "network that the weights were saved from"
        )
    network.load_state_dict(weights)


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of weights by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"there are no weights at {path}; name a .safetensors or .pt file")
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise ValueError(f"{path} is no complete .safetensors file ({error}); copy or save it again") from error
    except Exception as error:  # torch raises errors of many types; each means that the file is not plain tensors
        raise ValueError(
            f"{path} is no state_dict of tensors; save the weights as safetensors: "
            "safetensors.torch.save_file(network.state_dict(), 'weights.safetensors'). Files with other Python objects "
            "are refused, because reading them could run code"
        ) from error
    if isinstance(content, dict):
        content = next((content[name] for name in NESTED if isinstance(content.get(name), dict)), content)
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} holds no state_dict; save it with torch.save(network.state_dict(), ...)")
    return content
