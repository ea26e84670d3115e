"""What one refresh of DARP costs, and how near its columns come to the target: 50,000 samples, k = 10 and k = 100.

python benchmarks/darp_time.py
python benchmarks/darp_time.py --device cuda
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from mnar.guidances.refinery import refine, remove_noise

NUM_SAMPLES, ITERATIONS, DELTA = 50_000, 10, 2.0
CLASSES, IMBALANCE, CALLS = (10, 100), 100, 5


def make_pool(num_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Predictions of a fair classifier for a balanced pool, from unsure to certain; a long-tailed target."""
    label = torch.randint(num_classes, (NUM_SAMPLES,))
    logits = 2 * torch.randn(NUM_SAMPLES, num_classes)
    logits[torch.arange(NUM_SAMPLES), label] += 12 * torch.rand(NUM_SAMPLES)
    shares = IMBALANCE ** -torch.linspace(0, 1, num_classes, dtype=torch.float64)
    return logits.softmax(1).to(device), (NUM_SAMPLES * shares / shares.sum()).to(device)


def milliseconds(work: Callable[[], Tensor], device: torch.device) -> float:
    times = []
    for _ in range(CALLS + 1):  # the first one is not counted
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[1:])


def graphed(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """As the engine runs a refresh on a GPU."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, median of {CALLS} calls")
    for num_classes in CLASSES:
        probs, target = make_pool(num_classes, device)
        candidates = remove_noise(probs, target, DELTA)
        removing = milliseconds(lambda: remove_noise(probs, target, DELTA), device)  # noqa: B023
        if device.type == "cuda":
            refresh = graphed(lambda: refine(remove_noise(probs, target, DELTA), target, iterations=ITERATIONS))  # noqa: B023
            print(f"k = {num_classes:4}  both as one CUDA graph {milliseconds(refresh, device):7.1f} ms")
        solving = milliseconds(lambda: refine(candidates, target, iterations=ITERATIONS), device)  # noqa: B023
        refined = refine(candidates, target, iterations=ITERATIONS)
        wrong = [float((pool.sum(0) - target).abs().sum() / (2 * NUM_SAMPLES)) for pool in (probs, refined)]
        row_error = float((refined.sum(1) - 1).abs().max())
        print(
            f"k = {num_classes:4}  noise removal {removing:7.1f} ms   solve {solving:7.1f} ms   "
            f"pool in a wrong class {wrong[0]:.4f} -> {wrong[1]:.4f}   largest row error {row_error:.1e}"
        )


if __name__ == "__main__":
    main()
