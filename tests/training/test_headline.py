from __future__ import annotations

from typing import Any

import pytest

from mnar.training.headline import (
    ACCURACY,
    BEST,
    FINAL,
    headline,
    headline_figures,
    headline_lines,
    headline_name,
    health_warnings,
)
from mnar.training.metrics import overall_metrics

NAMES = ("ant", "bee", "cat")
Line = dict[str, Any]


def line(step: int, share: tuple[float, ...] = (0.5, 0.3, 0.2), mask_rate: float = 0.6, **test: Any) -> Line:
    """A line of metrics.jsonl with the entries that these tests need."""
    return {
        "step": step,
        "test": {"accuracy": 0.5, "geometric_mean": 0.4, **test},
        "train": {"loss": 1.0, "mask_rate": mask_rate},
        "pseudo": {"share": list(share)},
    }


def test_the_headline_has_medians_of_the_last_20_evaluations_and_the_final_and_the_best_accuracy() -> None:
    accuracies = [0.99] + [0.5] * 4 + [0.60 + 0.01 * i for i in range(20)]
    lines = [line(10 * i, accuracy=a, geometric_mean=a / 2) for i, a in enumerate(accuracies, start=1)]
    assert headline(lines) == {
        ACCURACY: pytest.approx((0.69 + 0.70) / 2),
        FINAL: pytest.approx(0.79),
        BEST: 0.99,
        "geometric_mean": pytest.approx((0.345 + 0.350) / 2),
    }
    assert headline_lines(lines) == lines[-20:]


def test_the_headline_has_every_overall_metric_that_the_evaluations_determine() -> None:
    classes = {"precision": [0.5, 0.8, 0.0], "recall": [1.0, 0.4, 0.0]}
    lines = [line(10, **classes, calibration_error=0.1), line(20, **classes, calibration_error=0.3)]
    figures = headline(lines, [8, 5, 0])
    assert figures.keys() == set(headline_figures())
    assert figures["balanced_accuracy"] == pytest.approx((1.0 + 0.4) / 2), "the third class has no test samples"
    assert figures["macro_f1"] == pytest.approx((2 / 3 + 0.64 / 1.2) / 2)
    assert figures["calibration_error"] == pytest.approx(0.2)
    assert "balanced_accuracy" not in headline(lines), "it depends on the test counts"
    del lines[0]["test"]["calibration_error"]
    assert "calibration_error" not in headline(lines, [8, 5, 0]), "a median needs every evaluation"


def test_the_figures_of_a_headline_are_named_after_metrics_except_the_three_accuracies() -> None:
    assert headline_name("accuracy") == ACCURACY
    assert headline_name("geometric_mean") == "geometric_mean"
    names = [headline_name(metric.name) for metric in overall_metrics()]
    assert {*headline_figures()} == {FINAL, BEST, *names}


def test_the_headline_is_that_of_the_last_generation() -> None:
    lines = [line(10 * i, accuracy=0.9 - 0.01 * i, geometric_mean=0.5) | {"generation": i // 5} for i in range(1, 13)]
    figures = headline(lines)
    assert figures[ACCURACY] == pytest.approx(0.79)
    assert figures[BEST] == pytest.approx(0.80)
    assert headline_lines(lines) == lines[-3:]


def test_the_headline_is_that_of_the_model_that_early_stopping_kept() -> None:
    lines = [line(10 * i, accuracy=0.1 * i, geometric_mean=0.5) for i in range(1, 9)]
    lines[-1]["validation"] = {"loss": 0.3, "steps_since": 15, "is_over": True}
    assert headline(lines)[ACCURACY] == pytest.approx((0.7 + 0.8) / 2)
    assert headline_lines(lines) == lines[-2:]


def test_the_headline_of_a_run_without_an_evaluation_is_an_error_that_names_the_option() -> None:
    with pytest.raises(ValueError, match=r"train\.eval_every"):
        headline([])


def test_a_class_without_pseudo_labels_is_warned_about_until_it_gets_some() -> None:
    lines = [line(step, share=(0.7, 0.3, 0.0)) for step in (10, 20, 30)]
    for count in range(1, len(lines) + 1):
        warnings = health_warnings(lines[:count], 200, NAMES, guided=False)  # a tenth of the run is 20 steps
        assert set(warnings) == ({"starved"} if lines[count - 1]["step"] >= 20 else set())
    assert "cat" in warnings["starved"]
    assert "bee" not in warnings["starved"]
    assert "from step 10 to 30" in warnings["starved"]
    assert health_warnings([*lines, line(40)], 200, NAMES, guided=False) == {}


def test_the_warning_recommends_a_guidance_only_to_a_run_without_one() -> None:
    lines = [line(step, share=(0.7, 0.3, 0.0)) for step in (10, 20)]
    alone, guided = (health_warnings(lines, 200, NAMES, guided=guided)["starved"] for guided in (False, True))
    assert "from step 0 to 20" in alone
    assert alone.endswith("try a guidance (--guidance prg or prg_last) or a lower learner.threshold")
    assert guided.endswith("try a lower learner.threshold")


def test_the_warning_recommends_a_lower_threshold_only_to_a_learner_that_has_one() -> None:
    lines = [line(step, share=(0.7, 0.3, 0.0)) for step in (10, 20)]
    for each in lines:
        del each["train"]["mask_rate"]
    assert health_warnings(lines, 200, NAMES, guided=True)["starved"].endswith("try more labels")


def test_a_collapsed_mask_rate_is_warned_about() -> None:
    lines = [line(100), line(110, mask_rate=0.005), line(120, mask_rate=0.002)]
    warnings = health_warnings(lines, 200, NAMES, guided=True)
    assert set(warnings) == {"collapsed"}
    assert "0.20% from step 100 to 120" in warnings["collapsed"]
    one_bad_evaluation = health_warnings(lines[:2], 200, NAMES, guided=True)
    assert one_bad_evaluation == {}


@pytest.mark.parametrize("guided", [False, True])
def test_a_model_that_predicts_one_class_gets_no_advice_about_thresholds_and_guidances(guided: bool) -> None:
    lines = [line(step, mask_rate=0.001, share=(1.0, 0.0, 0.0)) for step in (100, 110, 120)]
    for each in lines:
        each["test"]["recall"] = [0.0, 1.0, 0.0]
    (warning,) = health_warnings(lines, 200, NAMES, guided=guided).values()
    assert warning.startswith("the model predicts bee and hardly any other class from step 100 to 120")
    assert "train.lr" in warning
    assert "threshold" not in warning
    lines[-1]["test"]["recall"] = [0.2, 0.8, 0.0]
    assert set(health_warnings(lines, 200, NAMES, guided=guided)) == {"starved", "collapsed"}


def test_the_warning_names_five_classes_and_the_number_of_others() -> None:
    share = (1.0,) + (0.0,) * 9
    names = [f"c{i}" for i in range(10)]
    text = health_warnings([line(99, share=share), line(100, share=share)], 100, names, guided=True)["starved"]
    assert "c1, c2, c3, c4, c5 and 4 more" in text


def test_a_learner_without_pseudo_labels_has_no_warning() -> None:
    supervised = line(100)
    del supervised["pseudo"], supervised["train"]["mask_rate"]
    assert health_warnings([supervised], 100, NAMES, guided=False) == {}
