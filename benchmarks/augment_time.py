"""How long one view of a batch takes.

On a CPU: python benchmarks/augment_time.py [--threads 2]
On a GPU: python benchmarks/augment_time.py --device cuda [--sweep]

On a GPU, three versions are compared: `Augment` in plain PyTorch (eager), torch.compile's version of it, and the Triton
kernel of this package. Each is captured in a CUDA graph, as in a training step. `start` is the time of the first call
with empty compiler caches. `differing` counts the values of the kernel's views that differ from the eager views, over
20 random batches. --sweep then tries other sizes for the parts of the Triton kernel.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from mnar.augment import Augment
from mnar.augment.views import VIEWS

CPU_BATCHES = [(224, 1, 8, 8), (448, 3, 32, 32)]
GPU_BATCHES = [(448, 3, 32, 32), (64, 3, 32, 32), (448, 3, 84, 84)]
COMPILE_SECONDS = 35  # torch.compile starts no new view after this time, so that all takes about a minute
NUM_COMPARED = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sweep", action="store_true", help="also try other tile sizes of the Triton kernel")
    options = parser.parse_args()
    if options.device == "cpu":
        measure_on_cpu(options.threads)
        return
    torch.zeros(1, device=options.device)
    torch.cuda.synchronize()  # the start of CUDA itself is not measured
    with tempfile.TemporaryDirectory() as folder:  # empty compiler caches
        os.environ |= {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        measure_on_gpu()
        if options.sweep:
            sweep()


def measure_on_cpu(threads: int) -> None:
    print(f"{'batch':20}{'view':10}{'median ms':>10}{'fastest':>10}")
    for shape in CPU_BATCHES:
        names = {"augment": augment_of(shape), "images": random_images(shape, "cpu")}
        for view in VIEWS:
            timer = Timer("augment(images, view)", globals=names | {"view": view}, num_threads=threads)
            measured = timer.blocked_autorange(min_run_time=1)
            milliseconds = [1000 * seconds for seconds in (measured.median, min(measured.times))]
            print(f"{name_of(shape):20}{view:10}" + "".join(f"{value:10.3f}" for value in milliseconds))


def measure_on_gpu() -> None:
    from mnar.augment.fused_views import FusedViews

    began = time.perf_counter()
    heads = ("eager us", "compiled us", "kernel us", "compile: start s", "kernel: start s", "differing")
    print(f"{'batch':20}{'view':8}" + "".join(f"{head:>18}" for head in heads))
    for shape in GPU_BATCHES:
        augment, images = augment_of(shape).cuda(), random_images(shape, "cuda")
        kernel, compiled = FusedViews(augment), torch.compile(augment, dynamic=False, fullgraph=True)
        for view in ("weak", "strong"):
            kernel_start = start_of(kernel, images, view)
            cells = [graph_time(augment, images, view), None, graph_time(kernel, images, view), None, kernel_start]
            if time.perf_counter() - began < COMPILE_SECONDS:
                cells[3] = start_of(compiled, images, view)
                cells[1] = graph_time(compiled, images, view)
            text = "".join(f"{'-':>18}" if cell is None else f"{cell:18.2f}" for cell in cells)
            print(f"{name_of(shape):20}{view:8}{text}{differing(augment, kernel, shape, view):18d}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s in all")


def sweep() -> None:
    from mnar.augment import fused_views

    print(f"\n{'tile':>6}{'values per thread':>20}" + "".join(f"{name_of(shape):>24}" for shape in GPU_BATCHES))
    for tile, values in product((512, 1024, 2048, 4096), (2, 4, 8, 16)):
        if not 4 <= tile // (32 * values) <= 16:  # warps
            continue
        fused_views.TILE, fused_views.VALUES_PER_THREAD = tile, values
        cells = []
        for shape in GPU_BATCHES:
            kernel, images = fused_views.FusedViews(augment_of(shape).cuda()), random_images(shape, "cuda")
            cells.append("/".join(f"{graph_time(kernel, images, view):.1f}" for view in ("weak", "strong")))
        print(f"{tile:6}{values:20}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def name_of(shape: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in shape)


def augment_of(shape: tuple[int, ...]) -> Augment:
    return Augment((0.5,) * shape[1], (0.25,) * shape[1])


def random_images(shape: tuple[int, ...], device: str) -> Tensor:
    """Slopes with noise. Plain noise would have every level in every image, which hides errors of auto-contrast."""
    per_image = (*shape[:2], 1, 1)
    down = torch.linspace(0, 1, shape[2], device=device)[:, None]
    across = torch.linspace(0, 1, shape[3], device=device)
    slope = torch.rand(per_image, device=device) * 150 * down + torch.rand(per_image, device=device) * 100 * across
    noise = torch.rand(per_image, device=device) * 60 * torch.rand(shape, device=device)
    return (torch.rand(per_image, device=device) * 80 + slope + noise).clamp(0, 255).to(torch.uint8)


def start_of(augment: Callable[[Tensor, str], Tensor], images: Tensor, view: str) -> float:
    """Return the seconds of the first call."""
    began = time.perf_counter()
    augment(images, view)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def graph_time(augment: Callable[[Tensor, str], Tensor], images: Tensor, view: str, replays: int = 50) -> float:
    """Return the microseconds of one view in a CUDA graph: the median of five measurements."""
    for _ in range(2):
        augment(images, view)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        augment(images, view)
    graph.replay()
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / replays)
    return statistics.median(times)


def differing(augment: Augment, kernel: Callable[[Tensor, str], Tensor], shape: tuple[int, ...], view: str) -> int:
    """Return the number of values that differ between the two, from the same state of the generator."""
    count = 0
    for seed in range(NUM_COMPARED):
        images = random_images(shape, "cuda")
        torch.manual_seed(seed)
        expected = augment(images, view)
        torch.manual_seed(seed)
        count += int((kernel(images, view) != expected).sum())
    return count


if __name__ == "__main__":
    main()
