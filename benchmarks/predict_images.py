"""Images per second of a network's forward pass, and of `mnar predict` from a file to a CSV file.

    python benchmarks/predict_images.py --images 50000 --model wide_resnet

The script trains a few steps on random images of 32×32 pixels, so that there is a run folder, and then predicts random
images. It prints the median of several repeats, without the first one, which compiles and chooses kernels.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import mnar
from mnar.own_data.network_predictor import NetworkPredictor
from mnar.recipes import configure
from mnar.run import new_run
from mnar.trained.predict import predict_file


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the median duration of `repeats` calls after a first one."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--model", default="wide_resnet")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        data, images, run = Path(folder) / "data.npz", Path(folder) / "images.npy", Path(folder) / "run"
        x = rng.integers(0, 255, (2000, 3, 32, 32), np.uint8)
        y = np.arange(2000) % 10
        np.savez(data, x_train=x[:1500], y_train=y[:1500], x_test=x[1500:], y_test=y[1500:])
        settings = [f"model.name={options.model}", "engine.compile=false", "protocol.gamma=20"]
        new_run(configure(dataset="npz", data=str(data), iterations=5, settings=settings), run)
        np.save(images, rng.integers(0, 255, (options.images, 3, 32, 32), np.uint8))
        model = mnar.load(run)
        assert isinstance(model.predictor, NetworkPredictor)
        predictor, pixels = model.predictor, torch.from_numpy(np.load(images)).to(model.predictor.device)

        @torch.inference_mode()
        def forward() -> None:
            for batch in pixels.split(8192):
                predictor.network(predictor.prepare(batch))

        out = Path(folder) / "predictions.csv"
        results = {
            "forward pass": seconds(forward, options.repeats),
            "predictions in memory": seconds(lambda: model.predict_proba(np.load(images)), options.repeats),
            "file to CSV file": seconds(lambda: predict_file(model, images, out, overwrite=True), options.repeats),
        }
        for name, duration in results.items():
            print(f"{name:24} {duration:8.3f} s {options.images / duration:12,.0f} images/s")
        print(f"{options.images:,} images, {options.model}, {predictor.device}, torch {torch.__version__}")
        if predictor.device.type == "cuda":
            print(torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
