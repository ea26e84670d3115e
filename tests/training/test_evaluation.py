from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from mnar.training import evaluation
from mnar.training.metrics import all_scores


class Identity(nn.Module):
    """Returns its input as logits in evaluation mode, and the negative input in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        return -x if self.training else x


@pytest.mark.parametrize("training", [False, True])
def test_predictions_contain_every_sample_once_in_the_mode_that_the_model_is_in(training: bool) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(2500, 4), torch.randint(4, (2500,))  # more than two batches
    model = Identity().train(training)
    predictions = evaluation.predictions_on(model, logits - 7, targets, lambda x: x + 7, num_classes=4)
    logits = -logits if training else logits
    predicted = logits.argmax(1)
    counts = [[int(((targets == t) & (predicted == p)).sum()) for p in range(4)] for t in range(4)]
    assert predictions.confusion.tolist() == counts
    assert predictions.confusion.dtype == torch.float64
    torch.testing.assert_close(predictions.probs, logits.softmax(1))
    assert predictions.targets.equal(targets)
    assert model.training == training, "the caller chooses the mode"


def test_predictions_have_float32_probabilities_without_gradient() -> None:
    model = nn.Linear(3, 3).bfloat16()
    predictions = evaluation.predictions_on(
        model, torch.randn(10, 3), torch.zeros(10, dtype=torch.int64), lambda x: x.bfloat16(), num_classes=3
    )
    assert predictions.probs.dtype == torch.float32
    assert not predictions.probs.requires_grad


def test_a_model_that_overflows_has_scores_instead_of_an_error() -> None:
    logits = torch.full((10, 3), math.inf)  # the softmax of each row is not a number
    predictions = evaluation.predictions_on(
        Identity().eval(), logits, torch.zeros(10, dtype=torch.int64), lambda x: x, num_classes=3
    )
    assert predictions.confusion.sum() == 10
    assert 0 <= all_scores(predictions)["accuracy"] <= 1


def test_pseudo_label_scores_equal_those_computed_by_hand() -> None:
    # Rows are true classes and columns pseudo-labels; the last column counts rejected pseudo-labels.
    confusion = torch.tensor([[6.0, 2.0, 0.0, 9.0], [1.0, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 4.0]])
    scores = evaluation.pseudo_label_scores(confusion)
    assert scores["accepted"] == 12
    assert scores["share"] == pytest.approx([7 / 12, 5 / 12, 0])
    assert scores["error"] == [pytest.approx(2 / 8), pytest.approx(1 / 4), None]
    assert scores["precision"] == [pytest.approx(6 / 7), pytest.approx(3 / 5), None]


def test_pseudo_labels_of_samples_with_unknown_class_contribute_to_the_shares_only() -> None:
    # The row after the classes counts the samples whose true class is unknown.
    confusion = torch.tensor([[6.0, 2.0, 9.0], [0.0, 0.0, 1.0], [1.0, 7.0, 5.0]])
    scores = evaluation.pseudo_label_scores(confusion)
    assert scores["accepted"] == 16
    assert scores["share"] == pytest.approx([7 / 16, 9 / 16])
    assert scores["error"] == [pytest.approx(2 / 8), None]
    assert scores["precision"] == [1, 0]

    all_unknown = evaluation.pseudo_label_scores(confusion * torch.tensor([[0.0], [0.0], [1.0]]))
    assert all_unknown == {"accepted": 8, "share": [1 / 8, 7 / 8], "error": [None, None], "precision": [None, None]}


def test_pairs_are_added_as_integers_to_the_earlier_counts() -> None:
    rows, columns = torch.tensor([0, 1, 1, 1]), torch.tensor([2, 0, 0, 1])
    once = torch.tensor([[0, 0, 1], [2, 1, 0]])
    assert evaluation.count_pairs(rows, columns, 2, 3).equal(once)
    counts = torch.full((2, 3), 2**24)  # float32 cannot add one to this number
    evaluation.add_pairs(counts, rows, columns)
    assert counts.equal(once + 2**24)


def test_pseudo_label_scores_without_an_accepted_label_are_zero_or_unknown() -> None:
    scores = evaluation.pseudo_label_scores(torch.tensor([[0.0, 0.0, 5.0], [0.0, 0.0, 5.0]]))
    assert scores == {"accepted": 0, "share": [0.0, 0.0], "error": [None, None], "precision": [None, None]}
