"""Fixtures for the agent."""

from tests.agent.test_files import own_folder

__all__ = ["own_folder"]
