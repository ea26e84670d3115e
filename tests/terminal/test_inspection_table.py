from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from mnar.own_data.inspection import ClassFindings, Estimate, Inspection, ProbeFindings
from mnar.own_data.inspection.label_shift import AtRandomTest
from mnar.own_data.inspection.recommend import Recommendation
from mnar.terminal.inspection_table import BAR_WIDTH, MOST_CLASSES, inspection_table, interval_bar, share_bar


def findings(name: str, num_labels: int, labeled_share: float, share: float) -> ClassFindings:
    pool_share = Estimate(share, share - 0.05, share + 0.05)
    return ClassFindings(name, num_labels, labeled_share, pool_share, None, Estimate(12.34, 10.0, 15.0))


INSPECTION = Inspection(
    kind="table",
    num_labeled=100_000,
    num_unlabeled=900_000,
    classes=(findings("yes", 75_000, 0.75, 0.4), findings("no", 25_000, 0.25, 0.6)),
    never_labeled=(),
    probe=ProbeFindings("gradient boosting", 0.9, 0.8),
    at_random=AtRandomTest(0.001, 50.0, "The rows are assumed to be independent."),
    recommendation=Recommendation("pseudo_label", "simpro", "labels are few"),
    cannot_tell=("One share cannot be estimated.",),
    notes=("a file was skipped",),
)


def lines_of(inspection: Inspection) -> list[str]:
    console = Console(width=80, file=StringIO())
    with console.capture() as capture:
        console.print(inspection_table(inspection))
    return capture.get().splitlines()


def text_of(inspection: Inspection) -> str:
    return " ".join(" ".join(lines_of(inspection)).split())


def line_of(name: str, inspection: Inspection) -> str:
    return next(line for line in lines_of(inspection) if line.startswith(name))


def test_counts_shares_interval_and_one_in_n_stand_in_the_row_of_the_class() -> None:
    assert "1,000,000 rows, 100,000 with a label and 900,000 without; 2 classes" in text_of(INSPECTION)
    assert line_of("yes", INSPECTION).split() == [
        *("yes", "75,000", "75.0%", "████████", "40.0%", "35.0–45.0", "████▒", "12.3"),
    ]


def test_names_of_twenty_characters_are_whole_at_eighty_columns() -> None:
    names = ("a" * 20, "B" * 20)
    widest = ClassFindings("", 999_999, 1.0, Estimate(1.0, 0.999, 1.0), None, Estimate(123_456, 1, 1))
    classes = tuple(replace(widest, name=name) for name in names)
    lines = lines_of(replace(INSPECTION, classes=classes))
    assert max(len(line) for line in lines) <= 80
    for name in names:
        row = next(line for line in lines if line.startswith(name))
        full = "█" * BAR_WIDTH
        assert row.split() == [name, "999,999", "100.0%", full, "100.0%", "99.9–100.0", full, "123,456"]


def test_a_longer_name_goes_on_in_the_next_line() -> None:
    lines = lines_of(replace(INSPECTION, classes=(findings("x" * 30, 10, 1.0, 0.9),)))
    assert sum(line.count("x") for line in lines if line.startswith("x")) == 30


def test_a_name_that_looks_like_markup_is_shown_as_it_is() -> None:
    assert line_of("[red]", replace(INSPECTION, classes=(findings("[red]", 10, 1.0, 0.9),)))


@pytest.mark.parametrize(("share", "eighths"), [(0.0, 0), (0.5, 64), (0.25, 32), (1 / 128, 1), (0.15, 19)])
def test_a_bar_is_as_long_as_its_share_to_an_eighth_of_a_block(share: float, eighths: int) -> None:
    bar = share_bar(share, top=0.5)
    partial = {block: size for size, block in enumerate("▏▎▍▌▋▊▉", 1)}
    assert sum(partial.get(block, 8) for block in bar) == eighths


def test_an_interval_is_solid_to_its_low_end_and_shaded_to_its_high_end() -> None:
    assert interval_bar(Estimate(0.5, 0.25, 0.75), top=1.0) == "██▒▒▒▒"
    assert interval_bar(Estimate(0.1, 0.0, 0.3), top=0.3) == "▒" * BAR_WIDTH
    assert interval_bar(Estimate(0.0, 0.0, 0.0), top=0.3) == ""


def test_the_longest_bar_is_full() -> None:
    small = (findings("yes", 10, 0.2, 0.05), findings("no", 10, 0.1, 0.05))
    assert share_bar(0.2, 0.2) == "█" * BAR_WIDTH
    assert line_of("yes", replace(INSPECTION, classes=small)).split()[3] == "█" * BAR_WIDTH


def test_the_second_estimate_is_shown_where_there_is_one() -> None:
    assert "BBSE" not in text_of(INSPECTION)
    classes = (replace(INSPECTION.classes[0], pool_share_bbse=Estimate(0.21, 0.11, 0.31)), INSPECTION.classes[1])
    shown = replace(INSPECTION, classes=classes)
    assert line_of("  by BBSE", shown).split()[2:4] == ["21.0%", "11.0–31.0"]
    assert "EM and BBSE, differ by more than chance" in text_of(shown)


def test_a_class_without_labels_is_never_labelled_and_of_unknown_share() -> None:
    unknown = ClassFindings("emu", 0, 0.0, None, None, None)
    shown = replace(INSPECTION, classes=(*INSPECTION.classes, unknown))
    assert line_of("emu", shown).split() == ["emu", "0", "0.0%", "?", "never"]


def test_the_sentences_say_what_was_found_and_what_to_do() -> None:
    text = text_of(INSPECTION)
    assert "an accuracy of 90.0% and a balanced accuracy of 80.0% (guessing: 50.0%)" in text
    assert "Are labels missing at random? No (p = 0.001). The rows are assumed to be independent." in text
    assert "For one network: --learner pseudo_label --guidance simpro, because labels are few." in text
    assert "One share cannot be estimated." in text
    assert "Note: a file was skipped." in text


def test_a_probe_near_guessing_is_called_weak() -> None:
    assert "can hardly distinguish the classes" not in text_of(INSPECTION)
    weak = replace(INSPECTION, probe=ProbeFindings("gradient boosting", 0.9, 0.55))
    assert "can hardly distinguish the classes" in text_of(weak)


def test_with_many_classes_only_those_whose_shares_differ_most_are_listed() -> None:
    many = [findings(f"class-{i:03}", 10, 0.01, 0.05 + i / 1000) for i in range(MOST_CLASSES + 5)]
    shown = replace(INSPECTION, classes=tuple(many))
    listed = {line.split()[0] for line in lines_of(shown) if line.startswith("class-")}
    assert listed == {c.name for c in many[5:]}
    assert f"Only the {MOST_CLASSES} classes" in text_of(shown)
    assert "inspect.json has all classes" in text_of(shown)
