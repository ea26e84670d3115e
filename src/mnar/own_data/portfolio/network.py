"""A neural network as a member: the network, learner and guidance that suit the kind of data, trained in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from mnar.config import OWN_DATA, RunConfig
from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files import UNLABELED, PartlyLabeled
from mnar.own_data.defaults import default_sections
from mnar.own_data.in_memory import keep_random_state, network_probs, train_in_memory
from mnar.own_data.portfolio.member import Arrays, Floats, Inputs, Samples
from mnar.recipes import configure
from mnar.run.model_file import data_without_samples
from mnar.types import DataSet

GUIDANCE = "simpro"  # it estimates the class distribution of the pool, and its network predicts balanced probabilities


@dataclass(frozen=True)
class Network:
    """The weights of a trained network, and what is needed to build the network again."""

    kind: ClassVar[str] = "network"
    config: RunConfig
    data: DataSet  # without samples
    weights: Arrays

    def probs(self, inputs: Inputs) -> Floats:
        x = inputs.features if inputs.images is None else inputs.images
        return network_probs(self.config, self.data, self.weights, torch.from_numpy(np.ascontiguousarray(x)))

    def arrays(self) -> Arrays:
        shape = np.array(self.data.train_x.shape[1:])
        text = np.frombuffer(self.config.to_yaml().encode(), np.uint8)
        moments = {"mean": np.array(self.data.mean), "std": np.array(self.data.std)}
        num_classes = np.array(len(self.data.class_names))
        weights = {f"weights.{name}": weight for name, weight in self.weights.items()}
        return {"config": text, "shape": shape, "num_classes": num_classes, **moments, **weights}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        config = RunConfig.from_yaml(bytes(arrays["config"]).decode())
        data = data_without_samples(
            {
                "input_shape": arrays["shape"].tolist(),
                "class_names": list(_class_names(arrays["num_classes"].item())),
                "mean": arrays["mean"].tolist(),
                "std": arrays["std"].tolist(),
                "encoding": None,
            }
        )
        weights = {name.removeprefix("weights."): a for name, a in arrays.items() if name.startswith("weights.")}
        return cls(config, data, weights)


def fit_network(samples: Samples, *, uses_pool: bool, iterations: int | None = None) -> Network:
    """Train a network on the samples; without the pool, it is trained on the labels alone."""
    inputs, y = samples.inputs, samples.y
    x: npt.NDArray[Any] = inputs.features if inputs.images is None else inputs.images
    if not uses_pool:
        x, y = x[samples.is_labeled], y[samples.is_labeled]
    data = as_data_set(PartlyLabeled(x, y, _class_names(samples.num_classes), [""] * len(y)), held_out=0.0)
    num_unlabeled = int((y == UNLABELED).sum())
    config = configure(
        dataset=OWN_DATA,
        protocol="as_labeled",
        guidance=GUIDANCE if num_unlabeled else None,
        iterations=iterations,
        seed=samples.seed,
        defaults=default_sections(
            tuple(x.shape[1:]), num_unlabeled, on_gpu=torch.cuda.is_available(), iterations=iterations
        ),
    )
    with keep_random_state(config):
        weights = train_in_memory(config, data).state_dict()
    # Only what prediction needs is kept: no samples, and no heads that only training uses.
    kept = {name: weights[name].cpu().numpy() for name in weights if not name.startswith("heads.")}
    return Network(config, without_samples(data), kept)


def without_samples(data: DataSet) -> DataSet:
    """Return the data set without its samples: its kind, class names and moments."""
    return data._replace(
        train_x=data.train_x[:0].clone(),
        train_y=data.train_y[:0].clone(),
        test_x=data.test_x[:0].clone(),
        test_y=data.test_y[:0].clone(),
        row_names=(),
    )


def _class_names(num_classes: int) -> tuple[str, ...]:
    return tuple(str(c) for c in range(num_classes))
