"""How well a collapsed run is recognised: runs with learning rates 10 and 100 times too large, and healthy runs.

    python benchmarks/collapse.py [--processes 2] [--verbose]

Every case is trained with its default learning rate (a healthy run) and some also with 10 and 100 times that rate. A
run counts as *harmed* if the large rate costs more than half of what the healthy run gains over guessing, measured by
the balanced accuracy on the test set. (A table without any signal cannot be harmed.) The target is that all harmed runs
are found within the first tenth of their steps, and that there is no alarm in a healthy run. A large rate does not harm
every run; the script counts these runs separately.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mnar.config import RunConfig
from mnar.own_data.defaults import default_sections
from mnar.recipes import configure
from mnar.run import load_data, make_split, make_trainer
from mnar.training.meters import Diverged
from mnar.training.trainer import train
from mnar.types import DataSet, Selection

TOO_LARGE = (10, 100)
NO_SIGNAL = 0.1  # a healthy run that gains less balanced accuracy over guessing has nothing to lose


class Case(NamedTuple):
    """One configuration: a benchmark data set, or own data that this script makes (`table` or `images`)."""

    name: str
    data: str
    learner: str
    guidance: str
    iterations: int
    seed: int
    factor: int = 1  # times the default learning rate
    settings: tuple[str, ...] = ()


class Outcome(NamedTuple):
    case: Case
    found_at: int | None  # the first step at which the run was found to have collapsed
    seen: str
    accuracy: float  # balanced accuracy on the test set
    num_classes: int


def cases() -> list[Case]:
    """All runs: 56 healthy ones, and some of them again with learning rates that are too large."""
    healthy = []
    digits = [("fixmatch", "prg"), ("fixmatch", "none"), ("fixmatch", "cadr"), ("flexmatch", "prg_last")]
    digits += [("mixmatch", "none"), ("mean_teacher", "none"), ("pi_model", "none"), ("pseudo_label", "prg")]
    digits += [("supervised", "none"), ("simmatch", "prg"), ("comatch", "none"), ("fixmatch", "simpro")]
    for learner, guidance in digits:
        healthy += [Case("digits", "digits", learner, guidance, 150, seed) for seed in (1, 2)]
    for kind in TABLES:
        for learner, guidance in (("pseudo_label", "cadr"), ("supervised", "none")):
            healthy.append(Case(kind, "table", learner, guidance, 400, 1))
        healthy.append(Case(kind, "table", "pseudo_label", "prg_last", 400, 2))
    healthy += [Case("photos", "images", learner, guidance, 200, 1) for learner, guidance in IMAGE_METHODS]
    healthy.append(Case("photos", "images", "supervised", "none", 200, 2))
    healthy += [Case("digits", "digits", learner, guidance, 20, 3) for learner, guidance in digits[:4]]  # very short
    spoilt = [case._replace(factor=factor) for case in healthy for factor in TOO_LARGE if _is_spoilt(case)]
    without_care = ("train.warmup=0", "train.max_grad_norm=0")
    spoilt += [case._replace(settings=without_care) for case in spoilt if case.data == "images"]
    return healthy + spoilt


def _is_spoilt(case: Case) -> bool:
    """Whether a healthy case is also trained with rates that are too large."""
    if case.data == "digits":
        return case.seed == 1 and case.learner in ("fixmatch", "supervised", "mixmatch", "mean_teacher", "comatch")
    return case.learner == "supervised" or (case.data == "table" and case.guidance == "cadr")


IMAGE_METHODS = (("fixmatch", "prg_last"), ("supervised", "none"), ("pseudo_label", "prg_last"))
# Tables: number of classes, features, labels, distance between class centres, share of the largest class (None: even).
TABLES: dict[str, tuple[int, int, int, float, float | None]] = {
    "easy": (6, 20, 200, 3.0, None),
    "hard": (3, 10, 150, 0.7, None),
    "noise": (3, 8, 200, 0.0, None),
    "95 to 5": (2, 10, 200, 1.5, 0.95),
    "40 classes": (40, 30, 400, 3.0, None),
    "few labels": (5, 15, 25, 2.0, None),
    "outliers": (4, 12, 200, 2.0, None),
    "skewed": (5, 12, 250, 2.0, 0.7),
}


def made_table(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes; in `outliers`, one value in fifty is a hundred times larger."""
    num_classes, num_features, num_labels, distance, largest = TABLES[kind]
    rng = np.random.default_rng(seed)
    rest = (1 - (largest or 1 / num_classes)) / (num_classes - 1)
    y = rng.choice(num_classes, 1500, p=[1 - rest * (num_classes - 1)] + [rest] * (num_classes - 1))
    centres = distance * rng.normal(size=(num_classes, num_features)) / math.sqrt(num_features) * 2
    x = centres[y] + rng.normal(size=(len(y), num_features))
    if kind == "outliers":
        x *= np.where(rng.random(x.shape) < 0.02, 100, 1)
    y[rng.permutation(len(y))[num_labels:]] = -1
    return x, y


def made_images(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The digits of scikit-learn in random colours on random backgrounds, 48 x 48 pixels, with skewed labels."""
    from sklearn.datasets import load_digits

    rng, digits = np.random.default_rng(seed), load_digits()
    rows = rng.permutation(len(digits.target))[:900]
    shapes = np.kron(digits.images[rows] / 16, np.ones((6, 6)))[..., None]
    ink, paper = (rng.uniform(low, low + 90, (len(rows), 1, 1, 3)) for low in (0, 160))
    x = shapes * ink + (1 - shapes) * paper + rng.normal(0, 15, (len(rows), 48, 48, 3))
    y = digits.target[rows].astype(np.int64)
    keep = np.zeros(len(y), dtype=bool)
    for label in range(10):
        keep[np.flatnonzero(y == label)[: max(4, 60 - 6 * label)]] = True
    return x.clip(0, 255).astype(np.uint8), np.where(keep, y, -1)


def configured(case: Case, folder: Path) -> tuple[RunConfig, DataSet]:
    arguments: dict[str, Any] = {"learner": case.learner, "guidance": case.guidance, "seed": case.seed}
    if case.data == "digits":
        config = configure(dataset="digits", iterations=case.iterations, settings=["train.eval_every=10"], **arguments)
    else:
        path = folder / f"{case.name}-{case.seed}.npz".replace(" ", "-")
        if not path.exists():
            x, y = made_table(case.name, case.seed) if case.data == "table" else made_images(case.seed)
            np.savez(path, x=x, y=y)
        shape = (TABLES[case.name][1],) if case.data == "table" else (3, 48, 48)
        defaults = default_sections(shape, 500, on_gpu=False, iterations=case.iterations)
        defaults["engine"] = {"device": "cpu"}
        config = configure(dataset="own_data", data=str(path), defaults=defaults, settings=case.settings, **arguments)
    sections = config.to_dict()
    sections["train"] |= {"lr": case.factor * config.train.lr, "collapse": "warn"}
    return RunConfig.from_dict(sections), load_data(config)


class Alarm:
    """A `training.Recorder` that keeps the first alarm and the last evaluation."""

    stop_requested = False

    def __init__(self) -> None:
        self.found_at: int | None = None
        self.seen, self.line = "", dict[str, Any]()

    def collapsed(self, step: int, what: str) -> None:
        if self.found_at is None:
            self.found_at, self.seen = step, what

    def evaluation(self, line: dict[str, Any]) -> None:
        self.line = line

    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None: ...
    def generation(self, number: int, selection: Selection | None) -> None: ...
    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None: ...


def outcome(job: tuple[Case, Path]) -> Outcome:
    torch.set_num_threads(1)
    case, folder = job
    config, data = configured(case, folder)
    trainer = make_trainer(config, data, make_split(config, data))
    alarm, num_classes = Alarm(), len(data.class_names)
    try:
        train(trainer, alarm)
    except Diverged as error:
        alarm.collapsed(int(trainer.steps_done), str(error))
    recalls = [recall for recall in alarm.line.get("test", {}).get("recall", [0.0]) if recall is not None]
    return Outcome(case, alarm.found_at, alarm.seen, float(np.mean(recalls)), num_classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print every run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool(arguments.processes) as pool:
        jobs = [(case._replace(seed=case.seed + arguments.first_seed - 1), Path(folder)) for case in cases()]
        outcomes = pool.map(outcome, jobs, chunksize=1)
    healthy = {run.case: run for run in outcomes if run.case.factor == 1}
    false_alarms = [run for run in healthy.values() if run.found_at is not None]
    harmed, unharmed = [], []
    for run in outcomes:
        if run.case.factor > 1:
            gain = healthy[run.case._replace(factor=1, settings=())].accuracy - 1 / run.num_classes
            is_harmed = gain > NO_SIGNAL and run.accuracy - 1 / run.num_classes < gain / 2
            (harmed if is_harmed else unharmed).append(run)
    late = [run for run in harmed if run.found_at is not None and run.found_at > math.ceil(run.case.iterations / 10)]
    print(f"healthy runs: {len(healthy)}, false alarms: {len(false_alarms)}")
    found = sum(run.found_at is not None for run in harmed)
    print(f"runs harmed by a rate 10 or 100 times too large: {len(harmed)}, found: {found}, of these late: {len(late)}")
    found = sum(run.found_at is not None for run in unharmed)
    print(f"runs not harmed by such a rate: {len(unharmed)}, of these found: {found}")
    missed = [run for run in harmed if run.found_at is None]
    for run in outcomes if arguments.verbose else [*false_alarms, *missed, *late]:
        case = run.case
        kind = "healthy" if case.factor == 1 else f"rate x {case.factor}, {'harmed' if run in harmed else 'not harmed'}"
        alarm = "no alarm" if run.found_at is None else f"alarm at step {run.found_at}: {run.seen}"
        method = f"{case.learner} + {case.guidance}, seed {case.seed}{' without care' if case.settings else ''}"
        print(f"{case.name}, {method}, {case.iterations} steps, {kind}: balanced accuracy {run.accuracy:.2f}, {alarm}")


if __name__ == "__main__":
    main()
