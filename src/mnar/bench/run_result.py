"""What one run of a bench came to, read once and kept beside its folder, and why one failed.

RUN.json     what a run that is done came to
RUN.failed   why the last attempt failed
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import format_exception
from typing import Any

from mnar.atomic_write import write_atomically
from mnar.bench.parallel import check_reusable
from mnar.config import RunConfig, settings_of
from mnar.report import how_fast, is_short
from mnar.run import RunFolder, read_run
from mnar.run.file_names import MODEL
from mnar.training.evaluation import Headline, headline

RESULT, FAILED = ".json", ".failed"


@dataclass(frozen=True)
class RunResult:
    """What one run came to, so far."""

    seed: int
    step: int
    iterations: int
    is_done: bool
    headline: Headline[float]
    minutes: float
    images_per_second: float | None
    device: str
    commit: str | None
    is_short: bool  # the median reaches back over much of the run

    def to_json(self) -> dict[str, Any]:
        """Flat, the figures among the rest."""
        entries = asdict(self)
        figures = entries.pop("headline")._asdict()
        return {**entries, **figures}

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> RunResult:
        figures = {name: entries.pop(name) for name in Headline._fields}
        return cls(**entries, headline=Headline(**figures))


def result_of(path: Path, config: RunConfig) -> RunResult | None:
    """What a run has come to; None before its first evaluation. A folder that holds another run is refused."""
    kept = kept_result(path, config)
    if kept is not None:
        return kept
    check_reusable(path, config)
    return _read_result(path) if (path / MODEL).exists() or RunFolder(path).evaluations() else None


def keep_result(path: Path, config: RunConfig) -> None:
    """Write down what a run came to if it is done, so that nobody need read all of it again."""
    if (path / MODEL).exists():
        with suppress(ValueError):  # damaged: whoever asks for the result is told
            check_reusable(path, config)
            result = {"settings": _settings(config), "result": _read_result(path).to_json()}
            write_atomically(path.with_suffix(RESULT), json.dumps(result, indent=1))


def kept_result(path: Path, config: RunConfig) -> RunResult | None:
    """What a run that is done came to, if that was read before."""
    kept = path.with_suffix(RESULT)
    if not (kept.exists() and (path / MODEL).exists()):
        return None
    try:
        entries = json.loads(kept.read_text())
        return RunResult.from_json(entries["result"]) if entries["settings"] == _settings(config) else None
    except (ValueError, KeyError, TypeError):  # damaged, or of another version: it is made again
        return None


def _settings(config: RunConfig) -> dict[str, Any]:
    """As JSON gives it back."""
    settings: dict[str, Any] = json.loads(json.dumps(settings_of(config.to_dict()), default=str))
    return settings


def _read_result(path: Path) -> RunResult:
    run = read_run(path)
    minutes, images_per_second = how_fast(run)
    return RunResult(
        seed=run.config["seed"],
        step=run.lines[-1]["step"],
        iterations=run.config["train"]["iterations"],
        is_done=(path / MODEL).exists(),
        headline=headline(run.lines),
        minutes=minutes,
        images_per_second=images_per_second,
        device=run.environment["device"],
        commit=run.environment["commit"],
        is_short=is_short(run),
    )


def note_failure(path: Path, error: Exception) -> None:
    """In a line for the tables, and where it happened for whoever looks for the cause."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.with_suffix(FAILED), f"{in_a_line(error)}\n{''.join(format_exception(error))}")


def in_a_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    says_enough = isinstance(error, ValueError | OSError) and text
    return text if says_enough else f"{type(error).__name__}: {text}".removesuffix(": ")
