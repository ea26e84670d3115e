"""Batch norm and LeakyReLU of WRN-28-2, with and without a residual sum: ours, torch.compile's, and eager PyTorch.

    python benchmarks/norm_time.py

A CUDA graph of each, so that only the GPU's time counts, and with a cold cache, as in a network. TB/s are of the
bytes that our kernels must move; the others move more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from mnar.models.batch_norm import BatchNormLeakyReLU

SHAPES = [(960, 32, 32, 32), (960, 64, 16, 16), (960, 128, 8, 8)]
CALLS_PER_SHAPE = 4  # in WRN-28-2, with a sum and without one each
REPLAYS = 100
Forward = Callable[[], tuple[Tensor, ...]]


def milliseconds(work: Callable[[], object], scratch: Tensor) -> float:
    """The median over replays of a captured graph, each after the cache was overwritten."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]
    for begin, end in events:
        scratch.zero_()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    times: list[float] = [begin.elapsed_time(end) for begin, end in events]
    return statistics.median(times)


def forward_and_backward_ms(forward: Forward, leaves: list[Tensor], scratch: Tensor) -> tuple[float, float]:
    grads = tuple(torch.randn_like(output) for output in forward())

    def forward_then_flush() -> tuple[Tensor, ...]:
        outputs = forward()
        scratch.zero_()
        return outputs

    def forward_flush_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward_then_flush(), leaves, grads)

    before_backward = milliseconds(forward_then_flush, scratch)
    return milliseconds(forward, scratch), milliseconds(forward_flush_backward, scratch) - before_backward


def forwards(shape: tuple[int, ...], with_sum: bool) -> tuple[dict[str, Forward], list[Tensor]]:
    norm = BatchNormLeakyReLU(shape[1], slope=0.1, momentum=0.001).cuda()
    plain = BatchNormLeakyReLU(shape[1], slope=0.1, momentum=0.001).cuda()
    plain.fused = False
    plain.weight, plain.bias = norm.weight, norm.bias
    x, skip = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
        for _ in range(2)
    )
    if with_sum:
        compiled_add = torch.compile(plain.add)
        choices: dict[str, Forward] = {
            "fused": lambda: norm.add(x, skip),
            "compiled": lambda: compiled_add(x, skip),
            "eager": lambda: plain.add(x, skip),
        }
        return choices, [x, skip, norm.weight, norm.bias]
    compiled = torch.compile(plain.forward)
    choices = {"fused": lambda: (norm(x),), "compiled": lambda: (compiled(x),), "eager": lambda: (plain(x),)}
    return choices, [x, norm.weight, norm.bias]


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("norm_time.py measures GPU kernels, and there is no CUDA device here")
    torch.manual_seed(0)
    scratch = torch.empty(2**28, dtype=torch.uint8, device="cuda")  # larger than any cache
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, bfloat16, median of {REPLAYS} replays")
    print(f"{'n x c x h x w':20}{'':10}{'':10}{'forward ms':>11}{'TB/s':>7}{'backward ms':>13}{'TB/s':>7}")
    total = {"fused": 0.0, "compiled": 0.0, "eager": 0.0}
    for shape in SHAPES:
        for with_sum in (False, True):
            choices, leaves = forwards(shape, with_sum)
            gigabytes = 2 * leaves[0].numel() / 1e9
            passes_forward, passes_backward = (5, 6) if with_sum else (3, 5)
            for name, forward in choices.items():
                forward_ms, backward_ms = forward_and_backward_ms(forward, leaves, scratch)
                total[name] += CALLS_PER_SHAPE * (forward_ms + backward_ms)
                print(
                    f"{' x '.join(map(str, shape)):20}{'add, norm' if with_sum else 'norm':10}{name:10}"
                    f"{forward_ms:11.3f}{passes_forward * gigabytes / forward_ms:7.2f}"
                    f"{backward_ms:13.3f}{passes_backward * gigabytes / backward_ms:7.2f}"
                )
    print("a step of WRN-28-2: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in total.items()))


if __name__ == "__main__":
    main()
