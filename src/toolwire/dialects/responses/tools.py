"""The tools that a Responses request declares: in its `tools`, and in items of its input.

{"type":"additional_tools","role":"developer","tools":[{"type":"namespace","name":"functions","tools":[…]}]}
{"type":"tool_search_output","call_id":"call_1","tools":[{"type":"namespace","name":"mcp__files","tools":[…]}]}
"""

from itertools import chain
from typing import Any, cast

import msgspec

from toolwire.core.cache import Cache
from toolwire.core.events import Note
from toolwire.core.request import SEARCH, HostedTool, Tool
from toolwire.dialects import reading
from toolwire.dialects.reading import DeclaredTools, read_at, tool_name
from toolwire.dialects.responses import wire

_decode_tool = msgspec.json.Decoder(wire.ToolDeclaration).decode


def _read_tools(lists: tuple[tuple[bytes, ...], tuple[bytes, ...]]) -> DeclaredTools:
    """The tools of these lists, and those of lists that searches have found, which come behind them.

    Of two declarations of one tool the later wins, but a found tool replaces no other.
    """
    declared, found = lists
    notes: list[Note] = []
    hosted: dict[bytes, HostedTool] = {}
    tools = _read_lists(declared, hosted, notes)
    if not any(tool.kind == "search" for tool in tools.values()) and not any(tool.searches for tool in hosted.values()):
        tools = {key: tool.shown for key, tool in tools.items()}  # nothing could find them
    for key, tool in _read_lists(found, hosted, notes).items():
        tools.setdefault(key, tool if tool.deferred else msgspec.structs.replace(tool, deferred=True))
    return DeclaredTools(tuple(tools.values()), tuple(hosted.values()), tuple(notes))


def _read_lists(
    lists: tuple[bytes, ...], hosted: dict[bytes, HostedTool], notes: list[Note]
) -> dict[tuple[str, str], Tool]:
    tools: dict[tuple[str, str], Tool] = {}
    for tool in chain.from_iterable(chain.from_iterable(reading.read_tools(data, _read_tool) for data in lists)):
        if isinstance(tool, HostedTool):
            hosted.setdefault(bytes(tool.raw), tool)
            continue
        earlier = tools.get((tool.namespace, tool.name), tool)
        notes += [Note("tool_replaced", tool.name)] if earlier != tool else ()
        tools[tool.namespace, tool.name] = tool
    return tools


read_tools = Cache(_read_tools)
"""An agent sends the same ones with every request, so they are read once."""


def _read_tool(raw: msgspec.Raw, path: str, namespace: str = "") -> list[Tool | HostedTool]:
    tool = read_at(_decode_tool, raw, path)
    if not tool.type:
        raise reading.required(f"{path}.type")
    if tool.type == SEARCH and tool.execution == "client":
        return [Tool(SEARCH, tool.description or "", reading.given(tool.parameters), kind="search")]
    if tool.type not in ("function", "custom", "namespace"):
        return [HostedTool(tool.type, raw)]
    name = tool_name(tool.name, path)
    if tool.type == "namespace":
        inner = enumerate(tool.tools or ())
        return [each for index, one in inner for each in _read_tool(one, f"{path}.tools[{index}]", name)]
    kind = "custom" if tool.type == "custom" else "function"
    parameters, format = reading.given(tool.parameters), reading.given(tool.format)
    # Defaults to strict where the schema allows it; an explicit `strict` wins.
    strict = True if tool.strict is None and _can_be_strict(parameters) else tool.strict
    deferred = bool(tool.defer_loading)
    return [Tool(name, tool.description or "", parameters, strict, kind, format, namespace, deferred=deferred)]


def _can_be_strict(parameters: msgspec.Raw | None) -> bool:
    """Whether a schema fits strict mode: all properties of all objects are required, and no others are allowed."""
    if parameters is None:
        return False
    try:
        return _is_closed(msgspec.json.decode(parameters))
    except (msgspec.DecodeError, RecursionError):
        return False


def _is_closed(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_closed, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return True
    read = cast("dict[str, Any]", schema)
    given: Any = read.get("properties") or {}
    required: Any = read.get("required") or []
    if not isinstance(given, dict) or not isinstance(required, list):
        return False
    properties = cast("dict[str, Any]", given)
    if read.get("type") == "object" or properties:
        names = [name for name in cast("list[Any]", required) if isinstance(name, str)]
        if read.get("additionalProperties") is not False or properties.keys() != set(names):
            return False
    return all(map(_is_closed, (*properties.values(), read.get("items"), read.get("anyOf"))))
