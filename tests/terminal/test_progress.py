"""The progress of a run on the terminal and in a file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mnar.config import RunConfig
from mnar.terminal.progress import MOST_BARS, TerminalDisplay, health_line, sparkline

Configure = Callable[..., RunConfig]
LINE: dict[str, Any] = {"step": 10, "test": {"accuracy": 0.5, "geometric_mean": 0.25}, "train": {"loss": 1.0}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    counts = {part: [4, 4] for part in ("labeled", "unlabeled", "test")}
    split = {"dataset": "digits", "class_names": ["cat", "dog"], "hash": "c0ffee", **counts}
    (tmp_path / "split.json").write_text(json.dumps(split))
    return tmp_path


def shown(folder: Path, config: RunConfig, *, first_step: int = 0, is_terminal: bool = False) -> str:
    """The output of a display that is told about one evaluation, a note and a warning."""
    console = Console(file=io.StringIO(), width=100, force_terminal=is_terminal, color_system=None)
    with TerminalDisplay(console) as display:
        display.started(config, folder, first_step)
        display.stepped(9)
        display.progress(10, 1234.5, {"loss": 1.0, "mask_rate": 0.4}, [0.25, 0.75])
        display.evaluation(LINE)
        display.note("generation 2 of [3] begins")
        display.warning("no pseudo-label for [cat]")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_file_gets_one_line_per_evaluation(folder: Path, tiny: Configure) -> None:
    assert shown(folder, tiny()).splitlines() == [
        "fixmatch + prg on digits, seed 1: 40 steps",
        "step 10/40  test accuracy 50.00%  geometric mean 25.00%  1,234 img/s  "
        "loss 1.000 · mask 40% · pseudo-labels per class ▃█",
        "generation 2 of [3] begins",
        "warning: no pseudo-label for [cat]",
    ]


def test_a_resumed_run_is_shown_with_its_first_step(folder: Path, tiny: Configure) -> None:
    first, *_ = shown(folder, tiny(), first_step=8).splitlines()
    assert first == "fixmatch + prg on digits, seed 1: 40 steps, from step 8"


def test_a_terminal_gets_a_progress_bar_with_the_speed_and_the_last_accuracy(folder: Path, tiny: Configure) -> None:
    output = shown(folder, tiny(), is_terminal=True)
    assert "step 10/40" not in output, "the line per evaluation is for files"
    for part in ("9/40", "1,234 img/s", "test accuracy 50.00%", "loss 1.000", "warning: no pseudo-label for [cat]"):
        assert part in output


def test_the_health_line_has_the_values_that_the_learner_and_the_guidance_log() -> None:
    assert health_line({"loss": 2.0}, []) == "loss 2.000"
    logged = {"loss": 0.1234, "mask_rate": 0.5, "guidance/transitions": 1234.0, "guidance/empty_row_share": 0.256}
    assert health_line(logged, [1.0, 0.0]) == (
        "loss 0.123 · mask 50% · pseudo-labels per class █· · transitions 1,234 · empty rows 26%"
    )


def test_a_sparkline_has_one_bar_per_class_or_the_number_of_classes_with_pseudo_labels() -> None:
    assert sparkline([0.0, 0.01, 0.5, 1.0]) == "·▁▅█"
    assert sparkline([0.0, 0.0]) == "··"
    assert len(sparkline([0.5] * MOST_BARS)) == MOST_BARS
    assert sparkline([0.5] * MOST_BARS + [0.0]) == f"{MOST_BARS} of {MOST_BARS + 1} classes"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12 * 60, "about 12 minutes on this machine; --minutes 6 for a shorter run"),
        (44, "about 40 seconds on this machine"),
        (3, "about 10 seconds on this machine"),
        (3 * 3600, "about 3.0 hours on this machine; --minutes 90 for a shorter run"),
    ],
)
def test_an_estimate_is_shown_in_words_and_a_long_run_can_be_shortened(seconds: float, text: str) -> None:
    out = io.StringIO()
    TerminalDisplay(Console(file=out, width=200)).estimate(seconds)
    assert out.getvalue() == f"{text}\n"
