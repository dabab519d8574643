"""The keyword options of the library. One named like a key of `[tools]` in the settings has the same meaning.

An unknown name raises `TypeError`, an invalid value `ValueError`.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar
from uuid import uuid4

import msgspec

from toolwire.adapt.arguments import ArgumentsRule
from toolwire.adapt.history import HistoryRule
from toolwire.assembly import OutputModeSetting, ToolRules
from toolwire.core.errors import split_validation_error
from toolwire.core.notes import StopMode

if TYPE_CHECKING:
    from toolwire.library.requests import ConvertedRequest


T = TypeVar("T")


class PolicyOptions(TypedDict, total=False):
    """Policies for calls. By default nothing is changed."""

    max_calls: int
    """Maximum number of calls in a turn; further calls are withheld, with a note. 0: no limit."""
    parallel: bool
    """False: at most one call."""
    dedup: bool
    """Withhold a repeated call without an id of its own."""
    stop_after: bool
    """Withhold text that follows a call."""
    stop_after_mode: StopMode
    """With `stop_after`: `first` ends the turn after its first call, `burst` waits for further calls."""
    suppress_tail: bool
    """Withhold text that follows a call, and continue reading."""
    output_mode: OutputModeSetting
    """`obsidian-xml` also writes calls as `<use_tool>` blocks into the text, `openai-json` does not. `auto` selects
    `obsidian-xml` for a converted request that declares no tools and mentions `<use_tool>` in its prompt."""
    delimiter: str
    """The separator between such blocks."""
    text_calls: bool
    """Whether calls written in the text are read; by default only if tools are declared."""
    strict_parsing: bool
    """Fail a turn whose text has a block that looks like a call and cannot be parsed."""
    name_fallback: Literal["", "position"]
    """`position`: a call without a name gets the name of the tool at the same position."""
    finish_after_calls: bool
    """Finish a turn normally if it fails after complete calls."""
    arguments: ArgumentsRule
    """Whether arguments that do not fit the schemas of the tools are noted (`check`, the default), repaired, or passed
    on. Only a converted request has schemas."""


class DecodeOptions(PolicyOptions, total=False):
    """Options for decoding a reply."""

    tools: Iterable[str]
    """The names of the declared tools. They enable calls in text, which must have one of these names."""
    profile: Mapping[str, Any]
    """Facts about the server, as in `[backends.profile]` of the settings."""
    seed: str
    """The seed for ids that the reply lacks; random by default."""
    answers: "ConvertedRequest"
    """The request that the reply answers: names, ids and kinds are restored as the client sent them."""


class EncodeOptions(TypedDict, total=False):
    """Options for encoding a turn."""

    model: str
    """The name of the model; by default that of the turn."""
    id: str
    """The id of the completion, response or message; random by default."""
    created: int
    """The creation time in seconds since 1970; by default now."""
    include_usage: bool
    """Whether a chat stream ends with its token counts, as with `stream_options`."""
    legacy_functions: bool
    """Whether a chat client gets `function_call` instead of `tool_calls`."""


class TranslateOptions(DecodeOptions, EncodeOptions, total=False):
    """Options for translating a reply."""


class ConvertOptions(PolicyOptions, total=False):
    """Options for converting a request."""

    profile: Mapping[str, Any]
    """Facts about the server, as in `[backends.profile]` of the settings."""
    model: str
    """The name of the model on the server; by default that of the body."""
    history: HistoryRule
    """`strict`: unpaired calls and results are rejected instead of repaired."""
    unsupported: Literal["note", "reject"]
    """`reject`: a tool that the server does not support is rejected instead of dropped."""


class _PlainValues(TypedDict, total=False):
    """The options whose types `check_options` checks; others are checked where they are used."""

    model: str
    id: str
    created: int
    include_usage: bool
    legacy_functions: bool
    text_calls: bool | None
    seed: str


def check_options(options: Mapping[str, Any], kind: type[Any]) -> None:
    """Raise `TypeError` for an option that this kind does not have, and `ValueError` for one of a wrong type."""
    known = kind.__required_keys__ | kind.__optional_keys__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; there are {', '.join(sorted(known))}")
    _convert(dict(options), _PlainValues)


def make_rules(options: Mapping[str, Any]) -> ToolRules:
    """The rules that these options set. Raises `ValueError` for an invalid value."""
    return _convert({name: options[name] for name in options if name in ToolRules.__struct_fields__}, ToolRules)


def choose_seed(options: Mapping[str, Any]) -> str:
    """The seed that the options set, or else a random one."""
    return options.get("seed") or uuid4().hex


def _convert(given: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text, path = split_validation_error(error)
        raise ValueError(f"{path}: {text}") from None
