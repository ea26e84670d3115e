"""Fit small models with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let numpy, scikit-learn and torch use one thread inside the `with` block.

    The models of a table are so small that a second thread gains nothing. On a busy machine, threads that wait for each
    other are slow: a fit of gradient boosting took 9 seconds instead of 0.2.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(num_threads)
