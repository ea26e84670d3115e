"""The names that the design makes public, with the signatures that it gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import mnar
from mnar import protocols
from mnar.guidances import GUIDANCES, PRG
from mnar.learners import LEARNERS
from mnar.types import Batch, Counts, Split, Step, Task


def test_every_public_name_is_there() -> None:
    missing = [name for name in mnar.__all__ if not hasattr(mnar, name)]
    assert missing == []
    assert mnar.__all__ == sorted(mnar.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize(
    ("shape", "fields"),
    [
        (Task, "num_classes num_unlabeled labeled_targets batch_labeled batch_unlabeled"),
        (Batch, "x y x_index u u_index"),
        (Step, "loss logs"),
        (Counts, "labeled unlabeled"),
        (Split, "labeled_index unlabeled_index"),
    ],
)
def test_shapes_have_the_fields_of_the_design(shape: Any, fields: str) -> None:
    assert shape._fields == tuple(fields.split())


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (
            PRG,
            "task * alpha=1.0 window=128 last=False rescale=True steps=1 usage='soft' empty_row='onehot'",
        ),
        (protocols.cadr, "num_classes gamma * rounding='ceil'"),
        (protocols.own, "num_classes num_labels n1 * gamma_u=None m1=5000 rounding='official'"),
        (protocols.darp, "num_classes gamma_l gamma_u * n1=1500 m1=3000 reverse=False"),
        (protocols.balanced, "num_classes num_labels * gamma_u=None m1=5000"),
        (protocols.as_labeled, "num_classes * num_labels=None"),
        (protocols.split, "targets counts * seed include_labeled=True"),
    ],
)
def test_signatures_are_those_of_the_design(make: Callable[..., Any], parameters: str) -> None:
    written: list[str] = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        written.append(str(parameter.replace(annotation=parameter.empty)).replace(" ", ""))
    assert " ".join(written) == parameters


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (GUIDANCES, "none prg prg_last tracking distribution_alignment darp cadr crest crest_plus simpro cdmad"),
        (
            LEARNERS,
            "supervised pi_model pseudo_label mean_teacher mixmatch remixmatch fixmatch flexmatch comatch simmatch "
            "ups vime vime_self",
        ),
        (protocols.PROTOCOLS, "cadr own darp balanced found"),
    ],
    ids=["guidances", "learners", "protocols"],
)
def test_the_tables_hold_all_parts_by_the_names_that_configurations_have(table: dict[str, Any], names: str) -> None:
    assert set(table) == set(names.split())


def test_prg_last_of_the_table_is_prg_with_the_published_settings() -> None:
    guidance = GUIDANCES["prg_last"](Task(num_classes=3, num_unlabeled=5))
    assert isinstance(guidance, PRG)
    assert (guidance.last, guidance.alpha) == (True, 3.0)
