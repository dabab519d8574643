"""Whether there is a usable Codex, and a login."""

import asyncio
import base64
import re
import shutil
import time
from typing import Any

import msgspec

from toolwire.backends.codex.protocol import OLDEST
from toolwire.cli.programs import INSTALL
from toolwire.config.settings import Backend
from toolwire.upstream.credentials import login_file, read_login
from toolwire.upstream.environment import inherited

PATIENCE = 6.0
"""Seconds for the program to say its version."""


async def codex_here() -> tuple[bool, str]:
    """Whether all is well with the program on this machine, and a line about it; it need not be there."""
    if shutil.which("codex") is None:
        return True, f"not installed, and only needed for codex backends ({INSTALL['codex']})"
    version, fault = await _version(("codex",))
    return (False, fault) if fault else (True, f"version {version}, {_login()[1]}")


async def codex_of(backend: Backend) -> tuple[bool, str]:
    """The same for a backend, which needs the program, and a login or a provider of its own."""
    version, fault = await _version(backend.command)
    if fault:
        return False, fault
    has_provider = bool(backend.base_url or "model_provider" in backend.overrides)
    good, login = (True, "with a provider of its own") if has_provider else _login()
    return good, f"version {version}, {login}"


async def _version(command: tuple[str, ...]) -> tuple[str, str]:
    """The version that a codex says, and what is wrong with it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=inherited(),
        )
    except OSError as error:
        return "", f"{command[0]} cannot be started: {error.strerror}; {INSTALL['codex']}"
    try:
        async with asyncio.timeout(PATIENCE):
            said, _ = await process.communicate()
    except TimeoutError:
        return "", f"{command[0]} --version does not answer"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = re.search(rb"(\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        return "", f"{command[0]} --version says no version"
    version = tuple(int(part) for part in found.groups())
    needed = ".".join(map(str, OLDEST))
    too_old = f"version {found[0].decode()} is too old, {needed} is needed: {INSTALL['codex']}@latest"
    return found[0].decode(), too_old if version < OLDEST else ""


def _login() -> tuple[bool, str]:
    """Whether there is a login, and what is known of it."""
    path = login_file()
    try:
        found = read_login(path)
    except FileNotFoundError:
        return False, "without a login; run codex login"
    except (OSError, msgspec.DecodeError):
        return False, f"with a login that cannot be read ({path}); run codex login"
    if found.tokens is None or not found.tokens.access_token:
        has_key = bool(found.api_key)
        return has_key, "logged in with an API key" if has_key else "without a login; run codex login"
    left = _seconds_left(found.tokens.access_token)
    late = "; its token has expired, which only codex itself renews" if left is not None and left <= 0 else ""
    return True, f"logged in with ChatGPT{late}"


def _seconds_left(token: str) -> float | None:
    """How long a token is still good, as it says itself; None if it does not."""
    parts = token.split(".")
    try:
        claims: Any = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"]) - time.time()
    except (IndexError, KeyError, TypeError, ValueError):
        return None
