"""Reads the configuration of MCP servers, in the JSON format that other programs use too.

{"mcpServers": {
    "files": {"command": "npx", "args": ["-y", "files-server", "${HOME}"], "env": {"TOKEN": "${TOKEN}"}, "cwd": "/srv"},
    "web": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${KEY:-none}"}}}}

Our own fields, all optional: `timeout` and `startTimeout` in seconds, `parallel`, `trusted`, `disabled`, and lists of
tools in `allow` and `deny`. Errors name the path of the field, never a value, which may be a secret.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar, cast

import msgspec

from toolwire.core.redact import CredentialFilter, find_credentials, find_filter, is_secret_name

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TRANSPORTS = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url"}
"""The values of `type`, and the field that each requires."""

T = TypeVar("T")
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]

_EXPANDED_FIELDS = ("command", "args", "env", "cwd", "url", "headers")
"""Fields in which variables are replaced."""


class BadConfig(ValueError):
    """A configuration that cannot be read."""


class Server(msgspec.Struct, frozen=True, kw_only=True, rename={"start_timeout": "startTimeout"}):
    """An MCP server: a command to run, or an address. Raises `BadConfig` unless it has one of them, and a name."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Added to the few variables that a server inherits: PATH, HOME and the like, but none of our keys."""
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    start_timeout: Seconds = 30.0
    timeout: Seconds = 120.0
    """Seconds that a call may take."""
    parallel: bool = False
    """Whether its tools may run at the same time."""
    trusted: bool = False
    """Whether its read-only declarations are trusted."""
    allow: tuple[str, ...] | None = None
    """The only tools to offer, by their names on the server."""
    deny: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    """Unknown fields of the configuration."""

    def __post_init__(self) -> None:
        if not self.name:
            raise BadConfig("an MCP server needs a name")
        if bool(self.command) == bool(self.url):
            raise BadConfig(f"the MCP server {self.name} needs either a command or a url")

    def __repr__(self) -> str:
        """Without the environment and the headers, which hold secrets."""
        return f"Server({self.name!r})"

    @property
    def blanks(self) -> CredentialFilter:
        """Blanks the credentials of the server in what it sends back."""
        given = {name: value for name, value in (self.env | self.headers).items() if is_secret_name(name)}
        return find_filter(find_credentials(given))

    def offers(self, tool: str) -> bool:
        """Whether a tool is offered to the model."""
        return tool not in self.deny and (self.allow is None or tool in self.allow)


_FIELDS = frozenset(Server.__struct_encode_fields__) - {"name", "ignored"}
"""The known fields of an entry."""


def read_config(
    text: str, environment: Mapping[str, str] = os.environ, beside: Path | None = None
) -> tuple[Server, ...]:
    """The servers of a configuration, without disabled ones. Raises `BadConfig`.

    Relative paths of programs and working directories are resolved against `beside`, the directory of the file.
    """
    try:
        read: object = msgspec.json.decode(text.removeprefix("\ufeff"))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadConfig(f"the configuration of MCP servers is not JSON: {error}") from None
    top = _convert("the configuration", read, dict[str, object])
    if "mcpServers" not in top:
        raise BadConfig("mcpServers: is missing")
    servers = _convert("mcpServers", top["mcpServers"], dict[str, object])
    found = [_read_server(name, entry, environment, beside) for name, entry in servers.items()]
    return tuple(server for server in found if server is not None)


def _read_server(name: str, value: object, environment: Mapping[str, str], beside: Path | None) -> Server | None:
    """One entry as a server; None if it is disabled."""
    if not name:
        raise BadConfig("mcpServers: a server has an empty name")
    where = f"mcpServers.{name}"
    entry = _convert(where, value, dict[str, object])
    if _convert(f"{where}.disabled", entry.get("disabled", False), bool):
        return None
    if "type" in entry:
        kind = _convert(f"{where}.type", entry["type"], str)
        if kind not in _TRANSPORTS:
            raise BadConfig(f"{where}.type: must be 'stdio' or 'http'")
        if not entry.get(_TRANSPORTS[kind]):
            raise BadConfig(f"{where}.{_TRANSPORTS[kind]}: is missing")
    if bool(entry.get("command")) == bool(entry.get("url")):
        which = "both a command and a" if entry.get("url") else "neither a command nor a"
        raise BadConfig(f"{where}: has {which} url")
    for field in _EXPANDED_FIELDS:
        if field in entry:
            entry[field] = _expand(f"{where}.{field}", entry[field], environment)
    if "allow" in entry:  # null is allowed in a `Server`, not in an entry
        _convert(f"{where}.allow", entry["allow"], tuple[str, ...])
    if "url" in entry and not _convert(f"{where}.url", entry["url"], str).startswith(("http://", "https://")):
        raise BadConfig(f"{where}.url: must begin with http:// or https://")
    ignored = tuple(field for field in entry if field not in {*_FIELDS, "type", "disabled"})
    server = _convert(where, {**entry, "name": name, "ignored": ignored}, Server)
    if beside is None:
        return server
    # A program without a slash is found on the PATH.
    command = str(beside / server.command) if os.sep in server.command else server.command
    cwd = str(beside / server.cwd) if server.cwd else ""
    return msgspec.structs.replace(server, command=command, cwd=cwd)


def _convert(path: str, value: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, inside = str(error).partition(" - at `$")
        raise BadConfig(f"{path}{inside.rstrip('`')}: {what}") from None


def _expand(path: str, value: object, environment: Mapping[str, str]) -> object:
    """Replace variables in every string of a value. Other values are left to the type check."""
    if isinstance(value, dict):
        texts = {key: _convert(f"{path}.{key}", each, str) for key, each in cast("dict[str, object]", value).items()}
        return {key: _expand(f"{path}.{key}", text, environment) for key, text in texts.items()}
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [_expand(f"{path}[{index}]", each, environment) for index, each in enumerate(items)]

    def variable(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = environment.get(name)
        if found is None and default is None:
            raise BadConfig(f"{path}: the environment variable {name} is not set")
        return found or default or ""

    return _VARIABLE.sub(variable, value) if isinstance(value, str) else value
