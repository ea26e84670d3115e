"""The command line, one file per command. A command parses its options, calls the library and prints the result."""

from mnar.cli.app import app, main

__all__ = ["app", "main"]
