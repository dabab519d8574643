"""Settings in force, written as TOML with comments or as JSON; keys are masked in both."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from toolwire.config.files import user_path
from toolwire.config.masking import masked
from toolwire.config.provenance import Setting

InForce = Mapping[str, dict[str, Setting] | list[dict[str, Setting]]]


def as_toml(file: str, found: InForce) -> str:
    """As a settings file says it, with the source of each behind it."""
    head = f"# {file}" if file else f"# no settings file; toolwire init writes {user_path()}"
    return "\n".join((head, *_tables(found)))


def _tables(found: InForce) -> Iterator[str]:
    for name, content in found.items():
        for table in content if isinstance(content, list) else [content]:
            yield ""
            yield f"[[{name}]]" if isinstance(content, list) else f"[{name}]"
            yield from _rows(table)


def _rows(table: Mapping[str, Setting]) -> Iterator[str]:
    rows = [(_assignment(key, masked(each.value, key)), each.source) for key, each in table.items()]
    width = min(max((len(left) for left, _ in rows), default=0), 48)
    for left, source in rows:
        yield f"{left:{width}}  # {source}"


def _assignment(key: str, value: Any) -> str:
    return f"# {key}: not set" if value is None else f"{key} = {toml(value)}"


def toml(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {toml(each)}" for key, each in cast("dict[str, Any]", value).items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(each) for each in cast('Sequence[Any]', value))}]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def as_json(file: str, found: InForce) -> str:
    """The same for programs: `{"file": …, "settings": {TABLE: {KEY: {"value": …, "source": …}}}}`."""
    shown = {
        name: [_shown(table) for table in content] if isinstance(content, list) else _shown(content)
        for name, content in found.items()
    }
    return msgspec.json.format(msgspec.json.encode({"file": file or None, "settings": shown}), indent=2).decode()


def _shown(table: Mapping[str, Setting]) -> dict[str, Any]:
    return {key: {"value": masked(each.value, key), "source": each.source} for key, each in table.items()}
