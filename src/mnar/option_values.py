"""What values an option may have: its type and its range, which stand in the annotation of a constructor's parameter.

`alpha: Annotated[float, Range(0, 1)]` is an option that takes numbers from 0 to 1. The aliases below name the kinds of
option that several parts share. `convert` checks the options of the command line and of YAML files, and the decorator
`checked_options` checks the options that Python code gives.
"""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Range:
    """The smallest and the largest number that an option takes. The largest number can be excluded."""

    lowest: float
    highest: float
    excludes_highest: bool = False

    def __contains__(self, number: float) -> bool:
        return self.lowest <= number < self.highest or (number == self.highest and not self.excludes_highest)

    def __str__(self) -> str:
        lowest, highest = _number(self.lowest), _number(self.highest)
        return f"of at least {lowest} and below {highest}" if self.excludes_highest else f"from {lowest} to {highest}"


# The upper ends exclude slips of the keyboard and sizes for which no machine has the memory.
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(1e-6, 1)]  # float32 can still divide by the lower end
ShareBelowOne = Annotated[float, Range(0, 1, excludes_highest=True)]  # the decay of an average, a held-out share
Factor = Annotated[float, Range(0, 10**12)]  # the weight of a loss, an exponent
PositiveFactor = Annotated[float, Range(1e-6, 10**12)]
ClassSize = Annotated[float, Range(0, 10**9)]  # a share or a number of samples of a class
Imbalance = Annotated[float, Range(1, 10**6)]  # the size of the largest class divided by that of the smallest
NumSteps = Annotated[int, Range(1, 10**12)]
NumSamples = Annotated[int, Range(1, 10**9)]
NumGenerations = Annotated[int, Range(1, 1000)]
NumViews = Annotated[int, Range(1, 100)]
BatchSize = Annotated[int, Range(1, 10**6)]
Window = Annotated[int, Range(1, 10**5)]  # batches
LayerWidth = Annotated[int, Range(1, 16_384)]

WHOLE_NUMBERS = Range(-(2**63), 2**63 - 1)  # a whole number without a range of its own must fit into 64 bits
FINITE_NUMBERS = Range(-sys.float_info.max, sys.float_info.max)
NAMES = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    types.NoneType: "null",
}
NO_DEFAULT = inspect.Parameter.empty
ALLOCATED = re.compile(r"tried to allocate (\d+) bytes")  # the message of torch's allocator


class Unsuitable(Exception):
    """A value does not have the expected type, or does not lie in the expected range."""


def convert(value: Any, hint: Any, where: str, default: Any = NO_DEFAULT) -> Any:
    """Convert a value to the type that an annotation names. Refuse a value of another type or outside the range.

    where    what an error message calls the option, e.g. "guidance.alpha"
    default  the default of the option, which an error message gives as an example
    """
    try:
        return _converted(value, hint)
    except Unsuitable:
        expected = f"expected {in_words(hint)}"
        if typing.get_origin(hint) is Literal:
            expected = f"choose from {list(typing.get_args(hint))}"
        elif default not in (NO_DEFAULT, None, ()) and hint is not bool:
            expected += f", e.g. {_example(default)}"
        raise ValueError(f"{where} is {shown(value)}; {expected}") from None


def in_words(hint: Any) -> str:
    """The values that an annotation allows, e.g. "a number from 0 to 1 or null"."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(in_words, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple:
        kind, limits = _kind_and_range(arguments[0])
        items = {float: "numbers", int: "whole numbers", str: "texts"}[kind]
        return f"a list of {items}{f' {limits}' if limits else ''}"
    kind, limits = _kind_and_range(hint)
    return f"{NAMES[kind]}{f' {limits}' if limits else ''}"


def shown(value: Any) -> str:
    """A value as an error message shows it: a long value is cut."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 80
    short.maxlist = short.maxtuple = short.maxdict = 12
    try:
        return short.repr(value)
    except ValueError:  # Python does not print numbers with more than 4,300 digits
        return "a number with thousands of digits"


def annotations_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the parameters of a class or a function, with their ranges."""
    while isinstance(make, functools.partial):
        make = make.func
    return _hints(make.__init__ if inspect.isclass(make) else make)


def checked_options(make: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check the options of a constructor or a function against the ranges and choices in their annotations.

    A part that does not fit into the memory is an error that names the options on which its size depends.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        given, hints = signature.bind(*args, **kwargs), _hints(make)
        for name, value in given.arguments.items():
            if name in hints and is_limited(hints[name]):
                default = signature.parameters[name].default
                given.arguments[name] = convert(value, hints[name], name, default)
        try:
            return make(*given.args, **given.kwargs)
        except (MemoryError, RuntimeError) as error:
            asked = memory_asked_for(error)
            sizes = [
                name
                for name, value in given.arguments.items()
                if is_limited(hints.get(name)) and _is_size(value) and value != signature.parameters[name].default
            ]
            if asked is None or not sizes:
                raise
            values = " and ".join(f"{name} is {shown(given.arguments[name])}" for name in sizes)
            raise ValueError(
                f"{values}, which needs more memory than there is ({asked}); choose smaller values, or smaller batches"
            ) from error

    return checked


def check_fields(options: Any, section: str) -> None:
    """Check and convert the fields of a frozen dataclass of options. Error messages call them SECTION.FIELD."""
    hints = annotations_of(type(options))
    for field in fields(options):
        value = convert(getattr(options, field.name), hints[field.name], f"{section}.{field.name}", field.default)
        object.__setattr__(options, field.name, value)


def is_limited(hint: Any) -> bool:
    """Whether an annotation has a range or lists its values."""
    return typing.get_origin(hint) in (Annotated, Literal) or any(map(is_limited, typing.get_args(hint)))


def memory_asked_for(error: Exception) -> str | None:
    """What an error of an allocator says about the memory that the program asked for, or None for another error."""
    if isinstance(error, MemoryError):
        return str(error) or "the memory is full"
    found = ALLOCATED.search(str(error))
    return f"{int(found[1]) / 2**30:,.1f} GB in one piece" if found else None


def _converted(value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for choice in arguments:
            try:
                return _converted(value, choice)
            except Unsuitable:
                continue  # another type of the union may fit
        raise Unsuitable
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_converted(item, arguments[0]) for item in value)
    if origin is Literal and isinstance(value, str) and value in arguments:
        return value
    kind, limits = _kind_and_range(hint)
    if kind is int and isinstance(value, Integral) and not isinstance(value, bool):
        return _within(limits or WHOLE_NUMBERS, int(value))
    if kind is float and isinstance(value, Real | str) and not isinstance(value, bool):
        return _within(limits or FINITE_NUMBERS, _as_float(value))
    if kind in (bool, types.NoneType) and isinstance(value, kind):
        return value
    if kind is str and isinstance(value, str) and "\0" not in value:
        return value
    if kind is Path and isinstance(value, str | Path) and str(value) and "\0" not in str(value):
        return Path(value)
    raise Unsuitable


def _as_float(value: Any) -> float:
    try:
        return float(value)  # YAML reads 1e-3 as text
    except (ValueError, OverflowError) as error:
        raise Unsuitable from error


def _within(limits: Range, number: float) -> float:
    if number not in limits:
        raise Unsuitable
    return number


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, include_extras=True)


def _kind_and_range(hint: Any) -> tuple[Any, Range | None]:
    """The type of an annotation and its range, if it has one."""
    if typing.get_origin(hint) is Annotated:
        kind, limits = typing.get_args(hint)
        return kind, limits
    return hint, None


def _is_size(value: Any) -> bool:
    return isinstance(value, int | tuple) and not isinstance(value, bool)


def _number(number: float) -> str:
    is_whole = isinstance(number, int) or (number.is_integer() and abs(number) < 10**15)
    return f"{round(number):,}" if is_whole else f"{number:.6g}"


def _example(default: Any) -> str:
    if isinstance(default, tuple):
        return f"[{', '.join(map(_example, default))}]"
    return _number(default) if isinstance(default, int | float) else str(default)
