"""Runs `toolwire check` against a backend, in a process of its own, and holds its report until the next one."""

import asyncio
import base64
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from toolwire.config.settings import Backend, Settings
from toolwire.core.terminal import clean
from toolwire.gateway.console.secrets import redact
from toolwire.gateway.console.threads import in_thread
from toolwire.protocols import http_backends
from toolwire.upstream.environment import inherited

BUDGET = 120
"""Requests of one check; each costs what the backend asks for it."""
LONGEST = 900.0
"""Seconds that a check may take."""
LARGEST = 16 * 1024 * 1024
"""Bytes of a report."""


class CheckState(msgspec.Struct):
    """The check that runs, or the last one."""

    backend: str = ""
    began: float = 0.0
    running: bool = False
    said: str = ""
    """The last lines of what the command printed."""
    code: int | None = None
    has_report: bool = False
    budget: int = BUDGET
    through_gateway: bool = False
    """Whether its requests are turns of this gateway."""


class Checks:
    """One check at a time."""

    def __init__(self, settings: Settings, secrets: tuple[bytes, ...]) -> None:
        self._settings = settings
        self._secrets = secrets
        self.state = CheckState()
        self.report = b""
        self._task: asyncio.Task[None] | None = None

    def start(self, backend: Backend, model: str, gateway: str, key: str) -> bool:
        """Begin a check; False if one is running."""
        if self.state.running:
            return False
        through_gateway = not _is_asked_directly(backend)
        self.state = CheckState(backend.name, time.time(), running=True, through_gateway=through_gateway)
        self.report = b""
        self._task = asyncio.create_task(self._run(*_command(backend, model, gateway, key)))
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, command: list[str], secrets: dict[str, str]) -> None:
        state = self.state
        try:
            with tempfile.TemporaryDirectory(prefix="toolwire-check-") as folder:
                path = Path(folder) / "report.html"
                async with asyncio.timeout(LONGEST):
                    state.code, state.said = await self._said(command, secrets, path)
                if path.is_file() and path.stat().st_size <= LARGEST:
                    self.report = await in_thread(self._clean, path.read_bytes())
                    state.has_report = True
        except TimeoutError:
            state.said = f"It took longer than {LONGEST:g} seconds and was ended."
        except OSError as error:
            state.said = f"It could not be started: {error.strerror}."
        finally:
            state.running = False

    def _clean(self, said: bytes) -> bytes:
        """What was said without secrets: servers repeat what they were sent."""
        return redact(said, self._secrets)

    async def _said(self, command: list[str], secrets: dict[str, str], report: Path) -> tuple[int | None, str]:
        """The exit code of a check, and the last of what it printed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "toolwire", "check", *command, "--budget", str(BUDGET), "--report", str(report)),
            env=inherited(self._settings.secret_variables, ()) | secrets,
            cwd=report.parent,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        said = await in_thread(self._clean, said)
        return process.returncode, clean(said.decode(errors="replace")[-4000:])


def _is_asked_directly(backend: Backend) -> bool:
    return backend.kind in http_backends() and bool(backend.base_url) and not backend.auth


def _command(backend: Backend, model: str, gateway: str, key: str) -> tuple[list[str], dict[str, str]]:
    """The arguments of a check, and the variables that hold what is secret: everybody can read a command line.

    A backend without an address is checked through the gateway.
    """
    if not _is_asked_directly(backend):
        return [gateway, "--api", "responses", "--model", f"{backend.name}/{model}"], {"TOOLWIRE_CHECK_KEY": key}
    own = os.environ.get(backend.api_key_env, "") if backend.api_key_env else ""
    address, headers = _without_user(backend.base_url)
    headers |= backend.headers
    if backend.key_header and own:
        headers[backend.key_header], own = own, ""
    secrets = {
        "TOOLWIRE_CHECK_KEY": own,
        "TOOLWIRE_CHECK_HEADERS": msgspec.json.encode(headers).decode(),
        "TOOLWIRE_CHECK_QUERY": msgspec.json.encode(backend.query).decode(),
    }
    return [address, "--api", backend.kind, *(("--model", model) if model else ())], secrets


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """An address without its user and password, and the header that has them."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    header = base64.b64encode(unquote(user).encode()).decode()
    return parts._replace(netloc=host).geturl(), {"authorization": f"Basic {header}"}
