"""Count what the processes of a training exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from mnar import distributed


class Traffic:
    """The bytes that a process hands over, and the bytes that it gets."""

    sent = received = 0


@contextmanager
def counted_traffic() -> Iterator[Traffic]:
    """Count every exchange of tensors in this process, whichever function asks for it."""
    traffic, exchange_with_all = Traffic(), distributed._with_all_processes

    def counted(exchange: Callable[..., Any], result: Tensor, *arguments: Tensor) -> None:
        (given,) = arguments or (result,)  # an all-reduce replaces its only argument by the result
        traffic.sent += given.nbytes
        traffic.received += result.nbytes
        exchange_with_all(exchange, result, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_with_all_processes", counted)
        yield traffic
