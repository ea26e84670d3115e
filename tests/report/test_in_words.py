"""The numbers of figures as text, and marks that differ without colour."""

from __future__ import annotations

import re

from matplotlib.lines import Line2D

from mnar.report import by_setting, in_words
from mnar.report.curves import learning_curves
from mnar.report.html import OVERVIEWS, PLATES
from tests.report.made_up import run_with

RUNS = [
    run_with("fixmatch", "none", accuracy=[0.4, 0.5], recall=(0.8, 0.25)),
    run_with("fixmatch", "prg", accuracy=[0.6, 0.75], recall=(1.0, 0.5)),
]


def test_the_text_of_the_learning_curves_has_the_headline_scores() -> None:
    text = in_words.scores(by_setting(RUNS)[0].methods)
    assert re.search(r"fixmatch: accuracy 45\.0 %.*fixmatch \+ prg: accuracy 67\.5 %", text), (
        "medians of two evaluations"
    )


def test_the_text_of_the_label_counts_has_every_class() -> None:
    (setting,) = by_setting(RUNS)
    labels = setting.run.split["labeled"]
    assert in_words.label_counts([setting]).endswith(f": cat {labels[0]}, dog {labels[1]}.")


def test_the_text_of_the_recalls_has_every_tested_class_of_every_method() -> None:
    text = in_words.recalls(by_setting(RUNS)[0].methods)
    assert text == "fixmatch: cat 80 %, dog 25 %. fixmatch + prg: cat 100 %, dog 50 %."


def test_curves_of_methods_differ_in_their_markers() -> None:
    methods = by_setting(RUNS)[0].methods
    lines = [line for line in learning_curves(methods).axes[0].lines if line.get_linewidth() == 2]
    markers = [line.get_marker() for line in lines if isinstance(line, Line2D)]
    assert len(markers) == len({*markers}) == len(methods)


def test_figures_with_few_numbers_have_them_as_text() -> None:
    with_numbers = {plate.title for plate in (*OVERVIEWS, *PLATES) if plate.in_words.__module__ == in_words.__name__}
    assert with_numbers == {"Labelled and unlabelled samples", "Learning curves", "Recall per class"}
