"""A search for tools that the gateway has run, as a server of this dialect shows it.

{"type":"tool_search_call","call_id":"call_1","execution":"server","arguments":{"query":"mail"},"status":"completed"}
{"type":"tool_search_output","call_id":"call_1","execution":"server","tools":[…],"status":"completed"}
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from toolwire.core.events import RawFrame
from toolwire.core.raw import as_object, to_json
from toolwire.core.request import NO_PARAMETERS, CallEntry, ResultEntry, SearchOutcome, Tool, ToolPart
from toolwire.dialects.responses.items import DONE


def search_frames(
    tools: Sequence[Tool], call: CallEntry, result: ResultEntry, outcome: SearchOutcome
) -> list[RawFrame]:
    """The two items of a search in these tools."""
    known = {(tool.namespace, tool.name): tool for tool in tools}
    keys = [(part.namespace, part.name) for part in result.parts if isinstance(part, ToolPart)]
    found = groupby((known[key] for key in keys if key in known), lambda tool: tool.namespace)
    listed = [each for namespace, group in found for each in _in_namespace(namespace, [*map(_tool, group)])]
    shared: dict[str, Any] = {"call_id": call.id, "execution": "server"}
    return [
        _item("tsc", {**shared, "type": "tool_search_call", "arguments": as_object(call.arguments) or {}}),
        _item(
            "tso", {**shared, "type": "tool_search_output", "tools": listed}, "incomplete" if outcome != "found" else ""
        ),
    ]


def _item(prefix: str, fields: dict[str, Any], status: str = "") -> RawFrame:
    id = f"{prefix}_{fields['call_id']}"
    item = {"id": id, **fields, "status": status or "completed"}
    return RawFrame(DONE, id, to_json({"item": item}))


def _in_namespace(namespace: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "namespace", "name": namespace, "description": "", "tools": tools}] if namespace else tools


def _tool(tool: Tool) -> dict[str, Any]:
    named: dict[str, Any] = {"type": tool.kind, "name": tool.name, "description": tool.description}
    if tool.kind == "custom":
        return {**named, **({"format": tool.format} if tool.format is not None else {}), "defer_loading": True}
    parameters = tool.parameters or NO_PARAMETERS
    return {**named, "parameters": parameters, "strict": tool.strict, "defer_loading": True}
