"""The command line: one module for each command, which loads what it needs only when it runs."""

from toolwire.cli.app import app, main

__all__ = ["app", "main"]
