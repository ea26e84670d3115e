"""Every option has a range, and a value outside of it is refused in one line, wherever the value comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch

from mnar.augment import Augment
from mnar.config import SECTIONS, TABLES, RunConfig, options_of, parse_setting
from mnar.guidances import GUIDANCES, PRG, NoGuidance
from mnar.learners import LEARNERS, FixMatch
from mnar.models import MODELS
from mnar.option_values import Range, annotations_of, checked_options, convert, in_words, is_limited, shown
from mnar.protocols import PROTOCOLS, cadr
from mnar.training.engine import Engine
from mnar.training.options import TrainOptions
from mnar.types import Task

TASK = Task(
    num_classes=4,
    num_unlabeled=40,
    labeled_targets=torch.arange(4).repeat(3),
    batch_labeled=4,
    batch_unlabeled=8,
)
CONFIG: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "protocol": {"name": "cadr", "gamma": 20},
    "model": {"name": "small_cnn"},
    "learner": {"name": "fixmatch"},
    "guidance": {"name": "none"},
}
REQUIRED = {"gamma": 20, "num_labels": 8, "n1": 3, "gamma_l": 5, "gamma_u": 5, "shape": "middle"}
# Values as a user types them behind `--set SECTION.OPTION=`.
TYPED = (
    *("1" + 30 * "0", "-1" + 30 * "0", "1" + 400 * "0", "-1", "0", "1", "0.5", "2.5", "1e30", "1e-300"),
    *(".nan", ".inf", "-.inf", "nan", "inf", "x", "''", "null", "true", "[]", "[1, x]", "[-1]", "[1e30]"),
    *("{a: 1}", "2020-01-01", 5000 * "x", f"[{3000 * '1, '}1]", "&a [*a]", '"a\\0b"'),
)
VALUES = [parse_setting(f"guidance.alpha={typed}")[2] for typed in TYPED]
PARTS = [(section, name, make) for section, table in TABLES.items() for name, make in table.items()]
PARTS += [(section, "", make) for section, make in SECTIONS.items()]


def ranged(hint: Any) -> Iterator[bool]:
    """Whether each number in an annotation has a range."""
    if get_origin(hint) is Annotated:
        yield isinstance(get_args(hint)[1], Range)
    elif hint in (int, float):
        yield False
    else:
        for part in get_args(hint) if get_origin(hint) is not Literal else ():
            yield from ranged(part)


@pytest.mark.parametrize(("section", "name", "make"), PARTS, ids=lambda part: part if isinstance(part, str) else "")
def test_every_number_among_the_options_has_a_range(section: str, name: str, make: Callable[..., Any]) -> None:
    hints = annotations_of(make)
    assert [option for option in options_of(section, make) if not all(ranged(hints[option]))] == []


def build(config: RunConfig, section: str) -> None:
    """Build the part of one section, without data."""
    options = getattr(config, section).options if section in TABLES else getattr(config, section)
    if section == "learner":
        LEARNERS[config.learner.name](TASK, NoGuidance(TASK), **options)
    elif section == "guidance" and options.get("target") != "oracle":
        GUIDANCES[config.guidance.name](TASK, **options)
    elif section == "model":
        MODELS[config.model.name]((1, 8, 8), 4, **options)
    elif section == "protocol":
        PROTOCOLS[config.protocol.name](4, **options)
    elif section == "augment":
        Augment((0.5,), (0.5,), **options)(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "strong")
    elif section == "engine":
        Engine(config.engine)


@pytest.mark.parametrize(("section", "name", "make"), PARTS, ids=lambda part: part if isinstance(part, str) else "")
def test_a_typed_value_works_or_is_refused_with_the_option_the_value_and_a_remedy(
    section: str, name: str, make: Callable[..., Any]
) -> None:
    parameters = options_of(section, make)
    needed = {o: REQUIRED[o] for o, p in parameters.items() if p.default is p.empty}
    for option in parameters:
        for value in VALUES:
            given = {**({"name": name} if name else {}), **needed, option: value}
            message = refusal_of({**CONFIG, section: given}, section)
            if message is not None:
                assert "\n" not in message
                assert len(message) < 500
                assert re.search(r"[;.] .*\b(expected|choose|must|give|set|needs|change|use)\b", message, re.I), message
                assert option in message
                # For some values, messages say "needs a CUDA device" or "has 3001 stages" instead.
                if value is not True and not isinstance(value, list):
                    assert shown(value)[:20] in message, message


def refusal_of(sections: dict[str, Any], section: str) -> str | None:
    """Return the message with which the configuration or the constructor refuses the options, or None."""
    try:
        build(RunConfig.from_dict(sections), section)
    except ValueError as error:
        return str(error)
    return None


def test_arguments_from_python_are_checked_like_those_of_the_command_line() -> None:
    guidance = NoGuidance(TASK)
    for refused in (10**30, -1, 0, math.nan, True, "x", [], None):
        with pytest.raises(ValueError, match=r"window is .*; expected a whole number from 1 to 100,000, e\.g\. 128"):
            PRG(TASK, window=refused)  # type: ignore[arg-type]
        with pytest.raises(
            ValueError, match=r"train\.batch_labeled is .*; expected a whole number from 1 to 1,000,000"
        ):
            TrainOptions(batch_labeled=refused)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"threshold is inf; expected a number from 0 to 1, e\.g\. 0\.95"):
        FixMatch(TASK, guidance, threshold=math.inf)
    with pytest.raises(ValueError, match="gamma is 0; expected a number from 1 to 1,000,000"):
        cadr(10, 0)
    assert PRG(TASK, window=np.int64(3), alpha=np.float32(0.5)).window == 3  # type: ignore[arg-type]


def test_a_missing_or_unknown_argument_is_still_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'widow'"):
        PRG(TASK, widow=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'gamma'"):
        cadr(10)  # type: ignore[call-arg]


@checked_options
def hold(rows: Annotated[int, Range(1, 10**18)], *, like: str = "zeros") -> torch.Tensor:
    if like == "nothing":
        raise RuntimeError("something else")
    if like == "numpy":
        return torch.from_numpy(np.ones(rows))
    return torch.ones(rows)


@pytest.mark.parametrize("like", ["zeros", "numpy"])
def test_a_part_that_does_not_fit_into_the_memory_names_its_options(like: str) -> None:
    with pytest.raises(
        ValueError, match=r"rows is 1000000000000000, which needs more memory than there is \(.*\); cho"
    ):
        hold(10**15, like=like)
    with pytest.raises(RuntimeError, match="something else"):
        hold(1, like="nothing")


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Annotated[float, Range(0, 1)], "a number from 0 to 1"),
        (Annotated[float, Range(0, 1, excludes_highest=True)] | None, "a number of at least 0 and below 1 or null"),
        (Annotated[float, Range(1e-6, 10**6)], "a number from 1e-06 to 1,000,000"),
        (Annotated[int, Range(0, 2**63 - 1)], "a whole number from 0 to 9,223,372,036,854,775,807"),
        (Annotated[int, Range(1, 100)] | Literal["auto"], "a whole number from 1 to 100 or 'auto'"),
        (tuple[Annotated[int, Range(1, 9)], ...], "a list of whole numbers from 1 to 9"),
        (tuple[str, ...], "a list of texts"),
        (Path | None, "a path or null"),
        (bool, "true or false"),
    ],
)
def test_an_annotation_is_put_into_words(hint: Any, words: str) -> None:
    assert in_words(hint) == words
    assert is_limited(hint) == ("number" in words)


@pytest.mark.parametrize("path", [[], ["a"], [["a"]], 3, True, "", "a\0b", {"a": "b"}])
def test_a_path_that_is_none_is_refused(path: Any) -> None:
    with pytest.raises(ValueError, match=r"dataset\.root is .*; expected a path or null"):
        convert(path, Path | None, "dataset.root")


def test_a_long_or_endless_value_is_cut_in_a_message() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (10_000 * "x", list(range(10_000)), 10**5000, 10**400, endless, {n: n for n in range(1000)}):
        assert len(shown(value)) < 250
    assert shown([1, 2, 0.5]) == "[1, 2, 0.5]"
