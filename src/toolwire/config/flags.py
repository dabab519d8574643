"""Flags: what the environment and a request's headers say about `[tools]`, in the same words."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolwire.assembly import OutputModeSetting, ToolRules

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
    """A flag has a value that means nothing."""

    def __init__(self, name: str, wanted: str, text: str) -> None:
        super().__init__(f"{name} must be {wanted}; received {text!r}.")
        self.name = name


def with_flags(rules: ToolRules, flags: Mapping[str, str], given: Mapping[str, str]) -> ToolRules:
    """The rules, with what is given under the names of these flags. Raises `FlagError`.

    A flag without a value is not set, but an empty delimiter is a delimiter.
    """
    if not given:
        return rules
    changed = {field: _READERS[field](name, given[name]) for field, name in given_flags(flags, given).items()}
    return msgspec.structs.replace(rules, **changed) if changed else rules


def given_flags(flags: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The keys of `[tools]` that are set by flags, each with the name of its flag."""
    return {
        field: name for name, field in flags.items() if name in given and (given[name].strip() or field == "delimiter")
    }


def boolean(name: str, text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise FlagError(name, "true or false", text)
    return value


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise FlagError(name, "a whole number", text)
    return int(text)


def _delimiter(name: str, text: str) -> str:
    return text.replace("\\n", "\n")


def _mode(name: str, text: str) -> str:
    mode = MODES.get(text.strip().lower().replace("_", "-"))
    if mode is None:
        raise FlagError(name, "auto, openai-json or obsidian-xml", text)
    return mode


def _one_of(*words: str) -> Callable[[str, str], str]:
    wanted = " or ".join((", ".join(words[:-1]), *words[-1:])) if len(words) > 1 else "".join(words)

    def read(name: str, text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise FlagError(name, wanted, text)
        return word

    return read


_READERS: dict[str, Callable[[str, str], Any]] = {
    "output_mode": _mode,
    "stop_after": boolean,
    "stop_after_mode": _one_of("burst", "first"),
    "stop_after_grace_ms": _number,
    "suppress_tail": boolean,
    "max_calls": _number,
    "dedup": boolean,
    "delimiter": _delimiter,
    "parallel": boolean,
    "name_fallback": _one_of("position"),
    "finish_after_calls": boolean,
    "strict_parsing": boolean,
    "arguments": _one_of("pass", "check", "repair"),
    "responses_events": _one_of("openai", "extended"),
}
