"""The parts of the Responses wire format that we read, and nothing else."""

from typing import Any

import msgspec

from toolwire.backends.decoder import UNREADABLE, TokenDetails
from toolwire.backends.failures import Error
from toolwire.core.call_index import Fragment
from toolwire.core.events import CallKind
from toolwire.core.raw import Maybe, arguments_text

DIALECT = "responses"
"""The dialect of this backend's protocol."""
_RESULTS = ("function_call_output", "custom_tool_call_output")
"""The types of items that are results of calls."""


class NestedFunction(msgspec.Struct, gc=False):
    """The inner object of a call in the form of Chat Completions."""

    id: Any = None
    name: Any = None
    arguments: Maybe = msgspec.UNSET
    input: Maybe = msgspec.UNSET


class CallFields(msgspec.Struct, gc=False):
    """The fields that describe a call, in several spellings: in an item, a part of one, or an event."""

    type: str = ""
    call_id: str | None = None
    name: str | None = None
    arguments: Maybe = msgspec.UNSET
    input: Maybe = msgspec.UNSET
    function_name: str | None = None
    tool_name: str | None = None
    call_name: str | None = None
    function: NestedFunction | str | None = None


class Part(CallFields):
    """A content part. Some servers put a call here."""

    id: str | None = None
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    namespace: str | None = None
    status: str | None = None


class ReplyItem(CallFields):
    """An output item of any type."""

    id: str | None = None
    namespace: str | None = None
    status: str | None = None
    content: list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    phase: str | None = None

    @property
    def answers(self) -> str | None:
        """The id of the call that it answers, if it is a result."""
        return self.call_id or "" if self.type in _RESULTS else None


class TokenUsage(msgspec.Struct, gc=False):
    """The token counts of a response, in the order of the parameters of `usage_of`."""

    input_tokens: float | None = None
    output_tokens: float | None = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None


class IncompleteDetails(msgspec.Struct, gc=False):
    """Why a response is incomplete."""

    reason: str | None = None


class Response(msgspec.Struct, gc=False):
    """A response object."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[ReplyItem] | None = None
    usage: TokenUsage | None = None
    error: Error | None = None
    incomplete_details: IncompleteDetails | None = None


class StreamEvent(CallFields):
    """Any event of a stream. Its type determines which fields it has."""

    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    delta: str | None = None
    summary_index: int | None = None
    item: ReplyItem | None = None
    part: Part | None = None
    text: str | None = None
    refusal: str | None = None
    response: Response | None = None
    error: Error | None = None
    code: Any = None
    message: str | None = None
    param: Any = None
    id: Any = None


_CALL_FIELDS = ("type", "id", "call_id", "name", "function_name", "tool_name", "call_name", "namespace", "status")


def make_loose_payload(holder: CallFields) -> dict[str, Any]:
    """The fields that describe a call, as a payload for `core/shapes.py`. Its arguments are text."""
    given = {name: value for name in _CALL_FIELDS if (value := getattr(holder, name, None)) is not None}
    if isinstance(holder.function, NestedFunction):
        given["function"] = {"id": holder.function.id, "name": holder.function.name, **_list_arguments(holder.function)}
    return {**given, **_list_arguments(holder)}


def _list_arguments(holder: NestedFunction | CallFields) -> dict[str, str]:
    texts = {"arguments": arguments_text(holder.arguments), "input": arguments_text(holder.input)}
    return {name: text for name, text in texts.items() if text}


_KINDS: dict[str, CallKind] = {"function_call": "function", "custom_tool_call": "custom"}


def read_documented_item(
    item: ReplyItem, index: int | None, *, ended: bool, open: bool, list_position: int = 0
) -> Fragment | None:
    """The call in an item of the documented shape, as nearly all are; None for any other.

    The result is the same as that of `core/shapes.py` for the same item, at a fraction of its cost.
    """
    kind = _KINDS.get(item.type)
    written, other = (item.arguments, item.input) if kind == "function" else (item.input, item.arguments)
    is_plain = item.function is item.function_name is item.tool_name is item.call_name is None
    if kind is None or not is_plain or not item.call_id or not item.name or other is not msgspec.UNSET:
        return None
    text = arguments_text(written)
    return Fragment(
        text if ended or "".join(text.split()) != "{}" else "",
        item.id or "",
        item.call_id,
        index if index is None or index >= 0 else None,
        0,
        item.name,
        kind,
        True,
        True,
        ended,
        item.status != "incomplete",
        list_position,
        namespace=item.namespace or "",
        fallback=item.call_id,
        open=open,
    )


_CALL_EVENTS: dict[str, CallKind] = {
    "response.function_call_arguments.delta": "function",
    "response.function_call_arguments.done": "function",
    "response.custom_tool_call_input.delta": "custom",
    "response.custom_tool_call_input.done": "custom",
}


def read_documented_event(event: StreamEvent) -> Fragment | None:
    """The arguments in an event of the documented shape, which identifies only the item; None for any other."""
    kind = _CALL_EVENTS.get(event.type)
    names = event.function is event.name is event.function_name is event.tool_name is event.call_name is None
    written, other = (event.arguments, event.input) if kind == "function" else (event.input, event.arguments)
    is_plain = names and event.call_id is event.id is None and other is msgspec.UNSET and event.item_id
    if kind is None or not is_plain:
        return None
    final = event.type.endswith("done")
    if (event.delta is None) is not final:
        return None
    index = event.output_index
    return Fragment(
        arguments_text(written) if final else event.delta or "",
        event.item_id or "",
        index=index if index is None or index >= 0 else None,
        kind=kind,
        total=final,
        named=True,
        early=True,
        final=final,
    )


_ENDINGS = frozenset(("response.completed", "response.done", "response.incomplete", "response.failed"))
"""The events that close a turn."""


class _EndingResponse(msgspec.Struct, gc=False):
    status: str | None = None
    error: Error | None = None


class _Ending(msgspec.Struct, gc=False):
    """The fields of a closing event that are needed to end the turn."""

    type: str
    response: _EndingResponse


_decode_ending = msgspec.json.Decoder(_Ending).decode


def read_ending(data: bytes) -> StreamEvent | None:
    """The status and the error of a closing event that is otherwise unreadable; None for any other frame."""
    try:
        ending = _decode_ending(data)
    except UNREADABLE:
        return None
    if ending.type not in _ENDINGS:
        return None
    return StreamEvent(ending.type, response=Response(status=ending.response.status, error=ending.response.error))
