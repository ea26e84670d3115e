"""preprocessing.json: what the inputs and the output of an exported program mean, in a form that programs can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mnar import __version__
from mnar.datasets.user_files.label_values import MISSING_FEATURES
from mnar.datasets.user_files.table_encoder import MAX_DEVIATIONS, TableEncoder
from mnar.run.model_file import ModelInput
from mnar.trained.class_mix import ClassMix
from mnar.trained.export.onnx_file import OUTPUT
from mnar.trained.export.samples import Input, inputs_of, kind_of, unknown_code
from mnar.trained.model import TrainedModel

VERSION = 1  # of the layout of the file


def description_of(model: TrainedModel, stored: ModelInput, mix: ClassMix, model_file: str) -> dict[str, Any]:
    """Return the content of preprocessing.json."""
    kind, inputs = kind_of(model.inputs), inputs_of(model.inputs)
    described = [{"name": one.name, "dtype": one.dtype, "shape": ["batch", *one.shape]} for one in inputs]
    details: dict[str, Any] = {}
    if model.inputs.encoder is not None:
        details = _of_table(model.inputs.encoder, inputs)
    elif kind == "images":
        details = {"image": _of_images(stored)}
    else:
        details = {"features": {"inside": "The program standardises the features with the moments of training."}}
    return {
        "version": VERSION,
        "mnar": __version__,
        "model_file": model_file,
        "kind": kind,
        "inputs": described,
        "output": {"name": OUTPUT, "dtype": "float32", "shape": ["batch", len(model.inputs.class_names)]},
        "class_names": list(model.inputs.class_names),
        "class_mix": {
            "shares": None if mix.shares is None else mix.shares.tolist(),
            "meaning": f"The probabilities are for {mix.description}.",
        },
        **details,
    }


def metadata_of(description: dict[str, Any]) -> dict[str, str]:
    """Return what is also stored inside the model file, so that the file explains itself."""
    return {
        "class_names": json.dumps(description["class_names"]),
        "preprocessing": json.dumps(description),
    }


def _of_table(encoder: TableEncoder, inputs: Sequence[Input]) -> dict[str, Any]:
    categories = [
        {
            "name": name,
            "codes": {level: code for code, level in enumerate(encoder.levels[j])},
            "missing": -1,
            "unknown": unknown_code(encoder, j),
        }
        for j, name in enumerate(encoder.categorical_names)
    ]
    return {
        "numbers": [
            {"name": name, "mean": mean, "std": std}
            for name, mean, std in zip(encoder.numeric_names, encoder.means, encoder.stds, strict=True)
        ],
        "categories": categories,
        "missing_texts": sorted(MISSING_FEATURES),
        "inside": (
            "numbers: raw values in the order of the list, NaN if missing; an infinite value counts as missing. The "
            f"program standardises them and clips them at {MAX_DEVIATIONS:g} standard deviations. categories: the "
            "code of each text, or the codes for missing and unknown texts. The program makes one-hot columns of "
            "them. A text is missing if its lower-case form without spaces at the ends is in missing_texts."
        ),
    }


def _of_images(stored: ModelInput) -> dict[str, Any]:
    channels, height, width = stored["input_shape"]
    mode = "L" if channels == 1 else "RGB"
    return {
        "mode": mode,
        "height": height,
        "width": width,
        "mean": stored["mean"],
        "std": stored["std"],
        "steps": [
            "turn the image upright (EXIF orientation)",
            "divide 16-bit grey levels by 257",
            "lay transparent parts on white",
            f"convert the image to mode {mode}",
            f"resize it to cover {width} x {height} pixels (bicubic, antialiased) and cut out the centre",
            "store it as uint8 [channels, height, width]",
        ],
        "inside": (
            "The program takes the pixels as uint8, 0 to 255, and normalises them itself. mean and std are those of "
            "the training images, per channel, for values from 0 to 1."
        ),
    }
