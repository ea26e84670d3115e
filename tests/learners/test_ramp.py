import pytest
import torch

from mnar.guidances import NoGuidance
from mnar.learners import PiModel
from mnar.learners.ramp import linear_ramp
from mnar.types import Task

TASK = Task(num_classes=3, num_unlabeled=10)


@pytest.mark.parametrize("length", [1 / 64, 0.4, 1.0])
def test_the_ramp_equals_min_of_1_and_progress_over_length(length: float) -> None:
    for done in [0.0, length / 4, length / 2, length, (1 + length) / 2, 1.0]:
        weight = linear_ramp(torch.tensor(done), length)
        assert weight.shape == ()
        assert weight.item() == pytest.approx(min(1.0, done / length))


@pytest.mark.parametrize("length", [0.0, -0.1, 1.5, float("nan"), float("inf")])
def test_a_length_that_is_no_share_of_training_is_refused_with_the_range(length: float) -> None:
    with pytest.raises(ValueError, match=rf"ramp is {length}; expected a number from 1e-06 to 1, e\.g\. 0\.4"):
        PiModel(TASK, NoGuidance(TASK), ramp=length)
