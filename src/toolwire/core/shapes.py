"""Reads calls and the answer's text from payloads of any shape and spelling that clients, servers and proxies use.

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

The text is read from `content` (a string or parts) in `delta`, from `response.output_text.delta`, from a `text_delta`
in `content_block_delta`, from `item/agentMessage/delta` and from `agent_message_delta`. Reasoning, messages of other
roles, and events that repeat a whole text after its deltas are ignored.

Strings are never parsed, and a payload is never changed. The depth of the walk is bounded.
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
_MAX_DEPTH = 8
_AS_WRITTEN = frozenset((*_ARGUMENTS, _SIGNATURE, "reasoning_details"))


def decode_payload(data: bytes) -> Any:
    """Decode JSON, with arguments and signatures left as raw JSON. Raises `msgspec.DecodeError`."""
    return _decode_payload(data, _MAX_DEPTH + 4)  # a chunk nests its calls deeper than a message


def _decode_payload(data: bytes, depth: int) -> Any:
    start = data.lstrip()[:1]
    if depth and start == b"{":
        out: dict[str, Any] = {}
        for key, value in fields_of(data).items():
            if key not in _AS_WRITTEN:
                out[key] = _decode_payload(bytes(value), depth - 1)
            else:
                out[key] = value if bytes(value) != b"null" else None
        return out
    if depth and start == b"[":
        return [_decode_payload(bytes(each), depth - 1) for each in list_of(data)]
    return msgspec.json.decode(data)


def read_fragments(payload: Any, *, total: bool = False) -> list[Fragment]:
    """Every call fragment in the payload, in order. `total`: the payload is a finished message, not a delta."""
    return list(_walk(payload, total, _MAX_DEPTH))


def choice_of(payload: Any, *keys: str) -> int | None:
    """The index of the choice a payload belongs to, if it states one."""
    values = map(_as_mapping(payload).get, keys or ("choice_index", "choiceIndex"))
    return next((value for value in values if isinstance(value, int)), None)


_ENDINGS = {"response.completed": "stop", "response.incomplete": "length", "message_stop": "stop"}
_CUT = FILTER_REASONS | {"length", "max_tokens", "model_length", "model_context_window_exceeded"}
"""Finish reasons of a truncated turn."""


def ending_of(payload: Any) -> str:
    """`stop` or `length` if the payload ends its turn, else the empty string."""
    payload = _as_mapping(payload)
    stated = (
        payload.get("finish_reason"),
        payload.get("stop_reason"),
        _as_mapping(payload.get("delta")).get("stop_reason"),
    )
    reason = next(filter(None, stated), None)
    if isinstance(reason, str) and reason not in NULL_LIKE:
        return "length" if reason.lower() in _CUT else "stop"
    return _ENDINGS.get(_as_str(payload.get("type")), "")


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
        yield from _read_object(cast("Payload", payload), total, depth)


def _read_object(payload: Payload, total: bool, depth: int) -> Iterator[Fragment]:
    kind = _as_str(payload.get("type")).removeprefix("codex/event/")
    match kind:
        case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
            yield _read_event(payload, payload.get("delta", payload.get("arguments")), total=False)
        case "response.function_call_arguments.done":
            yield _read_event(payload, _arguments_of(payload), total=True)
        case "response.custom_tool_call_input.done":
            yield _read_event(payload, payload.get("input"), total=True)
        case "response.output_item.added" | "response.output_item.done":
            yield from _read_item(payload, ended=kind.endswith("done"))
        case "response.content_part.added":
            yield from _read_item(payload, ended=False)
        case "content_block_start" | "content_block_delta":
            yield from _read_block(payload)
        case "content_block_stop":
            yield Fragment(index=_index_of(payload), ended=True, item=_key_of_block(payload), early=True)
        case "dynamic_tool_call_request":
            yield _read_request(_as_mapping(payload.get("msg")) or payload)
        case _ if payload.get("method") == "item/tool/call":
            yield _read_request(_as_mapping(payload.get("params")))
        case _ if _is_call(payload):
            item = _as_str(payload.get("id")) if _call_id_of(payload) else ""
            yield msgspec.structs.replace(_read_call(payload), item=item, list_position=1)
        case _:
            yield from _read_lists(payload, total, depth)


def _read_lists(payload: Payload, total: bool, depth: int) -> Iterator[Fragment]:
    calls = payload.get("tool_calls", payload.get("toolCalls"))
    legacy = payload.get("function_call", payload.get("functionCall"))
    action = _as_mapping(_as_mapping(payload.get("required_action")).get("submit_tool_outputs"))
    if isinstance(calls, list | tuple) and calls:
        calls = cast("list[Any]", calls)
        for position, call in enumerate(calls):
            if isinstance(call, Mapping):
                entry = _read_entry(cast("Payload", call), position, total)
                list_position = position + 1 if total else 0
                shown = position if len(calls) > 1 else None
                yield msgspec.structs.replace(entry, position=shown, list_position=list_position)
    elif isinstance(legacy, Mapping):
        yield msgspec.structs.replace(_read_entry(cast("Payload", legacy), 0, total), item="function_call", index=None)
    if action:
        yield from _walk(action, True, depth - 1)
    for key in _INSIDE:
        inside = payload.get(key)
        if isinstance(inside, list | tuple | Mapping):
            yield from _walk(inside, total or key in ("message", "output", "response"), depth - 1)


def _read_entry(call: Payload, position: int, total: bool) -> Fragment:
    """One of `tool_calls`. In a finished message its position serves as its index."""
    index, text, signed = _index_of(call), _arguments_of(call), call.get(_SIGNATURE)
    kind = "custom" if call.get("type") == "custom" or _as_mapping(call.get("custom")) else "function"
    return Fragment(
        text,
        _as_str(call.get("item_id")),
        _id_of(call),
        position if total and index is None else index,
        position,
        _name_of(call),
        kind,
        total,
        total,
        total,
        not total or kind == "custom" or not is_begun_object(text),
        signature=bytes(signed).decode() if isinstance(signed, msgspec.Raw) else "",
    )


def _is_call(payload: Any) -> bool:
    """Whether this is a whole call by itself: an item, a part or a block."""
    return _as_str(_as_mapping(payload).get("type")) in CALL_TYPES and bool(_name_of(payload))


def _read_call(call: Payload) -> Fragment:
    kind = "custom" if _as_str(call.get("type")).startswith("custom") else "function"
    is_complete, namespace = call.get("status") != "incomplete", _as_str(call.get("namespace"))
    return msgspec.structs.replace(_read_request(call), kind=kind, complete=is_complete, namespace=namespace)


def _read_event(payload: Payload, text: Any, *, total: bool) -> Fragment:
    """A delta or the total of a call's arguments; only its item says whether the call is complete.

    An `id` here may belong to something other than the call, so it is only a fallback.
    """
    custom = "custom" in _as_str(payload.get("type"))
    key = _as_str(payload.get("item_id"))
    return Fragment(
        _as_text(text),
        key,
        _call_id_of(payload),
        _as_number(payload.get("output_index")),
        name=_name_of(payload),
        kind="custom" if custom else "function",
        total=total,
        named=True,
        fallback=_other_id_of(payload),
        early=bool(key),
        final=total,
    )


def _read_item(payload: Payload, *, ended: bool) -> Iterator[Fragment]:
    """The calls in an item, in its content or in a part of it."""
    item, index = _as_mapping(payload.get("item")), _as_number(payload.get("output_index"))
    if _as_str(item.get("type")) in CALL_TYPES:
        key = _as_str(item.get("id")) or _as_str(payload.get("item_id"))
        yield msgspec.structs.replace(
            _read_item_call(item, key, ended=ended), index=index, id=_call_id_of(item), fallback=_other_id_of(item)
        )
        return
    key = _as_str(item.get("id")) if item else _as_str(payload.get("item_id"))
    parts = cast("list[Any]", item.get("content") or ()) if item else [payload.get("part")]
    for part in map(_as_mapping, parts):
        if _as_str(part.get("type")) in CALL_TYPES:
            yield msgspec.structs.replace(_read_item_call(part, key, ended=ended), index=index)


def _read_item_call(call: Payload, item: str, *, ended: bool) -> Fragment:
    """A call in its item. Until the item ends, empty arguments or `{}` mean that the arguments follow."""
    fragment = _read_call(call)
    text = fragment.text if ended or "".join(fragment.text.split()) != "{}" else ""
    return msgspec.structs.replace(fragment, text=text, item=item, ended=ended, open=ended)


def _read_block(payload: Payload) -> Iterator[Fragment]:
    block, delta = _as_mapping(payload.get("content_block")), _as_mapping(payload.get("delta"))
    if block.get("type") == "tool_use":
        # The input is an empty object here, to be filled by deltas, unless a proxy sends it whole.
        text = _as_text(block.get("input")) if block.get("input") else ""
        key, name = _key_of_block(payload), _name_of(block)
        yield Fragment("", key, _id_of(block), _index_of(payload), name=name, named=True, default=text)
    elif delta.get("type") == "input_json_delta":
        yield Fragment(_as_str(delta.get("partial_json")), _key_of_block(payload), index=_index_of(payload), early=True)


def ends_with_blank_call(payload: Any) -> bool:
    """Whether the last block of a message is a call with an empty input, which a cut turn leaves behind."""
    content = _as_mapping(payload).get("content")
    last = _as_mapping(cast("list[Any]", content)[-1:][0] if isinstance(content, list) and content else None)
    return last.get("type") == "tool_use" and not last.get("input")


def other_block_of(payload: Any) -> str:
    """The key of a block that starts here and does not call a client's tool, such as `server_tool_use`."""
    payload = _as_mapping(payload)
    block = _as_mapping(payload.get("content_block"))
    is_other = payload.get("type") == "content_block_start" and block.get("type") != "tool_use"
    return _key_of_block(payload) if is_other else ""


def _key_of_block(payload: Payload) -> str:
    return f"block {_index_of(payload)}"


def _read_request(request: Payload) -> Fragment:
    return msgspec.structs.replace(_read_entry(request, 0, total=True), index=None, item="")


_TEXTS = frozenset(("text", "text_delta", "output_text"))
_TEXT_DELTAS = frozenset(("response.output_text.delta", "agent_message_delta"))
_TEXT_HOLDERS = ("delta", "msg", "params")
_MAX_TEXT_DEPTH = 4


def text_delta_of(payload: Any, depth: int = _MAX_TEXT_DEPTH) -> str:
    """The new text in one streamed payload."""
    if isinstance(payload, str):
        return payload
    payload = _as_mapping(payload)
    if depth == 0 or payload.get("role") not in (None, "", "assistant"):
        return ""
    kind = str(payload.get("type") or payload.get("method") or "").removeprefix("codex/event/")
    if kind in _TEXTS:
        return _as_str(payload.get("text"))
    if kind in _TEXT_DELTAS or kind == "item/agentMessage/delta":
        return next((text for key in _TEXT_HOLDERS if (text := text_delta_of(payload.get(key), depth - 1))), "")
    if kind == "content_block_delta" or not kind:
        inside = payload.get("delta")
        if inside:
            return text_delta_of(inside, depth - 1)
        content = payload.get("content")
        if isinstance(content, list):
            return "".join(text_delta_of(part) for part in cast("list[Any]", content))
        return _as_str(content)
    return ""


def text_of_message(message: Any) -> str:
    """The answer's text in a finished message of any shape."""
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        return "".join(text_of_message(part) for part in cast("list[Any]", message))
    message = _as_mapping(message)
    for key in ("content", "text", "message", "choices", "output"):
        if message.get(key):
            return text_of_message(message[key])
    return ""


def _id_of(call: Payload) -> str:
    for key in _IDS:
        if isinstance(call.get(key), str | int) and call[key] != "":
            return str(call[key])
    return _as_str(_as_mapping(call.get("function")).get("id"))


def _call_id_of(call: Payload) -> str:
    """An id under a key that only calls have."""
    return next((call[key] for key in _CALL_IDS if isinstance(call.get(key), str)), "")


def _other_id_of(call: Payload) -> str:
    """An id that may be the call's, or that of the item around it."""
    return _as_str(_as_mapping(call.get("function")).get("id")) or _id_of(call)


def _name_of(call: Payload) -> str:
    for holder in _holders_of(call):
        for key in _NAMES:
            if isinstance(holder.get(key), str) and holder[key]:
                return holder[key]
    return ""


def _arguments_of(call: Payload) -> str:
    for holder in _holders_of(call):
        for key in _ARGUMENTS:
            if text := _as_text(holder.get(key)):
                return text
    return ""


def _holders_of(call: Payload) -> tuple[Payload, ...]:
    """The objects that may hold the name and the arguments of a call."""
    return _as_mapping(call.get("function")), _as_mapping(call.get("custom")), call


def _index_of(call: Payload) -> int | None:
    for key in _INDEXES:
        number = _as_number(call.get(key))
        if number is not None:
            return number
    return None


def _as_number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and value >= 0 else None


def _as_mapping(value: Any) -> Payload:
    return cast("Payload", value) if isinstance(value, Mapping) else {}


def _as_str(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_text(value: Any) -> str:
    """Arguments as text: a string as it is, anything else as compact JSON in its original order."""
    if isinstance(value, msgspec.Raw):
        return arguments_text(value)
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate, which is valid JSON if it is escaped
        return json.dumps(value, separators=(",", ":"))
