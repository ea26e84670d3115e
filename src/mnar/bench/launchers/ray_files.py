"""Work of a Ray cluster on files that all nodes see: check the nodes, and call a function for many items.

`mnar predict`, `mnar relabel` and `mnar cache` use this module.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError

import mnar
from mnar.bench.launchers.ray_cluster import RayCluster, last_line

MOST_LOSSES = 3  # of the worker of one task; a task that ends its worker each time must not be repeated for ever
TASKS_PER_PLACE = 3  # that Ray gets ahead of the results that are read: more keep no worker busier, but need memory
WHAT_TO_DO = (
    "perhaps because the memory was full; set more memory aside with --launcher-option memory_gb=…, or choose "
    "--launcher local"
)

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Expected(NamedTuple):
    """What every node must have and see."""

    versions: dict[str, str]  # of packages
    directory: Path  # where the command was started: paths may be relative to it
    sizes: dict[Path, int]
    what: str


def check_shared_files(cluster: RayCluster, paths: Iterable[Path], what: str, packages: Sequence[str] = ()) -> None:
    """Raise an error if a node has another version of mnar or of `packages`, or does not see `paths`.

    what    the files in words, for the error message
    """
    sizes = {path: _size(path) for path in paths}
    cluster.check_nodes(_look, _Expected(_versions(packages), Path.cwd(), sizes, what))


def map_in_order(
    cluster: RayCluster,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    resources: Mapping[str, float],
    items_per_task: int = 1,
) -> Generator[Result, None, None]:
    """Yield the results of the function, which the workers call, in the order of the items.

    resources    what a worker needs, in the words of Ray

    Ray repeats the task of a lost worker. An error of bad data has the message that it has on one machine.
    """
    task: Any = ray.remote(_call).options(max_retries=MOST_LOSSES, **resources)
    most_pending = TASKS_PER_PLACE * cluster.num_places(resources, "a worker", "--launcher local")
    directory, remaining = Path.cwd(), iter(items)
    pending: deque[tuple[list[Item], Any]] = deque()
    try:
        while True:
            while len(pending) < most_pending and (chosen := list(islice(remaining, items_per_task))):
                pending.append((chosen, task.remote(function, chosen, directory)))
            if not pending:
                return
            chosen, answer = pending[0]
            with errors_with_remedy([str(item) for item in chosen if isinstance(item, str | Path)]):
                results, problem = ray.get(answer)
            pending.popleft()
            yield from results
            if problem is not None:
                raise ValueError(problem)
    finally:  # after an error, the other tasks would work in vain
        for _, answer in pending:
            ray.cancel(answer, force=False)


@contextmanager
def errors_with_remedy(files: Sequence[str] = ()) -> Iterator[None]:
    """Turn an error of Ray into one line. `files` are those of the task, for the error message."""
    try:
        yield
    except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
        where = f" while they read {' to '.join(dict.fromkeys([files[0], files[-1]]))}" if files else ""
        raise ValueError(f"several workers were lost{where}, {WHAT_TO_DO}") from error
    except (RayError, ConnectionError) as error:
        raise ValueError(
            f"the Ray workers failed: {last_line(error)}. Repeat the command to go on, or choose --launcher local"
        ) from error


def go_to(directory: Path) -> None:
    """Change to the directory where the command was started."""
    with suppress(OSError):  # without the directory, only absolute paths are found
        os.chdir(directory)


def _call(
    function: Callable[[Item], Result], items: Sequence[Item], directory: Path
) -> tuple[list[Result], str | None]:
    """Return the results and the problem that ended them: an error of bad data is no failure of the task."""
    go_to(directory)
    results: list[Result] = []
    try:
        results.extend(map(function, items))
    except (ValueError, OSError) as error:
        return results, str(error)
    return results, None


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {"mnar": mnar.__version__}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "that is not installed"
    return versions


def _size(path: Path) -> int:
    """Return the number of bytes of a file or of entries of a folder; -1 if there is neither."""
    try:
        return len(os.listdir(path)) if path.is_dir() else path.stat().st_size  # noqa: PTH208 - only names are needed
    except OSError:
        return -1


def _look(expected: _Expected) -> Exception | None:
    """Return an error if this node has another version of a package or sees other files."""
    machine = platform.node()
    here = _versions(name for name in expected.versions if name != "mnar")
    for name, wanted in expected.versions.items():
        if here[name] != wanted:
            return ValueError(
                f"the worker on {machine} has {name} {here[name]}, but the command was started with {name} {wanted}; "
                "install the same version on all machines"
            )
    go_to(expected.directory)
    for path, size in expected.sizes.items():
        if _size(path) != size:
            return ValueError(
                f"the worker on {machine} does not see {path} as this machine does; put {expected.what} on a file "
                "system that all workers share, or choose --launcher local"
            )
    return None
