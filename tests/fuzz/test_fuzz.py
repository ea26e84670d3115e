from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.fuzz import READERS
from tests.fuzz.rule import MEMORY, Verdict, judge, kind_of
from tests.support.forked_command import UNCAUGHT, Ended

INPUTS_PER_READER = 22


@pytest.mark.slow
def test_every_changed_input_works_or_is_refused_in_one_line_with_a_remedy(tmp_path: Path) -> None:
    """In a process of its own, because this process may have trained; then its forks may hang."""
    command = [sys.executable, "-m", "tests.fuzz.fuzz", "--inputs", str(INPUTS_PER_READER), "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    for reader in READERS:
        assert f"{reader.name:14} {INPUTS_PER_READER:8}" in done.stdout
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        (Ended(0, "", "", 1), Verdict.WORKED),
        (Ended(0, "", "warning: the column is empty\n", 1), Verdict.WORKED),
        (Ended(1, "", "error: data.csv is empty; give a header line\n", 1), Verdict.REFUSED),
        (
            Ended(1, "", "warning: odd\nerror: which column is the label? Name it with --label: a, b\n", 1),
            Verdict.REFUSED,
        ),
        (Ended(1, "", "error: could not convert string to float: 'x'\n", 1), Verdict.NO_REMEDY),
        (Ended(1, "", "error: data.csv is empty;\ngive a header line\n", 1), Verdict.NO_REMEDY),
        (Ended(2, "", "Usage: mnar inspect\n", 1), Verdict.NO_REMEDY),
        (Ended(UNCAUGHT, "", "Traceback (most recent call last):\nKeyError: 'x'\n", 1), Verdict.UNCAUGHT),
        (Ended(0, "", "Exception in thread\nTraceback (most recent call last):\nKeyError: 'x'\n", 1), Verdict.UNCAUGHT),
        (Ended(0, "", "", MEMORY + 1), Verdict.LARGE),
        (Ended(-signal.SIGXCPU, "", "", 1), Verdict.SLOW),
        (Ended(-signal.SIGALRM, "", "", 1), Verdict.SLOW),
        (Ended(-signal.SIGSEGV, "", "", 1), Verdict.KILLED),
    ],
)
def test_the_rule_judges_what_a_user_sees(ended: Ended, verdict: Verdict) -> None:
    assert judge(ended).verdict is verdict


def test_failures_in_the_same_line_of_code_are_of_one_kind() -> None:
    text = 'Traceback (most recent call last):\n  File "/a/b.py", line 3, in read\n    int(x)\nValueError: {}\n'
    kinds = {kind_of(judge(Ended(UNCAUGHT, "", text.format(value), 1))) for value in ("'x'", "'y z'")}
    assert len(kinds) == 1
