"""example.py: a script in the exported folder that loads the model without mnar and predicts a file or a folder."""

from __future__ import annotations

from pathlib import Path

from mnar.trained.export.samples import Kind

EXAMPLE = "example.py"
TEMPLATE = Path(__file__).parent / "example.py.j2"


def example_code(to: str, kind: Kind) -> str:
    """Return the script for a format and a kind of samples. Nothing of the user's data is part of the code."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(TEMPLATE.read_text()).render(to=to, kind=kind)
