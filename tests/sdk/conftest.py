"""The Python SDKs talk to the real gateway, which asks the scripted turns of `turns.py` or its own demo models."""

from collections.abc import Iterator

import pytest

from tests.sdk.turns import TURNS
from tests.support.gateway import PROXIES, Gateway
from tests.support.upstream import Upstream


@pytest.fixture(scope="session")
def base_url(gateway: Gateway, upstream: Upstream) -> str:
    upstream.replies |= {f"client-{name}": reply for name, reply in TURNS.items()}
    return gateway.base_url


@pytest.fixture(scope="module", autouse=True)
def clients_talk_to_nobody_else() -> Iterator[None]:
    """No proxy in between, no tracing on the side, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*PROXIES, "LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
            patch.delenv(name, raising=False)
        yield
