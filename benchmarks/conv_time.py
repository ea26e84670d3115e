"""The 3x3 convolutions of WRN-28-2 in bfloat16: the variants of our kernels, and cuDNN's.

    python benchmarks/conv_time.py                           # all layers, 960 and 512 images
    python benchmarks/conv_time.py --layers 32 --images 960  # the layers with 32 input channels
    TRITON_INTERPRET=1 python benchmarks/conv_time.py --device cpu --images 3     # check the variants only

Each variant is first compared with PyTorch in float32. A relative error above 1e-2 is a failure. The time is the median
of replays of a CUDA graph, each after the cache was overwritten. GB/s are of the bytes that a layer must move: it reads
its inputs once and writes its output once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from mnar.models import fused_conv
from mnar.models.fused_conv import PatchSizes, SlideSizes


class Layer(NamedTuple):
    num_in: int
    num_out: int
    size: int

    def __str__(self) -> str:
        return f"{self.num_in}->{self.num_out} {self.size}x{self.size}"


LAYERS = [Layer(3, 16, 32), Layer(16, 32, 32), Layer(32, 32, 32), Layer(64, 64, 16), Layer(128, 128, 8)]
MOST_ERROR = 1e-2
PROCESSES = 12  # that compile
# (images, warps, stages), by the number of input channels
SLIDES = {
    16: [(2, 4, 2), (2, 4, 3), (2, 4, 4), (4, 4, 3), (4, 8, 2), (4, 8, 3), (4, 8, 4), (8, 8, 3)],
    32: [(1, 2, 3), (2, 2, 3), (2, 4, 2), (2, 4, 3), (2, 4, 4), (4, 4, 2), (4, 8, 2), (4, 8, 3)],
    64: [(4, 4, 2), (4, 8, 2), (8, 8, 2)],
}
# (images, warps, stages, programs)
WEIGHT_SLIDES = [
    *((2, 4, stages, programs) for stages in (2, 3) for programs in (132, 264)),
    *((2, 4, 4, 264), (4, 4, 2, 132), (4, 4, 2, 264), (4, 4, 3, 132)),
]
# (pixels, columns of the patches, warps, stages)
PATCHES = [(128, 32, 4, 4), (128, 32, 4, 1), (128, 64, 4, 1), (64, 32, 4, 1), (256, 32, 8, 4), (128, 64, 4, 3)]
PATCHES_WIDE = [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 4)]


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

        self.x, self.grad_y = images(layer.num_in), images(layer.num_out)
        weight = torch.randn(layer.num_out, layer.num_in, 3, 3, device=device) / (9 * layer.num_in) ** 0.5
        self.weight = weight.to(dtype).contiguous(memory_format=torch.channels_last)
        x, weight = self.x.float().requires_grad_(), self.weight.float().requires_grad_()
        y = F.conv2d(x, weight, padding=1)
        self.grad_x, self.grad_weight = torch.autograd.grad(y, (x, weight), self.grad_y.float())
        self.y = y.detach()
        self.num_bytes = 2 * (self.x.numel() + self.grad_y.numel())


class Variant(NamedTuple):
    """A way to compute something, and the true result."""

    kind: str
    name: str
    sizes: tuple[int, ...]
    work: Callable[[], Tensor]
    true: Tensor


def variants(p: Problem) -> Iterator[Variant]:
    num_in, num_out, _ = p.layer
    wide = num_out > 32
    library = (p.grad_y, p.x, p.weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    backward = torch.ops.aten.convolution_backward
    slides = SLIDES.get(num_in, [])
    patches = PATCHES_WIDE if wide else PATCHES if num_in == 32 else PATCHES[:1]

    kind = "forward"
    yield Variant(kind, "cuDNN", (), lambda: F.conv2d(p.x, p.weight, padding=1), p.y)
    for numbers in patches:
        work = partial(fused_conv.patch_convolve, p.x, p.weight, transposed=False, sizes=PatchSizes(*numbers))
        yield Variant(kind, "patch", numbers, work, p.y)
    for numbers in slides:
        work = partial(fused_conv.slide_convolve, p.x, p.weight, transposed=False, sizes=SlideSizes(*numbers))
        yield Variant(kind, "slide", numbers, work, p.y)

    kind = "input gradient"
    if num_in > 3:
        yield Variant(kind, "cuDNN", (), lambda: backward(*library, (True, False, False))[0], p.grad_x)
    for numbers in patches[:2] if num_in in (16, 32) else []:
        work = partial(fused_conv.patch_convolve, p.grad_y, p.weight, transposed=True, sizes=PatchSizes(*numbers))
        yield Variant(kind, "patch", numbers, work, p.grad_x)
    for numbers in slides:
        work = partial(fused_conv.slide_convolve, p.grad_y, p.weight, transposed=True, sizes=SlideSizes(*numbers))
        yield Variant(kind, "slide", numbers, work, p.grad_x)

    kind = "weight gradient"
    yield Variant(kind, "cuDNN", (), lambda: backward(*library, (False, True, False))[1], p.grad_weight)
    if not wide:
        work = partial(fused_conv.patch_weight_gradient, p.x, p.grad_y)
        yield Variant(kind, "patch", tuple(fused_conv.PATCH_WEIGHT_GRADIENT), work, p.grad_weight)
    for images, num_warps, stages, programs in WEIGHT_SLIDES if num_in in (16, 32) else []:
        sizes = SlideSizes(images, num_warps, stages)
        work = partial(fused_conv.slide_weight_gradient, p.x, p.grad_y, sizes=sizes, most_programs=programs)
        yield Variant(kind, "slide", (*sizes, programs), work, p.grad_weight)


def failure(variant: Variant) -> str:
    """Compile and run the variant. Return what is wrong with it, or nothing."""
    try:
        found = variant.work()
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:160]
    difference = ((found.float() - variant.true).norm() / variant.true.norm()).item()
    return "" if difference <= MOST_ERROR else f"relative error {difference:.1e}"


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
    problem = Problem(layer, num_images, device)
    for i, variant in enumerate(variants(problem)):
        failures.setdefault(i, "the process that checked the variant has failed")
        if not failures[i] and device != "cpu":
            try:
                rows.setdefault(variant.kind, []).append((microseconds(variant.work), variant))
            except Exception as error:
                failures[i] = f"{type(error).__name__}: {error}".replace("\n", " ")[:160]
        if failures[i]:
            print(f"FAILED {layer} {num_images}: {variant.kind}, {variant.name} {variant.sizes}: {failures[i]}")
    print(f"{layer}, {num_images} images: {list(failures.values()).count('')} of {len(failures)} variants are right")
    for kind, timed in rows.items():
        names: set[str] = set()
        for place, (us, variant) in enumerate(sorted(timed, key=lambda pair: pair[0])):
            if place < best or variant.name not in names:
                sizes = " ".join(map(str, variant.sizes))
                speed = problem.num_bytes / us / 1000
                print(f"  {kind:16} {variant.name:6} {sizes:14} {us:7.1f} us {speed:6.0f} GB/s", flush=True)
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
