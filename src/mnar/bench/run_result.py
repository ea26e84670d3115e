"""The result of one run of a bench, kept in a file beside its folder so that the run is read only once.

RUN.json     the result of a finished run
RUN.failed   the reason why the last attempt failed
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import format_exception
from typing import Any

from mnar.atomic_write import DIGEST, from_json, remove_leftover, sealed, unsealed, write_atomically
from mnar.bench.parallel import check_reusable
from mnar.config import PUBLISHED, RunConfig, settings_of
from mnar.report import how_fast, is_short
from mnar.run import RunFolder, read_run
from mnar.training.headline import Headline, headline

RESULT, FAILED = ".json", ".failed"


@dataclass(frozen=True)
class RunResult:
    """The result of one run, as far as it has got."""

    seed: int
    step: int
    iterations: int
    is_done: bool
    headline: Headline[float]
    minutes: float
    images_per_second: float | None
    device: str
    commit: str | None
    is_short: bool  # the headline evaluations cover much of the run
    schedule: str = PUBLISHED


def result_of(path: Path, config: RunConfig) -> RunResult | None:
    """The result of a run, or None before its first evaluation. A folder that contains another run is refused."""
    kept = kept_result(path, config)
    if kept is not None:
        return kept
    check_reusable(path, config)
    files = RunFolder(path)
    return _read_result(path) if files.is_finished or files.evaluations() else None


def keep_result(path: Path, config: RunConfig) -> None:
    """Write the result of a finished run to a file."""
    if RunFolder(path).is_finished:
        with suppress(ValueError):  # damaged: `result_of` reports the damage
            check_reusable(path, config)
            result = {"settings": plain_settings(config), "result": asdict(_read_result(path))}
            write_atomically(path.with_suffix(RESULT), json.dumps(sealed(result), indent=1))


def kept_result(path: Path, config: RunConfig) -> RunResult | None:
    """The result of a finished run, if an earlier call of `keep_result` wrote it.

    A file that is damaged or that has no digest is ignored, because the run folder has the same result.
    """
    kept = path.with_suffix(RESULT)
    if not (kept.exists() and RunFolder(path).is_finished):
        return None
    try:
        sealed_entries = from_json(kept.read_text())
        entries, has_digest = unsealed(sealed_entries), DIGEST in sealed_entries
        return RunResult(**entries["result"]) if has_digest and entries["settings"] == plain_settings(config) else None
    except (ValueError, KeyError, TypeError, AttributeError):  # damaged, or of another version
        return None


def plain_settings(config: RunConfig) -> dict[str, Any]:
    """The options of a run as JSON gives them back."""
    settings: dict[str, Any] = json.loads(json.dumps(settings_of(config.to_dict()), default=str))
    return settings


def _read_result(path: Path) -> RunResult:
    run = read_run(path)
    minutes, images_per_second = how_fast(run)
    return RunResult(
        seed=run.config["seed"],
        step=run.step,
        iterations=run.config["train"]["iterations"],
        is_done=RunFolder(path).is_finished,
        headline=headline(run.lines, run.split["test"]),
        minutes=minutes,
        images_per_second=images_per_second,
        device=run.environment["device"],
        commit=run.environment["commit"],
        is_short=is_short(run),
        schedule=run.schedule,
    )


def forget_failure(path: Path) -> None:
    """Remove the reason of an earlier failure, and what a killed bench has left beside the run."""
    path.with_suffix(FAILED).unlink(missing_ok=True)
    for suffix in (RESULT, FAILED):
        remove_leftover(path.with_suffix(suffix))


def note_failure(path: Path, error: Exception) -> None:
    """Write the reason of a failure: one line for the tables, then the traceback."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.with_suffix(FAILED), f"{in_one_line(error)}\n{''.join(format_exception(error))}")


def in_one_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    is_self_explaining = isinstance(error, ValueError | OSError) and text
    return text if is_self_explaining else f"{type(error).__name__}: {text}".removesuffix(": ")
