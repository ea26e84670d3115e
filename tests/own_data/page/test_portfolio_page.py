"""The page of a portfolio: the class mix of the probabilities that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mnar.own_data import portfolio_run
from mnar.own_data.portfolio import Objective
from mnar.own_data.portfolio_run import PortfolioConfig, PortfolioDisplay, new_portfolio_run, read_own_data
from mnar.report import OwnDataPage, ShownSample


def write_table(path: Path) -> Path:
    """Three overlapping clouds. The first class has most of the labels, and the second class most of the pool."""
    rng, lines = np.random.default_rng(1), ["width,height,label"]
    for c, (name, num_labels, num_pool) in enumerate((("left", 60, 60), ("right", 25, 250), ("column", 12, 40))):
        for i, (x, y) in enumerate(rng.normal((c % 2, c // 2), 0.9, (num_labels + num_pool, 2))):
            lines.append(f"{x:.3f},{y:.3f},{name if i < num_labels else ''}")
    path.write_text("\n".join(lines) + "\n")
    return path


def page_of(objective: Objective, folder: Path, monkeypatch: pytest.MonkeyPatch) -> OwnDataPage:
    pages: list[OwnDataPage] = []
    monkeypatch.setattr(portfolio_run, "write_own_data_report", lambda _, page: pages.append(page))
    config = PortfolioConfig(str(write_table(folder / "table.csv")), fast=True, objective=objective)
    new_portfolio_run(config, folder / "run", PortfolioDisplay(), read_own_data(config))
    (page,) = pages
    return page


def shown_probs(sample: ShownSample) -> list[tuple[str, int]]:
    return [(name, int(percent)) for name, percent in re.findall(r"(\w+) \((?:[<>] )?(\d+) %\)", sample.prediction)]


@pytest.mark.parametrize(
    ("objective", "class_mix"),
    [("balanced_accuracy", "as if all classes were equally frequent"), ("accuracy", "estimated class mix of the pool")],
)
def test_the_predicted_class_has_the_largest_of_the_shown_probabilities(
    objective: Objective, class_mix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_of(objective, tmp_path, monkeypatch)
    assert page.about_samples.partition(".")[0].endswith(class_mix)
    assert page.samples
    for group in page.samples:
        for sample in group.contested:
            (first, largest), (_, second) = shown_probs(sample)
            assert first == group.class_name
            assert largest >= second


@pytest.mark.parametrize("objective", ["balanced_accuracy", "accuracy"])
def test_a_sample_to_label_is_contested_between_the_two_classes_that_are_shown(
    objective: Objective, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_of(objective, tmp_path, monkeypatch)
    assert "equally frequent" in page.about_next_samples
    contested = [each for each in page.next_samples if "contested between" in each.reason]
    assert len(contested) >= 3
    for each in contested:
        (first, largest), (other, second) = shown_probs(each.sample)
        assert f"contested between {first} and {other}" in each.reason
        assert second >= largest / 2 - 1, "the rule of a contested row, with rounded numbers"
