"""Each torch module of the export predicts the same numbers as the part of the model that it stands for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from mnar.datasets.user_files.partly_labeled import Table
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.own_data.confidence import NetworkCalibration
from mnar.own_data.portfolio.graph import Graph
from mnar.own_data.portfolio.image_features import ImageEncoder
from mnar.own_data.portfolio.member import Inputs, with_shares
from mnar.own_data.portfolio.members import NAMES
from mnar.own_data.portfolio.trees import Trees
from mnar.recipes import configure
from mnar.run.assemble import make_model
from mnar.run.model_file import ModelInput, data_without_samples
from mnar.trained.export.image_features_module import ImageFeatures
from mnar.trained.export.member_modules import GraphModule, depth_of, member_module
from mnar.trained.export.mix_modules import CalibratedWithShares, WithShares
from mnar.trained.export.network_module import network_module
from mnar.trained.export.program import Program, traced
from mnar.trained.export.region_means import RegionMeans, without_adaptive_pooling
from mnar.trained.export.table_module import TableModule
from tests.support.half_labeled import clouds
from tests.trained.export.conftest import fitted_members


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_labels", [(20, 12, 5), (20, 9, 0), (15, 10)])
def test_a_member_module_predicts_what_the_member_predicts(name: str, num_labels: tuple[int, ...]) -> None:
    member = fitted_members(clouds(num_labels, distance=1.5), [name])[0]
    new = clouds((40, 40, 40), distance=1.5, seed=1).inputs.features
    with torch.no_grad():
        probs = member_module(member)(torch.from_numpy(new), None).numpy()
    np.testing.assert_allclose(probs, member.probs(Inputs(new)), atol=1e-9)


def test_an_unknown_member_is_refused_by_name_with_a_remedy() -> None:
    class Oracle:
        kind = "oracle"

    with pytest.raises(ValueError, match=r"'oracle' cannot be exported.*--learner linear"):
        member_module(Oracle())  # type: ignore[arg-type]


def test_the_depth_of_trees_is_the_longest_way_to_a_leaf() -> None:
    # The first tree is one leaf; the second has leaves at depths 1 and 2.
    left, right = np.array([0, 2, 2, 4, 4, 5]), np.array([0, 3, 2, 5, 4, 5])
    nothing = np.zeros(6)
    trees = Trees(
        classes=np.array([0]),
        counts=np.array([1]),
        start=np.zeros(1),
        roots=np.array([0, 1]),
        feature=np.zeros(6, np.int64),
        threshold=nothing,
        left=left,
        right=right,
        value=nothing[:, None],
        is_log=False,
    )
    assert depth_of(trees) == 2
    assert depth_of(replace(trees, roots=np.array([0]))) == 0


def test_rows_of_a_graph_at_the_same_distance_share_the_last_place() -> None:
    rows = np.array([[0.0], [2.0], [-2.0], [9.0]], np.float32)
    graph = Graph(rows, np.eye(4), num_neighbors=2)
    weight = np.exp(-2)  # of a row at the distance of the last neighbour; the nearest row is at half of it
    nearest = np.exp(-2 * 0.25)
    probs = GraphModule(graph)(torch.tensor([[0.0]]), None)
    np.testing.assert_allclose(probs, [[1, 0, 0, 0]])  # an equal row decides alone
    between = Graph(np.array([[1.0], [2.0], [-2.0], [9.0]], np.float32), np.eye(4), num_neighbors=2)
    expected = np.array([nearest, weight / 2, weight / 2, 0])
    probs = GraphModule(between)(torch.tensor([[0.0]]), None)
    np.testing.assert_allclose(probs, [expected / expected.sum()], atol=1e-12)


def codes_of(encoder: TableEncoder, table: Table) -> npt.NDArray[np.int64]:
    """The codes that preprocessing.json gives to the texts of a table."""
    columns = []
    for levels, column, texts in zip(encoder.levels, table.categorical.T, table.categories, strict=True):
        code_of = {level: code for code, level in enumerate(levels)}
        columns.append([-1 if code < 0 else code_of.get(texts[code], len(levels)) for code in column])
    return np.array(columns).T.copy()


def test_the_table_module_encodes_what_the_table_encoder_encodes() -> None:
    rng = np.random.default_rng(0)
    numeric = rng.normal(1e6, [1, 1e-3, 1e5], (300, 3))
    numeric[rng.random((300, 3)) < [0.2, 0, 0.1]] = np.nan
    numeric[0] = [1e300, 0, -1e300]
    codes = rng.integers(0, [3, 40], (300, 2))
    codes[rng.random(300) < 0.1, 0] = -1
    categories = (("a", "b", "c"), tuple(map(str, range(40))))
    table = Table(numeric, codes, ("x", "y", "z"), ("letter", "number"), categories)
    encoder = TableEncoder.fit(table.rows(np.arange(200)))
    assert encoder.had_others == (False, True)
    encoded = TableModule(encoder)(torch.from_numpy(numeric), torch.from_numpy(codes_of(encoder, table)))
    np.testing.assert_array_equal(encoded.numpy(), encoder.transform(table))


def test_a_table_without_categories_and_a_table_without_numbers_have_one_input() -> None:
    rng = np.random.default_rng(0)
    no_numbers, no_codes = np.zeros((50, 0)), np.zeros((50, 0), np.int64)
    numbers, codes = rng.normal(size=(50, 2)), rng.integers(-1, 3, (50, 2))
    of_numbers = Table(numbers, no_codes, ("a", "b"), (), ())
    of_codes = Table(no_numbers, codes, (), ("a", "b"), (("r", "s", "t"), ("u", "v", "w")))
    for table in (of_numbers, of_codes):
        encoder = TableEncoder.fit(table)
        only = table.numeric if table is of_numbers else codes_of(encoder, table)
        np.testing.assert_array_equal(TableModule(encoder)(torch.from_numpy(only)).numpy(), encoder.transform(table))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 50, 37), (1, 2, 9)])
def test_the_image_module_computes_the_features_of_the_encoder(shape: tuple[int, int, int]) -> None:
    channels, height, width = shape
    digits = np.round(load_digits().images[:90] * (255 / 16)).astype(np.uint8)
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
    images = np.repeat(digits[:, None][:, :, rows][..., columns], channels, 1)  # with many flat windows
    images[::2] += np.random.default_rng(0).integers(0, 30, images[::2].shape, np.uint8)
    encoder = ImageEncoder.fit(images[:60])
    features = ImageFeatures(encoder, shape)(torch.from_numpy(images[60:])).numpy()
    np.testing.assert_allclose(features, encoder.transform(images[60:]), atol=2e-6)


@pytest.mark.parametrize(("size", "regions"), [((8, 8), (4, 4)), ((13, 7), (4, 3)), ((3, 5), (8, 8))])
def test_region_means_equal_adaptive_pooling(size: tuple[int, int], regions: tuple[int, int]) -> None:
    maps = torch.rand(2, 3, *size)
    torch.testing.assert_close(RegionMeans(size, regions)(maps), nn.AdaptiveAvgPool2d(regions)(maps))


def test_a_network_without_adaptive_pooling_predicts_the_same() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d((None, 1)))
    images = torch.rand(2, 1, 12, 9)
    replaced = without_adaptive_pooling(network, images)
    assert not any(isinstance(layer, nn.AdaptiveAvgPool2d) for layer in replaced.modules())
    torch.testing.assert_close(replaced(images), network(images))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("wide_resnet", (3, 32, 32)),
        ("resnet18", (3, 40, 40)),
        ("small_cnn", (1, 50, 41)),  # its feature maps have sides that its pooling does not divide
        ("mlp", (1, 8, 8)),
        ("encoder_mlp", (12,)),
    ],
)
def test_every_network_can_be_traced_and_then_predicts_the_same(name: str, shape: tuple[int, ...]) -> None:
    small = ["model.depth=10", "model.width=1"] if name == "wide_resnet" else []
    dataset = "cifar10" if len(shape) == 3 else "digits_tabular"
    config = configure(dataset=dataset, learner="supervised", settings=[f"model.name={name}", *small])
    mean, std = [0.4, 0.5, 0.6][: shape[0]] if len(shape) == 3 else [0.5] * shape[0], [0.2] * shape[0]
    stored: ModelInput = {
        "input_shape": list(shape),
        "class_names": ["a", "b", "c"],
        "mean": mean,
        "std": std,
        "encoding": None,
    }
    data = data_without_samples(stored)
    torch.manual_seed(0)
    network = make_model(config, data)
    network(torch.randn(16, *shape))  # in training mode, so that batch norm learns moments
    network.eval()
    x = torch.randint(0, 256, (5, *shape), dtype=torch.uint8) if len(shape) == 3 else torch.randn(5, *shape)
    scaled = x.float() / 255 if len(shape) == 3 else x
    sides = (1,) * (len(shape) - 1)
    normalised = (scaled - torch.tensor(mean).reshape(-1, *sides)) / 0.2
    program = Program(nn.Identity(), network_module(config, data, network.state_dict()), nn.Identity())
    with torch.no_grad():
        expected = network(normalised).softmax(1)
        torch.testing.assert_close(traced(program, (x[:3],)).module()(x), expected, atol=1e-5, rtol=0)


def test_the_class_mix_is_put_in_by_bayes_rule() -> None:
    probs, shares = np.random.default_rng(0).dirichlet(np.ones(3), 20), np.array([0.7, 0.3, 0.0])
    probs[0] = [0, 0, 1]  # no class is left, so the row becomes uniform
    np.testing.assert_allclose(WithShares(shares)(torch.from_numpy(probs)), with_shares(probs, shares))


@pytest.mark.parametrize("num_classes", [3, 4])  # the fourth class has no held-out label
def test_a_network_is_calibrated_as_by_mnar_predict(num_classes: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 100)
    probs = rng.dirichlet(np.ones(num_classes), 100)
    calibration = NetworkCalibration.fit(probs, y)
    assert calibration is not None
    shares = rng.dirichlet(np.ones(num_classes))
    exported = CalibratedWithShares(calibration, shares)(torch.from_numpy(probs))
    np.testing.assert_allclose(exported, calibration(probs, shares), atol=1e-12)
