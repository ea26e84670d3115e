"""Run folders as training leaves them, with made-up but plausible numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

METHODS = (("supervised", "none"), ("fixmatch", "none"), ("fixmatch", "prg"), ("fixmatch", "prg_last"))
FAIRNESS = {
    "supervised": 0.45,
    "none": 0.3,
    "prg": 0.75,
    "prg_last": 0.95,
}  # 1: the rarest class is learnt as well


def write_run(
    folder: Path,
    *,
    learner: str = "fixmatch",
    guidance: str = "none",
    options: dict[str, Any] | None = None,
    seed: int = 0,
    num_classes: int = 10,
    num_evaluations: int = 30,
    iterations: int = 600,
    class_names: Sequence[str] | None = None,
) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(learner), len(guidance)])
    k = num_classes
    labeled = np.ceil(50 * 20 ** (-np.arange(k) / (k - 1))).astype(int)
    config = {
        "dataset": {"name": "digits"},
        "protocol": {"name": "cadr", "gamma": 20},
        "model": {"name": "small_cnn"},
        "learner": {"name": learner, "options": {} if learner == "supervised" else {"threshold": 0.95}},
        "guidance": {
            "name": guidance,
            "options": options or ({"alpha": 3.0} if guidance == "prg_last" else {}),
        },
        "train": {
            "iterations": iterations,
            "batch_labeled": 32,
            "batch_unlabeled": 224,
            "lr": 0.03,
            "ema": 0.99,
        },
        "augment": {"weak": "crop", "strong": "randaugment"},
        "seed": seed,
    }
    split = {
        "dataset": "digits",
        "seed": seed,
        "class_names": list(class_names or map(str, range(k))),
        "labeled": labeled.tolist(),
        "unlabeled": [143] * k,
        "test": [36] * k,
        "hash": f"{seed:08x}c0ffee",
    }
    environment = {
        "mnar": "0.1.0",
        "commit": "0123456789abcdef",
        "torch": "2.13.0",
        "python": "3.11.7",
        "device": "cpu, 2 threads",
        "sessions": [{"from_step": 0, "to_step": iterations, "seconds": 12.5, "images_per_second": 23040.0}],
    }
    fairness = FAIRNESS["supervised" if learner == "supervised" else guidance]
    steps = np.linspace(0, iterations, num_evaluations + 1)[1:].round().astype(int)
    lines = [
        evaluation(int(step), step / iterations, rng, k, fairness, learner, guidance, with_matrices=i % 2 == 1)
        for i, step in enumerate(steps)
    ]
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "split.json").write_text(json.dumps(split))
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def evaluation(
    step: int,
    progress: float,
    rng: np.random.Generator,
    k: int,
    fairness: float,
    learner: str,
    guidance: str,
    *,
    with_matrices: bool,
) -> dict[str, Any]:
    rarity = np.arange(k) / (k - 1)
    learnt = 1 - np.exp(-progress / 0.12)
    recall = learnt * (0.985 - 0.9 * (1 - fairness) * rarity**1.5) + 0.02 * rng.standard_normal(k)
    recall = recall.clip(0.005, 1.0)
    pull = rng.dirichlet(np.exp(-3 * (1 - fairness) * rarity), k)  # whom the samples of a class are taken for
    shares = recall[:, None] * np.eye(k) + (1 - recall)[:, None] * pull
    confusion = (36 * shares).round()
    confusion[np.arange(k), np.arange(k)] += 36 - confusion.sum(1)
    recalls = confusion.diagonal() / 36
    line: dict[str, Any] = {
        "step": step,
        "images": 480 * step,
        "test": {
            "accuracy": recalls.mean(),
            "geometric_mean": float(np.prod(recalls) ** (1 / k)),
            "calibration_error": 0.1 * (1 - learnt),
            "precision": (confusion.diagonal() / confusion.sum(0).clip(min=1)).tolist(),
            "recall": recalls.tolist(),
            "predicted_share": (confusion.sum(0) / confusion.sum()).tolist(),
        },
        "train": {"loss": 2.3 - 2 * learnt, "loss/labeled": 1.2 - learnt},
    }
    matrices = {"test_confusion": confusion.astype(int).tolist()}
    if learner != "supervised":
        line["train"] |= {"loss/unlabeled": 1.1 - learnt, "mask_rate": 0.95 * learnt}
        error = (1 - recall) * (1.2 - 0.3 * learnt)
        accepted = [
            None if progress < 0.08 and share > 0.7 else float(e) for e, share in zip(error, rarity, strict=True)
        ]
        line["pseudo"] = {
            "share": (shares.sum(0) / k).tolist(),
            "error": [None if e is None else min(e, 1.0) for e in accepted],
            "precision": recalls.tolist(),
            "accepted": int(900 * learnt),
        }
    if guidance != "none":
        moves = rng.poisson(60 * np.exp(-4 * progress) * rng.gamma(0.6, 1.0, (k, k)) * (0.3 + rarity[:, None]))
        np.fill_diagonal(moves, 0)
        line["train"] |= {
            "guidance/empty_row_share": float(np.exp(-progress / 0.03)),
            "guidance/transitions": float(moves.sum()),
        }
        matrices["transitions"] = moves.tolist()
    if with_matrices:
        line["matrices"] = matrices
    return line
