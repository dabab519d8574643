"""Decodes the tools that a request declares, in `tools` and in items of its input, and encodes searches for tools.

{"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"functions","tools":[…]}]}
{"type":"tool_search_call","call_id":"call_1","execution":"server","arguments":{"query":"mail"},"status":"completed"}
{"type":"tool_search_output","call_id":"call_1","tools":[{"type":"namespace","name":"mcp__files","tools":[…]}]}
"""

from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any, cast

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.events import Note, RawFrame
from toolwire.core.raw import Json, as_object, to_json
from toolwire.core.request import (
    NO_PARAMETERS,
    SEARCH,
    CallEntry,
    HostedTool,
    ResultEntry,
    SearchOutcome,
    Tool,
    ToolPart,
)
from toolwire.dialects import reading
from toolwire.dialects.reading import DeclaredTools, read_at, require_tool_name
from toolwire.dialects.responses import wire
from toolwire.dialects.responses.items import ITEM_DONE

_decode_tool = msgspec.json.Decoder(wire.ToolDeclaration).decode


@Cache
def declared_tools(lists: tuple[tuple[bytes, ...], tuple[bytes, ...]]) -> DeclaredTools:
    """The tools of the declared lists, followed by those that searches found.

    The later of two declarations of one tool wins, but a found tool replaces no other. An agent repeats its tools in
    every request, so the result is cached.
    """
    declared, found = lists
    notes: list[Note] = []
    hosted: dict[bytes, HostedTool] = {}
    tools = _read_lists(declared, hosted, notes)
    if not any(tool.kind == "search" for tool in tools.values()) and not any(tool.searches for tool in hosted.values()):
        tools = {key: tool.shown for key, tool in tools.items()}  # no search could find them
    for key, tool in _read_lists(found, hosted, notes).items():
        tools.setdefault(key, tool if tool.deferred else msgspec.structs.replace(tool, deferred=True))
    return DeclaredTools(tuple(tools.values()), tuple(hosted.values()), tuple(notes))


def _read_lists(
    lists: tuple[bytes, ...], hosted: dict[bytes, HostedTool], notes: list[Note]
) -> dict[tuple[str, str], Tool]:
    """The tools of these lists by namespace and name; hosted tools and notes are added to the arguments."""
    tools: dict[tuple[str, str], Tool] = {}
    for tool in chain.from_iterable(chain.from_iterable(reading.read_tools(data, _read_tool) for data in lists)):
        if isinstance(tool, HostedTool):
            hosted.setdefault(bytes(tool.raw), tool)
            continue
        earlier = tools.get((tool.namespace, tool.name), tool)
        notes += [Note("tool_replaced", tool.name)] if earlier != tool else ()
        tools[tool.namespace, tool.name] = tool
    return tools


def _read_tool(raw: msgspec.Raw, path: str, namespace: str = "") -> list[Tool | HostedTool]:
    tool = read_at(_decode_tool, raw, path)
    if not tool.type:
        raise reading.missing_field(f"{path}.type")
    if tool.type == SEARCH and tool.execution == "client":
        return [Tool(SEARCH, tool.description or "", reading.value_of(tool.parameters), kind="search")]
    if tool.type not in ("function", "custom", "namespace"):
        return [HostedTool(tool.type, raw)]
    name = require_tool_name(tool.name, path)
    if tool.type == "namespace":
        inner = enumerate(tool.tools or ())
        return [each for index, one in inner for each in _read_tool(one, f"{path}.tools[{index}]", name)]
    kind = "custom" if tool.type == "custom" else "function"
    parameters, format = reading.value_of(tool.parameters), reading.value_of(tool.format)
    # Defaults to strict where the schema allows it; an explicit `strict` wins.
    strict = True if tool.strict is None and _can_be_strict(parameters) else tool.strict
    deferred = bool(tool.defer_loading)
    return [Tool(name, tool.description or "", parameters, strict, kind, format, namespace, deferred=deferred)]


def _can_be_strict(parameters: msgspec.Raw | None) -> bool:
    """Whether a schema fits strict mode: all properties of all objects are required, and no others are allowed."""
    try:
        return parameters is not None and _is_closed(msgspec.json.decode(parameters))
    except (msgspec.DecodeError, RecursionError):
        return False


def _is_closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_closed, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return True
    read = cast("Json", schema)
    given: Any = read.get("properties") or {}
    required: Any = read.get("required") or []
    if not isinstance(given, dict) or not isinstance(required, list):
        return False
    properties = cast("Json", given)
    if read.get("type") == "object" or properties:
        names = [name for name in cast("list[Any]", required) if isinstance(name, str)]
        if read.get("additionalProperties") is not False or properties.keys() != set(names):
            return False
    return all(map(_is_closed, (*properties.values(), read.get("items"), read.get("anyOf"))))


def encode_search(
    tools: Sequence[Tool], call: CallEntry, result: ResultEntry, outcome: SearchOutcome
) -> list[RawFrame]:
    """Encode a search that the gateway has run over these tools, as the two items that a server would send."""
    known = {(tool.namespace, tool.name): tool for tool in tools}
    keys = [(part.namespace, part.name) for part in result.parts if isinstance(part, ToolPart)]
    listed: list[Json] = []
    for namespace, group in groupby((known[key] for key in keys if key in known), lambda tool: tool.namespace):
        found = [*map(_encode_tool, group)]
        named = {"type": "namespace", "name": namespace, "description": "", "tools": found}
        listed += [named] if namespace else found
    arguments = as_object(call.arguments) or msgspec.Raw(b"{}")
    status = "completed" if outcome == "found" else "incomplete"
    shared: Json = {"call_id": call.id, "execution": "server"}
    items: tuple[Json, Json] = (
        {"id": f"tsc_{call.id}", **shared, "type": "tool_search_call", "arguments": arguments, "status": "completed"},
        {"id": f"tso_{call.id}", **shared, "type": "tool_search_output", "tools": listed, "status": status},
    )
    return [RawFrame(ITEM_DONE, item["id"], to_json({"item": item})) for item in items]


def _encode_tool(tool: Tool) -> Json:
    fields: Json = {"type": tool.kind, "name": tool.name, "description": tool.description}
    if tool.kind != "custom":
        fields |= {"parameters": tool.parameters or NO_PARAMETERS, "strict": tool.strict}
    elif tool.format is not None:
        fields["format"] = tool.format
    return {**fields, "defer_loading": True}
