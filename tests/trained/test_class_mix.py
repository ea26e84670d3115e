"""The class mix of predictions: by name, from a file, or given as shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mnar.own_data.inspection.label_shift import Interval
from mnar.trained.class_mix import class_mix

NAMES = ("ant", "bee", "=cat")
POOL = Interval(np.array([0.2, 0.3, 0.5]), np.array([0.1, 0.3, 0.4]), np.array([0.3, 0.3, 0.6]))


def shares(prior: Any, *, pool: Interval | None = POOL) -> list[float] | None:
    mix = class_mix(prior, NAMES, num_labels=np.array([6, 3, 1]), pool=pool)
    return None if mix.shares is None else mix.shares.round(6).tolist()


def test_the_default_is_the_pool_where_there_is_an_estimate() -> None:
    assert shares(None) == [0.2, 0.3, 0.5]
    assert shares(None, pool=None) is None


@pytest.mark.parametrize(
    ("is_balanced", "expected"), [(True, "equally frequent classes"), (False, "the class mix that the model learned")]
)
def test_without_an_estimate_the_description_says_what_the_model_predicts(is_balanced: bool, expected: str) -> None:
    mix = class_mix(None, NAMES, num_labels=None, pool=None, is_balanced=is_balanced)
    assert mix.description == f"{expected}, because there is no estimate for a pool"
    assert (mix.shares is not None) == is_balanced


def test_the_named_mixes() -> None:
    assert shares("uniform") == [0.333333] * 3
    assert shares("labels") == [0.6, 0.3, 0.1]
    assert shares("pool") == [0.2, 0.3, 0.5]


def test_shares_from_a_file_are_matched_by_name_and_normalised(tmp_path: Path) -> None:
    path = tmp_path / "mix.csv"
    path.write_text("class,share\n'=cat,3\nant,1\n")
    assert shares(path) == [0.25, 0.0, 0.75]
    assert shares(str(path)) == [0.25, 0.0, 0.75]


def test_shares_as_a_mapping_or_a_list() -> None:
    assert shares({"bee": 1, "ant": 1}) == [0.5, 0.5, 0.0]
    assert shares([2, 1, 1]) == [0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("class,share\ndog,1\n", "does not know the class 'dog'; name only its classes: 'ant'"),
        ("class,share\nant,many\n", "line 2: the share 'many' is no number"),
        ("class,share\nant,1\nant,2\n", "line 3: class 'ant' has a share already"),
        ("class,share\nant,-1\n", "shares must be numbers from 0 on"),
        ("class,share\nant,0\n", "positive sum"),
        ("name,share\nant,1\n", "no column 'class'"),
        ("", "empty"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mix.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        shares(path)


def test_a_mix_that_is_not_known_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"no estimate .* choose --prior uniform"):
        shares("pool", pool=None)
    with pytest.raises(FileNotFoundError, match="neither uniform, labels or pool nor a file"):
        shares("unifrom")
    with pytest.raises(ValueError, match="one share for each of the 3 classes"):
        shares([0.5, 0.5])
    with pytest.raises(ValueError, match="does not store"):
        class_mix("labels", NAMES, num_labels=None, pool=None)
