"""The program of a run: one torch module from raw samples to class probabilities, preprocessing included."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mnar.own_data.inputs import MAX_DEVIATIONS, InputEncoder
from mnar.own_data.network_predictor import NetworkPredictor
from mnar.own_data.portfolio.combination import FLOOR
from mnar.own_data.portfolio_model import PortfolioModel
from mnar.run import RunFolder
from mnar.run.model_file import ModelInput, data_without_samples, read_weights
from mnar.trained.class_mix import ClassMix
from mnar.trained.export.image_features_module import ImageFeatures
from mnar.trained.export.member_modules import doubles, member_module
from mnar.trained.export.mix_modules import CalibratedWithShares, WithShares
from mnar.trained.export.network_module import NormalizedNetwork, network_module
from mnar.trained.export.table_module import TableModule
from mnar.trained.model import TrainedModel
from mnar.trained.predictor import PortfolioPredictor

NOT_CALIBRATED = (
    "the run has no labels that its network was not trained on, so its predictions cannot be changed to another class "
    "mix; leave out --prior, or train with more labels"
)


class Program(nn.Module):
    """Raw samples to probabilities, float32 [batch, k].

    columns       encodes the columns of a table; the identity for images and features
    classifier    encoded samples -> probabilities, float64 [batch, k]
    mix           puts the class mix into the probabilities
    """

    def __init__(self, columns: nn.Module, classifier: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.columns, self.classifier, self.mix = columns, classifier, mix
        self.eval()

    def forward(self, *samples: Tensor) -> Tensor:
        probs: Tensor = self.mix(self.classifier(self.columns(*samples)))
        return probs.float()


class PortfolioClassifier(nn.Module):
    """A portfolio on encoded samples: a weighted sum of the members' log-probabilities. The result is balanced."""

    weights: Tensor  # [members]

    def __init__(self, model: PortfolioModel, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.is_image = len(shape) == 3
        self.inputs = _encoder_module(model.encoder, shape)
        self.members = nn.ModuleList(member_module(member) for member in model.portfolio.members)
        self.register_buffer("weights", doubles(model.portfolio.weights))

    def forward(self, samples: Tensor) -> Tensor:
        features, images = self.inputs(samples), samples if self.is_image else None
        logs = [torch.log(member(features, images) + FLOOR) for member in self.members]
        combined: Tensor = torch.tensordot(self.weights, torch.stack(logs), 1)
        return combined.softmax(1)


class StandardizedFeatures(nn.Module):
    """Standardises and clips features, as `InputEncoder` does."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: InputEncoder) -> None:
        super().__init__()
        self.register_buffer("mean", doubles(encoder.mean))
        self.register_buffer("std", doubles(encoder.std))

    def forward(self, features: Tensor) -> Tensor:
        standardised = (features.double() - self.mean) / self.std
        return standardised.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS).float()


def make_program(model: TrainedModel, stored: ModelInput, mix: ClassMix) -> Program:
    """Build the program of a run.

    model     the run
    stored    what its model file says about the samples
    mix       the class mix that is put into the probabilities
    """
    encoder, predictor = model.inputs.encoder, model.predictor
    columns = nn.Identity() if encoder is None else TableModule(encoder)
    in_mix: nn.Module = nn.Identity()
    if isinstance(predictor, PortfolioPredictor):
        if mix.shares is not None:
            in_mix = WithShares(mix.shares)
        return Program(columns, PortfolioClassifier(predictor.model, model.inputs.input_shape), in_mix)
    assert isinstance(predictor, NetworkPredictor)
    if mix.shares is not None:
        if predictor.calibration is None:
            raise ValueError(NOT_CALIBRATED)
        in_mix = CalibratedWithShares(predictor.calibration, mix.shares)
    return Program(columns, _network(model, stored), in_mix)


def traced(program: Program, samples: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    """Return the `torch.export` program, for batches of any size; `samples` is a batch of at least two."""
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        return torch.export.export(program, samples, dynamic_shapes={"samples": tuple({0: batch} for _ in samples)})


def _network(model: TrainedModel, stored: ModelInput) -> NormalizedNetwork:
    """Return the network of a run, in float32 on the CPU."""
    config, data = RunFolder(model.run).config(), data_without_samples(stored)
    return network_module(config, data, read_weights(model.run))


def _encoder_module(encoder: InputEncoder, shape: tuple[int, ...]) -> nn.Module:
    if encoder.images is None:
        return StandardizedFeatures(encoder)
    channels, height, width = shape
    return ImageFeatures(encoder.images, (channels, height, width))
