"""Count the operations that change files below a folder, and kill the process before one of them or halfway through it.

What an operation leaves behind is what the process finds before the next operation, so no kill after an operation is
needed. A write has two moments: before it, and after half of its bytes.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mnar.run.file_names import METRICS, STATE
from tests.support.killing import kill_me

UNCHECKED = ".lock"  # its content means nothing after the process has ended


class FileOperations:
    """Stands between this process and the operating system, after a call of `watch`."""

    def __init__(self, folder: Path, kill_at: int | None = None) -> None:
        self.folder, self.kill_at = folder.resolve(), kill_at
        self.moments: list[str] = []  # e.g. "rename config.yaml.part"
        self.unflushed: set[str] = set()  # files that have bytes which a power cut may lose
        self.unsafe: list[str] = []  # operations after which a power cut may leave a file that is not complete

    def watch(self) -> None:
        """From now on, count the operations of this process."""
        io.open = builtins.open = self._watching_open(io.open)  # type: ignore[assignment]
        os.fsync = self._watching_fsync(os.fsync)  # type: ignore[assignment]
        for name in ("replace", "rename"):
            setattr(os, name, self._watching_rename(getattr(os, name)))
        for name in ("unlink", "remove", "mkdir", "rmdir", "truncate"):
            setattr(os, name, self._watching(name, getattr(os, name)))

    def moment(self, what: str, path: str) -> None:
        """Note that an operation is about to happen, or to go on, and kill the process if it is the chosen one."""
        self.moments.append(f"{what} {self.name(path)}")
        if len(self.moments) == self.kill_at:
            kill_me()

    def concerns(self, path: object) -> bool:
        """Whether the path is below the folder."""
        return Path(str(path)).absolute().is_relative_to(self.folder)

    def name(self, path: str) -> str:
        return str(Path(path).absolute().relative_to(self.folder))

    def _watching_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or isinstance(file, int) or not self.concerns(file):
                return real(file, mode, *arguments, **options)
            path = os.fspath(file)
            if "r" not in mode:  # otherwise, opening the file changes nothing
                self.moment("open", path)
            return WatchedFile(real(file, mode, *arguments, **options), path, self)

        return watched

    def _watching_fsync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def watched(descriptor: int) -> None:
            path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if self.concerns(path):
                self.moment("fsync", path)
                self.unflushed.discard(self.name(path))
            real(descriptor)

        return watched

    def _watching_rename(self, real: Callable[..., None]) -> Callable[..., None]:
        def watched(source: Any, target: Any, **options: Any) -> None:
            if self.concerns(source):
                path = os.fspath(source)
                self.moment("rename", path)
                if self.name(path) in self.unflushed:
                    self.unsafe.append(f"{self.name(path)} was renamed before its content was flushed to the disk")
                metrics = self.name(os.fspath(Path(path).with_name(METRICS)))
                if Path(path).name.startswith(STATE) and metrics in self.unflushed:
                    self.unsafe.append(f"{self.name(path)} was renamed before {metrics}, which it needs, was flushed")
            real(source, target, **options)

        return watched

    def _watching(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any, *arguments: Any, **options: Any) -> Any:
            if self.concerns(path):
                self.moment(name, os.fspath(path))
                self.unflushed.discard(self.name(os.fspath(path)))
            return real(path, *arguments, **options)

        return watched


class WatchedFile:
    """A file that passes on every write in two halves. Only what was passed on is left by a kill."""

    def __init__(self, file: Any, path: str, operations: FileOperations) -> None:
        self._file, self._path, self._operations = file, path, operations

    def write(self, content: Any) -> int:
        half = len(content) // 2
        self._operations.moment("write", self._path)
        self._pass_on(content[:half])
        if half:
            self._operations.moment("write the second half of", self._path)
        self._pass_on(content[half:])
        if Path(self._path).name != UNCHECKED:
            self._operations.unflushed.add(self._operations.name(self._path))
        return len(content)

    def _pass_on(self, content: Any) -> None:
        self._file.write(content)
        self._file.flush()

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def truncate(self, size: int | None = None) -> int:
        self._operations.moment("truncate", self._path)
        return int(self._file.truncate(size))

    def __enter__(self) -> WatchedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __next__(self) -> Any:
        return next(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
