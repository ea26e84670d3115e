"""What one PRG call costs, and how large its state is: batches of 448, k = 10 and k = 1,000 classes.

python benchmarks/prg_time.py
python benchmarks/prg_time.py --device cuda
python benchmarks/prg_time.py --samples 100000000 --classes 1000
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from mnar.guidances import PRG
from mnar.types import Task

BATCH, CALLS = 448, 200


def milliseconds_per_call(
    num_samples: int, num_classes: int, last: bool, device: torch.device
) -> tuple[float, float, float]:
    """The median and the smallest time of a call, and the megabytes of the state."""
    guidance = PRG(Task(num_classes, num_samples, batch_unlabeled=BATCH), last=last).to(device)
    predictions = [torch.randn(BATCH, num_classes).mul(2).softmax(1).to(device) for _ in range(20)]
    # Other samples in each call, so that the bank is not in the cache of the processor.
    samples = torch.randint(num_samples, (CALLS, BATCH)).to(device)
    times = []
    for call in range(CALLS):
        probs, index = predictions[call % len(predictions)], samples[call]
        began = time.perf_counter()
        guidance(probs, index)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    state = sum(buffer.nbytes for buffer in guidance.buffers())
    return statistics.median(times[CALLS // 4 :]), min(times), state / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 1000])
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {CALLS} calls")
    for num_classes in arguments.classes:
        for last in (False, True):
            median, best, megabytes = milliseconds_per_call(arguments.samples, num_classes, last, device)
            print(
                f"N = {arguments.samples:,}  k = {num_classes:5}  {'PRG^Last' if last else 'PRG':9} median "
                f"{median:7.3f} ms, best {best:7.3f} ms a call   state {megabytes:.2f} MB"
            )


if __name__ == "__main__":
    main()
