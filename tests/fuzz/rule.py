"""The rule of the fuzz: an input works, or the command ends in one line with a remedy, within 10 s and 1 GB."""

from __future__ import annotations

import faulthandler
import re
import resource
import signal
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.support.forked_command import UNCAUGHT, Ended

SECONDS = 10  # of CPU time, because other processes may use the same cores
WAITING_SECONDS = 120  # of real time, for a command that waits without using the CPU
MEMORY = 2**30  # bytes that are resident
MOST_ALLOCATED = 4 * MEMORY  # bytes; libraries reserve more memory than they use
REFUSED = 1  # the exit code of a command that printed an error message
# A message of this project says what is wrong, and then in the imperative what to do.
VERBS = (
    "add|ask|call|change|check|choose|close|continue|copy|correct|create|cut|declare|draw|expected|export|fill|finish|"
    "free|give|import|install|keep|label|leave|let|list|look|lower|make|move|name|number|pass|put|reduce|remove|rename|"
    "repeat|replace|request|resize|restore|run|save|scale|see|set|shorten|show|split|start|store|take|train|try|undo|"
    "use|wait|write"
)
REMEDY = re.compile(rf"(?:[;:,.?(]|\bor|\band|\bthen) (?:{VERBS})\b", re.IGNORECASE)
PLACE = re.compile(r'^  File "(.*)", line (\d+)', re.MULTILINE)
VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(\.\d+)?|/\S+|0x[0-9a-f]+")  # parts of a message that depend on the input


class Verdict(StrEnum):
    WORKED = "worked"
    REFUSED = "refused"
    UNCAUGHT = "traceback"
    NO_REMEDY = "no remedy"
    SLOW = "too slow"
    LARGE = "too much memory"
    KILLED = "killed"
    DIFFERENT = "different result"

    @property
    def is_failure(self) -> bool:
        return self not in (Verdict.WORKED, Verdict.REFUSED)


class Judgement(NamedTuple):
    verdict: Verdict
    reason: str  # of a refusal or a failure, in one line


def limit_this_process() -> None:
    """Let the system end this process when it uses too much time, and refuse it far too much memory."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    faulthandler.register(signal.SIGALRM, chain=True)  # prints where the process waits, before the signal ends it
    signal.alarm(WAITING_SECONDS)
    # The limit is on what the process can write to, so that the libraries it has loaded do not count.
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + MOST_ALLOCATED
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def judge(ended: Ended) -> Judgement:
    """Return whether a command has kept the rule."""
    lines = ended.errors.strip().splitlines()
    errors = [line for line in lines if not line.startswith("warning:")]
    last = errors[-1] if errors else ""
    if ended.exit_code == -signal.SIGXCPU:
        return Judgement(Verdict.SLOW, f"it computed for more than {SECONDS} s")
    if ended.exit_code == -signal.SIGALRM:
        return Judgement(Verdict.SLOW, f"it had not ended after {WAITING_SECONDS} s: {' | '.join(errors)}")
    if ended.exit_code < 0:
        return Judgement(Verdict.KILLED, f"{signal.Signals(-ended.exit_code).name} ended it")
    if ended.exit_code == UNCAUGHT or "Traceback (most recent call last)" in ended.errors:
        places = PLACE.findall(ended.errors)
        where = ", called in ".join(f"{Path(file).name}:{line}" for file, line in reversed(places[-2:])) or "?"
        return Judgement(Verdict.UNCAUGHT, f"{last} at {where}")
    if ended.memory > MEMORY:
        return Judgement(Verdict.LARGE, f"it took {ended.memory / 2**20:.0f} MB")
    if ended.exit_code == 0:
        return Judgement(Verdict.WORKED, "")
    if ended.exit_code != REFUSED or len(errors) != 1 or not last.startswith("error: ") or not REMEDY.search(last):
        return Judgement(Verdict.NO_REMEDY, " | ".join(errors))
    return Judgement(Verdict.REFUSED, last)


def kind_of(judgement: Judgement) -> str:
    """Return a text that is the same for inputs which fail for the same reason."""
    if judgement.verdict is Verdict.UNCAUGHT:
        return f"{judgement.verdict} at {judgement.reason.rpartition(' at ')[2]}"
    return f"{judgement.verdict}: {VARIABLE.sub('*', judgement.reason)}"[:200]
