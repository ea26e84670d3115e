"""Weight gradients on a second CUDA stream: which stream waits for which, and the gradients themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mnar.models import side_stream
from mnar.models.convolution import Convolution
from mnar.models.side_stream import aside, weight_gradients_aside

GPU = torch.device("cuda", 0)


class Stream:
    """Notes the streams that this one waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waited_for: list[str] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other.name)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> tuple[Stream, Stream]:
    """The current and the second stream, without a GPU."""
    current, second = Stream("current"), Stream("second")

    @contextmanager
    def within(stream: Stream) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(side_stream, "_stream_of", lambda index: second)
    return current, second


def gradient_of(weight: Tensor) -> None:
    """Compute a gradient of the weight aside."""
    assert aside(torch.neg, torch.ones(2), weight=weight).tolist() == [-1, -1]


def test_the_current_stream_waits_once_at_the_end_if_each_weight_has_one_gradient(
    streams: tuple[Stream, Stream],
) -> None:
    current, second = streams
    with weight_gradients_aside(GPU):
        for _ in range(3):
            gradient_of(torch.zeros(2))
        assert current.waited_for == []
    assert current.waited_for == ["second"]
    assert second.waited_for == ["current"] * 3, "the gradients of the outputs come from the current stream"


def test_the_current_stream_waits_before_autograd_adds_two_gradients(streams: tuple[Stream, Stream]) -> None:
    current, _ = streams
    used_twice, has_gradient = torch.zeros(2), torch.zeros(2)
    has_gradient.grad = torch.ones(2)
    with weight_gradients_aside(GPU):
        gradient_of(used_twice)
        assert current.waited_for == []
        gradient_of(used_twice)
        assert current.waited_for == ["second"]
        gradient_of(has_gradient)
        assert current.waited_for == ["second"] * 2


def test_after_an_error_gradients_are_computed_on_the_current_stream_again(streams: tuple[Stream, Stream]) -> None:
    current, second = streams
    weight = torch.zeros(2)

    def fails(x: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), weight_gradients_aside(GPU):
        aside(fails, torch.ones(2), weight=weight)
    assert current.waited_for == ["second"], "the capture of a CUDA graph ends with all streams joined"
    gradient_of(weight)
    with weight_gradients_aside(torch.device("cpu")):
        gradient_of(weight)
    assert second.waited_for == ["current"], "for the gradient that failed"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_uses", [1, 3])
def test_gradients_on_a_gpu_equal_those_of_one_stream(num_uses: int) -> None:
    torch.manual_seed(0)
    layer = Convolution(64, 64, 3).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(256, 64, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)

    def gradient() -> Tensor:
        layer.zero_grad()
        y = x
        with torch.autocast("cuda", torch.bfloat16):
            for _ in range(num_uses):
                y = F.relu(layer(y))
        y.float().square().mean().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad

    expected = gradient()
    for _ in range(5):
        with weight_gradients_aside(GPU):
            found = gradient()
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())
