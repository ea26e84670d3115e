"""The example of docs/plug_in_example.py runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "docs" / "plug_in_example.py"


@pytest.mark.slow
def test_the_example_learns_with_prg_and_is_about_forty_lines() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True, timeout=300)
    accuracy = {name: float(percent) for name, percent in re.findall(r"(\w+): ([\d.]+)%", done.stdout)}
    assert accuracy.keys() == {"NoGuidance", "PRG"}
    assert accuracy["PRG"] > 60
    assert len([line for line in EXAMPLE.read_text().splitlines() if line.strip()]) <= 42
