"""What one training step costs: methods side by side in one process, start-up, host syncs, and where the time goes.

    python benchmarks/step_time.py                                # WRN-28-2, 64 + 448 + 448, PRG against no guidance
    python benchmarks/step_time.py --width 8 --methods fixmatch+prg                    # WRN-28-8
    python benchmarks/step_time.py --dataset mini_imagenet --methods fixmatch+prg      # ResNet-18, images of 84x84
    python benchmarks/step_time.py --methods fixmatch flexmatch simmatch comatch@288   # with 288 unlabelled images
    python benchmarks/step_time.py --methods fixmatch+prg fixmatch+prg:learner.weak_gradient=false
    python benchmarks/step_time.py --set engine.fused=false       # torch.compile's batch-norm kernels instead of ours
    python benchmarks/step_time.py --device cpu --steps 3 --dataset digits
    torchrun --standalone --nproc-per-node=1 benchmarks/step_time.py                   # what the process group costs

Images are random bytes, because the time of a step does not depend on the content of the images.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
from collections import defaultdict  # noqa: E402
from pathlib import Path  # noqa: E402

# With the compiled kernels of an earlier run, the start would take less time than a first start.
for cache in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
    os.environ.setdefault(cache, tempfile.mkdtemp())

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from mnar.recipes import configure  # noqa: E402
from mnar.run import processes  # noqa: E402
from mnar.run.assemble import load_data, make_split, make_trainer  # noqa: E402
from mnar.training.trainer import Trainer  # noqa: E402
from mnar.types import DataSet, Rows, Samples  # noqa: E402

KINDS = {  # a kernel has the first kind of which a word is in the kernel's name
    "convolution": ("convolve", "weight_gradient", "xmma", "cudnn", "cutlass", "memcpy32_post"),
    "batch-norm": ("gather_moments", "normalise", "gather_gradients", "input_gradient", "combine_"),
    "optimiser": ("multi_tensor", "foreach", "sgd", "lerp"),
}


# Data sets that are replaced by random images: number of classes, images and pixels per side.
RANDOM_IMAGES = {"cifar10": (10, 60_000, 32), "cifar100": (100, 60_000, 32), "mini_imagenet": (100, 60_000, 84)}


def random_images(num_classes: int, num_images: int, side: int) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (num_images, 3, side, side), dtype=torch.uint8, generator=generator)
    targets = torch.arange(num_images) % num_classes
    names = tuple(str(c) for c in range(num_classes))
    test = slice(0, num_images // 6)
    train = slice(num_images // 6, num_images)
    return DataSet(images[train], targets[train], images[test], targets[test], names, (0.5,) * 3, (0.25,) * 3)


class Bench:
    """A trainer that takes timed steps of a method, e.g. "fixmatch+prg@448:learner.weak_gradient=false"."""

    def __init__(self, method: str, arguments: argparse.Namespace) -> None:
        method_and_batch, _, options = method.partition(":")
        names, _, batch_unlabeled = method_and_batch.partition("@")
        learner, _, guidance = names.partition("+")
        settings = [f"engine.device={arguments.device}", *arguments.set, *filter(None, options.split(","))]
        if arguments.width:
            settings.append(f"model.width={arguments.width}")
        if batch_unlabeled:
            settings.append(f"train.batch_unlabeled={batch_unlabeled}")
        config = configure(
            dataset=arguments.dataset, learner=learner, guidance=guidance or None, settings=settings, seed=1
        )
        is_random = arguments.dataset in RANDOM_IMAGES
        data = random_images(*RANDOM_IMAGES[arguments.dataset]) if is_random else load_data(config)
        self.method = method
        self.trainer: Trainer = make_trainer(config, data, make_split(config, data))
        self.trainer.rehearse()
        self.take_step = self.trainer.engine.step(self.trainer.step)
        self.num_steps = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.trainer.loader.seek(self.num_steps)
            self.take_step()
            self.num_steps += 1

    def images_through_the_network(self) -> int:
        """Take one step and count the images in all forward passes, including those that only make pseudo-labels.

        Call this before the step is a CUDA graph, whose replay runs no Python code.
        """
        counted, model = [], self.trainer.model
        features = model.features

        def counting(x: Samples) -> Tensor:
            counted.append(sum(map(len, x)) if isinstance(x, Rows) else len(x))
            return features(x)

        model.features = counting  # type: ignore[method-assign]
        self.steps(1)
        del model.features
        return sum(counted)

    def milliseconds(self, count: int) -> float:
        """The time of one step. On a GPU, CUDA events measure it."""
        if self.trainer.engine.device.type != "cuda":
            began = time.perf_counter()
            self.steps(count)
            return (time.perf_counter() - began) * 1e3 / count
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self.steps(count)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / count

    def finish(self) -> None:
        if self.trainer.engine.device.type == "cuda":
            torch.cuda.synchronize()

    def count_syncs(self, count: int) -> str:
        """Return "0", or the first error. In this mode, torch raises an error at every host sync."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.steps(count)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return "0"

    def profile(self, count: int) -> dict[str, tuple[float, float]]:
        """The milliseconds and the launches per step of each kernel, the slowest first."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            self.steps(count)
            self.finish()
        kernels: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for event in profiler.key_averages():
            milliseconds, launches = kernels[event.key]
            milliseconds += event.self_device_time_total / 1e3 / count
            kernels[event.key] = milliseconds, launches + event.count / count
        return dict(sorted(kernels.items(), key=lambda item: -item[1][0]))


def kind_of(kernel: str) -> str:
    name = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "other")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--width", type=int, default=0, help="of the wide ResNet; 0: the data set's default")
    parser.add_argument("--methods", nargs="+", default=["fixmatch+prg", "fixmatch"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=100, help="per block; the methods take turns, five blocks each")
    parser.add_argument("--sync-steps", type=int, default=1000, help="steps that are watched for host syncs")
    parser.add_argument("--profile", action="store_true", help="also print the time of each kernel")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    benches: list[Bench] = []
    num_images: list[int] = []
    for method in arguments.methods:
        bench = Bench(method, arguments)
        num_images.append(bench.images_through_the_network())
        bench.finish()
        if not benches:
            first_step_s = time.perf_counter() - BEGAN
        bench.steps(9)  # cuDNN chooses its kernels, and the step becomes a CUDA graph
        bench.finish()
        benches.append(bench)
    blocks = [[bench.milliseconds(arguments.steps) for bench in benches] for _ in range(5)]

    engine = benches[0].trainer.engine
    on_gpu = engine.device.type == "cuda"
    figures: dict[str, object] = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        "precision": str(engine.dtype),
        "fused": engine.fused,
        "compile": engine.compile,
        "cuda_graph": engine.cuda_graph,
        "start_to_first_step_s": round(first_step_s, 1),
    }
    reference = arguments.methods.index("fixmatch") if "fixmatch" in arguments.methods else 0
    figures["methods"] = {
        bench.method: {
            "ms": round(statistics.median(block[column] for block in blocks), 3),
            "ms_range": [round(choose(block[column] for block in blocks), 3) for choose in (min, max)],
            "images": num_images[column],
            f"ms_over_{arguments.methods[reference]}": round(
                statistics.median(block[column] / block[reference] for block in blocks), 4
            ),
            f"images_per_s_over_{arguments.methods[reference]}": round(
                statistics.median(block[reference] / block[column] for block in blocks)
                * (num_images[column] / num_images[reference]),
                4,
            ),
        }
        for column, bench in enumerate(benches)
    }
    if on_gpu:
        figures[f"host_syncs_in_{arguments.sync_steps}_steps"] = benches[0].count_syncs(arguments.sync_steps)
        figures["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    for name, value in figures.items():
        for line, content in value.items() if isinstance(value, dict) else [(name, value)]:
            print(f"{line:28} {content}")
    if arguments.profile and on_gpu:
        kernels = benches[0].profile(20)
        by_kind: dict[str, float] = defaultdict(float)
        for name, (milliseconds, _) in kernels.items():
            by_kind[kind_of(name)] += milliseconds
        figures["profile_ms"] = {kind: round(ms, 3) for kind, ms in by_kind.items()}
        figures["kernels_ms"] = {name: round(ms, 4) for name, (ms, _) in list(kernels.items())[:60]}
        figures["launches"] = {name: round(launches, 2) for name, (_, launches) in list(kernels.items())[:60]}
        print("profile", figures["profile_ms"])
        for name, (milliseconds, launches) in list(kernels.items())[:30]:
            print(f"  {milliseconds:7.3f} ms  {launches:5.0f} x  {name[:110]}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    with processes.joined():
        main()
