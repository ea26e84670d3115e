"""Muon against its formula, written out with a singular value decomposition."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mnar.config import RunConfig
from mnar.models import MLP, Backbone, Classifier, SmallCNN, WideResNet
from mnar.models.projection import Projection
from mnar.recipes import configure
from mnar.run import make_split, make_trainer, new_run, resume_run
from mnar.training.muon import Muon, orthogonalized
from mnar.training.optimizer import make_optimizer
from mnar.training.trainer import Interrupted
from mnar.types import DataSet
from tests.support.equality import assert_same, assert_same_run
from tests.support.watching import Watching

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
Array = NDArray[np.float64]
# Wide, tall and square matrices with some equal short sides, and convolutions of sizes 3x3 and 1x1 as WRN has them.
SHAPES = [(6, 8), (9, 4), (5, 5), (6, 8), (4, 3, 3, 3), (8, 4, 1, 1), (8, 4, 3, 3), (4, 7)]


def after_five_iterations(singular_values: Array) -> Array:
    s = singular_values / np.sqrt((singular_values**2).sum())
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return np.asarray(s)


def orthogonal(matrix: Array) -> Array:
    """The iteration changes the singular values only, each by itself."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    result: Array = (u * after_five_iterations(s)) @ v
    return result


def make_muon(parameters: list[Tensor], vectors: list[Tensor], lr: Tensor, momentum: float = 0.9) -> Muon:
    groups = [
        {"params": parameters, "muon": True, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.1},
    ]
    return Muon(groups, lr=lr, momentum=momentum)


@pytest.mark.parametrize("momentum", [0.95, 0.0])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_twenty_steps_equal_the_formula_with_a_learning_rate_that_moves(
    layout: torch.memory_format, momentum: float
) -> None:
    torch.manual_seed(0)
    shapes = [*SHAPES, (7,), (3, 5)]  # the last two are trained with SGD
    values = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    parameters = [v.to(memory_format=layout) if v.ndim == 4 else v for v in values]
    lr = torch.tensor(0.0, dtype=torch.float64)
    optimizer = make_muon(parameters[:-2], parameters[-2:], lr, momentum)
    expected: list[Array] = [v.numpy().copy() for v in values]
    buffers = [np.zeros_like(e) for e in expected]
    for step in range(20):
        rate = 0.02 + 0.01 * np.cos(step)
        lr.fill_(rate)  # in place, as the loop does
        for i, p in enumerate(parameters):
            p.grad = torch.randn_like(p)
            gradient = p.grad.numpy()
            buffers[i] = momentum * buffers[i] + gradient
            update = gradient + momentum * buffers[i]
            if i < len(SHAPES):
                matrix = update.reshape(len(update), -1)
                scale = max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5
                update = scale * orthogonal(matrix).reshape(update.shape)
            else:
                update = 5 * update
            expected[i] = (1 - rate * 0.1) * expected[i] - rate * update
        optimizer.step()
    for p, e in zip(parameters, expected, strict=True):
        torch.testing.assert_close(p, torch.from_numpy(e), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", [(16, 40), (40, 16), (24, 24)])
def test_matrices_move_as_those_of_torch_do_within_bfloat16(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.zeros(shape)) for _ in range(2))
    optimizer = Muon([{"params": [ours], "muon": True}], lr=torch.tensor(1.0), momentum=0.95, weight_decay=0.01)
    reference = torch.optim.Muon([theirs], lr=1.0, momentum=0.95, weight_decay=0.01)
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    assert (ours - theirs).norm() < 0.02 * ours.norm()


@pytest.mark.parametrize("shape", [(16, 27), (32, 16), (32, 288), (128, 1152), (1, 9)])
def test_singular_values_of_an_update_are_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    (result,) = orthogonalized([1000 * torch.randn(shape)])
    assert result.shape == shape
    values = torch.linalg.svdvals(result)
    assert 0.66 < values.min() <= values.max() < 1.22


def test_a_gradient_of_zeros_moves_nothing() -> None:
    weights = [nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4, 6))]
    before = [w.detach().clone() for w in weights]
    optimizer = Muon([{"params": weights, "muon": True}], lr=torch.tensor(0.1), momentum=0.9)
    weights[0].grad, weights[1].grad = torch.zeros(4, 6), torch.randn(4, 6)
    optimizer.step()
    assert torch.equal(weights[0], before[0])
    assert not torch.equal(weights[1], before[1])


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    weights = [nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(4, 6))]
    before = weights[0].detach().clone()
    optimizer = Muon([{"params": weights, "muon": True}], lr=torch.tensor(0.1), momentum=0.9, weight_decay=0.1)
    weights[1].grad = torch.randn(4, 6)
    optimizer.step()
    assert torch.equal(weights[0], before)


@pytest.mark.parametrize("tile", [4, 128])
def test_padding_to_tiles_as_on_a_gpu_changes_nothing_but_rounding(tile: int) -> None:
    torch.manual_seed(0)
    matrices = [torch.randn(shape, dtype=torch.float64).flatten(1) for shape in SHAPES]
    for padded, matrix in zip(orthogonalized(matrices, tile=tile), matrices, strict=True):
        torch.testing.assert_close(padded, torch.from_numpy(orthogonal(matrix.numpy())))


class Grouped(nn.Module):
    """Convolutions that are, or are not, a matrix, and a table of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv2d(3, 4, 3)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.narrow = nn.Conv2d(4, 1, 1)
        self.frozen = nn.Conv2d(1, 4, 3).requires_grad_(False)
        self.position = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.frozen(self.narrow(self.depthwise(self.dense(x))))
        return maps.mean((2, 3)) @ self.position


def with_projection() -> Classifier:
    model = SmallCNN((1, 8, 8), 10, width=2)
    model.heads.update({"projection": Projection(model.num_features, 4, nn.ReLU())})
    return model


@pytest.mark.parametrize(
    ("model", "matrices"),
    [
        (MLP((5,), 3, hidden=(4, 6)), {"layers.1.weight", "layers.3.weight"}),
        (with_projection(), {"layers.0.weight", "layers.4.weight", "layers.8.weight"}),
        (Backbone(Grouped, (3, 9, 9), 3), {"network.dense.weight"}),
    ],
    ids=["mlp", "projection", "grouped"],
)
def test_muon_trains_hidden_matrices_and_sgd_everything_else(model: Classifier, matrices: set[str]) -> None:
    optimizer = make_optimizer("muon", model, lr=torch.tensor(0.02), momentum=0.9, weight_decay=0.5)
    names = {p: name for name, p in model.named_parameters() if p.requires_grad}
    by_muon = [names[p] for group in optimizer.param_groups if group["muon"] for p in group["params"]]
    by_sgd = [names[p] for group in optimizer.param_groups if not group["muon"] for p in group["params"]]
    assert set(by_muon) == matrices
    assert sorted(by_muon + by_sgd) == sorted(names.values())


def test_wide_resnet_leaves_only_norms_and_the_head_to_sgd_and_norms_do_not_decay() -> None:
    model = WideResNet((3, 32, 32), 10, depth=10, width=1)
    optimizer = make_optimizer("muon", model, lr=torch.tensor(0.02), momentum=0.9, weight_decay=0.5)
    by_muon, of_head, of_norms = optimizer.param_groups
    assert {p.ndim for p in by_muon["params"]} == {4}
    assert set(of_head["params"]) == set(model.head.parameters())
    assert {p.ndim for p in of_norms["params"]} == {1}
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.5, 0.0]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def train_for(model: Classifier, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(images), torch.arange(6)).backward()
        optimizer.step()


def test_a_loaded_state_goes_on_exactly_as_the_saved_one() -> None:
    def fresh() -> tuple[Classifier, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = SmallCNN((1, 8, 8), 10, width=4)
        lr = torch.tensor(0.02)
        return model, make_optimizer("muon", model, lr=lr, momentum=0.9, weight_decay=0.01)

    straight, optimizer = fresh()
    train_for(straight, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": straight.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train_for(straight, optimizer, range(3, 6))

    resumed, other = fresh()
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed.load_state_dict(state["model"])
    other.load_state_dict(state["optimizer"])
    train_for(resumed, other, range(3, 6))
    assert all(p.isfinite().all() for p in straight.parameters())
    assert_same(dict(resumed.state_dict()), dict(straight.state_dict()))
    assert_same(other.state_dict(), optimizer.state_dict())


def test_a_momentum_saved_in_another_memory_format_is_used_as_it_is() -> None:
    """A GPU has convolutions in channels-last format, a CPU often has not."""
    torch.manual_seed(0)
    start, gradients = torch.randn(4, 3, 3, 3), torch.randn(3, 4, 3, 3, 3)
    plain, other = start.clone(), start.to(memory_format=torch.channels_last, copy=True)
    optimizer, moved = (make_muon([p], [torch.zeros(2)], torch.tensor(0.1)) for p in (plain, other))
    plain.grad = gradients[0]
    optimizer.step()
    other.copy_(plain)
    moved.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for gradient in gradients[1:]:
        plain.grad, other.grad = gradient, gradient.to(memory_format=torch.channels_last)
        optimizer.step()
        moved.step()
    torch.testing.assert_close(other, plain)
    assert (other - start).norm() > 0.1


@pytest.mark.usefixtures("without_report")
def test_a_stopped_run_resumed_equals_one_that_was_not(tmp_path: Path, tiny: Callable[..., RunConfig]) -> None:
    config = tiny("train.optimizer=muon", "train.lr=0.02")
    new_run(config, tmp_path / "straight")
    with pytest.raises(Interrupted):
        new_run(config, tmp_path / "stopped", Watching(signal_at=10))
    resume_run(tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")


def test_a_step_runs_on_fake_tensors_so_nothing_reads_a_value_back() -> None:
    with FakeTensorMode():
        parameters = [torch.empty(shape) for shape in (*SHAPES, (7,))]
        optimizer = make_muon(parameters[:-1], parameters[-1:], torch.empty(()))
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter)
            optimizer.step()


@pytest.mark.gpu
@needs_cuda
def test_steps_of_a_cuda_graph_equal_eager_steps_with_a_learning_rate_that_moves() -> None:
    def fresh() -> tuple[list[Tensor], Tensor, Muon]:
        generator = torch.Generator().manual_seed(0)
        values = [torch.randn(shape, generator=generator).cuda() for shape in (*SHAPES, (7,))]
        parameters = [v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for v in values]
        for p in parameters:
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator))
        lr = torch.tensor(0.02, device="cuda")
        return parameters, lr, make_muon(parameters[:-1], parameters[-1:], lr)

    eager, eager_lr, optimizer = fresh()
    graphed, lr, other = fresh()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        other.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        other.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
        for rate in (0.02, 0.01, 0.03):
            eager_lr.fill_(rate)
            lr.fill_(rate)
            optimizer.step()
            graph.replay()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for one, expected in zip(graphed, eager, strict=True):  # a step changes a weight by about 0.01
        torch.testing.assert_close(one, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.gpu
@needs_cuda
def test_bfloat16_on_a_gpu_keeps_singular_values_near_one_and_directions() -> None:
    torch.manual_seed(0)
    matrices = [torch.randn(shape) for shape in ((16, 27), (32, 16), (32, 288), (128, 1152), (192, 300))]
    for result, expected in zip(orthogonalized([m.cuda() for m in matrices]), orthogonalized(matrices), strict=True):
        assert result.dtype == torch.float32
        values = torch.linalg.svdvals(result.cpu())
        assert 0.6 < values.min() <= values.max() < 1.3
        assert (result.cpu() - expected).norm() < 0.03 * expected.norm()


@pytest.mark.gpu
@needs_cuda
def test_vectors_on_a_gpu_move_as_on_a_cpu_although_another_kernel_moves_them() -> None:
    torch.manual_seed(0)
    vectors, gradients = [torch.randn(7), torch.randn(64)], [[torch.randn(7), torch.randn(64)] for _ in range(3)]
    results = []
    for device in ("cpu", "cuda"):
        matrix, parameters = torch.randn(4, 6, device=device), [v.to(device, copy=True) for v in vectors]
        optimizer = make_muon([matrix], parameters, torch.tensor(0.02, device=device))
        for step in gradients:
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient.to(device)
            optimizer.step()
        results.append([p.cpu() for p in parameters])
    for on_cpu, on_gpu, start in zip(*results, vectors, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu)
        assert (on_cpu - start).norm() > 0.1


def test_vectors_are_refused_with_the_remedy() -> None:
    vector = nn.Parameter(torch.zeros(5))
    with pytest.raises(ValueError, match=r"has the shape \(5,\); put vectors into a group without muon=True"):
        Muon([{"params": [vector], "muon": True}], lr=torch.tensor(0.02), momentum=0.9)


def test_a_model_without_a_hidden_matrix_is_refused_before_training_with_the_remedy(digits_data: DataSet) -> None:
    settings = ["engine.device=cpu", "model.name=mlp", "model.hidden=[]", "train.optimizer=muon"]
    config = configure(dataset="digits", settings=settings)
    with pytest.raises(ValueError, match=r"'muon', but MLP has no hidden layer .*--set train\.optimizer=sgd"):
        make_trainer(config, digits_data, make_split(config, digits_data))
