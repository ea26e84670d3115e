"""Kill one of two processes of a training at random moments: how soon the job ends, and whether resuming is exact.

python benchmarks/killed_process.py
python benchmarks/killed_process.py --moments 5 --seed 1

Each moment starts a small run on digits under torchrun and sends SIGKILL to one of its two processes. The moment is
drawn uniformly from the time between the first file of an undisturbed run and its last one. After the job has ended,
the run is resumed and compared with the undisturbed run, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

from mnar.run import RunFolder, checkpoint

SETTINGS = (
    "engine.device=cpu",
    "model.width=4",
    "train.batch_labeled=16",
    "train.batch_unlabeled=32",
    "train.log_every=10",
    "train.eval_every=50",
    "train.save_every=20",
)
NEW_RUN = ["--dataset", "digits", "--guidance", "prg", "--iterations", "400"]
NEW_RUN += [part for setting in SETTINGS for part in ("--set", setting)]


def start(*arguments: object) -> subprocess.Popen[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, "-m", "mnar", "train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def process_of(launcher: subprocess.Popen[str], rank: int) -> int | None:
    """The process number of a training process, which is a child of torchrun; None if there is none."""
    with suppress(OSError):  # a process may end while this function looks at it
        for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
            if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
                return int(child)
    return None


def finish(job: subprocess.Popen[str]) -> None:
    output, _ = job.communicate(timeout=600)
    if job.returncode != 0:
        raise RuntimeError(f"the training failed:\n{output}")


def are_equal(folder: Path, other: Path) -> bool:
    """Whether two runs have the same evaluations, model and training state."""
    mine, theirs = (checkpoint.load(run / "state.pt")[0] for run in (folder, other))
    is_same_state = all(
        torch.equal(tensor, theirs[part][name])
        for part in ("model", "average", "learner")
        for name, tensor in mine[part].items()
    )
    has_same_model = (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    return is_same_state and has_same_model and RunFolder(folder).evaluations() == RunFolder(other).evaluations()


def wait_for(file: Path, job: subprocess.Popen[str]) -> float:
    """The time at which a file of the run is there, or at which the job ends."""
    while not file.exists() and job.poll() is None:
        time.sleep(0.01)
    return time.monotonic()


def kill_at(seconds: float, victim: int, folder: Path) -> tuple[float, int]:
    """Kill a process of a new run. Return how many seconds later the job ended, and the step of its checkpoint."""
    job = start(*NEW_RUN, "--out", folder)
    began = wait_for(folder / "config.yaml", job)
    while time.monotonic() < began + seconds and job.poll() is None:
        time.sleep(0.01)
    if (process := process_of(job, victim)) is not None:  # the run may have ended before the moment
        os.kill(process, signal.SIGKILL)
    killed = time.monotonic()
    job.communicate(timeout=600)
    saved = checkpoint.load(folder / "state.pt")[0]["steps_done"] if (folder / "state.pt").exists() else 0
    return time.monotonic() - killed, saved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, waits, num_exact = random.Random(arguments.seed), [], 0
    with tempfile.TemporaryDirectory() as temporary:
        straight = Path(temporary) / "straight"
        job = start(*NEW_RUN, "--out", straight)
        began = wait_for(straight / "config.yaml", job)
        duration = wait_for(straight / "model.safetensors", job) - began
        finish(job)
        print(f"torch {torch.__version__}, two processes; an undisturbed run trains for {duration:.1f} s", flush=True)
        for moment in range(arguments.moments):
            folder = Path(temporary) / str(moment)
            seconds, victim = draw.uniform(0, duration), draw.randrange(2)
            wait, saved = kill_at(seconds, victim, folder)
            finish(start("--resume", folder))
            is_exact = are_equal(folder, straight)
            waits.append(wait)
            num_exact += is_exact
            print(
                f"killed process {victim} after {seconds:5.1f} s: the job ended {wait:4.1f} s later, checkpoint of "
                f"step {saved:2}; resumed {'exactly' if is_exact else 'NOT EXACTLY'}",
                flush=True,
            )
    print(f"{num_exact} of {len(waits)} resumed exactly; the slowest job ended {max(waits):.1f} s after the kill")


if __name__ == "__main__":
    main()
