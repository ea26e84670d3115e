"""The head's product in parts against PyTorch's linear layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mnar.models.head import NUM_PARTS, Head, linear_in_parts


def test_the_product_in_parts_has_the_values_and_gradients_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(shape, dtype=torch.float64) for shape in ((3 * NUM_PARTS, 7), (5, 7), (5,))]
    inputs, copies = ([leaf.clone().requires_grad_() for leaf in leaves] for _ in range(2))
    found, expected = linear_in_parts(*inputs), F.linear(*copies)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, copies, grad))


def test_a_head_on_a_cpu_is_a_linear_layer_bit_for_bit() -> None:
    torch.manual_seed(0)
    head = Head(7, 5)
    torch.manual_seed(0)
    linear = torch.nn.Linear(7, 5)
    x = torch.randn(3 * NUM_PARTS, 7)
    assert torch.equal(head(x), linear(x))
    assert head.state_dict().keys() == linear.state_dict().keys()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_rows", [3 * NUM_PARTS, 3 * NUM_PARTS + 1])
def test_a_head_on_a_gpu_has_the_gradients_of_a_linear_layer(num_rows: int) -> None:
    torch.manual_seed(0)
    head = Head(7, 5).cuda()
    x = torch.randn(num_rows, 7, device="cuda")
    grad = torch.randn(num_rows, 5, device="cuda")
    found = torch.autograd.grad(head(x), [head.weight, head.bias], grad)
    expected = torch.autograd.grad(F.linear(x, head.weight, head.bias), [head.weight, head.bias], grad)
    torch.testing.assert_close(found, expected)
