"""What one PRG call costs, and how large its state is: n = 448 of 50,000 samples, k = 10 and k = 1,000.

python benchmarks/prg_time.py
python benchmarks/prg_time.py --device cuda
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from mnar.guidances import PRG
from mnar.types import Task

NUM_SAMPLES, BATCH, CALLS = 50_000, 448, 200


def milliseconds_per_call(num_classes: int, last: bool, device: torch.device) -> tuple[float, float]:
    guidance = PRG(Task(num_classes, NUM_SAMPLES, batch_unlabeled=BATCH), last=last).to(device)
    batches = [
        (
            torch.randn(BATCH, num_classes).mul(2).softmax(1).to(device),
            torch.randperm(NUM_SAMPLES)[:BATCH].to(device),
        )
        for _ in range(20)
    ]
    times = []
    for call in range(CALLS):
        probs, index = batches[call % len(batches)]
        began = time.perf_counter()
        guidance(probs, index)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    state = sum(buffer.numel() * buffer.element_size() for buffer in guidance.buffers())
    return statistics.median(times[CALLS // 4 :]), state / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, median of {CALLS} calls")
    for num_classes in (10, 1000):
        for last in (False, True):
            ms, megabytes = milliseconds_per_call(num_classes, last, device)
            name = "PRG^Last" if last else "PRG"
            print(f"k = {num_classes:5}  {name:9} {ms:7.3f} ms a call   state {megabytes:.2f} MB")


if __name__ == "__main__":
    main()
