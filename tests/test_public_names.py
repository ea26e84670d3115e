"""The public names, and the signatures that users rely on."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import yaml

import mnar
from mnar import protocols
from mnar.config import TABLES
from mnar.guidances import GUIDANCES, PRG
from mnar.training.metrics import METRICS
from mnar.types import Batch, Counts, Split, Step, Task


def test_every_public_name_can_be_imported() -> None:
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
def test_the_data_types_have_these_fields(shape: Any, fields: str) -> None:
    assert shape._fields == tuple(fields.split())


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (
            PRG,
            "task * alpha=1.0 window=128 last=False rescale=True steps=1 usage='soft' empty_row='onehot' "
            "smoothing=0.0 pool_shares='uniform' shard_bank=False",
        ),
        (protocols.cadr, "num_classes gamma * rounding='ceil'"),
        (protocols.own, "num_classes num_labels n1 * gamma_u=None m1=5000 rounding='official'"),
        (protocols.darp, "num_classes gamma_l gamma_u * n1=1500 m1=3000 reverse=False"),
        (protocols.balanced, "num_classes num_labels * gamma_u=None m1=5000"),
        (protocols.as_labeled, "num_classes * num_labels=None"),
        (protocols.split, "targets counts * seed include_labeled=True"),
        (
            mnar.self_training,
            "estimator guidance='prg' * rounds=5 threshold=0.8 balance=None unlabeled=-1 random_state=0",
        ),
    ],
)
def test_a_signature_has_these_parameters_and_defaults(make: Callable[..., Any], parameters: str) -> None:
    written: list[str] = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        written.append(str(parameter.replace(annotation=parameter.empty)).replace(" ", ""))
    assert " ".join(written) == parameters


# Configurations and result files of users contain these names, so they must stay. A new part needs no entry here.
RELEASED = {
    "dataset": "digits digits_tabular cifar10 cifar100 cifar10n_agreement cifar100n_agreement mnist mnist_tabular "
    "mini_imagenet npz own_data",
    "protocol": "cadr own darp balanced as_labeled",
    "model": "wide_resnet resnet18 mlp encoder_mlp small_cnn",
    "learner": "supervised pi_model pseudo_label mean_teacher mixmatch remixmatch fixmatch flexmatch comatch simmatch "
    "ups vime vime_self",
    "guidance": "none prg prg_last tracking distribution_alignment darp cadr crest crest_plus simpro cdmad",
    "metric": "accuracy geometric_mean precision recall predicted_share calibration_error",
}
ALL_TABLES = {**TABLES, "metric": METRICS}


def test_every_table_has_released_names() -> None:
    assert RELEASED.keys() == ALL_TABLES.keys()


@pytest.mark.parametrize("kind", ALL_TABLES)
def test_a_table_has_all_released_names(kind: str) -> None:
    assert set(RELEASED[kind].split()) <= set(ALL_TABLES[kind])


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in ALL_TABLES.items() for name in table])
def test_the_name_of_a_part_can_be_written_in_yaml_and_in_a_chain(kind: str, name: str) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*", name)
    assert yaml.safe_load(name) == name, "e.g. `no` would be read as false"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in table])
def test_every_part_is_described_and_can_be_imported_from_the_folder_of_its_kind(kind: str, name: str) -> None:
    part: Any = TABLES[kind][name]
    part = part.func if isinstance(part, partial) else part
    assert part.__doc__ or sys.modules[part.__module__].__doc__
    package = importlib.import_module(part.__module__.rpartition(".")[0])
    assert getattr(package, part.__name__) is part
    assert part.__name__ in package.__all__


def test_prg_last_is_prg_with_the_published_options() -> None:
    guidance = GUIDANCES["prg_last"](Task(num_classes=3, num_unlabeled=5))
    assert isinstance(guidance, PRG)
    assert (guidance.last, guidance.alpha) == (True, 3.0)
