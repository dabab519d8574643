"""Flags: environment variables and request headers that override `[tools]`; both accept the same values."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolwire.assembly import OutputModeSetting, ToolRules
from toolwire.config.decode import join_words

FLAGS: dict[str, str] = {
    "PROXY_OUTPUT_MODE": "output_mode",
    "PROXY_STOP_AFTER_TOOLS": "stop_after",
    "PROXY_STOP_AFTER_TOOLS_MODE": "stop_after_mode",
    "PROXY_STOP_AFTER_TOOLS_GRACE_MS": "stop_after_grace_ms",
    "PROXY_SUPPRESS_TAIL_AFTER_TOOLS": "suppress_tail",
    "PROXY_TOOL_BLOCK_MAX": "max_calls",
    "PROXY_TOOL_BLOCK_DEDUP": "dedup",
    "PROXY_TOOL_BLOCK_DELIMITER": "delimiter",
    "PROXY_ENABLE_PARALLEL_TOOL_CALLS": "parallel",
    "PROXY_TOOL_NAME_FALLBACK": "name_fallback",
    "PROXY_FINISH_AFTER_CALLS": "finish_after_calls",
    "PROXY_STRICT_TOOLS": "strict_parsing",
    "PROXY_TOOL_ARGUMENTS": "arguments",
}
"""Each flag of the environment and the key of `[tools]` it sets."""

MODE_HEADER = "x-proxy-output-mode"
HEADERS: dict[str, str] = {
    MODE_HEADER: "output_mode",
    "x-proxy-strict-tools": "strict_parsing",
    "x-proxy-responses-events": "responses_events",
    "x-proxy-tool-arguments": "arguments",
}
"""Each header of a request and the key of `[tools]` it sets."""

MODES: dict[str, OutputModeSetting] = {
    "obsidian-xml": "obsidian-xml",
    "obsidian": "obsidian-xml",
    "openai-json": "openai-json",
    "openai": "openai-json",
    "auto": "auto",
}

_BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class FlagError(Exception):
    """A flag has an invalid value; the message is one line for the user."""

    def __init__(self, name: str, wanted: str, text: str) -> None:
        super().__init__(f"{name} must be {wanted}; received {text!r}.")
        self.name = name


def with_flags(rules: ToolRules, flags: Mapping[str, str], given: Mapping[str, str]) -> ToolRules:
    """The rules with the given values of these flags. Raises `FlagError`.

    An empty value is ignored, except for the delimiter.
    """
    if not given:
        return rules
    changed = {field: _READERS[field](name, given[name]) for field, name in find_flags(flags, given).items()}
    return msgspec.structs.replace(rules, **changed) if changed else rules


def find_flags(flags: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The keys of `[tools]` that flags set, each with the name of its flag."""
    return {
        field: name for name, field in flags.items() if name in given and (given[name].strip() or field == "delimiter")
    }


def read_boolean(name: str, text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise FlagError(name, "true or false", text)
    return value


def _read_number(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise FlagError(name, "a whole number", text)
    return int(text)


def _read_mode(name: str, text: str) -> str:
    mode = MODES.get(text.strip().lower().replace("_", "-"))
    if mode is None:
        raise FlagError(name, "auto, openai-json or obsidian-xml", text)
    return mode


def _make_reader(*words: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise FlagError(name, join_words(words), text)
        return word

    return read


_READERS: dict[str, Callable[[str, str], Any]] = {
    "output_mode": _read_mode,
    "stop_after": read_boolean,
    "stop_after_mode": _make_reader("burst", "first"),
    "stop_after_grace_ms": _read_number,
    "suppress_tail": read_boolean,
    "max_calls": _read_number,
    "dedup": read_boolean,
    "delimiter": lambda _, text: text.replace("\\n", "\n"),
    "parallel": read_boolean,
    "name_fallback": _make_reader("position"),
    "finish_after_calls": read_boolean,
    "strict_parsing": read_boolean,
    "arguments": _make_reader("pass", "check", "repair"),
    "responses_events": _make_reader("openai", "extended"),
}
