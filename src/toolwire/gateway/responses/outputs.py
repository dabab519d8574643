"""Tool outputs submitted for a response: exactly one for each call that waits."""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.dialects import reading
from toolwire.dialects.responses import wire


class _Call(msgspec.Struct):
    id: str = ""
    type: str = ""
    call_id: str = ""
    status: str = ""


class _Output(msgspec.Struct):
    """An output among the items of an input."""

    type: str | None = None
    call_id: str | None = None
    tool_call_id: str | None = None
    output: reading.Maybe = msgspec.UNSET


class _Part(msgspec.Struct):
    type: str


class SubmittedOutput(msgspec.Struct, frozen=True):
    """An output as an input item."""

    type: str
    call_id: str
    output: msgspec.Raw | str


_decode_call = msgspec.json.Decoder(_Call).decode
_decode_output = msgspec.json.Decoder(_Output).decode

_OUTPUT_TYPES = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_EMPTY_TEXT = msgspec.Raw(b'""')


def read_outputs(given: wire.ToolOutputs, output: Sequence[msgspec.Raw]) -> list[SubmittedOutput]:
    """The submitted outputs as input items, in the order of the calls in the output of the response.

    Raises `BadRequest` if a call has no output, or no call waits for an output.
    """
    calls = [_decode_call(item) for item in output]
    waiting = {call.call_id: call for call in calls if call.type in _OUTPUT_TYPES and call.status == "completed"}
    if not waiting:
        raise BadRequest("This response does not wait for tool outputs.", "tool_outputs")
    items: dict[str, SubmittedOutput] = {}
    for index, each in enumerate(given.tool_outputs):
        path = f"tool_outputs[{index}]"
        id, content = each.tool_call_id or each.call_id, reading.value_of(each.output)
        if not id:
            raise reading.missing_field(f"{path}.tool_call_id")
        if id not in waiting:
            raise BadRequest(f"{path}: No call {id!r} waits for an output.", f"{path}.tool_call_id", "call_not_found")
        if id in items:
            raise BadRequest(f"{path}: The call {id!r} has an output already.", f"{path}.tool_call_id")
        if content is None:
            raise reading.missing_field(f"{path}.output")
        items[id] = SubmittedOutput(_OUTPUT_TYPES[waiting[id].type], id, _as_content(content))
    for id in waiting:
        if id not in items:
            raise BadRequest(f"tool_outputs: The call {id!r} has no output.", "tool_outputs", "output_missing")
    return [items[id] for id in waiting]


def is_same(outputs: Sequence[SubmittedOutput], given: Sequence[msgspec.Raw], made: Sequence[msgspec.Raw]) -> bool:
    """Whether the items `given` hold exactly these outputs, in any order, for the calls among the items `made`."""
    call_ids = {call.id: call.call_id for call in map(_decode_call, made) if call.id}
    found: dict[str, bytes] = {}
    for item in map(_decode_output, given):
        if (item.type or "").endswith("_output"):
            id = item.call_id or item.tool_call_id or ""
            found[call_ids.get(id, id)] = _normalize(_as_content(reading.value_of(item.output) or _EMPTY_TEXT))
    return found == {item.call_id: _normalize(item.output) for item in outputs}


def _normalize(output: Any) -> bytes:
    """An output in normal form: escapes, spaces and the order of keys make no difference."""
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(output)), order="sorted")


def _as_content(output: msgspec.Raw) -> msgspec.Raw | str:
    """The output if it is a text or a list of parts; any other JSON becomes a text."""
    data = bytes(output)
    if data.startswith(b'"'):
        return output
    try:
        msgspec.json.decode(data, type=list[_Part])
    except (msgspec.DecodeError, RecursionError):
        return data.decode()
    return output
