"""What is well and what is not, without changing anything. All servers are asked at the same time."""

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import click
import msgspec

from toolwire.cli.health_backends import ask_backend
from toolwire.cli.health_codex import codex_here
from toolwire.cli.reach import access, version_at
from toolwire.config.extras import missing_extra
from toolwire.config.files import user_path, why_untrusted
from toolwire.config.settings import Backend, Settings, SettingsError, read
from toolwire.config.validate import backend_faults, general_faults
from toolwire.core.terminal import clean
from toolwire.memory.file import FileInUse, StoreFile
from toolwire.memory.sqlite.schema import version_of
from toolwire.memory.store import StoreFailed
from toolwire.turns.routes import check_backends


class Finding(msgspec.Struct, frozen=True):
    """One line."""

    name: str
    is_good: bool
    text: str


def shown(finding: Finding, width: int, *, coloured: bool) -> str:
    """The line, whose name takes so many columns."""
    mark = "✓" if finding.is_good else "✗"
    painted = click.style(mark, fg="green" if finding.is_good else "red") if coloured else mark
    return f"{painted} {clean(f'{finding.name:{width}}  {finding.text}')}"


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
        await _database(settings) if settings.store.is_database else _store(settings),
        Finding("codex", *codex),
        _port(settings, version),
    ]


def _configuration(settings: Settings) -> list[Finding]:
    faults = [Finding("configuration", False, f"{settings.file}: {fault}") for fault in general_faults(settings)]
    missing = missing_extra("mcp") if settings.gateway_tools.mcp else ""
    if missing:
        faults.append(Finding("configuration", False, f"{settings.file}: gateway_tools.mcp: {missing}"))
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
    if fault:
        return Finding(name, False, fault.removeprefix("."))
    try:
        check_backends(msgspec.structs.replace(settings, backends=(backend,)))
    except SettingsError as error:
        return Finding(name, False, str(error))
    return Finding(name, *await ask_backend(settings, backend))


def store_place(settings: Settings) -> str:
    """Where the gateway keeps what outlives a turn."""
    return settings.store.shown


def _store_file(settings: Settings) -> StoreFile | None:
    place = settings.store.place
    if place.startswith("memory:") or settings.store.is_database:
        return None
    return StoreFile(place.partition(":")[2])


async def _database(settings: Settings) -> Finding:
    """A database is asked, and nothing in it is changed."""
    place = settings.store.shown
    missing = missing_extra("postgres")
    if missing:
        return Finding("store", False, f"{place}: {missing}")
    from toolwire.memory.postgres import PostgresStore

    try:
        version = await PostgresStore(settings.store.place, 0, 0, pooler=settings.store.pooler).inspect()
    except StoreFailed as error:
        return Finding("store", False, f"{place}: {error}")
    return Finding("store", True, f"{place}, {f'tables of version {version}' if version else 'made when it is needed'}")


def _store(settings: Settings) -> Finding:
    file = _store_file(settings)
    if file is None:
        return Finding("store", True, store_place(settings))
    fault = _store_fault(file)
    if fault:
        return Finding("store", False, f"{file.path}: {fault}")
    return Finding("store", True, f"{file.path}, {_size(file.path) if file.exists else 'made when it is needed'}")


def _store_fault(file: StoreFile) -> str:
    folder = next(each for each in file.path.parents if each.exists())
    if not os.access(folder, os.W_OK | os.X_OK) or (file.exists and not os.access(file.path, os.W_OK)):
        return "it cannot be written; give it another place with store.url"
    try:
        file.check_disk()
        if not file.exists:
            return ""
        with closing(sqlite3.connect(f"{file.path.as_uri()}?mode=ro", uri=True, timeout=1)) as database:
            version_of(database)
        file.claim()
        file.release()
    except FileInUse:
        return "a gateway of an older version uses it; stop that, or give this one a file of its own with store.url"
    except OSError as error:
        return f"{error.strerror}"
    except (sqlite3.Error, StoreFailed) as error:
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
