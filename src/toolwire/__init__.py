"""Toolwire carries LLM tool calls between any client and any model: whole, once, in order.

Importing it loads only msgspec, the aggregator and the shared value types; everything else is loaded on first use.
docs/library.md explains these names and their stability.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from toolwire.aggregator import CallDelta, Ingested, ToolCallAggregator, extract_use_tool_blocks
from toolwire.core.collect import Call, Item, Reasoning, Refusal, Text, Turn, events_of
from toolwire.core.errors import (
    BackendFault,
    BadRequest,
    Failure,
    FedAfterEnd,
    InternalError,
    OutOfOrder,
    RateLimited,
    ReplyTooLarge,
    SettingsError,
    ToolwireError,
    TooManyCalls,
    WrongDialect,
)
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    CallTwin,
    Dialect,
    Event,
    MessageEnded,
    Note,
    RawFrame,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.notations.use_tool import to_obsidian_xml

if TYPE_CHECKING:
    from toolwire.check.captured import check_body, check_stream
    from toolwire.check.rules import RULES
    from toolwire.check.turns.rule import Finding, Rule
    from toolwire.completions import CompletionOptions, acompletion, completion
    from toolwire.config.settings import Settings
    from toolwire.gateway.embedding import GatewayApp, create_app
    from toolwire.library.bodies import Body, decode_body, encode_body, encode_error, translate_body
    from toolwire.library.options import ConvertOptions, DecodeOptions, EncodeOptions, PolicyOptions, TranslateOptions
    from toolwire.library.requests import ConvertedRequest, convert_request
    from toolwire.library.streams import (
        StreamDecoder,
        StreamEncoder,
        Translator,
        collect,
        decode_stream,
        encode_stream,
        translate,
    )

__version__ = "0.1.0"

__all__ = [
    "RULES",
    "BackendFault",
    "BadRequest",
    "Body",
    "Call",
    "CallArgs",
    "CallDelta",
    "CallEnded",
    "CallStarted",
    "CallTwin",
    "CompletionOptions",
    "ConvertOptions",
    "ConvertedRequest",
    "DecodeOptions",
    "Dialect",
    "EncodeOptions",
    "Event",
    "Failure",
    "FedAfterEnd",
    "Finding",
    "GatewayApp",
    "Ingested",
    "InternalError",
    "Item",
    "MessageEnded",
    "Note",
    "OutOfOrder",
    "PolicyOptions",
    "RateLimited",
    "RawFrame",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningEnded",
    "Refusal",
    "RefusalDelta",
    "ReplyTooLarge",
    "Rule",
    "Settings",
    "SettingsError",
    "StreamDecoder",
    "StreamEncoder",
    "Text",
    "TextDelta",
    "TooManyCalls",
    "ToolCallAggregator",
    "ToolwireError",
    "TranslateOptions",
    "Translator",
    "Turn",
    "TurnEnded",
    "TurnFailed",
    "TurnStarted",
    "Usage",
    "WrongDialect",
    "__version__",
    "acompletion",
    "check_body",
    "check_stream",
    "collect",
    "completion",
    "convert_request",
    "create_app",
    "decode_body",
    "decode_stream",
    "encode_body",
    "encode_error",
    "encode_stream",
    "events_of",
    "extract_use_tool_blocks",
    "to_obsidian_xml",
    "translate",
    "translate_body",
]

_LOADED_LATER = {
    "toolwire.check.captured": ("check_body", "check_stream"),
    "toolwire.check.rules": ("RULES",),
    "toolwire.check.turns.rule": ("Finding", "Rule"),
    "toolwire.completions": ("CompletionOptions", "acompletion", "completion"),
    "toolwire.gateway.embedding": ("GatewayApp", "create_app"),
    "toolwire.library.bodies": ("Body", "decode_body", "encode_body", "encode_error", "translate_body"),
    "toolwire.library.options": (
        "ConvertOptions",
        "DecodeOptions",
        "EncodeOptions",
        "PolicyOptions",
        "TranslateOptions",
    ),
    "toolwire.library.requests": ("ConvertedRequest", "convert_request"),
    "toolwire.library.streams": (
        "StreamDecoder",
        "StreamEncoder",
        "Translator",
        "collect",
        "decode_stream",
        "encode_stream",
        "translate",
    ),
    "toolwire.config.settings": ("Settings",),
}
"""Names that are loaded on first use, by module."""
_MODULES = {name: module for module, names in _LOADED_LATER.items() for name in names}
for _value in [*globals().values()]:
    if isinstance(_value, type) and issubclass(_value, ToolwireError):
        _value.__module__ = __name__  # printed and pickled by its public name


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
