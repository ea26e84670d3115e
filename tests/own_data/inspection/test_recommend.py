import pytest
import torch

from mnar.guidances import GUIDANCES
from mnar.learners import LEARNERS
from mnar.own_data.inspection.recommend import LEARNER_FOR, Kind, recommend
from mnar.types import Task

EVEN, SKEWED = (0.5, 0.5), (0.1, 0.9)


@pytest.mark.parametrize(
    ("kind", "num_labels", "pool_shares", "p_value", "learner", "guidance"),
    [
        ("table", (500, 500), EVEN, 0.6, "pseudo_label", "prg_last"),
        ("table", (500, 500), SKEWED, 0.001, "pseudo_label", "cadr"),
        ("features", (500, 500), SKEWED, 0.001, "pseudo_label", "cadr"),
        ("table", (900, 100), SKEWED, 0.001, "pseudo_label", "simpro"),
        ("table", (600, 400), SKEWED, 0.001, "pseudo_label", "cadr"),
        ("table", (900, 100), SKEWED, 0.6, "pseudo_label", "prg_last"),
        ("images", (500, 500), SKEWED, 0.001, "fixmatch", "prg_balanced"),
        ("images", (500, 500), EVEN, 0.6, "fixmatch", "prg_balanced"),
        ("images", (900, 100), SKEWED, 0.001, "fixmatch", "prg_balanced"),
        ("images", (5, 5), None, None, "supervised", "none"),
        ("images", (5, 0), EVEN, 0.6, "fixmatch", "prg_last"),
        ("images", (5, 0), SKEWED, 0.001, "fixmatch", "prg_last"),
        ("table", (2, 3), SKEWED, None, "pseudo_label", "cadr"),
        ("table", (500, 500), None, None, "supervised", "none"),
    ],
)
def test_situations_and_what_is_recommended_for_them(
    kind: Kind,
    num_labels: tuple[int, ...],
    pool_shares: tuple[float, ...] | None,
    p_value: float | None,
    learner: str,
    guidance: str,
) -> None:
    recommendation = recommend(kind, num_labels, pool_shares, p_value)
    assert (recommendation.learner, recommendation.guidance) == (learner, guidance)


def test_a_significant_but_small_difference_does_not_change_the_recommendation() -> None:
    assert recommend("table", (50_000, 50_000), (0.52, 0.48), 0.001).guidance == "prg_last"
    assert recommend("table", (50_000, 50_000), (0.62, 0.38), 0.001).guidance == "cadr"


def test_a_class_of_unknown_share_is_left_out_of_the_comparison() -> None:
    reason = recommend("table", (500, 500, 0), (0.3, 0.7, None), 0.001).reason
    assert reason.startswith("20% of the pool would have to change class")


@pytest.mark.parametrize("kind", LEARNER_FOR)
@pytest.mark.parametrize("num_labels", [(500, 400, 300), (5, 4, 3)])
@pytest.mark.parametrize("p_value", [0.6, 0.001, None])
def test_the_recommended_learner_and_guidance_can_be_combined(
    kind: Kind, num_labels: tuple[int, ...], p_value: float | None
) -> None:
    found = recommend(kind, num_labels, (0.1, 0.3, 0.6), p_value)
    task = Task(num_classes=3, num_unlabeled=90, labeled_targets=torch.tensor([0, 0, 1, 2]), batch_unlabeled=30)
    learner = LEARNERS[found.learner]
    assert ("images" if kind == "images" else "tables") in learner.suits
    learner(task, GUIDANCES[found.guidance](task))
