"""Every member: fitted to awkward samples, stored as arrays and read again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mnar.own_data.portfolio import members as all_members
from mnar.own_data.portfolio.member import Inputs, Samples
from mnar.own_data.portfolio.members import FAST, FITTED, NAMES, members_for, named_member
from mnar.own_data.portfolio.network import fit_network
from mnar.own_data.portfolio.trees import new_forest
from tests.support.half_labeled import clouds, clouds_and_truth

SAMPLES, TRUTH = clouds_and_truth((12, 6, 3), 90)


@pytest.fixture(autouse=True)
def small_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_members, "new_forest", lambda seed, *, num_trees: new_forest(seed, num_trees=10))


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_member_predicts_the_same_after_it_is_read_again(name: str) -> None:
    fitted = named_member(name, members_for(SAMPLES, iterations=3)).fit(SAMPLES)
    arrays = fitted.arrays()
    assert all(array.dtype.kind in "fiub" for array in arrays.values())
    again = FITTED[fitted.kind].from_arrays({name: array.copy() for name, array in arrays.items()})
    new_rows = Inputs(SAMPLES.inputs.features + np.float32(0.1))
    for inputs in (SAMPLES.inputs, new_rows, new_rows.rows(np.zeros(0, np.int64))):
        np.testing.assert_array_equal(again.probs(inputs), fitted.probs(inputs))
    assert again.arrays().keys() == arrays.keys()
    for key, array in again.arrays().items():
        np.testing.assert_array_equal(array, arrays[key])


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"network"}))
def test_a_member_predicts_separate_clouds_with_probabilities_that_sum_to_1(name: str) -> None:
    probs = named_member(name, members_for(SAMPLES)).fit(SAMPLES).probs(SAMPLES.inputs)
    assert (probs.argmax(1) == TRUTH).mean() > 0.9
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)


AWKWARD = {
    "a class with a single label": clouds((9, 1, 4), 30),
    "a class without a label": clouds((9, 0, 4), 30),
    "one label for each class": clouds((1, 1, 1), 30),
    "a pool of one row": clouds((9, 3), 1),
    "constant features": replace(SAMPLES, inputs=Inputs(np.ones_like(SAMPLES.inputs.features))),
    "one feature": replace(SAMPLES, inputs=Inputs(SAMPLES.inputs.features[:, :1])),
    "huge features": replace(SAMPLES, inputs=Inputs(SAMPLES.inputs.features * np.float32(1e6))),
    "equal rows": replace(SAMPLES, inputs=Inputs(np.sign(SAMPLES.inputs.features)), shared={}),
}


@pytest.mark.parametrize("case", AWKWARD)
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"network"}))
@pytest.mark.filterwarnings("ignore")
def test_awkward_samples_give_finite_probabilities(name: str, case: str) -> None:
    samples = replace(AWKWARD[case], shared={})
    probs = named_member(name, members_for(samples)).fit(samples).probs(samples.inputs)
    assert probs.shape == (len(samples.y), samples.num_classes)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)


def test_without_a_pool_only_members_of_the_labels_and_the_network_are_tried() -> None:
    samples = clouds((5, 5), 0)
    names = [member.name for member in members_for(samples)]
    assert names == ["linear", "kernel", "kernel_smooth", "kernel_sharp", "forest", "boosting", "network"]


def test_fast_tries_two_members_and_many_features_leave_boosting_out() -> None:
    assert tuple(member.name for member in members_for(SAMPLES, fast=True)) == FAST
    wide = replace(SAMPLES, inputs=Inputs(np.zeros((len(SAMPLES.y), 65), np.float32)))
    assert "boosting" not in [member.name for member in members_for(wide)]


def test_all_names_are_members_and_an_unknown_one_is_refused_with_the_choices() -> None:
    members = members_for(SAMPLES)
    assert tuple(member.name for member in members) == NAMES
    with pytest.raises(ValueError, match=r"member 'boostin' does not suit these data; choose from .*'boosting'"):
        named_member("boostin", members)


def test_self_training_draws_a_bounded_part_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fit(*args: object, **options: object) -> None:
        seen.append(args[2])
        raise StopIteration

    monkeypatch.setattr(all_members, "MOST_POOL_ROWS", 20)
    monkeypatch.setattr(all_members, "self_train", fit)
    with pytest.raises(StopIteration):
        all_members.fit_self_trained_forest(SAMPLES)
    (y,) = seen
    assert (np.sum(y == -1), np.sum(y != -1)) == (20, 21)  # type: ignore[operator]


def images_of_two_classes() -> Samples:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, 1, 8, 8), np.uint8)
    features = rng.standard_normal((24, 4)).astype(np.float32)
    return Samples(Inputs(features, images), np.array([0, 1] * 6 + [-1] * 12), 2)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_network_for_images_uses_the_pool_only_on_a_gpu(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    members = members_for(images_of_two_classes())
    assert [member.name for member in members] == ["linear", "kernel", "graph", "graph_local", "forest", "network"]
    assert members[-1].uses_pool == on_gpu


def test_a_network_for_images_predicts_the_same_after_it_is_read_again() -> None:
    samples = images_of_two_classes()
    fitted = fit_network(samples, uses_pool=True, iterations=1)
    again = FITTED[fitted.kind].from_arrays(fitted.arrays())
    np.testing.assert_array_equal(again.probs(samples.inputs), fitted.probs(samples.inputs))
