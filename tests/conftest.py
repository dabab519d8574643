"""Fixtures for all tests: one gateway process and one scripted upstream for a whole worker."""

import os
import shutil
import signal
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.support.gateway import Gateway, backend
from tests.support.postgres import oldest_postgres, pooler, postgres  # noqa: F401 - fixtures
from tests.support.upstream import Upstream

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

os.environ["XDG_CONFIG_HOME"] = os.devnull  # a developer's own configuration is no part of the tests

# Programs that tests start can be interrupted, also where the tests themselves run in the background and cannot.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

LONG = ("test_mcp", "test_own_tools", "test_codex_workers", "test_sessions", "test_codex_app_server", "test_command")
"""The modules that take longest. They are begun first, so that no worker is left alone with one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table that long runs end with: what was measured, and how much it may be."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [row for report in reports for name, row in report.user_properties if name == "row"]
    if not rows:
        return
    table = [["scenario", "measured", "ceiling", "verdict"], *rows]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    terminalreporter.section("measured")
    for scenario, measured, ceiling, verdict in table:
        line = f"{scenario:{widths[0]}}  {measured:>{widths[1]}}  {ceiling:>{widths[2]}}  {verdict}"
        terminalreporter.write_line(line, red=verdict == "BEYOND")


def needs(*commands: str) -> None:
    """Skip a test whose programs are missing; under CI they must be there."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"missing on CI: {', '.join(missing)}")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with the scripted upstream as `up/MODEL`, and the demo models."""
    server = Gateway(tmp_path_factory.mktemp("gateway"), backend(upstream.url))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=120, trust_env=False) as client:
        yield client
