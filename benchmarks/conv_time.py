"""The 3x3 convolutions of WRN-28-2 in bfloat16: the variants of our kernels, and cuDNN's.

    python benchmarks/conv_time.py                           # all layers, 960 and 512 images
    python benchmarks/conv_time.py --layers 32 --images 960  # the layers with 32 input channels
    TRITON_INTERPRET=1 python benchmarks/conv_time.py --device cpu --images 3     # check the variants only

Each variant is first compared with PyTorch in float32. A relative error above 1e-2 is a failure. The time is the median
of replays of a CUDA graph, each after the cache was overwritten. GB/s are of the bytes that a layer must move: it reads
its inputs once and writes its output once. The times with moments or sums include the kernel that combines them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from mnar.models import fused_conv, norm_kernels
from mnar.models.fused_conv import BlockSizes, SlideSizes


class Layer(NamedTuple):
    num_in: int
    num_out: int
    size: int

    def __str__(self) -> str:
        return f"{self.num_in}->{self.num_out} {self.size}x{self.size}"


LAYERS = [Layer(3, 16, 32), Layer(16, 32, 32), Layer(32, 32, 32), Layer(64, 64, 16), Layer(128, 128, 8)]
MOST_ERROR = 1e-2
PROCESSES = 12  # that compile
# (images, group, warps, stages, bands), for rows of 32 pixels
SLIDES_32 = [
    *((2, 1, 4, stages, 1) for stages in (2, 3, 4)),
    *((2, 1, 4, 2, 2), (2, 1, 4, 3, 2), (2, 1, 4, 3, 4), (4, 1, 4, 2, 1), (4, 1, 8, 3, 1), (4, 1, 8, 2, 2)),
    *((1, 1, 2, 3, 1), (1, 1, 2, 3, 2), (2, 1, 2, 3, 2)),
    *((4, 2, 4, 2, 1), (4, 2, 4, 3, 1), (4, 2, 4, 2, 2), (4, 2, 4, 3, 2)),
    *((4, 2, 8, 2, 1), (4, 2, 8, 3, 1), (4, 2, 8, 2, 2), (4, 2, 8, 3, 2), (8, 2, 8, 2, 1), (8, 2, 8, 2, 2)),
]
SLIDES_16 = [(4, 1, 4, 2, 1), (4, 1, 4, 2, 2), (4, 1, 8, 2, 1), (4, 1, 8, 2, 2), (8, 1, 8, 2, 1), (8, 1, 8, 2, 2)]
EPILOGUES_32 = [(2, 1, 4, 2, 1), (2, 1, 4, 3, 1), (2, 1, 4, 3, 2), (4, 1, 8, 2, 1), (4, 2, 8, 2, 1), (4, 2, 8, 2, 2)]
SLIDES_FROM_16 = [(2, 1, 4, 2, 1), (2, 1, 4, 3, 2), (4, 1, 4, 2, 1), (4, 2, 4, 2, 1), (4, 2, 4, 3, 1), (4, 2, 8, 2, 2)]
EPILOGUES_FROM_16 = [(2, 1, 4, 2, 1), (4, 2, 8, 2, 1)]
EPILOGUES_16 = [(4, 1, 4, 2, 1), (4, 1, 8, 2, 1)]
# (images, group, warps, stages, programs)
WEIGHT_SLIDES_32 = [
    *((2, 1, 4, stages, programs) for stages in (2, 3) for programs in (132, 264)),
    *((2, 1, 4, 4, 264), (2, 1, 4, 2, 396), (4, 1, 4, 2, 132), (4, 1, 4, 2, 264)),
    *((2, 2, 4, stages, programs) for stages in (2, 3) for programs in (132, 264)),
    *((2, 2, 4, 4, 264), (4, 2, 4, 2, 132), (4, 2, 4, 2, 264), (4, 2, 4, 3, 132)),
]
CORRELATES = [(128, 32, 4, 4), (128, 32, 4, 1), (128, 64, 4, 1), (64, 32, 4, 1), (256, 32, 8, 4), (128, 64, 4, 3)]
CORRELATES_WIDE = [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 4)]


class Problem:
    """The tensors of a layer and the true results."""

    def __init__(self, layer: Layer, num_images: int, device: str) -> None:
        torch.manual_seed(0)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16  # the interpreter cannot multiply bfloat16
        self.layer, self.num_images = layer, num_images
        size = layer.size

        def images(channels: int) -> Tensor:
            x = torch.randn(num_images, channels, size, size, device=device).to(dtype)
            return x.contiguous(memory_format=torch.channels_last)

        self.x, self.grad_y, self.skip = images(layer.num_in), images(layer.num_out), images(layer.num_out)
        self.total = images(layer.num_in)
        weight = torch.randn(layer.num_out, layer.num_in, 3, 3, device=device) / (9 * layer.num_in) ** 0.5
        self.weight = weight.to(dtype).float()
        self.statistics = torch.zeros(4, layer.num_out, device=device)
        self.tracked = torch.zeros((), dtype=torch.long, device=device)
        self.norm = tuple(0.5 + torch.rand(4, layer.num_in, device=device))
        x, weight = self.x.float().requires_grad_(), self.weight.clone().requires_grad_()
        y = F.conv2d(x, weight, padding=1)
        self.grad_x, self.grad_weight = torch.autograd.grad(y, (x, weight), self.grad_y.float())
        self.y = y.detach()
        sums = self.y + self.skip.float()
        self.moments = {False: _moments(self.y), True: _moments(sums)}
        self.y_and_skip = sums

        mean, rstd, norm_weight, norm_bias = (value[:, None, None] for value in self.norm)
        deviation = self.total.float() - mean
        positive = deviation * rstd * norm_weight + norm_bias > 0
        grad = torch.where(positive, self.grad_x, 0.1 * self.grad_x)
        self.gradient_sums = torch.stack([grad.sum((0, 2, 3)), (grad * deviation).sum((0, 2, 3))])

    def bytes(self, num_in: int, num_out: int) -> int:
        """Return the bytes of `num_in` inputs and `num_out` outputs of the layer."""
        return num_in * self.x.numel() * 2 + num_out * self.grad_y.numel() * 2


class Variant(NamedTuple):
    """A way to compute something: its results and the true ones are lists of tensors."""

    kind: str
    name: str
    blocks: tuple[int, ...]
    work: Callable[[], list[Tensor]]
    true: list[Tensor]
    num_bytes: int


def variants(p: Problem) -> Iterator[Variant]:
    forward_weight, backward_weight = p.weight.permute(2, 3, 1, 0), p.weight.permute(2, 3, 0, 1)
    num_in, num_out, _ = p.layer
    once = p.bytes(1, 1)
    wide = num_out > 32
    library_weight = p.weight.to(p.x.dtype).contiguous(memory_format=torch.channels_last)
    library = (p.grad_y, p.x, library_weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    backward = torch.ops.aten.convolution_backward
    yield Variant("forward", "cuDNN", (), lambda: [F.conv2d(p.x, library_weight, padding=1)], [p.y], once)
    for numbers in CORRELATES_WIDE if wide else CORRELATES if num_in == 32 else CORRELATES[:1]:
        blocks = BlockSizes(*numbers)
        yield Variant(
            *("forward", "correlate", numbers),
            lambda b=blocks: [fused_conv._correlate(p.x, forward_weight, reverse=False, blocks=b)],
            *([p.y], once),
        )
    slides = {16: SLIDES_FROM_16, 32: SLIDES_32, 64: SLIDES_16}.get(num_in, [])
    epilogues = {16: EPILOGUES_FROM_16, 32: EPILOGUES_32, 64: EPILOGUES_16}.get(num_in, [])
    for numbers in slides:
        sizes = SlideSizes(*numbers)
        yield Variant(
            *("forward", "slide", numbers),
            lambda s=sizes: [fused_conv.slide(p.x, forward_weight, reverse=False, sizes=s)],
            *([p.y], once),
        )
    if num_in > 3:
        yield Variant(
            *("input gradient", "cuDNN", (), lambda: [backward(*library, (True, False, False))[0]], [p.grad_x], once)
        )
        for numbers in [] if wide else CORRELATES[:2]:
            blocks = BlockSizes(*numbers)
            yield Variant(
                *("input gradient", "correlate", numbers),
                lambda b=blocks: [fused_conv._correlate(p.grad_y, backward_weight, reverse=True, blocks=b)],
                *([p.grad_x], once),
            )
    # The forward kernel and the kernel of the input gradient are the same if both numbers of channels are.
    for numbers in slides if num_in != num_out else epilogues:
        sizes = SlideSizes(*numbers)
        yield Variant(
            *("input gradient", "slide", numbers),
            lambda s=sizes: [fused_conv.slide(p.grad_y, backward_weight, reverse=True, sizes=s)],
            *([p.grad_x], once),
        )
    for has_skip in (False, True):
        for numbers in epilogues:
            sizes = SlideSizes(*numbers)
            yield Variant(
                *("forward, skip, moments" if has_skip else "forward, moments", "slide", numbers),
                lambda s=sizes, h=has_skip: _with_moments(p, forward_weight, h, s),
                *([p.y_and_skip if has_skip else p.y, *p.moments[has_skip]], p.bytes(1, 2 if has_skip else 1)),
            )
    for numbers in epilogues:
        sizes = SlideSizes(*numbers)
        yield Variant(
            *("input gradient, sums", "slide", numbers),
            lambda s=sizes: _with_gradient_sums(p, backward_weight, s),
            *([p.grad_x, p.gradient_sums], p.bytes(2, 1)),
        )
    yield Variant(
        *("weight gradient", "cuDNN", (), lambda: [backward(*library, (False, True, False))[1]], [p.grad_weight], once)
    )
    if not wide:
        yield Variant(
            *("weight gradient", "weight_gradient", tuple(fused_conv.WEIGHT_GRADIENT)),
            lambda: [fused_conv._weight_gradient(p.x, p.grad_y)],
            *([p.grad_weight], once),
        )
    weight_slides = WEIGHT_SLIDES_32 if num_in == 32 else WEIGHT_SLIDES_32[::3] if num_in == 16 else []
    for images, group, num_warps, stages, programs in weight_slides:
        sizes = SlideSizes(images, group, num_warps, stages, programs=programs)
        yield Variant(
            *("weight gradient", "slide_weight_gradient", (images, group, num_warps, stages, programs)),
            lambda s=sizes: [fused_conv.slide_weight_gradient(p.x, p.grad_y, sizes=s)],
            *([p.grad_weight], once),
        )


def _with_moments(p: Problem, weight: Tensor, has_skip: bool, sizes: SlideSizes) -> list[Tensor]:
    """Return the sum, and the mean and reciprocal deviation that combine_moments computes from the moments."""
    total, moments = fused_conv.slide_with_moments(p.x, weight, p.skip if has_skip else None, sizes=sizes)
    mean, rstd, running_mean, running_var = p.statistics
    norm_kernels.combine_moments[(len(mean),)](
        *(moments.partial, mean, rstd, running_mean, running_var, p.tracked, 0.1, 1e-5), **moments.combine_sizes
    )
    return [total, mean, rstd]


def _with_gradient_sums(p: Problem, weight: Tensor, sizes: SlideSizes) -> list[Tensor]:
    grad_x, sums = fused_conv.slide_with_gradient_sums(p.grad_y, weight, p.total, *p.norm, 0.1, sizes=sizes)
    return [grad_x, sums.partial.sum(2)]


def _moments(y: Tensor) -> tuple[Tensor, Tensor]:
    return y.mean((0, 2, 3)), (y.var((0, 2, 3), correction=0) + 1e-5).rsqrt()


def failure(variant: Variant) -> str:
    """Compile and run the variant. Return what is wrong with it, or nothing."""
    try:
        found = variant.work()
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:160]
    for value, true in zip(found, variant.true, strict=True):
        # The mean over many values is near zero, so its error is taken relative to the deviation of 1.
        difference = ((value.float() - true.float()).norm() / true.float().norm().clamp_min(true.numel() ** 0.5)).item()
        if not difference <= MOST_ERROR:
            return f"relative error {difference:.1e}"
    return ""


def microseconds(work: Callable[[], object]) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    milliseconds: float = triton.testing.do_bench(graph.replay, warmup=2, rep=8, return_mode="median")
    return 1000 * milliseconds


def failures_of(layer: Layer, num_images: int, device: str, part: int, num_parts: int) -> dict[int, str]:
    """Check every num_parts-th variant, beginning with `part`. The compiled kernels stay in Triton's cache."""
    _use_exact_float32()
    listed = list(variants(Problem(layer, num_images, device)))
    return {i: failure(listed[i]) for i in range(part, len(listed), num_parts)}


def check(problems: list[tuple[Layer, int]], device: str) -> list[dict[int, str]]:
    """Return the failures of each problem's variants. Several processes compile, since threads would take turns."""
    if device == "cpu":
        return [failures_of(layer, num_images, device, 0, 1) for layer, num_images in problems]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        parts = [
            [pool.submit(failures_of, layer, num_images, device, part, PROCESSES) for part in range(PROCESSES)]
            for layer, num_images in problems
        ]
        return [
            {i: wrong for part in mine if part.exception() is None for i, wrong in part.result().items()}
            for mine in parts
        ]


def report(layer: Layer, num_images: int, device: str, failures: dict[int, str], best: int) -> None:
    """Time the variants that are right, and print the fastest ones of each kind and the fastest one of each name."""
    rows: dict[str, list[tuple[float, Variant]]] = {}
    for i, variant in enumerate(variants(Problem(layer, num_images, device))):
        failures.setdefault(i, "the process that checked the variant has failed")
        if not failures[i] and device != "cpu":
            try:
                rows.setdefault(variant.kind, []).append((microseconds(variant.work), variant))
            except Exception as error:
                failures[i] = f"{type(error).__name__}: {error}".replace("\n", " ")[:160]
        if failures[i]:
            print(f"FAILED {layer} {num_images}: {variant.kind}, {variant.name} {variant.blocks}: {failures[i]}")
    print(f"{layer}, {num_images} images: {list(failures.values()).count('')} of {len(failures)} variants are right")
    for kind, timed in rows.items():
        names: set[str] = set()
        for place, (us, variant) in enumerate(sorted(timed, key=lambda pair: pair[0])):
            if place < best or variant.name not in names:
                blocks = " ".join(map(str, variant.blocks))
                speed = variant.num_bytes / us / 1000
                print(f"  {kind:22} {variant.name:21} {blocks:14} {us:7.1f} us {speed:6.0f} GB/s", flush=True)
            names.add(variant.name)


def _use_exact_float32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[960, 512], help="batch sizes")
    parser.add_argument("--layers", type=int, nargs="+", default=[3, 16, 32, 64, 128], help="numbers of input channels")
    parser.add_argument("--device", default="cuda", help="cpu checks the results and measures nothing")
    parser.add_argument("--best", type=int, default=4, help="number of variants that are printed of each kind")
    arguments = parser.parse_args()
    problems = [
        (layer, num_images) for layer in LAYERS if layer.num_in in arguments.layers for num_images in arguments.images
    ]
    _use_exact_float32()
    began = time.perf_counter()
    failures = check(problems, arguments.device)
    print(f"compiled and checked in {time.perf_counter() - began:.0f} s", flush=True)
    torch.backends.cudnn.benchmark = True
    for problem, failed in zip(problems, failures, strict=True):
        report(*problem, arguments.device, failed, arguments.best)
    print(f"done in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
