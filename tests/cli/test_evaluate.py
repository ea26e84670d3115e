"""`mnar eval`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from mnar.run import evaluate_run
from mnar.run.folder import RunFolder
from mnar.training.metrics import overall_metrics, per_class_metrics
from tests.support.command import Mnar


def table_of(output: str) -> list[list[str]]:
    """The cells of the printed table, headings first."""
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in output.splitlines() if line[:1] in "│┃"]


def test_eval_prints_every_metric_of_the_last_evaluation(mnar: Mnar, finished_run: Path) -> None:
    outcome = mnar("eval", finished_run)
    assert outcome.code == 0, outcome.errors
    scores = evaluate_run(finished_run)
    headings, *rows = table_of(outcome.output)
    columns = per_class_metrics()
    assert headings == ["class", *(f"{metric.title} %" for metric in columns)]
    for label, row in enumerate(rows):
        assert row == [str(label), *(f"{100 * scores[metric.name][label]:.2f}" for metric in columns)]
    assert len(rows) == 10
    overall = "   ".join(f"{metric.title} {scores[metric.name]:.2%}" for metric in overall_metrics())
    assert outcome.output.splitlines()[-1] == overall
    recorded = RunFolder(finished_run).evaluations()[-1]["test"]
    assert {name: scores[name] for name in recorded} == recorded


def test_eval_prints_a_dash_for_a_value_that_is_not_defined(
    mnar: Mnar, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {**evaluate_run(finished_run), "auroc": [None] * 10}
    monkeypatch.setattr("mnar.run.evaluate_run", lambda *arguments, **options: scores)
    headings, *rows = table_of(mnar("eval", finished_run).output)
    assert {row[headings.index("AUROC %")] for row in rows} == {"–"}


def test_eval_and_resume_accept_engine_options_and_refuse_others(mnar: Mnar, finished_run: Path) -> None:
    for command in (("eval", finished_run), ("train", "--resume", finished_run)):
        unknown = mnar(*command, "--set", "engine.device=abacus")
        assert unknown.code == 1
        assert "unknown engine.device 'abacus'" in unknown.errors
        other = mnar(*command, "--set", "guidance.alpha=2")
        assert other.code == 1
        assert "--set guidance.alpha=2 would change the run" in other.errors


def test_a_folder_whose_name_looks_like_markup_is_printed_unchanged(mnar: Mnar, finished_run: Path) -> None:
    folder = Path(shutil.copytree(finished_run, "[bold]run"))
    evaluated = mnar("eval", folder)
    assert evaluated.code == 0, evaluated.errors
    assert "[bold]run" in evaluated.output


def test_eval_of_a_model_that_overflows_prints_scores(
    mnar: Mnar, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, "softmax", lambda logits, dim: real(logits * torch.inf, dim))
    outcome = mnar("eval", finished_run)
    assert outcome.code == 0, outcome.errors
    assert "calibration error nan%" in outcome.output
