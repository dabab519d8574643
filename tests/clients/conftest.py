"""Real clients talk to the real gateway, which asks the scripted turns of `turns.py` or its own demo models."""

from collections.abc import Iterator

import pytest

from tests.clients.scripted_model import oblige
from tests.clients.stage import Stage
from tests.sdk.conftest import base_url, clients_talk_to_nobody_else

__all__ = ["base_url", "clients_talk_to_nobody_else"]


def pytest_configure(config: pytest.Config) -> None:
    """LangChain's own tests bear marks of plugins that are switched off here."""
    for mark in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{mark}: of a test that LangChain brings along")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Backends of all kinds; models without a script are obliging."""
    stage = Stage(tmp_path_factory.mktemp("stage"), oblige)
    yield stage
    stage.stop()
