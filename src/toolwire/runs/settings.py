"""Settings: `toolwire.toml`, then the environment, then the command line. A wrong one names its file and field.

The PROXY_* flags of the environment win over the `[tools]` table; a request's headers win over both.
"""

import os
import re
import shutil
import sqlite3
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from toolwire.assembly import ToolRules
from toolwire.backends import demo
from toolwire.core.bounds import Bounds
from toolwire.core.errors import complaint
from toolwire.runs.flags import FLAGS, FlagError, boolean, with_flags
from toolwire.transport.credentials import has_login
from toolwire.transport.reply import Timeouts
from toolwire.transport.store import SqliteStore

Kind = Literal["responses", "chat", "messages", "codex", "demo", "replay"]


class SettingsError(Exception):
    """One clear line about a setting that cannot be."""


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 8787
    max_body: int | str = "32MB"
    max_in_flight: int | str = "512MB"
    """Bytes of request bodies and collected replies that may be held at a time."""
    max_reply: int | str = "64MB"
    """Bytes of one reply that may be held."""
    max_entries: Annotated[int, msgspec.Meta(ge=1)] = Bounds().entries
    max_tools: Annotated[int, msgspec.Meta(ge=1)] = Bounds().tools
    max_values: Annotated[int, msgspec.Meta(ge=1)] = Bounds().values
    commit_after: float = 10.0
    keepalive: float = 15.0
    drain: float = 30.0
    websocket: bool = True
    websocket_limit: float = 3600.0


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    key: str = ""
    key_env: str = ""


class Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where responses are kept; chat completions store nothing."""

    url: str = "sqlite:toolwire.db"
    default: bool = True
    max_age: float = 2592000
    max_size: int | str = "1GB"


class Debug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    record: str = ""
    level: Literal["debug", "info", "warning", "error"] = "info"


def is_glob(name: str) -> bool:
    return any(mark in name for mark in "*?[")


class Own(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools that the gateway runs itself; off by default."""

    tools: tuple[str, ...] = ()
    """Names of entry points in the group `toolwire.tools`, or `module:object`, also in the working directory."""
    mcp: str = ""
    """A file with MCP servers; a relative path counts from the working directory."""
    rounds: Annotated[int, msgspec.Meta(ge=1)] = 10
    """Most turns of the model for one request."""
    timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """Seconds that one of the `tools` may take; MCP servers have a timeout of their own."""


class Backend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: Kind
    base_url: str = ""
    api_key_env: str = ""
    auth: Literal["", "codex"] = ""
    models: tuple[str, ...] = ()
    aliases: dict[str, str] = {}
    retries: int = 2
    context_windows: dict[str, Annotated[int, msgspec.Meta(gt=0)]] = {}
    """Tokens that models take, by name or glob."""
    headers: dict[str, str] = {}
    profile: dict[str, Any] = {}
    file: str = ""
    command: tuple[str, ...] = ("codex",)
    """Of a codex backend; what it is to do is appended."""
    overrides: dict[str, Any] = {}
    """Further settings of Codex, as in `codex -c key=value`."""
    workers: int = 1

    @property
    def literal_models(self) -> tuple[str, ...]:
        """The names among `models` that are no globs."""
        return tuple(name for name in self.models if not is_glob(name))

    def context_window(self, model: str) -> int:
        """Tokens that a model takes, by its own name or the first glob that matches; 0 if none does."""
        named = self.context_windows.get(model)
        matching = (tokens for glob, tokens in self.context_windows.items() if fnmatchcase(model, glob))
        return named or next(matching, 0)

    def serves(self, model: str) -> str | None:
        """The name to ask the backend for, if it serves this one."""
        if model in self.aliases:
            return self.aliases[model]
        return model if any(fnmatchcase(model, pattern) for pattern in self.models) else None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    server: Server = Server()
    keys: tuple[Key, ...] = ()
    store: Store = Store()
    tools: ToolRules = ToolRules()
    timeouts: Timeouts = Timeouts()
    debug: Debug = Debug()
    own: Own = Own()
    backends: tuple[Backend, ...] = ()
    file: str = ""
    """Where these were read, for what is only found to be wrong later. Not a setting itself."""

    def key_of(self, key: Key) -> str:
        return key.key or os.environ.get(key.key_env, "")


DEMO = Backend("demo", "demo", models=demo.MODELS, retries=0)
OPENAI = Backend(
    "openai",
    "responses",
    base_url="https://api.openai.com/v1",
    api_key_env="OPENAI_API_KEY",
    models=("gpt-*", "o[0-9]*", "chatgpt-*", "codex-*"),
    profile={"compacts": True, "counts_tokens": True},
)

ANTHROPIC = Backend(
    "anthropic",
    "messages",
    base_url="https://api.anthropic.com/v1",
    api_key_env="ANTHROPIC_API_KEY",
    models=("claude-*",),
)

CODEX = Backend("codex", "codex")

DUMP = "CODEX_DUMP_SSE"
_SIZES = {"": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}


def load(path: str | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a file (or of `./toolwire.toml`, if there), the environment and what is found."""
    chosen = Path(path) if path else Path("toolwire.toml")
    settings = Settings()
    if path or chosen.exists():
        settings = _read_file(chosen)
    settings = _with_environment(settings, environment)
    settings = msgspec.structs.replace(settings, backends=_found_backends(settings, environment))
    _check(settings, str(chosen), environment)
    return settings


def with_address(settings: Settings, host: str | None, port: int | None) -> Settings:
    server = settings.server
    server = msgspec.structs.replace(server, host=host or server.host, port=server.port if port is None else port)
    if not 0 <= server.port <= 65535:
        raise SettingsError(f"server.port: {server.port} is not a port")
    if not _is_loopback(server.host) and not settings.keys:
        raise SettingsError(f"server.host: {server.host} can be reached from outside; add a [[keys]] entry first")
    return msgspec.structs.replace(settings, server=server)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_workers(workers: int) -> None:
    """Several processes must see the same state, and no store of ours can be shared yet."""
    if workers != 1:
        raise SettingsError("--workers: more than one needs a store that all of them see, and there is none yet")


def bounds_of(settings: Settings) -> Bounds:
    """What one request may hold."""
    server = settings.server
    return Bounds(bytes_of(server.max_body), server.max_values, server.max_entries, server.max_tools)


@lru_cache(maxsize=64)
def bytes_of(size: int | str) -> int:
    """A number of bytes, written plainly or as `32MB`."""
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*(\d+)\s*([kmg]i?b)?\s*", size, re.IGNORECASE)
    if not found:
        raise ValueError(f"{size!r} is not a size; write 32MB or a number of bytes")
    return int(found[1]) * _SIZES[(found[2] or "").upper()]


def make_store(settings: Settings) -> SqliteStore:
    """The store, not opened yet."""
    return SqliteStore(settings.store.url, settings.store.max_age, bytes_of(settings.store.max_size))


def check_store(settings: Settings) -> None:
    """Find out now what would only fail when the first response is kept."""
    store = make_store(settings)
    try:
        store.check()
    except sqlite3.Error as error:
        raise SettingsError(f"store.url: cannot use {settings.store.url!r}: {error}") from None
    finally:
        store.release()


def _read_file(path: Path) -> Settings:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"{path}: {error}") from None
    if "file" in table:
        raise SettingsError(f"{path}: file: unknown key")
    return msgspec.structs.replace(_converted(table, Settings, str(path)), file=str(path))


T = TypeVar("T")


def _converted(value: Any, kind: type[T], source: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text, field = complaint(error)
        unknown = re.search(r"unknown field `(\w+)`", text)
        if unknown:
            field = f"{field}.{unknown[1]}" if field else unknown[1]
            text = "unknown key"
        raise SettingsError(f"{source}: {field}: {text}" if field else f"{source}: {text}") from None


def _with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    debug = settings.debug
    try:
        rules = with_flags(settings.tools, FLAGS, environment)
        dumps = bool(environment.get(DUMP, "").strip()) and boolean(DUMP, environment[DUMP])
    except FlagError as error:
        raise SettingsError(str(error)) from None
    if dumps and not debug.record:
        debug = msgspec.structs.replace(debug, record="recordings")
    level = environment.get("TOOLWIRE_LOG_LEVEL", "").strip().lower()
    if level:
        changed = {**msgspec.to_builtins(debug), "level": level}
        debug = _converted(changed, Debug, "TOOLWIRE_LOG_LEVEL")
    return msgspec.structs.replace(settings, tools=rules, debug=debug)


def _found_backends(settings: Settings, environment: Mapping[str, str]) -> tuple[Backend, ...]:
    """The configured backends, or what the environment offers; the demo model always, last."""
    backends = settings.backends
    if not backends:
        backends = tuple(each for each in (OPENAI, ANTHROPIC) if environment.get(each.api_key_env))
        if has_login(environment) and shutil.which(CODEX.command[0], path=environment.get("PATH", "")):
            backends = (*backends, CODEX)
    if all(backend.kind != "demo" and backend.name != DEMO.name for backend in backends):
        backends = (*backends, DEMO)
    return backends


def _check(settings: Settings, source: str, environment: Mapping[str, str]) -> None:
    server = settings.server
    for field, size in (
        ("server.max_body", server.max_body),
        ("server.max_in_flight", server.max_in_flight),
        ("server.max_reply", server.max_reply),
        ("store.max_size", settings.store.max_size),
    ):
        try:
            bytes_of(size)
        except ValueError as error:
            raise SettingsError(f"{source}: {field}: {error}") from None
    if bytes_of(server.max_in_flight) < bytes_of(server.max_body):
        raise SettingsError(f"{source}: server.max_in_flight: one body may be larger, by server.max_body")
    if not settings.store.url.startswith(("memory:", "sqlite:")):
        raise SettingsError(f"{source}: store.url: {settings.store.url!r} is neither memory: nor sqlite:PATH")
    for place, key in enumerate(settings.keys):
        if not settings.key_of(key):
            missing = f"the variable {key.key_env} is not set" if key.key_env else "a key or key_env is needed"
            raise SettingsError(f"{source}: keys[{place}] ({key.name}): {missing}")
    seen: set[str] = set()
    for place, backend in enumerate(settings.backends):
        where = f"{source}: backends[{place}] ({backend.name})"
        if backend.name in seen:
            raise SettingsError(f"{where}: another backend has this name")
        seen.add(backend.name)
        _check_backend(backend, where, environment)


def address_fault(url: str) -> str:
    """What is wrong with the address of a server; nothing, if it can be asked."""
    if any(letter.isspace() for letter in url):
        return "it has a space"
    try:
        told = urlsplit(url)
        is_whole = told.scheme in ("http", "https") and told.hostname and told.port != 0
    except ValueError as error:
        return str(error)
    return "" if is_whole else "no http://HOST[:PORT]"


def _check_backend(backend: Backend, where: str, environment: Mapping[str, str]) -> None:
    if backend.kind in ("responses", "chat", "messages") and not backend.base_url and backend.auth != "codex":
        raise SettingsError(f"{where}.base_url: a {backend.kind} backend needs an address")
    fault = address_fault(backend.base_url) if backend.base_url else ""
    if fault:
        raise SettingsError(f"{where}.base_url: {backend.base_url!r} is not an address: {fault}")
    if backend.api_key_env and not environment.get(backend.api_key_env):
        raise SettingsError(f"{where}.api_key_env: the variable {backend.api_key_env} is not set")
    if backend.workers < 1:
        raise SettingsError(f"{where}.workers: at least one is needed; received {backend.workers}")
    if not backend.command:
        raise SettingsError(f"{where}.command: a program is needed")
    if backend.kind == "replay" and not Path(backend.file).is_file():
        raise SettingsError(f"{where}.file: there is no recording {backend.file!r}")
