"""An entry in the table of metrics is all that a new metric needs to be computed, recorded and shown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sklearn.metrics import cohen_kappa_score

import mnar.run
from mnar.bench import RESULTS, Bench, write_results
from mnar.config import RunConfig
from mnar.report import by_setting, change_headings, changes_in, html, summary, write_report
from mnar.report.comparisons import bars_by_setting, sweeps
from mnar.report.curves import learning_curves
from mnar.run import evaluate_run, read_run
from mnar.run.folder import RunFolder
from mnar.run.reader import Run
from mnar.terminal.progress import TerminalDisplay
from mnar.terminal.tensorboard import scalars
from mnar.training.metrics import METRICS, Metric, Predictions, Scores
from tests.report.drawn import methods_of
from tests.report.made_up import run_with, write_run
from tests.support.command import run_here
from tests.support.tiny import TINY

RECIPE = "digits/cadr-g20/fixmatch"
Configure = Callable[..., RunConfig]


def kappa(predictions: Predictions) -> float:
    return float(cohen_kappa_score(predictions.targets.cpu(), predictions.probs.max(1).indices.cpu()))


def confidence(predictions: Predictions) -> list[float | None]:
    """The mean confidence of the predictions of each class."""
    confidences, labels = predictions.probs.max(1)
    classes = range(predictions.probs.shape[1])
    return [confidences[labels == c].mean().item() if (labels == c).any() else None for c in classes]


def error_rate(predictions: Predictions) -> float:
    return 1 - float(predictions.confusion.diagonal().sum() / predictions.confusion.sum())


def lowest_recall(scores: Scores, test_counts: Any) -> float:
    return float(min(scores["recall"]))


NEW = (
    Metric("kappa", "Cohen's kappa", kappa, is_headline=True),
    Metric("confidence", "mean confidence", confidence, is_per_class=True),
    Metric("error_rate", "error rate", error_rate, higher_is_better=False),
    Metric(
        "lowest_recall",
        "lowest recall",
        lambda predictions: float((predictions.confusion.diagonal() / predictions.confusion.sum(1)).min()),
        is_headline=True,
        is_recorded=False,
        from_scores=lowest_recall,
    ),
)


@pytest.fixture(scope="module", autouse=True)
def new_metrics() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for metric in NEW:
            patch.setitem(METRICS, metric.name, metric)
        yield


@pytest.fixture(scope="module")
def output() -> io.StringIO:
    """The lines that training prints."""
    return io.StringIO()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Configure, output: io.StringIO, new_metrics: None) -> Path:
    """A run that was trained with the new metrics."""
    path = tmp_path_factory.mktemp("new_metric") / "run"
    with TerminalDisplay(Console(file=output, width=300)) as display:
        mnar.run.new_run(tiny(), path, display)
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return read_run(folder)


def test_an_evaluation_records_a_new_metric_and_derives_another_from_recorded_scores(run: Run) -> None:
    for line in run.lines:
        scores = line["test"]
        assert [*scores][-3:] == ["kappa", "confidence", "error_rate"]
        assert scores["error_rate"] == pytest.approx(1 - scores["accuracy"])
        assert -1 <= scores["kappa"] <= 1
        assert len(scores["confidence"]) == 10
        assert METRICS["lowest_recall"].value(scores, run.split["test"]) == min(scores["recall"])


def test_the_progress_line_has_the_new_headline_metrics(run: Run, output: io.StringIO) -> None:
    lines = [text for text in output.getvalue().splitlines() if text.startswith("step ")]
    for text, line in zip(lines, run.lines, strict=True):
        kappa, recall = line["test"]["kappa"], min(line["test"]["recall"])
        assert f"  Cohen's kappa {kappa:.2%}  lowest recall {recall:.2%}  " in text


def test_mnar_eval_prints_the_new_metrics(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnar.terminal.console.console.width", 200)
    outcome = run_here(capsys, monkeypatch, "eval", folder)
    assert outcome.code == 0, outcome.errors
    scores = evaluate_run(folder)
    overall = [f"{metric.title} {scores[metric.name]:.2%}" for metric in NEW if not metric.is_per_class]
    assert outcome.output.splitlines()[-1].endswith("   ".join(overall))
    assert "mean confidence %" in outcome.output


def test_tensorboard_shows_the_new_metrics(run: Run) -> None:
    line = run.lines[-1]
    shown = scalars(line, run.split["class_names"], run.split["test"])
    expected = {
        "test/kappa": line["test"]["kappa"],
        "test/error_rate": line["test"]["error_rate"],
        "test/lowest_recall": min(line["test"]["recall"]),
        **{f"confidence/{c}": share for c, share in enumerate(line["test"]["confidence"]) if share is not None},
    }
    assert {tag: shown[tag] for tag in expected} == expected
    assert None not in shown.values()


def test_the_summary_of_a_report_has_the_new_metrics(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = summary([run])
    assert {"kappa", "error_rate", "lowest_recall"} <= row.headline.keys()
    for figures in ("OVERVIEWS", "PLATES"):
        plates = [plate._replace(draw=lambda parts: None) for plate in getattr(html, figures)]
        monkeypatch.setattr(html, figures, plates)
    monkeypatch.setattr(html, "guidance_plates", lambda methods: [])
    write_report([run], tmp_path / "report.html", title="One run")
    page = (tmp_path / "report.html").read_text()
    for title, name in (
        ("Cohen&#39;s kappa", "kappa"),
        ("Error rate", "error_rate"),
        ("Lowest recall", "lowest_recall"),
    ):
        assert f">{title}, %<small>median of last 20</small>" in page
        assert f'<td class="number">{row.headline[name].percent}</td>' in page


def test_the_learning_curves_have_a_panel_per_new_headline_metric(run: Run) -> None:
    figure = learning_curves(methods_of([run]))
    curves = {axes.get_title(loc="left"): axes.lines[-1].get_ydata() for axes in figure.axes}
    assert [*curves][-2:] == ["Test Cohen's kappa", "Test lowest recall"]
    for title, values in (
        ("Test Cohen's kappa", [line["test"]["kappa"] for line in run.lines]),
        ("Test lowest recall", [min(line["test"]["recall"]) for line in run.lines]),
    ):
        assert [*curves[title]] == pytest.approx([100 * value for value in values])


def test_the_results_of_a_bench_have_the_new_metrics(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [RECIPE], seeds=(1,), iterations=20, settings=TINY)
    for path, config in bench.configs.items():
        mnar.run.new_run(config, path)
    write_results(bench.cells(), tmp_path)
    (entry,) = json.loads((tmp_path / f"{RESULTS}.json").read_text())["cells"]
    (row,) = csv.DictReader(io.StringIO((tmp_path / f"{RESULTS}.csv").read_text()))
    (path,) = bench.configs
    figures = [line["test"]["kappa"] for line in RunFolder(path).evaluations()]
    assert entry["ours_percent"]["kappa"]["mean"] == pytest.approx(100 * sum(figures) / 2), "the median of two"
    for name in ("kappa", "error_rate", "lowest_recall"):
        assert float(row[name]) == pytest.approx(entry["ours_percent"][name]["mean"], abs=1e-4)
        assert row[f"{name}_sd"] == "", "one run has no standard deviation"


def test_older_runs_without_a_new_headline_metric_are_read_and_shown_without_it(tmp_path: Path) -> None:
    old = read_run(write_run(tmp_path / "old", num_evaluations=2))
    assert "kappa" not in summary([old])[0].headline
    assert [len(axes.lines) for axes in learning_curves(methods_of([old])).axes] == [1, 1, 0, 1], "no curve of kappa"

    pair = [run_with("fixmatch", guidance, accuracy=[0.5]) for guidance in ("none", "prg")]
    (change,) = changes_in(pair)
    cells = dict(zip(change_headings(), change.cells, strict=True))
    assert (cells["Cohen's kappa, %"], cells["lowest recall, %"]) == ("–", "50.0 → 50.0 (+0.0)")

    swept = [run_with("fixmatch", "prg", accuracy=[0.5], alpha=alpha) for alpha in (1.0, 2.0, 3.0)]
    figure = sweeps(by_setting(swept))
    assert figure is not None
    assert len(figure.axes) == 4
    others = [run_with("fixmatch", guidance, accuracy=[0.5]) for guidance in ("none", "prg")]
    for other in others:
        other.config["protocol"]["gamma"] = 50.0
    bars = bars_by_setting(by_setting([*pair, *others]))
    assert bars is not None
    assert len(bars.axes) == 4
