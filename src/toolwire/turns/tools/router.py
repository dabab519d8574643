"""Finds the tool that a call names, and declares tools in a request."""

from typing import Any

from toolwire.adapt.names import SEPARATOR, flat_name
from toolwire.core.collect import Call
from toolwire.core.request import NO_PARAMETERS
from toolwire.turns.tools.call import LOCAL_SHELL, CustomPayload, FunctionPayload, ToolCall
from toolwire.turns.tools.registry import Registry, Tool

MARKS = ("mcp__", f"functions{SEPARATOR}")
"""How some models begin the names of tools that come from an MCP server, and of those that do not."""


def tool_call_from(call: Call, registry: Registry) -> ToolCall:
    """A call of the model, with the name that the registry has for its tool.

    A name that is not there stays as it is: running it gives the answer that the model reads.
    """
    flat = flat_name(call.namespace, call.name)
    names = [flat, *(flat.removeprefix(mark) for mark in MARKS if flat.startswith(mark))]
    name = next((name for name in names if registry.get(name) is not None), names[0])
    payload = CustomPayload(call.arguments) if call.kind == "custom" else FunctionPayload(call.arguments)
    return ToolCall(name, call.id, payload)


def declared(tool: Tool) -> dict[str, Any]:
    """A tool as a request of the Responses API declares it."""
    if tool.name == LOCAL_SHELL:
        return {"type": "local_shell"}
    said: dict[str, Any] = {"type": tool.kind, "name": tool.name, "description": tool.description}
    if tool.kind == "custom":
        return {**said, "format": tool.format} if tool.format is not None else said
    return {**said, "parameters": tool.parameters or NO_PARAMETERS, "strict": False}
