from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mnar.training import evaluation

NAMES = ("ant", "bee", "cat")


Line = dict[str, Any]


def line(step: int, share: tuple[float, ...] = (0.5, 0.3, 0.2), mask_rate: float = 0.6, **test: float) -> Line:
    """A line of metrics.jsonl, as far as it is read here."""
    return {
        "step": step,
        "test": {"accuracy": 0.5, "geometric_mean": 0.4, **test},
        "train": {"loss": 1.0, "mask_rate": mask_rate},
        "pseudo": {"share": list(share)},
    }


def test_confusion_scores_equal_those_computed_by_hand() -> None:
    scores = evaluation.confusion_scores(torch.tensor([[6.0, 2.0, 2.0], [1.0, 4.0, 0.0], [0.0, 1.0, 4.0]]))
    assert scores["accuracy"] == pytest.approx(14 / 20)
    assert scores["recall"] == pytest.approx([6 / 10, 4 / 5, 4 / 5])
    assert scores["precision"] == pytest.approx([6 / 7, 4 / 7, 4 / 6])
    assert scores["predicted_share"] == pytest.approx([7 / 20, 7 / 20, 6 / 20])
    assert scores["geometric_mean"] == pytest.approx((0.6 * 0.8 * 0.8) ** (1 / 3))


def test_a_class_never_predicted_has_precision_zero_and_makes_the_geometric_mean_zero() -> None:
    scores = evaluation.confusion_scores(torch.tensor([[5.0, 0.0], [5.0, 0.0]]))
    assert scores["precision"] == [0.5, 0.0]
    assert scores["recall"] == [1.0, 0.0]
    assert scores["geometric_mean"] == 0.0


def test_a_class_without_test_samples_is_left_out_of_the_geometric_mean_and_of_nothing_else() -> None:
    absent = torch.tensor([[6.0, 2.0, 2.0], [1.0, 4.0, 0.0], [0.0, 0.0, 0.0]])
    scores = evaluation.confusion_scores(absent)
    assert scores["geometric_mean"] == pytest.approx((0.6 * 0.8) ** (1 / 2))
    assert scores["accuracy"] == pytest.approx(10 / 15)
    assert scores["recall"] == pytest.approx([0.6, 0.8, 0])
    assert scores["precision"] == pytest.approx([6 / 7, 4 / 6, 0])
    assert scores["predicted_share"] == pytest.approx([7 / 15, 6 / 15, 2 / 15])


def test_geometric_mean_of_many_small_recalls_does_not_vanish() -> None:
    assert evaluation.geometric_mean([1e-3] * 1000) == pytest.approx(1e-3)


def test_calibration_error_equals_the_sum_over_bins() -> None:
    torch.manual_seed(0)
    confidence = torch.cat([torch.rand(500), torch.tensor([0.0, 1.0, 1.0, 0.2, 0.4])])
    correct = torch.rand(505) < 0.5  # too modest below one half, too sure above
    expected = 0.0
    for b in range(15):
        low, high = b / 15, (b + 1) / 15
        inside = [i for i, c in enumerate(confidence.tolist()) if low <= c < high or (b == 14 and c == 1)]
        if inside:
            accuracy = sum(correct[i].item() for i in inside) / len(inside)
            mean = sum(confidence[i].item() for i in inside) / len(inside)
            expected += len(inside) / 505 * abs(accuracy - mean)
    assert evaluation.calibration_error(confidence, correct).item() == pytest.approx(expected, abs=1e-6)
    assert expected > 0.05


def test_calibration_error_of_certain_and_right_predictions_is_zero() -> None:
    assert evaluation.calibration_error(torch.ones(10), torch.ones(10, dtype=torch.bool)).item() == 0


class Says(nn.Module):
    """Reads its logits off its input; wrong in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        return -x if self.training else x


@pytest.mark.parametrize("training", [False, True])
def test_scores_are_those_of_every_image_once_in_the_mode_the_model_is_in(training: bool) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(2500, 4), torch.randint(4, (2500,))  # more than two chunks
    model = Says().train(training)
    scores, confusion = evaluation.scores_on(model, logits - 7, targets, lambda x: x + 7, num_classes=4)
    logits = -logits if training else logits
    predicted = logits.argmax(1)
    counts = [[int(((targets == t) & (predicted == p)).sum()) for p in range(4)] for t in range(4)]
    assert confusion.tolist() == counts
    assert scores["accuracy"] == pytest.approx((predicted == targets).double().mean().item())
    confidence = logits.softmax(1).max(1).values
    calibration = evaluation.calibration_error(confidence, predicted == targets).item()
    assert scores["calibration_error"] == pytest.approx(calibration, abs=1e-6)
    assert model.training == training, "the mode is the caller's business"


def test_scores_of_a_model_that_overflows_are_numbers_not_a_crash() -> None:
    logits = torch.full((10, 3), math.inf)  # softmax: not a number
    scores, confusion = evaluation.scores_on(
        Says().eval(), logits, torch.zeros(10, dtype=torch.int64), lambda x: x, num_classes=3
    )
    assert confusion.sum() == 10
    assert 0 <= scores["accuracy"] <= 1


def test_pseudo_label_scores_equal_those_computed_by_hand() -> None:
    # rows: true class; columns: pseudo-label, and none
    confusion = torch.tensor([[6.0, 2.0, 0.0, 9.0], [1.0, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 4.0]])
    scores = evaluation.pseudo_label_scores(confusion)
    assert scores["accepted"] == 12
    assert scores["share"] == pytest.approx([7 / 12, 5 / 12, 0])
    assert scores["error"] == [pytest.approx(2 / 8), pytest.approx(1 / 4), None]
    assert scores["precision"] == [pytest.approx(6 / 7), pytest.approx(3 / 5), None]


def test_pseudo_labels_of_unknown_truth_count_for_the_shares_alone() -> None:
    # a row beyond the classes: nobody knows what they are
    confusion = torch.tensor([[6.0, 2.0, 9.0], [0.0, 0.0, 1.0], [1.0, 7.0, 5.0]])
    scores = evaluation.pseudo_label_scores(confusion)
    assert scores["accepted"] == 16
    assert scores["share"] == pytest.approx([7 / 16, 9 / 16])
    assert scores["error"] == [pytest.approx(2 / 8), None]
    assert scores["precision"] == [1, 0]

    all_unknown = evaluation.pseudo_label_scores(confusion * torch.tensor([[0.0], [0.0], [1.0]]))
    assert all_unknown == {"accepted": 8, "share": [1 / 8, 7 / 8], "error": [None, None], "precision": [None, None]}


def test_pairs_are_counted_whole_and_on_top_of_what_was_counted_before() -> None:
    rows, columns = torch.tensor([0, 1, 1, 1]), torch.tensor([2, 0, 0, 1])
    once = torch.tensor([[0, 0, 1], [2, 1, 0]])
    assert evaluation.count_pairs(rows, columns, 2, 3).equal(once)
    counts = torch.full((2, 3), 2**24)  # from here on, one more is nothing in float32
    evaluation.add_pairs(counts, rows, columns)
    assert counts.equal(once + 2**24)


def test_pseudo_label_scores_of_nothing_accepted_divide_by_nothing() -> None:
    scores = evaluation.pseudo_label_scores(torch.tensor([[0.0, 0.0, 5.0], [0.0, 0.0, 5.0]]))
    assert scores == {"accepted": 0, "share": [0.0, 0.0], "error": [None, None], "precision": [None, None]}


def test_headline_takes_medians_of_the_last_20_and_names_final_and_best() -> None:
    accuracies = [0.99] + [0.5] * 4 + [0.60 + 0.01 * i for i in range(20)]
    lines = [line(10 * i, accuracy=a, geometric_mean=a / 2) for i, a in enumerate(accuracies, start=1)]
    assert evaluation.headline(lines) == evaluation.Headline(
        accuracy_median_last_20=pytest.approx((0.69 + 0.70) / 2),
        accuracy_final=pytest.approx(0.79),
        accuracy_best_on_test=0.99,
        geometric_mean=pytest.approx((0.345 + 0.350) / 2),
    )
    assert evaluation.headline_lines(lines) == lines[-20:]


def test_headline_is_of_the_last_generation_alone() -> None:
    lines = [line(10 * i, accuracy=0.9 - 0.01 * i, geometric_mean=0.5) | {"generation": i // 5} for i in range(1, 13)]
    headline = evaluation.headline(lines)
    assert headline.accuracy_median_last_20 == pytest.approx(0.79)
    assert headline.accuracy_best_on_test == pytest.approx(0.80)
    assert evaluation.headline_lines(lines) == lines[-3:]


def test_headline_is_of_the_model_that_an_early_stop_kept() -> None:
    lines = [line(10 * i, accuracy=0.1 * i, geometric_mean=0.5) for i in range(1, 9)]
    lines[-1]["validation"] = {"loss": 0.3, "steps_since": 15, "is_over": True}
    assert evaluation.headline(lines).accuracy_median_last_20 == pytest.approx((0.7 + 0.8) / 2)
    assert evaluation.headline_lines(lines) == lines[-2:]


def test_headline_of_a_run_without_evaluation_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"train\.eval_every"):
        evaluation.headline([])


def test_health_warnings_come_when_a_class_starves_and_go_when_it_is_fed_again() -> None:
    lines = [line(step, share=(0.7, 0.3, 0.0)) for step in (10, 20, 30)]
    for count in range(1, len(lines) + 1):
        warnings = evaluation.health_warnings(lines[:count], 200, NAMES, guided=False)  # a tenth of it is 20 steps
        assert set(warnings) == ({"starved"} if lines[count - 1]["step"] >= 20 else set())
    assert "cat" in warnings["starved"]
    assert "bee" not in warnings["starved"]
    assert "from step 10 to 30" in warnings["starved"]
    assert evaluation.health_warnings([*lines, line(40)], 200, NAMES, guided=False) == {}


def test_a_guidance_is_a_remedy_only_for_those_who_have_none() -> None:
    lines = [line(step, share=(0.7, 0.3, 0.0)) for step in (10, 20)]
    alone, guided = (
        evaluation.health_warnings(lines, 200, NAMES, guided=guided)["starved"] for guided in (False, True)
    )
    assert "from step 0 to 20" in alone
    assert alone.endswith("try a guidance (--guidance prg or prg_last) or a lower learner.threshold")
    assert guided.endswith("try a lower learner.threshold")


def test_a_lower_threshold_is_a_remedy_only_where_there_is_one() -> None:
    lines = [line(step, share=(0.7, 0.3, 0.0)) for step in (10, 20)]
    for each in lines:
        del each["train"]["mask_rate"]
    assert evaluation.health_warnings(lines, 200, NAMES, guided=True)["starved"].endswith("try more labels")


def test_health_warnings_come_when_the_mask_rate_collapses() -> None:
    lines = [line(100), line(110, mask_rate=0.005), line(120, mask_rate=0.002)]
    warnings = evaluation.health_warnings(lines, 200, NAMES, guided=True)
    assert set(warnings) == {"collapsed"}
    assert "0.20% from step 100 to 120" in warnings["collapsed"]
    one_bad_evaluation = evaluation.health_warnings(lines[:2], 200, NAMES, guided=True)
    assert one_bad_evaluation == {}


def test_health_warning_of_many_starved_classes_names_five_and_counts_the_rest() -> None:
    share = (1.0,) + (0.0,) * 9
    names = [f"c{i}" for i in range(10)]
    text = evaluation.health_warnings([line(99, share=share), line(100, share=share)], 100, names, guided=True)[
        "starved"
    ]
    assert "c1, c2, c3, c4, c5 and 4 more" in text


def test_a_learner_without_pseudo_labels_is_healthy() -> None:
    supervised = line(100)
    del supervised["pseudo"], supervised["train"]["mask_rate"]
    assert evaluation.health_warnings([supervised], 100, NAMES, guided=False) == {}
