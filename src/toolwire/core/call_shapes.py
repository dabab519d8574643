"""Reads calls out of any payload: every shape and spelling that clients, servers and proxies were seen to use.

| shape | example |
| --- | --- |
| chat | `{"tool_calls": [{"index", "id", "function": {"name", "arguments"}}]}`, in `delta`, `message` or `choices[]` |
| legacy chat | `{"function_call": {"name", "arguments"}}` |
| Responses events | `response.function_call_arguments.delta`, `.done`, `response.output_item.added`, `.done` |
| Responses parts | `response.content_part.added`, and `item.content[]` with parts that are calls |
| Responses items | `{"type": "function_call", "call_id", "name", "arguments"}`, alone or in `output[]` |
| Anthropic | `{"type": "tool_use", "id", "name", "input"}`, `content_block_start`, `input_json_delta` |
| app-server | `dynamic_tool_call_request`, `item/tool/call` with `callId`, `tool`, `arguments` |
| required action | `required_action.submit_tool_outputs.tool_calls` |

Strings are never parsed, and what was passed in is never changed. The walk is bounded in depth.
JSON text is read with `decode_payload`, so that arguments which are not a string keep their original text.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

import msgspec

from toolwire.core.call_index import NULL_LIKE, Fragment
from toolwire.core.events import FILTER_REASONS
from toolwire.core.raw import arguments_text, fields_of, list_of
from toolwire.core.text import is_begun_object

CALL_TYPES = frozenset(("function_call", "function", "tool_use", "tool_call", "custom_tool_call", "custom"))
"""Types of a part or item that is a call."""

Payload: TypeAlias = Mapping[str, Any]

_CALL_IDS = ("call_id", "tool_call_id", "toolCallId", "callId")
_IDS = (*_CALL_IDS, "id")
_NAMES = ("name", "function_name", "tool_name", "call_name", "tool")
_ARGUMENTS = ("arguments", "arguments_chunk", "argumentsChunk", "input", "args", "partial_json")
_SIGNATURE = "extra_content"
_INDEXES = ("index", "tool_call_index", "toolCallIndex")
_INSIDE = ("choices", "delta", "message", "msg", "params", "item", "content", "output", "response", "deltas", "items")
_DEPTH = 8
_AS_WRITTEN = frozenset((*_ARGUMENTS, _SIGNATURE, "reasoning_details"))


def decode_payload(data: bytes) -> Any:
    """A JSON text as values, with arguments and signatures left as raw JSON. Raises what msgspec raises."""
    return _decode_payload(data, _DEPTH + 4)  # a chunk nests its calls deeper than a message


def _decode_payload(data: bytes, depth: int) -> Any:
    start = data.lstrip()[:1]
    if depth and start == b"{":
        return {key: _field(key, value, depth) for key, value in fields_of(data).items()}
    if depth and start == b"[":
        return [_decode_payload(bytes(each), depth - 1) for each in list_of(data)]
    return msgspec.json.decode(data)


def _field(key: str, value: msgspec.Raw, depth: int) -> Any:
    if key in _AS_WRITTEN:
        return value if bytes(value) != b"null" else None
    return _decode_payload(bytes(value), depth - 1)


def read_fragments(payload: Any, *, total: bool = False) -> list[Fragment]:
    """Every call fragment in the payload, in order. `total`: the payload is a finished message, not a delta."""
    return list(_walk(payload, total, _DEPTH))


def choice_of(payload: Any, *keys: str) -> int | None:
    """The index of the choice a payload belongs to, if it says so."""
    values = map(_mapping(payload).get, keys or ("choice_index", "choiceIndex"))
    return next((value for value in values if isinstance(value, int)), None)


_ENDINGS = {"response.completed": "stop", "response.incomplete": "length", "message_stop": "stop"}
_CUT = FILTER_REASONS | {"length", "max_tokens", "model_length", "model_context_window_exceeded"}
"""Finish reasons that mean the model had not finished."""


def ending_of(payload: Any) -> str:
    """`stop` or `length` if the payload ends its turn, else the empty string."""
    payload = _mapping(payload)
    stated = (
        payload.get("finish_reason"),
        payload.get("stop_reason"),
        _mapping(payload.get("delta")).get("stop_reason"),
    )
    reason = next(filter(None, stated), None)
    if isinstance(reason, str) and reason not in NULL_LIKE:
        return "length" if reason.lower() in _CUT else "stop"
    return _ENDINGS.get(_text(payload.get("type")), "")


def _walk(payload: Any, total: bool, depth: int) -> Iterator[Fragment]:
    if depth == 0:
        return
    if isinstance(payload, list | tuple):
        position = 0
        for each in cast("list[Any]", payload):
            is_call = _is_call(each)
            position += is_call
            for fragment in _walk(each, total, depth - 1):
                yield msgspec.structs.replace(fragment, list_position=position) if is_call else fragment
    elif isinstance(payload, Mapping):
        yield from _read(cast("Payload", payload), total, depth)


def _read(payload: Payload, total: bool, depth: int) -> Iterator[Fragment]:
    kind = _text(payload.get("type")).removeprefix("codex/event/")
    match kind:
        case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
            yield _event_fragment(payload, payload.get("delta", payload.get("arguments")), total=False)
        case "response.function_call_arguments.done":
            yield _event_fragment(payload, _arguments(payload), total=True)
        case "response.custom_tool_call_input.done":
            yield _event_fragment(payload, payload.get("input"), total=True)
        case "response.output_item.added" | "response.output_item.done":
            yield from _item(payload, ended=kind.endswith("done"))
        case "response.content_part.added":
            yield from _part(payload)
        case "content_block_start":
            yield from _block(payload)
        case "content_block_delta":
            yield from _block_delta(payload)
        case "content_block_stop":
            yield Fragment(index=_index(payload), ended=True, item=_block_key(payload), early=True)
        case "dynamic_tool_call_request":
            yield _dynamic(_mapping(payload.get("msg")) or payload)
        case _ if payload.get("method") == "item/tool/call":
            yield _dynamic(_mapping(payload.get("params")))
        case _ if _is_call(payload):
            item = _text(payload.get("id")) if _call_id(payload) else ""
            yield msgspec.structs.replace(_whole(payload), item=item, list_position=1)
        case _:
            yield from _lists(payload, total, depth)


def _lists(payload: Payload, total: bool, depth: int) -> Iterator[Fragment]:
    calls = payload.get("tool_calls", payload.get("toolCalls"))
    legacy = payload.get("function_call", payload.get("functionCall"))
    action = _mapping(_mapping(payload.get("required_action")).get("submit_tool_outputs"))
    if isinstance(calls, list | tuple) and calls:
        yield from _entries(cast("list[Any]", calls), total)
    elif isinstance(legacy, Mapping):
        yield msgspec.structs.replace(_entry(cast("Payload", legacy), 0, total), item="function_call", index=None)
    if action:
        yield from _walk(action, True, depth - 1)
    for key in _INSIDE:
        inside = payload.get(key)
        if isinstance(inside, list | tuple | Mapping):
            yield from _walk(inside, total or key in ("message", "output", "response"), depth - 1)


def _entries(calls: list[Any], total: bool) -> Iterator[Fragment]:
    """The calls of one list."""
    for position, call in enumerate(calls):
        if not isinstance(call, Mapping):
            continue
        entry = _entry(cast("Payload", call), position, total)
        if len(calls) == 1:
            entry = msgspec.structs.replace(entry, position=None)
        yield msgspec.structs.replace(entry, list_position=position + 1) if total else entry


def _entry(call: Payload, position: int, total: bool) -> Fragment:
    """One of `tool_calls`. In a finished message its position serves as its index."""
    index, text = _index(call), _arguments(call)
    kind = "custom" if call.get("type") == "custom" or _mapping(call.get("custom")) else "function"
    return Fragment(
        text,
        _text(call.get("item_id")),
        _id(call),
        position if total and index is None else index,
        position,
        _name(call),
        kind,
        total,
        total,
        total,
        not total or kind == "custom" or not is_begun_object(text),
        signature=_signature(call),
    )


def _is_call(payload: Any) -> bool:
    """Whether this is a whole call by itself: an item, a part or a block."""
    return _text(_mapping(payload).get("type")) in CALL_TYPES and bool(_name(payload))


def _whole(call: Payload) -> Fragment:
    kind = "custom" if _text(call.get("type")).startswith("custom") else "function"
    is_complete, namespace = call.get("status") != "incomplete", _text(call.get("namespace"))
    return msgspec.structs.replace(_dynamic(call), kind=kind, complete=is_complete, namespace=namespace)


def _event_fragment(payload: Payload, text: Any, *, total: bool) -> Fragment:
    """A delta or the total of a call's arguments; only its item says whether the call is complete.

    An `id` here may belong to something else than the call, so it is only a fallback.
    """
    custom = "custom" in _text(payload.get("type"))
    key = _text(payload.get("item_id"))
    return Fragment(
        _as_text(text),
        key,
        _call_id(payload),
        _number(payload.get("output_index")),
        name=_name(payload),
        kind="custom" if custom else "function",
        total=total,
        named=True,
        fallback=_other_id(payload),
        early=bool(key),
        final=total,
    )


def _item(payload: Payload, *, ended: bool) -> Iterator[Fragment]:
    item = _mapping(payload.get("item"))
    index = _number(payload.get("output_index"))
    if _text(item.get("type")) in CALL_TYPES:
        key = _text(item.get("id")) or _text(payload.get("item_id"))
        yield msgspec.structs.replace(
            _from_item(item, key, ended=ended), index=index, id=_call_id(item), fallback=_other_id(item)
        )
        return
    for part in cast("list[Any]", item.get("content") or ()):
        if isinstance(part, Mapping) and _text(cast("Payload", part).get("type")) in CALL_TYPES:
            fragment = _from_item(cast("Payload", part), _text(item.get("id")), ended=ended)
            yield msgspec.structs.replace(fragment, index=index)


def _part(payload: Payload) -> Iterator[Fragment]:
    part = _mapping(payload.get("part"))
    if _text(part.get("type")) in CALL_TYPES:
        fragment = _from_item(part, _text(payload.get("item_id")), ended=False)
        yield msgspec.structs.replace(fragment, index=_number(payload.get("output_index")))


def _from_item(call: Payload, item: str, *, ended: bool) -> Fragment:
    """A call as its item states it: until the item ends, empty arguments or `{}` mean that they are yet to come."""
    fragment = _whole(call)
    text = fragment.text if ended or "".join(fragment.text.split()) != "{}" else ""
    return msgspec.structs.replace(fragment, text=text, item=item, ended=ended, open=ended)


def _block(payload: Payload) -> Iterator[Fragment]:
    block = _mapping(payload.get("content_block"))
    if block.get("type") == "tool_use":
        # The input is an empty object here, to be filled by deltas, unless a proxy sends it whole.
        whole = block.get("input")
        text = _as_text(whole) if whole else ""
        yield Fragment(
            "", _block_key(payload), _id(block), _index(payload), name=_name(block), named=True, default=text
        )


def ends_with_blank_call(payload: Any) -> bool:
    """Whether the last block of a message is a call with an empty input, which a cut turn leaves behind."""
    content = _mapping(payload).get("content")
    last = _mapping(cast("list[Any]", content)[-1:][0] if isinstance(content, list) and content else None)
    return last.get("type") == "tool_use" and not last.get("input")


def other_block_of(payload: Any) -> str:
    """The key of a block that starts here and is no call of a client's tool, such as `server_tool_use`."""
    payload = _mapping(payload)
    block = _mapping(payload.get("content_block"))
    is_other = payload.get("type") == "content_block_start" and block.get("type") != "tool_use"
    return _block_key(payload) if is_other else ""


def _block_delta(payload: Payload) -> Iterator[Fragment]:
    delta = _mapping(payload.get("delta"))
    if delta.get("type") == "input_json_delta":
        yield Fragment(_text(delta.get("partial_json")), _block_key(payload), index=_index(payload), early=True)


def _block_key(payload: Payload) -> str:
    return f"block {_index(payload)}"


def _dynamic(request: Payload) -> Fragment:
    return msgspec.structs.replace(_entry(request, 0, total=True), index=None, item="")


def _id(call: Payload) -> str:
    for key in _IDS:
        if isinstance(call.get(key), str | int) and call[key] != "":
            return str(call[key])
    return _text(_mapping(call.get("function")).get("id"))


def _signature(call: Payload) -> str:
    signed = call.get(_SIGNATURE)
    return bytes(signed).decode() if isinstance(signed, msgspec.Raw) else ""


def _call_id(call: Payload) -> str:
    """An id under a key that can only mean the call."""
    return next((call[key] for key in _CALL_IDS if isinstance(call.get(key), str)), "")


def _other_id(call: Payload) -> str:
    """An id that may be the call's, or that of the item around it."""
    return _text(_mapping(call.get("function")).get("id")) or _id(call)


def _name(call: Payload) -> str:
    for holder in _holders(call):
        for key in _NAMES:
            if isinstance(holder.get(key), str) and holder[key]:
                return holder[key]
    return ""


def _arguments(call: Payload) -> str:
    for holder in _holders(call):
        for key in _ARGUMENTS:
            if text := _as_text(holder.get(key)):
                return text
    return ""


def _holders(call: Payload) -> tuple[Payload, ...]:
    """The objects that may hold the name and the arguments of a call."""
    return _mapping(call.get("function")), _mapping(call.get("custom")), call


def _index(call: Payload) -> int | None:
    for key in _INDEXES:
        number = _number(call.get(key))
        if number is not None:
            return number
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and value >= 0 else None


def _mapping(value: Any) -> Payload:
    return cast("Payload", value) if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_text(value: Any) -> str:
    """Arguments as text: a string as it is, anything else as compact JSON in its original order."""
    if isinstance(value, msgspec.Raw):
        return arguments_text(value)
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate: escaped it is still JSON
        return json.dumps(value, separators=(",", ":"))
