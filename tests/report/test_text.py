from mnar.report import what_changed
from mnar.run.reader import Run
from tests.report.made_up import run_with


def pair(plain: list[float], guided: list[float], *, recall: tuple[float, float] = (0.9, 0.75)) -> list[Run]:
    """FixMatch, whose classes have recall 0.9 and 0.5, and FixMatch + PRG, a run for each accuracy."""
    runs = [run_with("fixmatch", "none", accuracy=[value], seed=seed) for seed, value in enumerate(plain)]
    return runs + [
        run_with("fixmatch", "prg", accuracy=[value], geometric_mean=[0.75], recall=recall, seed=seed)
        for seed, value in enumerate(guided)
    ]


def test_a_gain_is_told_with_its_numbers_and_the_class_that_gained_most() -> None:
    assert what_changed(pair([0.70], [0.80])) == (
        "Against fixmatch, fixmatch + prg in one seed raised test accuracy from 70.0 to 80.0 % (+10.0 points) "
        "and the geometric mean from 70.0 to 75.0 % (+5.0 points), class dog gaining most recall (+25.0 points)."
    )


def test_a_loss_is_told_as_plainly() -> None:
    said = what_changed(pair([0.75], [0.70], recall=(0.8, 0.5)))
    assert "lowered test accuracy from 75.0 to 70.0 % (−5.0 points) and left the geometric mean at 75.0 %" in said
    assert "no class gaining recall and class cat losing most (−10.0 points)" in said


def test_a_change_smaller_than_the_deviation_between_seeds_says_so() -> None:
    assert "(+1.0 points, within the seeds' spread)" in what_changed(pair([0.60, 0.70], [0.61, 0.71]))
    assert "spread" not in what_changed(pair([0.60, 0.61], [0.70, 0.71]))


def test_methods_are_compared_over_the_seeds_that_both_have() -> None:
    runs = pair([0.70, 0.60, 0.20], [0.80, 0.82])
    assert "fixmatch + prg in the 2 seeds of both raised test accuracy from 65.0 to 81.0 %" in what_changed(runs)
    assert "fixmatch + prg in one seed raised test accuracy from 60.0 to 82.0 %" in what_changed(runs[1:])
    assert what_changed([*runs[:1], *runs[4:]]) == "", "no seed in common"
    assert "seed" not in what_changed(pair([0.60, 0.61], [0.70, 0.71]))


def test_methods_that_have_not_reached_the_same_step_are_not_compared() -> None:
    runs = pair([0.70, 0.60], [0.80, 0.10])
    runs[3].lines[-1]["step"] = 4
    assert "in one seed raised test accuracy from 70.0 to 80.0 %" in what_changed(runs), "the finished pair alone"
    runs[2].lines[-1]["step"] = 4
    assert what_changed(runs) == ""
    for run in runs:
        run.lines[-1]["step"] = 4
    assert "fixmatch + prg at step 4 of 10 lowered test accuracy from 65.0 to 45.0 %" in what_changed(runs)


def test_of_short_runs_the_last_evaluation_alone_is_told_and_called_final() -> None:
    runs = [
        run_with("fixmatch", guidance, accuracy=[0.1] * (evaluations - 1) + [last])
        for evaluations in (30, 100)
        for guidance, last in (("none", 0.6), ("prg", 0.8))
    ]
    for run in runs[1::2]:
        run.lines[-1]["test"]["recall"] = [0.9, 0.7]
    said = what_changed(runs[:2])
    assert (
        "raised final test accuracy from 60.0 to 80.0 % (+20.0 points) and the final geometric mean from 60.0" in said
    )
    assert "class dog gaining most recall (+20.0 points)" in said
    assert "left test accuracy at 10.0 %" in what_changed(runs[2:]), "the median of the last evaluations"
    for run in runs[:2]:
        run.config["train"]["iterations"] = 3000
    assert "at step 300 of 3,000 raised latest test accuracy from 60.0 to 80.0 %" in what_changed(runs[:2])


def test_a_run_that_stopped_early_is_compared_as_a_finished_one() -> None:
    plain, guided = pair([0.70], [0.80])
    guided.lines[-1] |= {"step": 4, "validation": {"is_over": True, "steps_since": 2}}
    assert "raised test accuracy from 70.0 to 80.0 %" in what_changed([plain, guided])


def test_both_variants_stand_in_one_sentence() -> None:
    runs = [run_with("fixmatch", name, accuracy=[0.5]) for name in ("none", "prg", "prg_last")]
    said = what_changed(runs)
    assert "fixmatch + prg in one seed left" in said
    assert "; fixmatch + prg_last in one seed left" in said
    assert said.count("Against") == 1


def test_what_prg_adds_to_a_guidance_that_the_learner_has_is_told() -> None:
    aligned = {"name": "distribution_alignment", "window": 32}
    plain = run_with("simmatch", "distribution_alignment", accuracy=[0.70])
    chained = run_with("simmatch", "prg", accuracy=[0.80], after=aligned)
    assert what_changed([plain, chained]).startswith("Against simmatch, simmatch + prg in one seed raised")

    without, prg_alone = run_with("simmatch", "none", accuracy=[0.6]), run_with("simmatch", "prg", accuracy=[0.65])
    assert what_changed([without, prg_alone]).startswith(
        "Against simmatch without distribution_alignment, simmatch without distribution_alignment + prg in one seed"
    )
    assert what_changed([plain, prg_alone]) == what_changed([without, chained]) == "", "the alignment differs too"
    chained.config["guidance"]["preceded_by"] = {**aligned, "window": 64}
    assert what_changed([plain, chained]) == "", "its window differs too"


def test_a_learner_that_is_only_tracked_is_compared_with_as_one_without_guidance() -> None:
    plain, guided = pair([0.70], [0.80])
    tracked = run_with("fixmatch", "tracking", accuracy=[0.70], seed=0)
    assert what_changed([tracked, guided]).startswith(
        "Against fixmatch + tracking, fixmatch + prg in one seed raised test accuracy from 70.0 to 80.0 %"
    )
    assert what_changed([tracked, plain, guided]) == what_changed([plain, guided]), "once is enough"
    assert what_changed([plain, tracked]) == ""


def test_nothing_is_said_without_a_pair_that_differs_in_the_guidance_alone() -> None:
    plain, guided = pair([0.70], [0.80])
    supervised = run_with("supervised", "none", accuracy=[0.6], seed=0)
    assert what_changed([plain]) == what_changed([guided]) == what_changed([supervised, guided]) == ""
    guided.config["protocol"]["gamma"] = 50.0
    assert what_changed([plain, guided]) == ""
