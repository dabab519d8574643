"""Where each setting in force comes from: the default, the file, a preset, the environment, or what was found."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from toolwire.config.flags import FLAGS, given_flags
from toolwire.config.presets import PRESETS
from toolwire.config.settings import CODEX, DUMP, LEVEL, Backend, Settings, read_table


class Setting(msgspec.Struct, frozen=True):
    """One setting in force."""

    value: Any
    source: str


DEFAULT, FILE = "default", "file"


def settings_in_force(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> dict[str, dict[str, Setting] | list[dict[str, Setting]]]:
    """Every setting by table and key; `keys` and `backends` are lists of tables."""
    table = read_table(Path(settings.file)) if settings.file else {}
    flags = dict(_environment(settings, table, environment))
    found: dict[str, dict[str, Setting] | list[dict[str, Setting]]] = {}
    for name in settings.__struct_fields__:
        value: Any = getattr(settings, name)
        if name == "backends":
            entries = [_backend(each, _entry(table, index)) for index, each in enumerate(settings.backends)]
            found[name] = entries
        elif name == "keys":
            found[name] = [
                {key: Setting(each, FILE) for key, each in msgspec.to_builtins(entry).items() if each}
                for entry in settings.keys
            ]
        elif name != "file":
            said = table.get(name, {})
            found[name] = {
                key: Setting(each, flags.get((name, key)) or (FILE if key in said else DEFAULT))
                for key, each in msgspec.to_builtins(value).items()
            }
    return found


def _environment(
    settings: Settings, table: dict[str, Any], environment: Mapping[str, str]
) -> Iterator[tuple[tuple[str, str], str]]:
    """What the environment sets, and by which variable."""
    for key, flag in given_flags(FLAGS, environment).items():
        yield ("tools", key), flag
    if settings.debug.record and not table.get("debug", {}).get("record"):
        yield ("debug", "record"), DUMP
    if environment.get(LEVEL, "").strip():
        yield ("debug", "level"), LEVEL


def _entry(table: dict[str, Any], index: int) -> dict[str, Any] | None:
    """The entry of `[[backends]]` that a backend was made of; None if it is in no file."""
    entries = cast("list[dict[str, Any]]", table.get("backends", []))
    return entries[index] if index < len(entries) else None


def _backend(backend: Backend, entry: dict[str, Any] | None) -> dict[str, Setting]:
    """The settings of a backend that are not as in every backend."""
    usual = msgspec.to_builtins(Backend("", "demo"))
    given = msgspec.to_builtins(backend)
    return {
        key: Setting(value, _source(key, backend, entry))
        for key, value in given.items()
        if key in ("name", "kind") or value != usual[key]
    }


def _source(key: str, backend: Backend, entry: dict[str, Any] | None) -> str:
    if entry is None:
        return _found(backend)
    filled = PRESETS[backend.preset].fields if backend.preset else {}
    preset = f"preset {backend.preset}"
    if key == "profile" and key in entry and filled.get("kind") == backend.kind and filled.get(key):
        return f"{FILE}, {preset}"
    return FILE if key in entry else preset


def _found(backend: Backend) -> str:
    """Why a backend is there that no file names."""
    if backend.kind == CODEX.kind:
        return "found: a codex with a login"
    return f"found: {backend.api_key_env} is set" if backend.api_key_env else "built in"
