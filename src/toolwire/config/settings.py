"""Settings: `toolwire.toml`, then the environment, then the command line. An error names the file and the field.

The PROXY_* flags of the environment override the `[tools]` table; a request's headers override both.
"""

import os
import re
import shutil
import tomllib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from toolwire.assembly import ToolRules
from toolwire.backends import demo
from toolwire.config.decode import CHOICES, SettingsError, Table, convert_table
from toolwire.config.files import NAME, user_file, why_untrusted
from toolwire.config.flags import FLAGS, FlagError, read_boolean, with_flags
from toolwire.config.presets import PRESETS, explain_preset, with_preset
from toolwire.core.bounds import Bounds
from toolwire.core.display import redact_url
from toolwire.memory.private_files import find_state_folder, read_file
from toolwire.memory.store import NO_BOUND, KeyLimits, TurnBounds
from toolwire.protocols import backend_kinds, http_backends
from toolwire.upstream.credentials import Header, has_login
from toolwire.upstream.reply import Timeouts

Kind: TypeAlias = Annotated[str, msgspec.Meta(extra={CHOICES: backend_kinds})]
"""The protocol of a backend."""
DATABASE_SCHEMES = ("postgresql://", "postgres://")


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: int = 8787
    workers: Annotated[int, msgspec.Meta(ge=1)] = 1
    """The number of worker processes."""
    strict_start: bool = False
    """Whether a backend that cannot be asked prevents the start."""
    hosts: tuple[str, ...] = ()
    """Host names that a gateway without keys accepts, besides loopback."""
    origins: tuple[str, ...] = ("app://obsidian.md", "capacitor://localhost", "http://localhost")
    """Origins that a gateway without keys accepts, besides loopback."""
    max_body: int | str = "32MB"
    max_in_flight: int | str = "256MB"
    """Maximum bytes of request bodies and collected replies in memory, over all requests."""
    max_reply: int | str = "64MB"
    """Maximum bytes of one reply in memory."""
    max_entries: Annotated[int, msgspec.Meta(ge=1)] = Bounds().entries
    max_tools: Annotated[int, msgspec.Meta(ge=1)] = Bounds().tools
    max_values: Annotated[int, msgspec.Meta(ge=1)] = Bounds().values
    max_preamble: int | str = "8MB"
    """Maximum bytes of one request without its conversation."""
    commit_after: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    keepalive: Annotated[float, msgspec.Meta(ge=0)] = 15.0
    batching: bool = True
    """Whether all frames that have arrived are processed in one step."""
    drain: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    websocket: bool = True
    websocket_limit: Annotated[float, msgspec.Meta(ge=0)] = 3600.0
    websocket_idle: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    header_timeout: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    body_timeout: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """Seconds without a byte; the total time is not limited."""
    idle_timeout: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 4096
    max_background_runs: Annotated[int, msgspec.Meta(ge=1)] = 512
    """Maximum number of unfinished background responses, over all processes that use the store."""
    max_background_runs_per_owner: Annotated[int, msgspec.Meta(ge=1)] = 64
    write_timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """Seconds without progress after which a connection to a slow client is closed."""


CONSOLE_NAME = "(console)"
"""The reserved name of the key that represents the console's token."""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    key: str = ""
    key_env: str = ""
    console: bool | Literal["all"] = False
    """Whether the holder of this key sees its own turns in the console; with `all`, those of every key."""
    limits: KeyLimits = KeyLimits()


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that are issued while the gateway runs, besides those of `[[keys]]`."""

    issued_keys: bool = False
    """Whether the gateway accepts the keys in its store, which `toolwire keys` and the admin API issue."""
    admin_key_env: str = ""
    """The environment variable with the key of the admin API; without it there is no such API."""


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ledger of what turns use."""

    enabled: bool = False
    """Whether each turn has a row in the store."""
    days: Annotated[float, msgspec.Meta(gt=0, le=36500)] = 30.0
    """Days after which the rows are summed by hour."""


class Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The store of responses, and of the state between a turn with calls and the next turn."""

    url: str = ""
    """The default is the file `toolwire.db` in the state directory of the user."""
    url_env: str = ""
    """The environment variable with the URL, in place of `url`."""
    default: bool = True
    max_age: Annotated[float, msgspec.Meta(ge=0)] = 2592000
    max_size: int | str = "1GB"
    required: bool = False
    """Whether readiness requires a working store."""
    lease: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds without a heartbeat after which a process counts as dead."""
    pooler: bool = False
    """Whether PostgreSQL is behind a pooler in transaction mode."""

    @property
    def place(self) -> str:
        """The URL of the store."""
        given = self.url or os.environ.get(self.url_env, "").strip()
        return given or f"sqlite:{find_state_folder() / 'toolwire.db'}"

    @property
    def is_database(self) -> bool:
        """Whether it is a PostgreSQL database."""
        return self.place.startswith(DATABASE_SCHEMES)

    @property
    def shown(self) -> str:
        """The location of the store, without a password."""
        scheme, _, path = self.place.partition(":")
        if scheme == "memory":
            return "in memory"
        return path if scheme == "sqlite" else redact_url(self.place)

    @property
    def setting(self) -> str:
        """The name of the setting that holds the URL."""
        return "store.url_env" if self.url_env else "store.url"


class Debug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    record: str = ""
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    """The format of log lines; `auto`: text on a terminal, otherwise JSON."""


class Console(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web page that shows turns."""

    enabled: bool = True
    keep: str = "auto"
    """What is recorded of a turn: `everything`, `metadata`, or `auto`, which is everything if there are no keys and
    otherwise metadata; or the time for which everything is kept in the store, such as `7d`."""
    max_size: int | str = "64MB"
    """Maximum bytes of recorded turns in memory."""
    max_history: int | str = "256MB"
    """Maximum bytes of recorded turns in the store."""

    @property
    def seconds(self) -> float:
        """How long turns are kept in the store; 0 if they are kept in memory only."""
        found = re.fullmatch(r"([1-9]\d{0,5})([mhd])", self.keep)
        return int(found[1]) * {"m": 60.0, "h": 3600.0, "d": 86_400.0}[found[2]] if found else 0.0


def is_glob(name: str) -> bool:
    return any(mark in name for mark in "*?[")


class GatewayTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools that the gateway runs itself; off by default."""

    tools: tuple[str, ...] = ()
    """Entry points in the group `toolwire.tools`, or `module:object`; the module may be beside the settings file."""
    mcp: str = ""
    """A file with MCP servers, relative to the directory of the settings file."""
    max_turns: Annotated[int, msgspec.Meta(ge=1)] = 10
    """Maximum number of turns of the model for one request."""
    timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """Timeout of one call in seconds; MCP servers have timeouts of their own."""


class AgentTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the tools that an agent runs."""

    inherit: tuple[str, ...] = ()
    """Environment variables that commands inherit although their names look like secrets."""


class Backend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: Kind
    preset: str = ""
    """The preset that fills in what the entry leaves out."""
    base_url: str = ""
    query: dict[str, str] = {}
    """Query parameters of every request."""
    api_key_env: str = ""
    key_header: Header | Literal[""] = ""
    """The header for the key, if it differs from that of the kind."""
    auth: Literal["", "codex", "google"] = ""
    models: tuple[str, ...] = ()
    aliases: dict[str, str] = {}
    retries: Annotated[int, msgspec.Meta(ge=0)] = 2
    retry_budget: Annotated[float, msgspec.Meta(ge=0)] = 0.2
    """Maximum retries as a share of all requests; a few per minute are always allowed."""
    context_windows: dict[str, Annotated[int, msgspec.Meta(gt=0)]] = {}
    """Context windows in tokens, by model name or glob."""
    headers: dict[str, str] = {}
    profile: Table = {}
    file: str = ""
    command: tuple[str, ...] = ("codex",)
    """The command of a codex backend; arguments are appended."""
    overrides: Table = {}
    """Additional settings of Codex, as in `codex -c key=value`."""
    workers: int = 1
    inherit: tuple[str, ...] = ()
    """Environment variables that a codex worker inherits although their names look like secrets."""

    @property
    def literal_models(self) -> tuple[str, ...]:
        """The names in `models`, without globs."""
        return tuple(name for name in self.models if not is_glob(name))

    @property
    def has_key(self) -> bool:
        """Whether it has a key of its own; otherwise the client's key is passed on."""
        return bool(self.api_key_env or self.auth)

    def context_window(self, model: str) -> int:
        """The context window of a model in tokens, by its name or the first glob that matches; 0 if it is unknown."""
        named = self.context_windows.get(model)
        matching = (tokens for glob, tokens in self.context_windows.items() if fnmatchcase(model, glob))
        return named or next(matching, 0)

    def serves(self, model: str) -> str | None:
        """The name of this model on the backend; None if the backend does not serve it."""
        if model in self.aliases:
            return self.aliases[model]
        return model if any(fnmatchcase(model, pattern) for pattern in self.models) else None


DERIVED = ("file", "variables", "found")
"""Fields of `Settings` that say where the settings come from; a file cannot have them."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings, as docs/configuration.md explains them."""

    server: Server = Server()
    keys: tuple[Key, ...] = ()
    access: Access = Access()
    usage: Usage = Usage()
    store: Store = Store()
    tools: ToolRules = ToolRules()
    timeouts: Timeouts = Timeouts()
    debug: Debug = Debug()
    console: Console = Console()
    gateway_tools: GatewayTools = GatewayTools()
    agent: AgentTools = AgentTools()
    backends: tuple[Backend, ...] = ()
    file: str = ""
    """The file that they were read from."""
    variables: dict[str, str] = {}
    """The values of the variables that they name, if they were read with an environment of their own."""
    found: bool = False
    """Whether they name no backends, so that those of this machine were looked for."""

    @classmethod
    def from_file(cls, path: str | Path, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read the settings of a file as `toolwire serve --config` does. Raises `SettingsError`."""
        return load(str(path), environment)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read settings from a dictionary with the content of a file. Raises `SettingsError`, which names the field.

        `environment` provides the variables that it names, and the `PROXY_*` flags.
        """
        settings = _add_environment(_convert(dict(table), "settings"), environment)
        return _check(settings, environment, "settings")

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every model and alias that the settings name, in order, without globs."""
        named = (name for each in self.backends for name in (*each.literal_models, *each.aliases))
        return tuple(dict.fromkeys(named))

    def serving(self, model: str) -> list[tuple[Backend, str]]:
        """The backends that serve a model, in order, each with the name of the model there."""
        name, slash, inner = model.partition("/")
        if slash:
            for backend in self.backends:
                if backend.name == name:
                    return [(backend, backend.aliases.get(inner, inner))]
        return [(backend, target) for backend in self.backends if (target := backend.serves(model)) is not None]

    def find_unset_key(self, model: str) -> str:
        """The variable with whose key this machine would have a backend for a model; empty if there is none."""
        vendors = VENDORS if self.found else ()
        name = model.partition("/")[0]
        wanted = [each.api_key_env for each in vendors if each.name == name or each.serves(model) is not None]
        return next((variable for variable in wanted if not self.environment.get(variable)), "")

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of this process, in which the given variables replace others."""
        return ChainMap(self.variables, os.environ)

    @property
    def needs_key(self) -> bool:
        """Whether a client needs a key of the gateway's own; without one, only this machine may use it."""
        return bool(self.keys) or self.access.issued_keys

    @property
    def admin_key(self) -> str:
        """The key of the admin API; empty if there is no such API."""
        return self.environment.get(self.access.admin_key_env, "").strip()

    def key_of(self, key: Key) -> str:
        """The value of a key, from the file or the environment."""
        return (key.key or self.environment.get(key.key_env, "")).strip()

    def key_forms(self, key: Key) -> tuple[bytes, ...]:
        """The encodings of a key in requests: clients encode non-ASCII characters as UTF-8 or Latin-1."""
        text = self.key_of(key)
        forms = {text.encode("utf-8", "surrogateescape")}
        with suppress(UnicodeEncodeError):
            forms.add(text.encode("latin-1"))
        return tuple(forms) if text else ()

    @property
    def folder(self) -> Path:
        """The directory of the settings file, to which paths are relative."""
        return Path(self.file).absolute().parent if self.file else Path.cwd()

    @property
    def secret_variables(self) -> frozenset[str]:
        """The environment variables that settings name as holders of keys."""
        return frozenset(_find_variables(msgspec.to_builtins((self.keys, self.access, self.store, self.backends))))


def _find_variables(value: Any) -> Iterator[str]:
    """The values of settings, at any depth, that name a variable: keys ending in `_env`, and `env_key` of Codex."""
    if isinstance(value, dict):
        for key, each in cast("Table", value).items():
            if key.endswith(("_env", "env_key")) and isinstance(each, str):
                yield each
            yield from _find_variables(each)
    elif isinstance(value, list | tuple):
        for each in cast("list[Any]", value):
            yield from _find_variables(each)


DEMO = Backend("demo", "demo", models=demo.MODELS, retries=0)


def _make_vendor(name: str, **fields: Any) -> Backend:
    return msgspec.convert(with_preset({"preset": name, **fields}, name), Backend)


OPENAI, ANTHROPIC, GEMINI = map(_make_vendor, ("openai", "anthropic", "gemini"))
VENDORS = (OPENAI, ANTHROPIC, GEMINI, _make_vendor("gemini", api_key_env="GOOGLE_API_KEY"))
"""Backends that are added without any others, if their key is set: the first one of each name."""
CODEX = Backend("codex", "codex")

GIVEN_BACKEND = "given"
"""The name of a backend that is given by its address."""

DUMP = "CODEX_DUMP_SSE"
LEVEL = "TOOLWIRE_LOG_LEVEL"
_SIZES = {"": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}


def load(path: str | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings of a file, by default the user's own if it exists, and of the environment.

    Raises `SettingsError`.
    """
    settings = read(path, environment)
    return _check(settings, environment, settings.file or "the environment")


def _check(settings: Settings, environment: Mapping[str, str], source: str) -> Settings:
    from toolwire.config.validate import find_faults  # noqa: PLC0415 - it needs the types that are defined here

    for fault in find_faults(settings, environment):
        raise SettingsError(f"{source}: {fault}")
    return settings


def read(path: str | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """As `load`, but without validation: raises `SettingsError` only if the file cannot be read or decoded."""
    file = Path(path) if path is not None else user_file(environment)
    settings = Settings()
    if file is not None:
        settings = msgspec.structs.replace(_convert(read_table(file), str(file)), file=str(file))
    return _add_environment(_make_paths_absolute(settings), environment)


def _add_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Apply the flags of the environment, and add the backends of this machine if none are configured."""
    debug = settings.debug
    try:
        rules = with_flags(settings.tools, FLAGS, environment)
        dumps = bool(environment.get(DUMP, "").strip()) and read_boolean(DUMP, environment[DUMP])
    except FlagError as error:
        raise SettingsError(str(error)) from None
    if dumps and not debug.record:
        debug = msgspec.structs.replace(debug, record="recordings")
    level = environment.get(LEVEL, "").strip().lower()
    if level:
        debug = convert_table({**msgspec.to_builtins(debug), "level": level}, Debug, LEVEL)
    backends = settings.backends
    if not backends:
        keyed = {each.name: each for each in reversed(VENDORS) if environment.get(each.api_key_env)}
        backends = tuple(each for each in VENDORS if keyed.get(each.name) is each)
        if has_login(environment) and shutil.which(CODEX.command[0], path=environment.get("PATH", "")):
            backends = (*backends, CODEX)
    if all(backend.kind != "demo" and backend.name != DEMO.name for backend in backends):
        backends = (*backends, DEMO)
    found = not settings.backends
    settings = msgspec.structs.replace(settings, tools=rules, debug=debug, backends=backends, found=found)
    if environment is os.environ:  # it is read when a value is needed
        return settings
    store = settings.store
    if not store.url and (url := environment.get(store.url_env, "").strip()):
        store = msgspec.structs.replace(store, url=url, url_env="")
    # Empty if it is not set there: the environment of this process is another one.
    given = {name: environment.get(name, "") for name in settings.secret_variables}
    return msgspec.structs.replace(settings, store=store, variables=given)


def load_for_serving(path: str | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """As `load`, but a file in the working directory takes precedence if no other user can change it."""
    here = Path(NAME)
    if path is None and os.path.lexists(here):
        try:
            why = why_untrusted(here)
        except OSError as error:
            raise SettingsError(f"./{NAME} cannot be read: {error.strerror}") from None
        if why:
            raise SettingsError(f"./{NAME} is not read: {why}; if you trust it, name it with --config")
        path = NAME
    return load(path, environment)


def with_address(settings: Settings, host: str | None, port: int | None) -> Settings:
    server = settings.server
    server = msgspec.structs.replace(server, host=host or server.host, port=server.port if port is None else port)
    if not 0 <= server.port <= 65535:
        raise SettingsError(f"server.port: {server.port} is not a port")
    if not is_loopback(server.host) and not settings.needs_key:
        raise SettingsError(f"server.host: {server.host} can be reached from outside; add a [[keys]] entry first")
    return msgspec.structs.replace(settings, server=server)


def is_loopback(host: str) -> bool:
    """Whether a name or an address, without a port, can only mean this machine."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def with_workers(settings: Settings, workers: int | None) -> Settings:
    """The settings with the number of workers from the command line, if given."""
    count = settings.server.workers if workers is None else workers
    if count < 1:
        raise SettingsError(f"--workers: at least one is needed; received {count}")
    if count > 1 and settings.store.place.startswith("memory:"):
        raise SettingsError(
            f"store.url: {count} workers cannot share a store in memory; name a file or a database, or use one worker"
        )
    if count > 1 and not hasattr(os, "fork"):
        raise SettingsError("server.workers: this system cannot fork; there can only be one worker")
    return msgspec.structs.replace(settings, server=msgspec.structs.replace(settings.server, workers=count))


def with_backend(settings: Settings, backend: str, model: str, option: str = "backend") -> tuple[Settings, str]:
    """The settings and the full model name for a backend given by name or as `KIND:URL`.

    Raises `SettingsError`, which names the option.
    """
    if not backend:
        return settings, model
    kind, colon, url = backend.partition(":")
    if colon and (kind in http_backends() or "://" in url):
        if kind not in http_backends():
            raise SettingsError(f"{option}: {kind!r} is not one of {', '.join(http_backends())}")
        fault = find_address_fault(url)
        if fault:
            raise SettingsError(f"{option}: {url!r} is not an address: {fault}")
        made = Backend(GIVEN_BACKEND, kind, base_url=url)
        return msgspec.structs.replace(settings, backends=(made, *settings.backends)), f"{GIVEN_BACKEND}/{model}"
    if all(each.name != backend for each in settings.backends):
        known = ", ".join(each.name for each in settings.backends)
        raise SettingsError(f"{option}: there is no backend {backend!r}; there are {known}")
    return settings, f"{backend}/{model}"


def find_model(model: str, settings: Settings | None, backend: str, base_url: str) -> tuple[Settings, str]:
    """The settings and the full model name for a program, which names a model and may say where it is.

    `base_url` is the address of an OpenAI-compatible server, which needs no settings. Raises `SettingsError`.
    """
    if base_url and backend:
        raise SettingsError("base_url: a backend is given too; give only one of them")
    if base_url:
        return with_backend(settings or Settings(), f"chat:{base_url}", model, "base_url")
    return with_backend(load(None) if settings is None else settings, backend, model)


def bounds_of(settings: Settings) -> Bounds:
    """The limits of one request."""
    server = settings.server
    return Bounds(
        bytes_of(server.max_body),
        server.max_values,
        server.max_entries,
        server.max_tools,
        bytes_of(server.max_preamble),
        bytes_of(server.max_reply),
    )


def turn_bounds_of(settings: Settings) -> TurnBounds:
    """The bounds of the turns that the console keeps in the store."""
    return TurnBounds(settings.console.seconds, bytes_of(settings.console.max_history) or NO_BOUND)


@lru_cache(maxsize=64)
def bytes_of(size: int | str) -> int:
    """A number of bytes, given as a number or as `32MB`. Raises `ValueError`."""
    found = re.fullmatch(r"\s*(\d+)\s*([kmg]i?b)?\s*", str(size), re.IGNORECASE)
    if not found:
        raise ValueError(f"{size!r} is not a size; write 32MB or a number of bytes")
    return int(found[1]) * _SIZES[(found[2] or "").upper()]


def read_table(path: Path) -> Table:
    """The content of a settings file. Raises `SettingsError`."""
    try:
        return tomllib.loads(read_file(path).decode("utf-8"))
    except FileNotFoundError:
        hint = "it is a symbolic link to a missing file" if path.is_symlink() else "toolwire init writes one"
        raise SettingsError(f"{path}: there is no such file; {hint}") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # invalid TOML or UTF-8, or a number with thousands of digits
        raise SettingsError(f"{path}: {error}") from None
    except RecursionError:
        raise SettingsError(f"{path}: lists or tables are nested too deeply") from None


def _convert(table: Table, source: str) -> Settings:
    """Convert the content of a settings file; presets fill in fields of backends."""
    for name in DERIVED:
        if name in table:
            raise SettingsError(f"{source}: {name}: unknown key")
    entries: Any = table.get("backends")
    if isinstance(entries, list):
        filled = [*cast("list[Any]", entries)]
        for index, entry in enumerate(filled):
            preset: Any = cast("Table", entry).get("preset") if isinstance(entry, dict) else None
            if isinstance(preset, str) and preset:
                if preset not in PRESETS:
                    raise SettingsError(f"{source}: backends[{index}].preset: {explain_preset(preset)}")
                filled[index] = with_preset(cast("Table", entry), preset)
        table = {**table, "backends": filled}
    return convert_table(table, Settings, source)


def _make_paths_absolute(settings: Settings) -> Settings:
    """The settings with paths resolved relative to the directory of their file."""
    if not settings.file:
        return settings
    folder, store, debug = settings.folder, settings.store, settings.debug
    kind, _, path = store.url.partition(":")
    if kind == "sqlite" and store.url != Store().url:
        store = msgspec.structs.replace(store, url=f"sqlite:{folder / path}")
    if debug.record:
        debug = msgspec.structs.replace(debug, record=str(folder / debug.record))
    backends: list[Backend] = []
    for backend in settings.backends:
        file, command = str(folder / backend.file) if backend.file else "", backend.command
        if command and os.sep in command[0]:  # other commands are looked up on the PATH
            command = (str(folder / command[0]), *command[1:])
        backends.append(msgspec.structs.replace(backend, file=file, command=command))
    return msgspec.structs.replace(settings, store=store, debug=debug, backends=tuple(backends))


def find_address_fault(url: str) -> str:
    """The fault in the URL of a server; empty if it is valid."""
    if any(letter.isspace() for letter in url):
        return "it has a space"
    try:
        parsed = urlsplit(url)
        is_whole = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
    except ValueError as error:
        return str(error)
    return "" if is_whole else "no http://HOST[:PORT]"
