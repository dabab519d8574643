"""Finds faults in settings whose types are valid. A fault is one line."""

import os
import re
from collections.abc import Iterator, Mapping
from math import inf
from urllib.parse import urlsplit

import msgspec

from toolwire.config.decode import SettingsError, convert_table, explain_choice, join_words
from toolwire.config.presets import PRESETS, find_placeholder
from toolwire.config.settings import (
    CONSOLE_NAME,
    DATABASE_SCHEMES,
    Backend,
    Settings,
    bytes_of,
    find_address_fault,
)
from toolwire.imports import missing_extra
from toolwire.protocols import backend_kinds, http_backends

_HOST = re.compile(r"[^\s:/@*\[\]]+|\[?[0-9a-fA-F:.]+\]?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/@*]+", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


MIN_ADMIN_KEY_CHARS = 20


def find_faults(settings: Settings, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """All faults, each with its field."""
    yield from find_general_faults(settings, environment)
    for index, backend in enumerate(settings.backends):
        yield from (f"backends[{index}] ({backend.name}){fault}" for fault in find_backend_faults(backend))


def find_general_faults(settings: Settings, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The faults that do not belong to one backend."""
    yield from _check_sizes(settings)
    yield from _check_access(settings, environment)
    store, name = settings.store, settings.store.setting
    if store.url_env and not _VARIABLE.fullmatch(store.url_env):  # not shown: it may be the URL
        yield "store.url_env: this is not the name of a variable; write the name of the variable that holds the URL"
    elif store.url_env and store.url:
        yield "store.url_env: there is a store.url too; one of them is enough"
    elif store.url_env and not environment.get(store.url_env, "").strip():
        yield f"store.url_env: the variable {store.url_env} is not set; put the URL into it: export {store.url_env}=…"
    elif not store.place.startswith(("memory:", "sqlite:", *DATABASE_SCHEMES)):
        what = repr(store.place) if name == "store.url" and "@" not in store.place else "this value"
        yield f"{name}: {what} is neither memory: nor sqlite:PATH nor postgresql://USER@HOST/DATABASE"
    elif store.is_database and (missing := missing_extra("postgres")):
        yield f"{name}: {missing}"
    seen: set[str] = set()
    for index, backend in enumerate(settings.backends):
        if backend.name in seen:
            yield f"backends[{index}] ({backend.name}): another backend has this name"
        seen.add(backend.name)


def _check_sizes(settings: Settings) -> Iterator[str]:
    server, sizes = settings.server, dict[str, int]()
    for field, size in (
        ("server.max_body", server.max_body),
        ("server.max_in_flight", server.max_in_flight),
        ("server.max_reply", server.max_reply),
        ("server.max_preamble", server.max_preamble),
        ("store.max_size", settings.store.max_size),
        ("console.max_size", settings.console.max_size),
        ("console.max_history", settings.console.max_history),
    ):
        try:
            sizes[field] = bytes_of(size)
        except ValueError as error:
            yield f"{field}: {error}"
    if sizes.get("server.max_in_flight", inf) < sizes.get("server.max_body", 0):
        yield "server.max_in_flight: it must be at least server.max_body"
    keep = settings.console.keep
    if keep not in ("auto", "everything", "metadata") and not settings.console.seconds:
        yield f"console.keep: {keep!r} is not one of auto, everything, metadata, or a time such as 7d, 12h or 30m"
    if settings.console.seconds and settings.store.place == "memory:":
        yield "console.keep: turns cannot be kept for a time in a store that is in memory"


def _check_access(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """Check hosts, origins and keys."""
    for index, host in enumerate(settings.server.hosts):
        if not _HOST.fullmatch(host):
            message = f"{host!r} is not a host; write a name or an address, without scheme and port"
            yield f"server.hosts[{index}]: {message}"
    for index, origin in enumerate(settings.server.origins):
        if not _ORIGIN.fullmatch(origin):
            message = f"{origin!r} is not an origin; write SCHEME://HOST or SCHEME://HOST:PORT"
            yield f"server.origins[{index}]: {message}"
    names: set[str] = set()
    secrets: set[bytes] = set()
    for index, key in enumerate(settings.keys):
        where = f"keys[{index}] ({key.name})"
        if not key.name:
            yield f"{where}: a name is needed"
        if key.name == CONSOLE_NAME:
            yield f"{where}: this is the name of the console itself"
        if key.name in names:
            yield f"{where}: another key has this name; stored data belongs to the name"
        forms = settings.key_forms(key)
        if not (key.key or environment.get(key.key_env, "")).strip():
            missing = f"the variable {key.key_env} is not set" if key.key_env else "a key or key_env is needed"
            yield f"{where}: {missing}"
        if not secrets.isdisjoint(forms):
            yield f"{where}: another name has this key"
        names.add(key.name)
        secrets.update(forms)
    yield from _check_admin_key(settings, environment, secrets)


def _check_admin_key(settings: Settings, environment: Mapping[str, str], secrets: set[bytes]) -> Iterator[str]:
    variable, where = settings.access.admin_key_env, "access.admin_key_env"
    if not variable:
        return
    key = environment.get(variable, "").strip()
    if not _VARIABLE.fullmatch(variable):  # not shown: it may be the key
        yield f"{where}: this is not the name of a variable; write the name of the one that holds the key"
    elif not settings.access.issued_keys and not settings.usage.enabled:
        yield f"{where}: the admin API is for access.issued_keys = true or usage.enabled = true"
    elif not key:
        yield f"{where}: the variable {variable} is not set"
    elif len(key) < MIN_ADMIN_KEY_CHARS or not key.isascii():
        yield f"{where}: the key in {variable} must have at least {MIN_ADMIN_KEY_CHARS} ASCII characters"
    elif key.encode() in secrets:
        yield f"{where}: a client has this key too"


def find_backend_faults(backend: Backend) -> Iterator[str]:
    """The faults of one backend's entry, as `.FIELD: reason`. A missing key is not one: see `find_obstacle`."""
    side = backend_kinds().get(backend.kind)
    if side is None:
        yield f".kind: {explain_choice(backend.kind, [*backend_kinds()])}"
        return
    if not backend.name or "/" in backend.name:
        yield ".name: a name is needed, without /, which separates it from the model"
    yield from _check_address(backend)
    variable = backend.api_key_env
    if variable and not _VARIABLE.fullmatch(variable):  # not shown: it may be the key
        yield ".api_key_env: this is not the name of a variable; write the name of the variable that holds the key"
    able = [name for name, http in http_backends().items() if backend.auth in http.logins]
    if backend.auth and backend.kind not in able:
        yield f'.auth: "{backend.auth}" is for kind = "{join_words(able)}"'
    yield from _check_names(backend)
    if backend.workers < 1:
        yield f".workers: at least one is needed; received {backend.workers}"
    if not backend.command:
        yield ".command: a program is needed"
    if side.is_recording and not backend.file:
        yield ".file: a recording is needed"
    if side.profile is not None:
        try:
            convert_table(backend.profile, side.profile, "", ".profile")
        except SettingsError as error:
            yield str(error)


def _check_address(backend: Backend) -> Iterator[str]:
    url, address = backend.base_url, PRESETS[backend.preset].address if backend.preset else ""
    if backend.kind not in http_backends():
        for field in ("query", "key_header"):
            if getattr(backend, field):
                yield f".{field}: a {backend.kind} backend does not use it"
    elif not url and address:
        yield f".base_url: the preset {backend.preset} needs an address of the form {address}"
    elif not url and not _knows_address(backend):
        yield f".base_url: a {backend.kind} backend needs an address"
    if not url:
        return
    fault = find_address_fault(url)
    if fault:
        what = repr(url) if "@" not in url else "this value"  # a password may be in it
        yield f".base_url: {what} is not an address: {fault}"
        return
    parsed = urlsplit(url)
    ending = next((each.path for each in http_backends().values() if parsed.path.rstrip("/").endswith(each.path)), "")
    if parsed.query or parsed.fragment:
        yield '.base_url: it has a query; write that as query = { NAME = "VALUE" }'
    elif ending:
        plain = url.rstrip("/").removesuffix(ending)
        yield f".base_url: it ends in an operation; write {repr(plain) if '@' not in url else f'it without {ending}'}"
    elif word := find_placeholder(url, address):
        yield f".base_url: write your own {word.lower()} for {word}"


def _knows_address(backend: Backend) -> bool:
    """Whether the address follows from the login."""
    http = http_backends()[backend.kind]
    try:
        return bool(backend.auth) and bool(http.facts(http.profile_from(backend.profile, backend.auth)).base_url)
    except msgspec.ValidationError:  # reported later
        return True


def _check_names(backend: Backend) -> Iterator[str]:
    for field, globs in (("models", backend.models), ("context_windows", tuple(backend.context_windows))):
        for glob in globs:
            if fault := find_glob_fault(glob):
                yield f".{field}: {glob!r} matches no model: {fault}"
    for alias, model in backend.aliases.items():
        if any("*" in name or "?" in name or not name for name in (alias, model)):
            yield f".aliases: {alias!r} = {model!r}: an alias is one name for one model, without * or ?"


def find_glob_fault(glob: str) -> str:
    """Why a glob can never match a name; empty if it can."""
    if not glob.strip():
        return "it is empty"
    index = glob.find("[")
    while index >= 0:
        start = index + 1 + glob.startswith("!", index + 1)
        end = glob.find("]", start + 1)  # a ] that comes first is one of the letters
        if end < 0:
            return "a [ has no ]"
        backwards = [f"{first}-{last}" for first, last in re.findall(r"(.)-(.)", glob[start:end]) if first > last]
        if backwards:
            return f"{backwards[0]} is not a range"
        index = glob.find("[", end)
    return ""
