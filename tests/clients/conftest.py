"""Real clients talk to the real gateway, which asks the scripted turns of `turns.py` or its own demo models."""

from collections.abc import Iterator

import pytest

from tests.clients.scripted_model import oblige
from tests.clients.stage import Stage
from tests.clients.turns import TURNS
from tests.support.gateway import PROXIES, Gateway
from tests.support.upstream import Upstream


def pytest_configure(config: pytest.Config) -> None:
    """LangChain's own tests bear marks of plugins that are switched off here."""
    for mark in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{mark}: of a test that LangChain brings along")


@pytest.fixture(scope="session")
def base_url(gateway: Gateway, upstream: Upstream) -> str:
    upstream.replies |= {f"client-{name}": reply for name, reply in TURNS.items()}
    return gateway.base_url


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Backends of all kinds; models without a script are obliging."""
    stage = Stage(tmp_path_factory.mktemp("stage"), oblige)
    yield stage
    stage.stop()


@pytest.fixture(scope="module", autouse=True)
def clients_talk_to_nobody_else() -> Iterator[None]:
    """No proxy in between, no tracing on the side, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*PROXIES, "LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
            patch.delenv(name, raising=False)
        yield
