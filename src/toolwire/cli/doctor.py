"""`toolwire doctor`: checks everything that a gateway with these settings needs; one green or red line each.

It changes nothing, and checks all backends concurrently, each with an empty request (`probe.py`).
"""

import asyncio
import base64
import os
import re
import shutil
import sqlite3
import stat
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
import msgspec

from toolwire.backends.codex.protocol import MIN_VERSION
from toolwire.backends.decoder import UNREADABLE
from toolwire.cli.clients import PROGRAMS, find_key, find_key_variable
from toolwire.cli.gateway_address import GatewayAddress, fetch_version
from toolwire.cli.options import config_option
from toolwire.cli.probe import PROBE_TIMEOUT, explain_silence, has_operation, list_nearby_urls, refuses_key
from toolwire.config.files import user_path, why_untrusted
from toolwire.config.settings import Backend, Settings, SettingsError, Store, read
from toolwire.config.validate import find_backend_faults, find_general_faults
from toolwire.core.backend import Post
from toolwire.core.display import clean
from toolwire.imports import missing_extra
from toolwire.memory.sqlite.schema import version_of
from toolwire.memory.sqlite.store_file import FileInUse, StoreFile
from toolwire.memory.store import StoreFailed
from toolwire.protocols import backend_kinds, http_backends
from toolwire.turns.backends import find_obstacle
from toolwire.turns.route import Route
from toolwire.turns.routes import Router, read_model_names
from toolwire.upstream.credentials import find_login_file, inherit_environment, read_login
from toolwire.upstream.http import HttpSession, HttpUpstream
from toolwire.upstream.logins import LOGINS
from toolwire.upstream.reply import Broken

_INSTALL_CODEX = PROGRAMS["codex"].install
CODEX_TIMEOUT = 6.0
"""Seconds for `codex --version`."""


State: TypeAlias = Literal["good", "warning", "bad"]
_MARKS: dict[State, tuple[str, str]] = {"good": ("✓", "green"), "warning": ("!", "yellow"), "bad": ("✗", "red")}


class Finding(msgspec.Struct, frozen=True):
    """The state of one part of the installation, and how to fix it."""

    name: str
    state: State
    text: str


def format_finding(finding: Finding, width: int, *, coloured: bool) -> str:
    """The line of a finding, whose name is padded to `width` columns."""
    mark, colour = _MARKS[finding.state]
    painted = click.style(mark, fg=colour) if coloured else mark
    return f"{painted} {clean(f'{finding.name:{width}}  {finding.text}')}"


@click.command()
@config_option
def doctor(config: str | None) -> None:
    findings = asyncio.run(examine(config))
    width = max(len(finding.name) for finding in findings)
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for finding in findings:
        print(format_finding(finding, width, coloured=coloured))
    raise click.exceptions.Exit(0 if all(finding.state != "bad" for finding in findings) else 1)


async def examine(config: str | None) -> list[Finding]:
    """Check all parts of a gateway."""
    try:
        settings = read(config)
    except SettingsError as error:
        return [Finding("configuration", "bad", str(error))]
    url = GatewayAddress.of(settings).url
    version, codex, backends = await asyncio.gather(
        asyncio.to_thread(fetch_version, url),
        _examine_codex(),
        asyncio.gather(*(_examine_backend(settings, backend) for backend in settings.backends)),
    )
    keys = f"{len(settings.keys)}: {', '.join(key.name for key in settings.keys)}" if settings.keys else ""
    if settings.access.issued_keys:
        keys = f"{keys}; and issued ones: toolwire keys list".removeprefix("; and ")
    port = f"{url} is free" if version is None else f"{url}: toolwire {version} answers"
    if version == "":
        port = f"{url}: another program answers; choose another with server.port, or serve --port"
    return [
        *_examine_configuration(settings),
        Finding("keys", "good", keys or "none: every program on this machine may use the gateway"),
        *backends,
        await _examine_store(settings.store),
        codex,
        Finding("port", "bad" if version == "" else "good", port),
    ]


def _examine_configuration(settings: Settings) -> list[Finding]:
    faults = [f"{settings.file}: {fault}" for fault in find_general_faults(settings)]
    missing = missing_extra("mcp") if settings.gateway_tools.mcp else ""
    if missing:
        faults.append(f"{settings.file}: gateway_tools.mcp: {missing}")
    path = Path(settings.file).absolute() if settings.file else None
    if path is not None:
        untrusted = why_untrusted(path)
        has_keys = any(key.key for key in settings.keys)
        if untrusted:
            faults.append(f"{path}: {untrusted}; chmod go-w {path}")
        elif has_keys and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            faults.append(f"{path}: others may read the keys in it; chmod 600 {path}")
    found = [Finding("configuration", "bad", fault) for fault in faults]
    if path is None:
        return [*found, Finding("configuration", "good", f"none; toolwire init writes {user_path()}")]
    return found or [Finding("configuration", "good", str(path))]


async def _examine_store(store: Store) -> Finding:
    if store.place.startswith("memory:"):
        return Finding("store", "good", store.shown)
    shown, fault, state = store.shown, "", ""
    if store.is_database:
        fault = missing_extra("postgres")
        if not fault:
            from toolwire.memory.postgres import PostgresStore

            try:
                version = await PostgresStore(store.place, 0, 0, pooler=store.pooler).inspect()
                state = f"tables of version {version}" if version else ""
            except StoreFailed as error:
                fault = str(error)
    else:
        file = StoreFile(store.place.partition(":")[2])
        shown, fault = str(file.path), _find_file_fault(file)
        if file.exists and not fault:
            size = sum(each.stat().st_size for each in file.path.parent.glob(f"{file.path.name}*"))
            state = f"{size / 1e6:.1f} MB"
    if fault:
        return Finding("store", "bad", f"{shown}: {fault}")
    return Finding("store", "good", f"{shown}, {state or 'created when needed'}")


def _find_file_fault(file: StoreFile) -> str:
    folder = next(each for each in file.path.parents if each.exists())
    if not os.access(folder, os.W_OK | os.X_OK) or (file.exists and not os.access(file.path, os.W_OK)):
        return "it is not writable; choose another file with store.url"
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
        return str(error.strerror)
    except (sqlite3.Error, StoreFailed) as error:
        return f"it cannot be used: {error}; move it away, or choose another with store.url"
    return ""


# Backends


async def _examine_backend(settings: Settings, backend: Backend) -> Finding:
    name = f"backend {backend.name}"
    fault = next(find_backend_faults(backend), "")
    if fault:
        return Finding(name, "bad", fault.removeprefix("."))
    return Finding(name, *await check_backend(settings, backend))


async def check_backend(settings: Settings, backend: Backend) -> tuple[State, str]:
    """Whether a backend can be reached, accepts its key and has the right base_url, and a line about it."""
    if obstacle := find_obstacle(backend, settings):
        return "bad", obstacle
    if backend.kind == "codex":
        version, fault = await _read_codex_version(backend.command)
        if fault:
            return "bad", fault
        has_provider = bool(backend.base_url or "model_provider" in backend.overrides)
        is_good, login = (True, "with a provider of its own") if has_provider else _read_codex_login()
        return "good" if is_good else "bad", f"version {version}, {login}"
    if backend.kind not in http_backends():
        return "good", f"replays {backend.file}" if backend_kinds()[backend.kind].is_recording else "built in"
    async with HttpSession(settings.timeouts) as session:
        [route] = Router(msgspec.structs.replace(settings, backends=(backend,)), session).routes
        assert isinstance(route.upstream, HttpUpstream)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                state, text = await _check_route(route, route.upstream)
        except (Broken, TimeoutError) as error:
            state, text = "bad", explain_silence(error)
        return state, f"{route.upstream.url}: {text}"


async def _check_route(route: Route, upstream: HttpUpstream) -> tuple[State, str]:
    backend, key = route.backend, find_key(route.backend)
    post = Post(http_backends()[backend.kind].path, b"{}")
    answer = await upstream.fetch(post, key)
    if refuses_key(answer):
        if backend.auth:
            return "bad", f"the login was refused ({answer.status}); run {LOGINS[backend.auth].command}"
        variable = backend.api_key_env or find_key_variable(backend)
        if not variable:
            return "good", "it answers, and needs a key: clients send theirs, unless api_key_env names one"
        return "bad", f"the key in {variable} was refused ({answer.status}); put a valid one there"
    if answer.status == 402:
        return "bad", "the account has no credit (402)"
    names: tuple[str, ...] = ()
    if route.list_models and not backend.auth:
        with suppress(Broken, *UNREADABLE):
            names = read_model_names(await route.list_models(key))
    models = f", with {len(names)} models" if names else ""
    if answer.status == 500 and models:  # some servers fail on an empty request
        return "warning", f"it answers{models}, but an empty request with status 500; a turn will show whether it works"
    if answer.status >= 500:
        return "bad", f"it answers with status {answer.status}; try again later"
    if not has_operation(answer):
        if models:  # some servers answer 404 where a model is missing
            return "good", f"it answers{models}"
        return "bad", await _explain_address(upstream, post, key, answer.status)
    if not backend.has_key and not key:
        return "good", f"it answers{models}; clients send their own key, if it needs one"
    return "good", f"it answers, and accepts the key{models}"


async def _explain_address(upstream: HttpUpstream, post: Post, key: str, status: int) -> str:
    """Suggest an address that has the operation."""
    for other in list_nearby_urls(upstream.url):
        found = await upstream.at(other).fetch(post, key)
        if found.status in (400, 401, 403, 422) and has_operation(found):
            return f"base_url looks wrong ({status}); write {other}"
    return f"base_url looks wrong: there is no {post.path} ({status})"


# Codex


async def _examine_codex() -> Finding:
    """The state of Codex on this machine; it need not be installed."""
    if shutil.which("codex") is None:
        text = f"not installed, and only needed for codex backends ({_INSTALL_CODEX})"
        return Finding("codex", "good", text)
    version, fault = await _read_codex_version(("codex",))
    return Finding("codex", "bad" if fault else "good", fault or f"version {version}, {_read_codex_login()[1]}")


async def _read_codex_version(command: tuple[str, ...]) -> tuple[str, str]:
    """The version that this command prints, and what is wrong with it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=inherit_environment(),
        )
    except OSError as error:
        return "", f"{command[0]} cannot be started: {error.strerror}; {_INSTALL_CODEX}"
    try:
        async with asyncio.timeout(CODEX_TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        return "", f"{command[0]} --version does not answer"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = re.search(rb"(\d+)\.(\d+)\.(\d+)", output)
    if found is None:
        return "", f"{command[0]} --version prints no version"
    version = tuple(int(part) for part in found.groups())
    needed = ".".join(map(str, MIN_VERSION))
    too_old = f"version {found[0].decode()} is too old, {needed} is needed: {_INSTALL_CODEX}@latest"
    return found[0].decode(), too_old if version < MIN_VERSION else ""


def _read_codex_login() -> tuple[bool, str]:
    """Whether there is a usable login, and a description of it."""
    path = find_login_file()
    try:
        found = read_login(path)
    except FileNotFoundError:
        return False, "without a login; run codex login"
    except (OSError, msgspec.DecodeError):
        return False, f"with a login that cannot be read ({path}); run codex login"
    if found.tokens is None or not found.tokens.access_token:
        has_key = bool(found.api_key)
        return has_key, "logged in with an API key" if has_key else "without a login; run codex login"
    try:  # a JSON Web Token may say when it expires
        claims = found.tokens.access_token.split(".")[1]
        decoded: Any = msgspec.json.decode(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        is_expired = float(decoded["exp"]) <= time.time()
    except (IndexError, KeyError, TypeError, ValueError):
        is_expired = False
    late = "; its token has expired, which only codex itself renews" if is_expired else ""
    return True, f"logged in with ChatGPT{late}"
