from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mnar.models.fusing
from mnar.models.batch_norm import BatchNormLeakyReLU, statistics_kept
from mnar.models.rows import divided, joined, through


def norm_of(channels: int) -> BatchNormLeakyReLU:
    norm = BatchNormLeakyReLU(channels, slope=0.1, momentum=0.2, eps=1e-4)
    with torch.no_grad():
        norm.weight.normal_(1.0, 0.5)
        norm.bias.normal_(0.0, 0.5)
    return norm


def by_formula(norm: BatchNormLeakyReLU, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    mean, var, weight, bias = (values[:, None, None] for values in (mean, var, norm.weight, norm.bias))
    z = weight * (x - mean) / (var + 1e-4).sqrt() + bias
    return torch.where(z > 0, z, 0.1 * z)


def test_training_uses_the_batch_and_follows_it_with_momentum() -> None:
    torch.manual_seed(0)
    norm, x = norm_of(4), torch.randn(6, 4, 3, 3) * 3 + 1
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(norm(x), by_formula(norm, x, mean, var))
    torch.testing.assert_close(norm.running_mean, 0.2 * mean)
    torch.testing.assert_close(norm.running_var, 0.8 + 0.2 * var * 54 / 53)
    assert norm.num_batches_tracked == 1


def test_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    torch.manual_seed(0)
    norm, x = norm_of(4), torch.randn(6, 4, 3, 3)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    norm.eval()
    torch.testing.assert_close(norm(x), by_formula(norm, x, norm.running_mean, norm.running_var))
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


def test_add_gives_the_sum_and_its_norm() -> None:
    torch.manual_seed(0)
    norm, x, skip = norm_of(4), torch.randn(6, 4, 3, 3), torch.randn(6, 4, 3, 3)
    total, activated = norm.add(x, skip)
    assert torch.equal(total, x + skip)
    torch.testing.assert_close(activated, norm(x + skip))
    same, activated = norm.add(x, None)
    assert same is x
    torch.testing.assert_close(activated, norm(x))


def test_one_value_per_channel_is_refused_as_pytorch_does() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm_of(4)(torch.randn(1, 4, 1, 1))


def some_norms() -> nn.Sequential:
    return nn.Sequential(
        norm_of(4), nn.Sequential(nn.BatchNorm2d(4, momentum=0.3)), nn.BatchNorm2d(4, momentum=None), nn.Flatten()
    )


def test_statistics_kept_normalises_by_the_batch_and_leaves_running_statistics_as_they_are() -> None:
    torch.manual_seed(0)
    model, x = some_norms(), torch.randn(6, 4, 3, 3) * 3 + 1
    model(torch.randn(6, 4, 3, 3))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with statistics_kept(model):
        kept = model(x)
        assert model.training
    after = dict(model.named_buffers())
    assert len(before) == 9, "a mean, a variance and the number of batches for each norm"
    assert all(torch.equal(after[name], buffer) for name, buffer in before.items())
    assert torch.equal(kept, model(x)), "as in training"
    assert not any(torch.equal(after[name], buffer) for name, buffer in before.items()), "moved again afterwards"
    assert not torch.allclose(kept, model.eval()(x)), "and not as in evaluation"


def test_statistics_kept_normalises_rows_by_all_rows_and_leaves_running_statistics_as_they_are() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(norm_of(4), nn.BatchNorm2d(4)), torch.randn(6, 4, 3, 3)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    inputs, outputs, gradients = [x.clone().requires_grad_() for _ in range(2)], [], []
    with statistics_kept(model):
        outputs.append(joined(through(model, divided(inputs[0], 4))))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    outputs.append(joined(through(model, divided(inputs[1], 4))))
    for output, leaf in zip(outputs, inputs, strict=True):
        output[:4].square().sum().backward()
        assert leaf.grad is not None
        gradients.append(leaf.grad)
    assert torch.equal(*outputs)
    assert torch.equal(*gradients)
    assert not any(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_statistics_kept_leaves_running_statistics_finite_after_an_overflow() -> None:
    model = some_norms()
    with statistics_kept(model):
        assert model(torch.full((6, 4, 3, 3), torch.inf)).isnan().all()
    assert all(torch.isfinite(buffer).all() for buffer in model.buffers())


def test_statistics_kept_changes_nothing_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    model, x = some_norms(), torch.randn(6, 4, 3, 3)
    model(torch.randn(6, 4, 3, 3))
    model.eval()
    with statistics_kept(model):
        kept = model(x)
    assert torch.equal(kept, model(x))


def test_statistics_kept_lets_the_norms_track_again_even_after_an_error() -> None:
    model = nn.Sequential(some_norms(), nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(ValueError, match="expected 4D"), statistics_kept(model):
        model(torch.randn(6, 4))
    norms = [norm for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)]
    assert [norm.track_running_stats for norm in norms] == [True, True, True, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("triton_is_there", [True, False])
def test_triton_is_used_in_training_on_channels_last_alone(
    triton_is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnar.models.fusing, "TRITON_IS_INSTALLED", triton_is_there)
    norm = norm_of(16).cuda()
    x = torch.randn(4, 16, 8, 8, device="cuda")
    channels_last = x.contiguous(memory_format=torch.channels_last)

    def is_fused(x: Tensor) -> bool:
        node = norm(x).grad_fn
        return "AddNormLeakyReLU" in type(node).__name__

    assert is_fused(channels_last) == triton_is_there
    assert not is_fused(x)
    norm.fused = False
    assert not is_fused(channels_last)
    norm.fused = True
    norm.eval()
    assert not is_fused(channels_last)
