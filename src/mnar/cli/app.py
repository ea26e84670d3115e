"""The Typer application: registers the commands and turns errors into one-line messages."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from rich.markup import escape
from torch import OutOfMemoryError
from typer.core import TyperGroup

from mnar import __version__
from mnar.cli.bench import bench
from mnar.cli.cache import cache
from mnar.cli.demo import demo
from mnar.cli.evaluate import evaluate
from mnar.cli.export import export
from mnar.cli.features import features
from mnar.cli.inspect import inspect
from mnar.cli.listing import list_parts
from mnar.cli.merge import merge
from mnar.cli.next import next_samples
from mnar.cli.predict import predict
from mnar.cli.relabel import relabel
from mnar.cli.report import report
from mnar.cli.train import train
from mnar.distributed import LostProcess
from mnar.option_values import memory_asked_for
from mnar.terminal.console import console, error_message, errors
from mnar.training.meters import Diverged
from mnar.training.trainer import Interrupted


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Turn Ctrl-C into `Interrupted`, so that `main` prints a message; Typer would exit silently."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("stopped") from error


app = typer.Typer(
    name="mnar",
    cls=Commands,
    help="Semi-supervised learning when labels are missing not at random.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(inspect)
app.command()(cache)
app.command()(train)
app.command("eval")(evaluate)
app.command()(predict)
app.command()(relabel)
app.command("next")(next_samples)
app.command()(merge)
app.command()(export)
app.command()(features)
app.command()(report)
app.command()(bench)
app.command("list")(list_parts)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"mnar {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run a command, and end the process with its exit code."""
    from mnar.run.processes import end_joined

    code = exit_code_of_command()
    end_joined(code)
    sys.exit(code)


def exit_code_of_command() -> int:
    """Run a command. An error that the user can fix is printed as one line without a traceback; so is a warning."""
    from mnar.run.processes import ToldByFirst, is_follower

    if is_follower():  # process 0 prints what all processes would print
        warnings.simplefilter("ignore")
        console.quiet = True
    warnings.showwarning = lambda message, *_: errors.print(f"[yellow]warning:[/yellow] {escape(str(message))}")
    try:
        app(prog_name="mnar")
    except SystemExit as end:  # Typer ends every command with it
        return int(end.code or 0)
    except Interrupted as error:
        if not is_follower():
            errors.print(escape(str(error)), soft_wrap=True, highlight=False)
        return 130
    except ToldByFirst:
        return 1
    except LostProcess as error:
        if not is_follower():
            _print_error(error)
        return 1
    except (ValueError, OSError, Diverged) as error:
        _print_error(error)
        return 1
    except OutOfMemoryError as error:
        remedy = "choose a smaller batch, e.g. --set train.batch_unlabeled=224"
        errors.print(f"[red]error:[/red] the GPU memory is full ({escape(str(error))}); {remedy}", soft_wrap=True)
        return 1
    except (MemoryError, RuntimeError) as error:
        asked = memory_asked_for(error)
        if asked is None:
            raise
        remedy = "choose smaller batches, e.g. --set train.batch_unlabeled=224, a smaller model, or less data"
        errors.print(f"[red]error:[/red] the memory does not suffice ({escape(asked)}); {remedy}", soft_wrap=True)
        return 1
    return 0


def _print_error(error: Exception) -> None:
    message = " ".join(error_message(error).splitlines())  # a name may contain a line break, also one of Unicode
    errors.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True, highlight=False)
