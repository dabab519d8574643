"""Settings for display, each with its source and without secrets, and a hash of them.

The source is the default, the file, a preset, the environment, or a backend found on this machine.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec

from toolwire.config.decode import Table
from toolwire.config.flags import FLAGS, find_flags
from toolwire.config.presets import PRESETS
from toolwire.config.settings import CODEX, DERIVED, DUMP, LEVEL, Backend, Settings, read_table
from toolwire.core.display import MASK, redact_url
from toolwire.upstream.credentials import SECRET_WORDS

DEFAULT, FILE = "default", "file"
_SECRET_TABLES = ("headers", "http_headers", "env_http_headers", "env")
"""Tables in which every value is masked."""
_NOT_SECRET = ("_env", "env_key", "key_header", "api_key_env", "max_tokens", "counts_tokens")


class Setting(msgspec.Struct, frozen=True):
    """A value and its source."""

    value: Any
    source: str


def find_sources(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> dict[str, dict[str, Setting] | list[dict[str, Setting]]]:
    """Every setting by table and key; `keys` and `backends` are lists of tables, without defaults."""
    table = read_table(Path(settings.file)) if settings.file else {}
    variables = {("tools", key): flag for key, flag in find_flags(FLAGS, environment).items()}
    if settings.debug.record and not table.get("debug", {}).get("record"):
        variables["debug", "record"] = DUMP
    if environment.get(LEVEL, "").strip():
        variables["debug", "level"] = LEVEL
    entries = cast("list[Table]", table.get("backends", []))
    defaults = msgspec.to_builtins(Backend("", "demo"))
    found: dict[str, dict[str, Setting] | list[dict[str, Setting]]] = {}
    for name in settings.__struct_fields__:
        if name == "backends":
            given = [*entries, *[None] * len(settings.backends)]
            found[name] = [
                {
                    key: Setting(value, _find_source(key, backend, entry))
                    for key, value in msgspec.to_builtins(backend).items()
                    if key in ("name", "kind") or value != defaults[key]
                }
                for backend, entry in zip(settings.backends, given, strict=False)
            ]
        elif name == "keys":
            found[name] = [
                {key: Setting(each, FILE) for key, each in msgspec.to_builtins(entry).items() if each}
                for entry in settings.keys
            ]
        elif name not in DERIVED:
            found[name] = {
                key: Setting(each, variables.get((name, key)) or (FILE if key in table.get(name, {}) else DEFAULT))
                for key, each in msgspec.to_builtins(getattr(settings, name)).items()
            }
    return found


def _find_source(key: str, backend: Backend, entry: Table | None) -> str:
    """The source of a backend's setting. `entry` is the backend's entry in the file, if it has one."""
    if entry is None:
        if backend.kind == CODEX.kind:
            return "found: a codex with a login"
        return f"found: {backend.api_key_env} is set" if backend.api_key_env else "built in"
    filled = PRESETS[backend.preset].fields if backend.preset else {}
    preset = f"preset {backend.preset}"
    if key == "profile" and key in entry and filled.get("kind") == backend.kind and filled.get(key):
        return f"{FILE}, {preset}"
    return FILE if key in entry else preset


def mask(value: Any, name: str = "", *, hidden: bool = False) -> Any:
    """The value of the setting `name`, with keys, passwords and possible secrets masked."""
    if isinstance(value, dict):
        table = cast("Table", value)
        inside = hidden or name in _SECRET_TABLES
        return {key: mask(each, key, hidden=inside) for key, each in table.items()}
    if isinstance(value, list | tuple):
        return [mask(each, name, hidden=hidden) for each in cast("list[Any]", value)]
    if not isinstance(value, str) or not value:
        return value
    if hidden or (any(word in name.upper() for word in SECRET_WORDS) and not name.endswith(_NOT_SECRET)):
        return MASK
    if "://" in value:
        return redact_url(value)
    # A mistyped address may still contain a password.
    return MASK if name == "url" and "@" in value and not value.startswith("sqlite:") else value


def hash_settings(settings: Settings) -> str:
    """A hash of the settings without their secrets; equal settings have equal hashes in every process."""
    shown = mask(msgspec.to_builtins(msgspec.structs.replace(settings, file="", variables={})))
    return sha256(msgspec.json.encode(shown, order="deterministic")).hexdigest()[:12]
