"""Runs `toolwire check` against a backend, in a process of its own, and holds its report until the next one."""

import asyncio
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from toolwire.core.terminal import clean
from toolwire.turns.settings import HTTP_KINDS, Backend, Settings
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


class Checks:
    """One check at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.state = CheckState()
        self.report = b""
        self._task: asyncio.Task[None] | None = None

    def start(self, backend: Backend, model: str, gateway: str, key: str) -> bool:
        """Begin a check; False if one is running."""
        if self.state.running:
            return False
        self.state = CheckState(backend.name, time.time(), running=True)
        self.report = b""
        self._task = asyncio.create_task(self._run(*_command(backend, model, gateway, key)))
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, command: list[str], key: str) -> None:
        environment = inherited(self._settings.secret_variables, ()) | {"TOOLWIRE_CHECK_KEY": key}
        state = self.state
        with tempfile.TemporaryDirectory(prefix="toolwire-check-") as folder:
            path = Path(folder) / "report.html"
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", "toolwire", "check", *command, "--budget", str(BUDGET), "--report", str(path)),
                env=environment,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                async with asyncio.timeout(LONGEST):
                    said, _ = await process.communicate()
                state.said = clean(said.decode(errors="replace")[-4000:])
                state.code = process.returncode
                if path.is_file() and path.stat().st_size <= LARGEST:
                    self.report = await asyncio.to_thread(path.read_bytes)
                    state.has_report = True
            except TimeoutError:
                state.said = f"It took longer than {LONGEST:g} seconds and was ended."
            finally:
                state.running = False
                if process.returncode is None:
                    process.kill()
                    await process.wait()


def _command(backend: Backend, model: str, gateway: str, key: str) -> tuple[list[str], str]:
    """The arguments of a check, and the key to send. A backend without an address is checked through the gateway."""
    if backend.kind in HTTP_KINDS and backend.base_url and not backend.auth:
        own = os.environ.get(backend.api_key_env, "") if backend.api_key_env else ""
        return [backend.base_url, "--api", backend.kind, *(("--model", model) if model else ())], own
    return [gateway, "--api", "responses", "--model", f"{backend.name}/{model}" if model else backend.name], key
