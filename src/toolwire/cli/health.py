"""What is well and what is not, without changing anything. All servers are asked at the same time."""

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import msgspec

from toolwire.cli.health_backends import ask_backend
from toolwire.cli.health_codex import codex_here
from toolwire.cli.reach import access, version_at
from toolwire.memory.file import FileInUse, StoreFile
from toolwire.memory.private import state_folder
from toolwire.turns.checks import backend_faults, general_faults
from toolwire.turns.files import user_path, why_untrusted
from toolwire.turns.routes import Router, check_backends
from toolwire.turns.settings import Backend, Settings, SettingsError, read
from toolwire.upstream.http import make_session


class Finding(msgspec.Struct, frozen=True):
    """One line."""

    name: str
    is_good: bool
    text: str


async def examine(config: str | None) -> list[Finding]:
    """Everything, in the order of a settings file."""
    try:
        settings = read(config)
    except SettingsError as error:
        return [Finding("configuration", False, str(error))]
    version, codex, backends = await asyncio.gather(
        asyncio.to_thread(version_at, access(settings).url),
        codex_here(),
        asyncio.gather(*(_backend(settings, backend) for backend in settings.backends)),
    )
    return [
        *_configuration(settings),
        Finding("keys", True, _keys(settings)),
        *backends,
        _store(settings, runs=bool(version)),
        Finding("codex", *codex),
        _port(settings, version),
    ]


def _configuration(settings: Settings) -> list[Finding]:
    faults = [Finding("configuration", False, f"{settings.file}: {fault}") for fault in general_faults(settings)]
    if not settings.file:
        return [*faults, Finding("configuration", True, f"none; toolwire init writes {user_path()}")]
    path = Path(settings.file).absolute()
    untrusted = why_untrusted(path)
    holds_keys = any(key.key for key in settings.keys)
    if untrusted:
        return [*faults, Finding("configuration", False, f"{path}: {untrusted}; chmod go-w {path}")]
    if holds_keys and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return [*faults, Finding("configuration", False, f"{path}: others may read the keys in it; chmod 600 {path}")]
    return faults or [Finding("configuration", True, str(path))]


def _keys(settings: Settings) -> str:
    if not settings.keys:
        return "none: whoever is on this machine may ask"
    return f"{len(settings.keys)}: {', '.join(key.name for key in settings.keys)}"


async def _backend(settings: Settings, backend: Backend) -> Finding:
    name = f"backend {backend.name}"
    fault = next(backend_faults(backend, os.environ), "")
    alone = msgspec.structs.replace(settings, backends=(backend,))
    if fault:
        return Finding(name, False, fault.removeprefix("."))
    try:
        check_backends(alone)
    except SettingsError as error:
        return Finding(name, False, str(error))
    async with make_session(settings.timeouts) as session:
        return Finding(name, *await ask_backend(Router(alone, session).routes[0]))


def _store(settings: Settings, *, runs: bool) -> Finding:
    url = settings.store.url
    if url.startswith("memory:"):
        return Finding("store", True, "in memory")
    file = StoreFile(url.partition(":")[2] or str(state_folder() / "toolwire.db"))
    fault = _store_fault(file, runs=runs)
    if fault:
        return Finding("store", False, f"{file.path}: {fault}")
    return Finding("store", True, f"{file.path}, {_size(file.path) if file.exists else 'made when it is needed'}")


def _store_fault(file: StoreFile, *, runs: bool) -> str:
    folder = next(each for each in file.path.parents if each.exists())
    if not os.access(folder, os.W_OK | os.X_OK) or (file.exists and not os.access(file.path, os.W_OK)):
        return "it cannot be written; give it another place with store.url"
    if not file.exists:
        return ""
    try:
        with sqlite3.connect(f"{file.path.as_uri()}?mode=ro", uri=True, timeout=1) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        file.claim()
        file.release()
    except FileInUse:
        return "" if runs else "another gateway uses it; stop that, or give this one a file of its own with store.url"
    except (sqlite3.Error, OSError) as error:
        return f"it cannot be used: {error}; move it away, or choose another with store.url"
    return ""


def _size(path: Path) -> str:
    size = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))
    return f"{size / 1e6:.1f} MB"


def _port(settings: Settings, version: str | None) -> Finding:
    url = access(settings).url
    if version is None:
        return Finding("port", True, f"{url} is free")
    if version:
        return Finding("port", True, f"{url}: toolwire {version} answers")
    return Finding("port", False, f"{url}: another program answers; choose another with server.port, or serve --port")
