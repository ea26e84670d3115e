"""Run folders as training writes them, with invented but plausible numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mnar.run.reader import Run

METHODS = (("supervised", "none"), ("fixmatch", "none"), ("fixmatch", "prg"), ("fixmatch", "prg_last"))
OPTIONS: dict[str, dict[str, float]] = {
    "supervised": {},
    "fixmatch": {"threshold": 0.95},
    "simmatch": {"threshold": 0.95},
    "none": {},
    "tracking": {"window": 128},
    "distribution_alignment": {"window": 32},
    "prg": {"alpha": 1.0},
    "prg_last": {"alpha": 3.0},
}
ALIGNED = {"name": "distribution_alignment", "window": 32}
FAIRNESS = {"none": 0.3, "prg": 0.75, "prg_last": 0.95}  # 1: the rarest class has the same recall as the others
TEST_PER_CLASS = 36


def config(learner: str, guidance: str, *, seed: int = 1, iterations: int = 600, **options: Any) -> dict[str, Any]:
    return {
        "dataset": {"name": "digits", "root": None},
        "protocol": {"name": "cadr", "gamma": 20.0},
        "model": {"name": "small_cnn"},
        "learner": {"name": learner} | OPTIONS[learner],
        "guidance": {"name": guidance} | OPTIONS[guidance] | options,
        "train": {"iterations": iterations, "batch_labeled": 32, "batch_unlabeled": 224},
        "augment": {"padding": 1},
        "seed": seed,
    }


def split(class_names: Sequence[str]) -> dict[str, Any]:
    k = len(class_names)
    labeled = np.ceil(50 * 20 ** (-np.arange(k) / (k - 1))).astype(int).tolist()
    counts = {"labeled": labeled, "unlabeled": [143] * k, "test": [TEST_PER_CLASS] * k}
    return {"dataset": "digits", "seed": 1, "class_names": list(class_names), "hash": "c0ffee"} | counts


def environment(iterations: int) -> dict[str, Any]:
    session = {"from_step": 0, "to_step": iterations, "seconds": 12.5, "images_per_second": 23040.0}
    versions = {"mnar": "0.1.0", "commit": None, "torch": "2.13.0", "python": "3.11.7", "device": "x86_64"}
    return versions | {"sessions": [session]}


def run_with(
    learner: str,
    guidance: str,
    *,
    accuracy: Sequence[float],
    geometric_mean: Sequence[float] | None = None,
    recall: Sequence[float] = (0.9, 0.5),
    seed: int = 1,
    **options: Any,
) -> Run:
    """A run of two classes with these scores, one per evaluation, and no other records."""
    means = geometric_mean or accuracy
    lines = [
        {"step": 10 * i, "test": {"accuracy": a, "geometric_mean": g, "recall": list(recall)}, "train": {}}
        for i, (a, g) in enumerate(zip(accuracy, means, strict=True), start=1)
    ]
    settings = config(learner, guidance, seed=seed, iterations=10 * len(accuracy), **options)
    return Run(Path(f"runs/{seed}"), settings, split(("cat", "dog")), environment(10 * len(accuracy)), lines)


def write_run(
    folder: Path,
    learner: str = "fixmatch",
    guidance: str = "none",
    *,
    seed: int = 1,
    class_names: Sequence[str] = tuple("0123456789"),
    num_evaluations: int = 30,
    iterations: int = 600,
) -> Path:
    """A run folder with everything that such a run records."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, METHODS.index((learner, guidance))])
    steps = np.linspace(0, iterations, num_evaluations + 1)[1:].round().astype(int)
    lines = [
        evaluation(rng, int(step), step / iterations, len(class_names), learner, guidance, with_matrices=i % 2 == 1)
        for i, step in enumerate(steps)
    ]
    settings = config(learner, guidance, seed=seed, iterations=iterations)
    settings["train"]["eval_every"] = iterations // num_evaluations
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    (folder / "split.json").write_text(json.dumps(split(class_names)))
    (folder / "environment.json").write_text(json.dumps(environment(iterations)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def evaluation(
    rng: np.random.Generator, step: int, progress: float, k: int, learner: str, guidance: str, *, with_matrices: bool
) -> dict[str, Any]:
    rarity = np.arange(k) / (k - 1)
    learnt = 1 - np.exp(-progress / 0.12)
    bias = 1 - FAIRNESS[guidance]
    hit = (learnt * (0.985 - 0.9 * bias * rarity**1.5) + 0.02 * rng.standard_normal(k)).clip(0.005, 1.0)
    taken_for = rng.dirichlet(np.exp(-3 * bias * rarity), k)
    shares = hit[:, None] * np.eye(k) + (1 - hit)[:, None] * taken_for
    confusion = np.array([rng.multinomial(TEST_PER_CLASS, row / row.sum()) for row in shares])
    recall = confusion.diagonal() / TEST_PER_CLASS

    test = {
        "accuracy": float(recall.mean()),
        "geometric_mean": float(np.prod(recall) ** (1 / k)),
        "calibration_error": 0.1 * (1 - learnt),
        "precision": (confusion.diagonal() / confusion.sum(0).clip(min=1)).tolist(),
        "recall": recall.tolist(),
        "predicted_share": (confusion.sum(0) / confusion.sum()).tolist(),
    }
    line: dict[str, Any] = {"step": step, "images": 480 * step, "test": test, "train": {"loss": 2.3 - 2 * learnt}}
    matrices = {"test_confusion": confusion.tolist()}
    if learner != "supervised":
        has_none = (progress < 0.08) & (rarity > 0.7)
        error = [None if is_unseen else 1 - share for is_unseen, share in zip(has_none, hit.tolist(), strict=True)]
        line["pseudo"] = {"share": (shares.sum(0) / k).tolist(), "error": error, "precision": recall.tolist()}
        line["pseudo"]["accepted"] = int(900 * learnt)
        line["train"]["mask_rate"] = 0.95 * learnt * (1 - 0.3 * bias)
        matrices["pseudo_confusion"] = [[*row, 5] for row in confusion.tolist()]
    if guidance != "none":
        expected = 60 * np.exp(-4 * progress) * rng.gamma(0.6, 1.0, (k, k)) * (0.3 + rarity[:, None])
        transitions = rng.poisson(expected * (1 - np.eye(k)))
        line["train"]["guidance/empty_row_share"] = float(np.exp(-progress / (0.1 * bias)))
        line["train"]["guidance/transitions"] = float(transitions.sum())
        matrices["transitions"] = transitions.tolist()
    if with_matrices:
        line["matrices"] = matrices
    return line
