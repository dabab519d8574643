"""The options of the library's functions, by name. Those about calls mean what they mean in `[tools]` of the settings.

A name that does not exist is a `TypeError`, a value that cannot be a `ValueError`, as with any function of Python.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

import msgspec

from toolwire.adapt.arguments import ArgumentsRule
from toolwire.adapt.history import HistoryRule
from toolwire.assembly import OutputModeSetting, ToolRules
from toolwire.core.errors import validation_message
from toolwire.core.notes import StopMode

if TYPE_CHECKING:
    from toolwire.library.requests import ConvertedRequest


T = TypeVar("T")


class PolicyOptions(TypedDict, total=False):
    """How calls are carried. Nothing is changed unless one of these says so."""

    max_calls: int
    """Most calls of a turn; further ones are withheld, with a note. 0: no limit."""
    parallel: bool
    """False: at most one call."""
    dedup: bool
    """Withhold a call that came twice without an id of its own."""
    stop_after: bool
    """Withhold text that follows a call."""
    stop_after_mode: StopMode
    """With `stop_after`: `first` ends the turn behind its first call, `burst` waits for further calls."""
    suppress_tail: bool
    """Withhold text that follows a call, and read on."""
    output_mode: OutputModeSetting
    """`obsidian-xml` also writes calls as `<use_tool>` blocks into the text, `openai-json` does not; `auto` chooses
    `obsidian-xml` where a converted request declares no tools and its prompt speaks of `<use_tool>`."""
    delimiter: str
    """What stands between such blocks."""
    text_calls: bool
    """Whether calls that are written in the text are read; if it is not said, where tools are declared."""
    strict_parsing: bool
    """Fail a turn whose text holds a block that looks like a call and cannot be read."""
    name_fallback: Literal["", "position"]
    """`position`: a call without a name gets that of the tool at its place."""
    finish_after_calls: bool
    """Finish a turn that fails behind complete calls."""
    arguments: ArgumentsRule
    """Check or repair arguments by the schemas of the tools, which only a converted request knows."""


class DecodeOptions(PolicyOptions, total=False):
    """How a reply is read."""

    tools: Iterable[str]
    """The names of the declared tools. With them calls in text are read, and there only these names are calls."""
    profile: Mapping[str, Any]
    """Facts about the server, as in `[backends.profile]` of the settings."""
    seed: str
    """What ids are made of that the reply lacks; random if it is not given."""
    answers: "ConvertedRequest"
    """The request that this is the reply to: names, ids and kinds are restored as the client wrote them."""


class EncodeOptions(TypedDict, total=False):
    """How a turn is written."""

    model: str
    """The model's name; that of the turn, if it is not given."""
    id: str
    """The id of the completion, response or message; a random one if it is not given."""
    created: int
    """When it was created, in seconds since 1970; now, if it is not given."""
    include_usage: bool
    """Whether a chat stream ends with its token counts, as with `stream_options`."""
    legacy_functions: bool
    """Whether a chat client gets `function_call` instead of `tool_calls`."""


class TranslateOptions(DecodeOptions, EncodeOptions, total=False):
    """How a reply is read, and written again."""


class ConvertOptions(PolicyOptions, total=False):
    """How a request is converted."""

    profile: Mapping[str, Any]
    """Facts about the server, as in `[backends.profile]` of the settings."""
    model: str
    """The model's name at the server; that of the body, if it is not given."""
    history: HistoryRule
    """`strict`: calls and results that do not belong together are refused instead of repaired."""
    unsupported: Literal["note", "reject"]
    """`reject`: a tool that the server does not have is refused instead of left out."""


class _Plain(TypedDict, total=False):
    """The options that are plain values, and in no other way checked."""

    model: str
    id: str
    created: int
    include_usage: bool
    legacy_functions: bool
    text_calls: bool | None
    seed: str


def check_options(options: Mapping[str, Any], kind: type[Any]) -> None:
    """Raise `TypeError` if an option has a name that there is not, `ValueError` if its value cannot be."""
    for name in options:
        if name not in _inherited(kind):
            raise TypeError(f"there is no option {name!r}; there are {', '.join(sorted(_inherited(kind)))}")
    _converted(dict(options), _Plain)


def _inherited(kind: type[Any]) -> frozenset[str]:
    return frozenset(kind.__required_keys__ | kind.__optional_keys__)


def rules_of(options: Mapping[str, Any]) -> ToolRules:
    """The rules that these options state. Raises `ValueError` if one of them cannot be."""
    given = {name: value for name, value in options.items() if name in ToolRules.__struct_fields__}
    return _converted(given, ToolRules)


def _converted(given: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        text, path = validation_message(error)
        raise ValueError(f"{path}: {text}") from None
