"""Use the threads of the machine: one thread for a small model, and one thread per block of samples to predict."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

MOST_THREADS = 8  # with more, the thread that reads the items is too slow for them
Item = TypeVar("Item")
Result = TypeVar("Result")


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


def in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    num_threads: int | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> Iterator[tuple[Item, Result]]:
    """Yield every item with the result of the function, in the order of the items.

    num_threads    how many items are computed at the same time; None: as many as torch has threads
    pool           threads that stay alive afterwards, e.g. the only thread that uses a GPU; None: new threads

    Each item is computed by one thread, while the caller's thread reads the next items, so a result does not depend on
    the number of threads. Only a few items are in memory at a time. The function must spend its time in numpy, torch or
    scikit-learn, which let other threads run.
    """
    num_threads = min(torch.get_num_threads(), MOST_THREADS) if num_threads is None else num_threads
    if num_threads == 1 and pool is None:
        for item in items:
            yield item, function(item)
        return
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with one_thread():
        threads = pool or ThreadPoolExecutor(num_threads)
        try:
            for item in items:
                waiting.append((item, threads.submit(function, item)))
                if len(waiting) > num_threads:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:  # after an error, or if the caller stops early
            for _, future in waiting:
                future.cancel()
            if pool is None:
                threads.shutdown()
