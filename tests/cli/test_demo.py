"""`mnar demo`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import pytest

from mnar.bench import demo, parallel
from mnar.run.folder import RunFolder
from tests.support.command import Mnar, stop_as_ctrl_c_does, stop_as_kill_does, wait_for


@pytest.mark.slow
def test_a_demo_that_was_stopped_twice_continues_and_compares_four_methods(
    mnar: Mnar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("demo", "--seeds", "1", "--iterations", "80", "--out", "demo")

    def evaluations() -> int:
        return sum(len(RunFolder(run).evaluations()) for run in tmp_path.glob("demo/*-seed1"))

    def stop_at_next_evaluation(stop: Callable[[], None], already: int, started: set[Path]) -> None:
        wait_for(lambda: evaluations() > already)
        started.update(config.parent for config in tmp_path.glob("demo/*/config.yaml"))
        stop()

    for stop in (stop_as_kill_does, stop_as_ctrl_c_does):
        started = set[Path]()
        with monkeypatch.context() as patch:
            patch.setattr(parallel, "num_cores", lambda: 1)  # one run at a time, so that other runs wait
            patch.setattr(demo, "METHODS", demo.METHODS[1:])  # the first method finishes too soon
            threading.Thread(target=stop_at_next_evaluation, args=(stop, evaluations(), started)).start()
            stopped = mnar(*command)
        assert stopped.code == 130, stopped.errors
        assert stopped.errors == "stopped; run the same command again to continue\n"
        assert active_children() == []
        finished = {model.parent for model in tmp_path.glob("demo/*/model.safetensors")}
        assert finished <= started, "no run is started after the stop"

    outcome = mnar(*command)
    assert outcome.code == 0, outcome.errors
    scores, changes = outcome.output.split("What PRG changed: the last evaluation")
    for method in ("supervised", "fixmatch", "fixmatch + prg", "fixmatch + prg_last"):
        assert re.search(rf"^│ {re.escape(method)} +│( +\d+\.\d │){{3}}$", scores, re.MULTILINE), method
    for method in ("fixmatch + prg", "fixmatch + prg_last"):
        row = rf"^│ {re.escape(method)} +│ fixmatch +│ 1 +│( \d+\.\d → \d+\.\d \([+−]\d+\.\d\) +│){{2}} .*│$"
        assert re.search(row, changes, re.MULTILINE), method
    assert "data:image/svg+xml" in (tmp_path / "demo/report.html").read_text()
    assert len([path for path in (tmp_path / "demo").iterdir() if path.is_dir()]) == 4
    assert list(tmp_path.glob("demo/*/report.html")) == [], "one report shows all runs"

    again = mnar("demo", "--seeds", 1, "--iterations", 9, "--out", "demo")
    assert again.code == 1
    assert re.search(r"holds a run with other settings \(train\.iterations: 80 and 9\)", again.errors)
