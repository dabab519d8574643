"""Fixtures for all tests: the gateways and the scripted upstream that a worker's tests share."""

import gc
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.support import skips
from tests.support.fleet import Fleet
from tests.support.gateway import Gateway, backend
from tests.support.postgres import oldest_postgres, pooler, postgres  # noqa: F401 - fixtures
from tests.support.routes import Routes, backends
from tests.support.upstream import Upstream

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

os.environ["XDG_CONFIG_HOME"] = os.devnull  # a developer's own configuration is no part of the tests

# A background job may ignore SIGINT and SIGHUP, and its children inherit this. Restore the defaults for them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Leave what was imported out of the garbage collections of tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        skips.refuse(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of a long run: each measurement and its ceiling."""
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
    """Skip a test whose programs are missing."""
    missing = [command for command in commands if shutil.which(command) is None]
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
    """A client without keep-alive. A gateway that shuts down waits a second for idle connections."""
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(timeout=120, trust_env=False, limits=limits) as client:
        yield client


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Start a gateway with this configuration and environment."""
    started: list[Gateway] = []

    def begin(config: str = "", *args: str, **environment: str) -> Gateway:
        gateway = Gateway(tmp_path, config, args, **environment)
        started.append(gateway)
        return gateway

    yield begin
    for gateway in started:
        gateway.stop()


@pytest.fixture
def start_fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Start a gateway with several workers; `patch` is code that its supervisor runs first."""
    started: list[Fleet] = []

    def begin(config: str = "", workers: int = 2, patch: str = "", **more: Any) -> Fleet:
        started.append(Fleet(tmp_path, config, workers, patch, **more))
        return started[-1]

    yield begin
    for fleet in started:
        if fleet.process.poll() is None:
            os.killpg(fleet.process.pid, signal.SIGKILL)  # with its workers: it has a session of its own
        fleet.stop()


@pytest.fixture(scope="session")
def routes(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    """One gateway with a backend of every kind, for all tests of the matrix."""
    gateway = Gateway(tmp_path_factory.mktemp("matrix"), backends(upstream.url))
    yield Routes(gateway, upstream, http)
    gateway.stop()
