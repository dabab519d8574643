"""Backends in the console: their model lists, and reports of `toolwire check`."""

import asyncio
import base64
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from toolwire.config.settings import Backend, Settings
from toolwire.core.display import clean
from toolwire.gateway.console.http import run_in_thread
from toolwire.gateway.console.secrets import redact
from toolwire.protocols import http_backends
from toolwire.turns.routes import Router
from toolwire.upstream.credentials import inherit_environment

MODELS_SECONDS = 60.0
"""Seconds between two attempts to fetch a model list."""
MODELS_TIMEOUT = 0.5
"""Seconds that a page waits for model lists."""
MAX_CHECK_REQUESTS = 120
"""Maximum number of requests of one check; the backend charges for each."""
CHECK_TIMEOUT = 900.0
MAX_REPORT_SIZE = 16 * 1024 * 1024
MAX_OUTPUT_LENGTH = 4000
"""Maximum characters of a check's output, from its end."""


class ModelLists:
    """Cached lists of models, refreshed in the background."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._models: dict[str, list[str]] = {}
        self._asked_at: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def load(self) -> dict[str, list[str]]:
        """The models by backend. For a slow server this is its previous list, or none."""
        now = time.monotonic()
        for name in (route.backend.name for route in self._router.routes):
            if name not in self._tasks and now - self._asked_at.get(name, -MODELS_SECONDS) >= MODELS_SECONDS:
                self._asked_at[name] = now
                self._tasks[name] = asyncio.create_task(self._refresh(name))
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=MODELS_TIMEOUT)
        return self._models

    async def stop(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _refresh(self, name: str) -> None:
        try:
            self._models[name] = await self._router.models_of(name) or self._models.get(name, [])
        finally:
            self._tasks.pop(name, None)


class CheckState(msgspec.Struct):
    """The running check, or the last one."""

    backend: str = ""
    began: float = 0.0
    running: bool = False
    said: str = ""
    """The end of the command's output."""
    code: int | None = None
    has_report: bool = False
    budget: int = MAX_CHECK_REQUESTS
    through_gateway: bool = False
    """Whether its requests are turns of this gateway."""


class Checks:
    """Runs `toolwire check` in a process of its own, one check at a time, and holds the last report."""

    def __init__(self, settings: Settings, secrets: tuple[bytes, ...]) -> None:
        self._settings = settings
        self._secrets = secrets
        self.state = CheckState()
        self.report = b""
        self._task: asyncio.Task[None] | None = None

    def start(self, backend: Backend, model: str, gateway: str, key: str) -> bool:
        """Start a check; False if one is running. A backend without an address is checked through the gateway at this
        address, with this key."""
        if self.state.running:
            return False
        through_gateway = not _has_address(backend)
        self.state = CheckState(backend.name, time.time(), running=True, through_gateway=through_gateway)
        self.report = b""
        self._task = asyncio.create_task(self._run(*make_check_command(self._settings, backend, model, gateway, key)))
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, arguments: list[str], variables: dict[str, str]) -> None:
        """Run the command, and keep its output and report."""
        state = self.state
        try:
            with tempfile.TemporaryDirectory(prefix="toolwire-check-") as folder:
                path = Path(folder) / "report.html"
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-P", "-m", "toolwire", "check", *arguments),
                    *("--budget", str(MAX_CHECK_REQUESTS), "--report", str(path)),
                    env=inherit_environment(self._settings.secret_variables, ()) | variables,
                    cwd=folder,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
                try:
                    async with asyncio.timeout(CHECK_TIMEOUT):
                        output, _ = await process.communicate()
                    state.code = process.returncode
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                output = await run_in_thread(redact, output, self._secrets)  # servers may echo secrets
                state.said = clean(output.decode(errors="replace")[-MAX_OUTPUT_LENGTH:])
                if path.is_file() and path.stat().st_size <= MAX_REPORT_SIZE:
                    self.report = await run_in_thread(redact, path.read_bytes(), self._secrets)
                    state.has_report = True
        except TimeoutError:
            state.said = f"The check took longer than {CHECK_TIMEOUT:g} seconds and was stopped."
        except OSError as error:
            state.said = f"The check could not be started: {error.strerror}."
        finally:
            state.running = False


def _has_address(backend: Backend) -> bool:
    return backend.kind in http_backends() and bool(backend.base_url) and not backend.auth


def make_check_command(
    settings: Settings, backend: Backend, model: str, gateway: str, key: str
) -> tuple[list[str], dict[str, str]]:
    """The arguments of a check, and the variables with its secrets: other users can read a command line."""
    if not _has_address(backend):
        return [gateway, "--api", "responses", "--model", f"{backend.name}/{model}"], {"TOOLWIRE_CHECK_KEY": key}
    own = settings.environment.get(backend.api_key_env, "")
    parts = urlsplit(backend.base_url)
    login, at, host = parts.netloc.rpartition("@")
    address, headers = backend.base_url, dict(backend.headers)
    if at:  # the login goes into a header
        basic = base64.b64encode(unquote(login).encode()).decode()
        address, headers = parts._replace(netloc=host).geturl(), {"authorization": f"Basic {basic}", **headers}
    if backend.key_header and own:
        headers[backend.key_header], own = own, ""
    variables = {
        "TOOLWIRE_CHECK_KEY": own,
        "TOOLWIRE_CHECK_HEADERS": msgspec.json.encode(headers).decode(),
        "TOOLWIRE_CHECK_QUERY": msgspec.json.encode(backend.query).decode(),
    }
    return [address, "--api", backend.kind, *(("--model", model) if model else ())], variables
