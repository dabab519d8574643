"""Fixtures for commands."""

from tests.commands.desk import desk

__all__ = ["desk"]
