"""The table "What PRG changed"."""

from mnar.report import Change, change_headings, changes_in, compared_evaluations
from mnar.run.reader import Run
from tests.report.made_up import ALIGNED, run_with


def pair(plain: list[float], guided: list[float], *, recall: tuple[float, float] = (0.9, 0.75)) -> list[Run]:
    """FixMatch, whose classes have recall 0.9 and 0.5, and FixMatch + PRG, with one run per accuracy."""
    runs = [run_with("fixmatch", "none", accuracy=[value], seed=seed) for seed, value in enumerate(plain)]
    return runs + [
        run_with("fixmatch", "prg", accuracy=[value], geometric_mean=[0.75], recall=recall, seed=seed)
        for seed, value in enumerate(guided)
    ]


def only_change(runs: list[Run]) -> Change:
    (change,) = changes_in(runs)
    return change


def test_a_row_has_both_methods_their_seeds_each_headline_metric_and_the_recalls() -> None:
    change = only_change(pair([0.70], [0.80]))
    assert dict(zip(change_headings(), change.cells, strict=True)) == {
        "with PRG": "fixmatch + prg",
        "without": "fixmatch",
        "seeds": "1",
        "accuracy, %": "70.0 → 80.0 (+10.0)",
        "geometric mean, %": "70.0 → 75.0 (+5.0)",
        "recall per class": "dog +25.0, no class loses",
    }
    assert change.setting == "cadr γ=20"


def test_a_loss_is_shown_like_a_gain() -> None:
    change = only_change(pair([0.75], [0.70], recall=(0.8, 0.5)))
    assert change.scores == ("75.0 → 70.0 (−5.0)", "75.0 → 75.0 (+0.0)")
    assert change.recalls == "no class gains, cat −10.0"


def test_the_recalls_name_the_class_that_gains_most_and_the_class_that_loses_most() -> None:
    assert only_change(pair([0.75], [0.70], recall=(0.8, 0.6))).recalls == "dog +10.0, cat −10.0"
    assert only_change(pair([0.75], [0.70], recall=(0.9004, 0.4996))).recalls == "no class gains, no class loses"


def test_a_change_smaller_than_the_deviation_between_seeds_is_marked() -> None:
    assert only_change(pair([0.60, 0.70], [0.61, 0.71])).scores[0] == "65.0 → 66.0 (+1.0, within the spread)"
    assert only_change(pair([0.60, 0.61], [0.70, 0.71])).scores[0] == "60.5 → 70.5 (+10.0)"


def test_methods_are_compared_on_the_seeds_that_both_have() -> None:
    runs = pair([0.70, 0.60, 0.20], [0.80, 0.82])
    both, one = only_change(runs), only_change(runs[1:])
    assert (both.num_seeds, both.scores[0]) == (2, "65.0 → 81.0 (+16.0)")
    assert (one.num_seeds, one.scores[0]) == (1, "60.0 → 82.0 (+22.0)")
    assert changes_in([*runs[:1], *runs[4:]]) == [], "no seed in common"


def test_methods_that_have_not_reached_the_same_step_are_not_compared() -> None:
    runs = pair([0.70, 0.60], [0.80, 0.10])
    runs[3].lines[-1]["step"] = 4
    finished = only_change(runs)
    assert (finished.guided, finished.num_seeds) == ("fixmatch + prg", 1), "the finished pair only"
    assert finished.scores[0] == "70.0 → 80.0 (+10.0)"
    runs[2].lines[-1]["step"] = 4
    assert changes_in(runs) == []
    for run in runs:
        run.lines[-1]["step"] = 4
    unfinished = only_change(runs)
    assert unfinished.guided == "fixmatch + prg, at step 4 of 10"
    assert unfinished.scores[0] == "65.0 → 45.0 (−20.0, within the spread)"


def test_short_runs_are_compared_by_their_last_evaluation() -> None:
    runs = [
        run_with("fixmatch", guidance, accuracy=[0.1] * (evaluations - 1) + [last])
        for evaluations in (30, 100)
        for guidance, last in (("none", 0.6), ("prg", 0.8))
    ]
    for run in runs[1::2]:
        run.lines[-1]["test"]["recall"] = [0.9, 0.7]
    short, long = only_change(runs[:2]), only_change(runs[2:])
    assert short.is_final_only
    assert short.scores == ("60.0 → 80.0 (+20.0)",) * 2
    assert short.recalls == "dog +20.0, no class loses"
    assert not long.is_final_only
    assert long.scores == ("10.0 → 10.0 (+0.0)",) * 2, "the median of the last evaluations"
    for run in runs[:2]:
        run.config["train"]["iterations"] = 3000
    unfinished = only_change(runs[:2])
    assert (unfinished.guided, unfinished.scores[0]) == ("fixmatch + prg, at step 300 of 3,000", "60.0 → 80.0 (+20.0)")


def test_the_compared_evaluations_are_named() -> None:
    median = only_change(pair([0.7], [0.8]))
    last = median._replace(is_final_only=True)
    assert compared_evaluations([median]) == "the median of the last evaluations"
    assert compared_evaluations([last, last]) == "the last evaluation"
    assert compared_evaluations([last, median]).startswith("the last evaluation of short runs, the median of")


def test_a_run_that_stopped_early_is_compared_as_a_finished_one() -> None:
    plain, guided = pair([0.70], [0.80])
    guided.lines[-1] |= {"step": 4, "validation": {"is_over": True, "steps_since": 2}}
    assert only_change([plain, guided]).scores[0] == "70.0 → 80.0 (+10.0)"


def test_each_variant_of_prg_has_a_row() -> None:
    runs = [run_with("fixmatch", name, accuracy=[0.5]) for name in ("none", "prg", "prg_last")]
    compared = [(change.guided, change.plain) for change in changes_in(runs)]
    assert compared == [("fixmatch + prg", "fixmatch"), ("fixmatch + prg_last", "fixmatch")]


def test_each_setting_has_its_own_rows() -> None:
    runs = [*pair([0.70], [0.80]), *pair([0.60], [0.65])]
    for run in runs[2:]:
        run.config["protocol"]["gamma"] = 50.0
    assert [(change.setting, change.scores[0]) for change in changes_in(runs)] == [
        ("cadr γ=20", "70.0 → 80.0 (+10.0)"),
        ("cadr γ=50", "60.0 → 65.0 (+5.0)"),
    ]


def test_prg_is_compared_with_the_guidance_that_the_learner_has_anyway() -> None:
    plain = run_with("simmatch", "distribution_alignment", accuracy=[0.70])
    chained = run_with("simmatch", "prg", accuracy=[0.80], preceded_by=ALIGNED)
    change = only_change([plain, chained])
    assert (change.guided, change.plain) == ("simmatch + prg", "simmatch")

    without, prg_alone = run_with("simmatch", "none", accuracy=[0.6]), run_with("simmatch", "prg", accuracy=[0.65])
    change = only_change([without, prg_alone])
    name = "simmatch without distribution_alignment"
    assert (change.guided, change.plain) == (f"{name} + prg", name)
    assert changes_in([plain, prg_alone]) == changes_in([without, chained]) == [], "the alignment differs, too"
    chained.config["guidance"]["preceded_by"] = {**ALIGNED, "window": 64}
    assert changes_in([plain, chained]) == [], "the window of the alignment differs, too"


def test_a_learner_with_tracking_counts_as_a_learner_without_guidance() -> None:
    plain, guided = pair([0.70], [0.80])
    tracked = run_with("fixmatch", "tracking", accuracy=[0.70], seed=0)
    change = only_change([tracked, guided])
    assert (change.plain, change.scores[0]) == ("fixmatch + tracking", "70.0 → 80.0 (+10.0)")
    assert changes_in([tracked, plain, guided]) == changes_in([plain, guided]), "one comparison is enough"
    assert changes_in([plain, tracked]) == []


def test_vime_has_another_loss_with_a_guidance_unless_it_is_set() -> None:
    plain, guided = pair([0.70], [0.80])
    for consistency, num_rows in (("auto", 0), ("ce", 1)):
        for run in (plain, guided):
            run.config["learner"] = {"name": "vime", "consistency": consistency}
        assert len(changes_in([plain, guided])) == num_rows


def test_there_is_no_row_without_a_pair_that_differs_in_prg_only() -> None:
    plain, guided = pair([0.70], [0.80])
    supervised = run_with("supervised", "none", accuracy=[0.6], seed=0)
    assert changes_in([plain]) == changes_in([guided]) == changes_in([supervised, guided]) == []
    guided.config["protocol"]["gamma"] = 50.0
    assert changes_in([plain, guided]) == []
