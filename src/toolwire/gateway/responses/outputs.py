"""Tool outputs that are submitted for a response: all the calls that wait, and no others."""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.dialects import reading
from toolwire.dialects.responses import wire


class _Waiting(msgspec.Struct):
    id: str = ""
    type: str = ""
    call_id: str = ""
    status: str = ""


class _Given(msgspec.Struct):
    """An output among the items of an input."""

    type: str | None = None
    call_id: str | None = None
    tool_call_id: str | None = None
    output: reading.Maybe = msgspec.UNSET


class _Part(msgspec.Struct):
    type: str


_decode_waiting = msgspec.json.Decoder(_Waiting).decode
_decode_given = msgspec.json.Decoder(_Given).decode

_OUTPUT_OF = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


def tool_outputs(given: wire.ToolOutputs, output: list[msgspec.Raw]) -> list[dict[str, Any]]:
    """The submitted outputs as input items, in the order of the calls."""
    read = [_decode_waiting(item) for item in output]
    waiting = {item.call_id: item for item in read if item.type in _OUTPUT_OF and item.status == "completed"}
    if not waiting:
        raise BadRequest("This response does not wait for tool outputs.", "tool_outputs")
    items: dict[str, dict[str, Any]] = {}
    for index, each in enumerate(given.tool_outputs):
        path = f"tool_outputs[{index}]"
        id, output_text = each.tool_call_id or each.call_id, reading.given(each.output)
        if not id:
            raise reading.required(f"{path}.tool_call_id")
        if id not in waiting:
            raise BadRequest(f"{path}: No call {id!r} waits for an output.", f"{path}.tool_call_id", "call_not_found")
        if id in items:
            raise BadRequest(f"{path}: The call {id!r} has an output already.", f"{path}.tool_call_id")
        if output_text is None:
            raise reading.required(f"{path}.output")
        items[id] = {"type": _OUTPUT_OF[waiting[id].type], "call_id": id, "output": _written(output_text)}
    for id in waiting:
        if id not in items:
            raise BadRequest(f"tool_outputs: The call {id!r} has no output.", "tool_outputs", "output_missing")
    return [items[id] for id in waiting]


def are_the_same(outputs: Sequence[dict[str, Any]], given: Sequence[msgspec.Raw], made: Sequence[msgspec.Raw]) -> bool:
    """Whether an input holds these outputs of the calls that were made, in any order, and no others."""
    calls = {item.id: item.call_id for item in map(_decode_waiting, made) if item.id}
    found: dict[str, bytes] = {}
    for item in map(_decode_given, given):
        if (item.type or "").endswith("_output"):
            id = item.call_id or item.tool_call_id or ""
            found[calls.get(id, id)] = _compared(_written(reading.given(item.output) or _NOTHING))
    return found == {item["call_id"]: _compared(item["output"]) for item in outputs}


_NOTHING = msgspec.Raw(b'""')


def _compared(output: Any) -> bytes:
    """An output in one spelling: escapes, spaces and the order of keys make no difference."""
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(output)), order="sorted")


def _written(output: msgspec.Raw) -> Any:
    """An output is a text or a list of parts; any other JSON is sent as its own text."""
    data = bytes(output)
    if data.startswith(b'"'):
        return output
    try:
        msgspec.json.decode(data, type=list[_Part])
    except (msgspec.DecodeError, RecursionError):
        return data.decode()
    return output
