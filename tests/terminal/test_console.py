"""The console, its progress bars and its error messages."""

from __future__ import annotations

import errno
import io
import os

import pytest
from rich.table import Table

from mnar.terminal import console as console_module
from mnar.terminal.console import REMEDIES, Terminal, bar, error_message, printable, reading_bar


@pytest.mark.parametrize("number", REMEDIES)
def test_an_error_of_the_operating_system_has_its_file_and_a_remedy(number: int) -> None:
    text = os.strerror(number)
    assert error_message(OSError(number, text, "run/state.pt")) == f"run/state.pt: {text}; {REMEDIES[number]}"
    assert error_message(OSError(number, text)) == f"{text}; {REMEDIES[number]}"


def test_an_error_without_a_known_remedy_keeps_its_message() -> None:
    assert error_message(ValueError("seed is -1")) == "seed is -1"
    assert error_message(OSError("could not write the model")) == "could not write the model"
    assert error_message(OSError(errno.EIO, "Input/output error", "file")) == "[Errno 5] Input/output error: 'file'"


def test_the_console_is_silent_after_the_reader_of_its_output_has_closed_it() -> None:
    class ClosedPipe(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = Terminal(file=ClosedPipe())
    console.print("step 10")
    assert console.quiet
    console.print("step 20")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The output of progress bars on a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(console_module, "console", Terminal(file=file, force_terminal=True, width=100))
    return file


def test_a_bar_appears_with_the_first_update(output: io.StringIO) -> None:
    with bar("4 runs"):
        assert output.getvalue() == ""
    assert output.getvalue() == ""
    with bar("4 runs") as show:
        show(completed=0.5)
    assert "4 runs" in output.getvalue()
    assert "50%" in output.getvalue()


def test_a_reading_bar_shows_its_stages(output: io.StringIO) -> None:
    with reading_bar() as on_stage:
        on_stage("estimating", 30, 40)
    assert "estimating" in output.getvalue()
    assert "75%" in output.getvalue()


def test_a_bar_ends_with_an_error(output: io.StringIO) -> None:
    def fail() -> None:
        with bar("4 runs") as show:
            show(completed=0.5)
            raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        fail()
    assert output.getvalue().endswith("\x1b[?25h"), "the cursor is visible again"


@pytest.mark.parametrize(
    "name", ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "back\x08space", "left\u202eright", "\x9b2J"]
)
def test_control_codes_in_names_reach_no_terminal(name: str) -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, width=80)
    table = Table("class")
    table.add_row(name)
    terminal.print(name, markup=False)
    terminal.print(table)
    assert not {"\x1b", "\x07", "\x08", "\u202e", "\x9b"} & set(out.getvalue())
    assert "\ufffd" in out.getvalue()
    assert printable("tab\tand\nline, Straße, 漢字, 👩\u200d🔬") == "tab\tand\nline, Straße, 漢字, 👩\u200d🔬"
