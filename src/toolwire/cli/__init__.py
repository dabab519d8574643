"""The command line: a module for each command, imported when the command is called."""

from toolwire.cli.app import app, main

__all__ = ["app", "main"]
