"""Tool outputs that are submitted for a response: all the calls that wait, and no others."""

from typing import Any

import msgspec

from toolwire.core.errors import BadRequest
from toolwire.dialects import reading
from toolwire.dialects.responses import wire


class _Waiting(msgspec.Struct):
    type: str = ""
    call_id: str = ""
    status: str = ""


class _Part(msgspec.Struct):
    type: str


_OUTPUT_OF = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}


def tool_outputs(given: wire.ToolOutputs, output: list[msgspec.Raw]) -> list[dict[str, Any]]:
    """The submitted outputs as input items, in the order of the calls."""
    read = [msgspec.json.decode(item, type=_Waiting) for item in output]
    waiting = {item.call_id: item for item in read if item.type in _OUTPUT_OF and item.status == "completed"}
    if not waiting:
        raise BadRequest("This response does not wait for tool outputs.", "tool_outputs")
    items: dict[str, dict[str, Any]] = {}
    for place, each in enumerate(given.tool_outputs):
        path = f"tool_outputs[{place}]"
        id, output_text = each.tool_call_id or each.call_id, reading.given(each.output)
        if not id:
            raise BadRequest(f"{path}.tool_call_id: This field is required.", f"{path}.tool_call_id")
        if id not in waiting:
            raise BadRequest(f"{path}: No call {id!r} waits for an output.", f"{path}.tool_call_id", "call_not_found")
        if id in items:
            raise BadRequest(f"{path}: The call {id!r} has an output already.", f"{path}.tool_call_id")
        if output_text is None:
            raise BadRequest(f"{path}.output: This field is required.", f"{path}.output")
        items[id] = {"type": _OUTPUT_OF[waiting[id].type], "call_id": id, "output": _written(output_text)}
    for id in waiting:
        if id not in items:
            raise BadRequest(f"tool_outputs: The call {id!r} has no output.", "tool_outputs", "output_missing")
    return [items[id] for id in waiting]


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
