"""A request in the words of a server that knows less: flat functions, short names, narrow ids; and the way back.

Namespaces are flattened into names, custom tools become functions with one argument, and what does not fit is renamed.
The request says all that is needed to undo it, so nothing has to be remembered between turns.
"""

from collections.abc import Sequence

import msgspec

from toolwire.core.events import CallArgs, CallEnded, CallStarted, Event
from toolwire.core.names import Limits
from toolwire.core.request import CallEntry, Entry, Request, ResultEntry, Tool, ToolChoice
from toolwire.core.unwrap import WRAPPED, Unwrap, wrap

SEPARATOR = "__"

WRAPPER = msgspec.Raw(
    msgspec.json.encode(
        {
            "type": "object",
            "properties": {WRAPPED[0]: {"type": "string", "description": "The input of the tool, as plain text."}},
            "required": [WRAPPED[0]],
            "additionalProperties": False,
        }
    )
)


def lowered(request: Request, limits: Limits) -> tuple[Request, "Restore"]:
    """The request as the server can take it, and the stage that turns its calls back."""
    restore = Restore({tool.name for tool in request.tools if not tool.namespace})
    tools = tuple(_tool(tool, limits, restore) for tool in request.tools)
    entries = tuple(_entry(entry, limits) for entry in request.entries)
    choice = _choice(request, limits) if request.tool_choice is not None else None
    if tools == request.tools and entries == request.entries and choice == request.tool_choice:
        return request, restore
    return msgspec.structs.replace(request, tools=tools, entries=entries, tool_choice=choice), restore


def flat_name(namespace: str, name: str, limits: Limits) -> str:
    return limits.name(f"{namespace}{SEPARATOR}{name}" if namespace else name)


def _tool(tool: Tool, limits: Limits, restore: "Restore") -> Tool:
    name = flat_name(tool.namespace, tool.name, limits)
    if tool.namespace and name in restore.taken:
        name = limits.name(f"{tool.namespace}.{tool.name}")  # somebody has the flat name; the dot brings a hash
    if name == tool.name and tool.kind == "function" and not tool.namespace:
        return tool
    restore.table[name] = CallStarted("", tool.name, tool.kind, tool.namespace)
    if tool.kind == "function":
        return msgspec.structs.replace(tool, name=name, namespace="")
    return Tool(name, tool.description + _grammar(tool), WRAPPER)


class _Format(msgspec.Struct):
    type: str = ""
    definition: str = ""


def _grammar(tool: Tool) -> str:
    format = msgspec.json.decode(tool.format, type=_Format) if tool.format is not None else _Format()
    if format.type != "grammar":
        return ""
    return f"\n\nThe input follows this grammar:\n{format.definition}"


def _entry(entry: Entry, limits: Limits) -> Entry:
    if isinstance(entry, CallEntry):
        name, id = flat_name(entry.namespace, entry.name, limits), limits.id(entry.id)
        if (name, id, entry.kind, entry.namespace) == (entry.name, entry.id, "function", ""):
            return entry
        arguments = wrap(entry.arguments) if entry.kind == "custom" else entry.arguments
        return CallEntry(id, name, arguments)
    if isinstance(entry, ResultEntry):
        id = limits.id(entry.call_id)
        if id != entry.call_id or entry.kind != "function":
            return msgspec.structs.replace(entry, call_id=id, kind="function", raw=None)
    return entry


def _choice(request: Request, limits: Limits) -> ToolChoice:
    choice = request.tool_choice
    assert choice is not None
    names = {tool.name: flat_name(tool.namespace, tool.name, limits) for tool in request.tools}
    return msgspec.structs.replace(
        choice,
        name=names.get(choice.name, choice.name),
        kind="function",
        allowed=tuple(names.get(name, name) for name in choice.allowed),
    )


class Restore:
    """A stage that gives calls their names, namespaces and kinds back."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self.taken = taken or set()
        """Names that are declared as they are."""
        self.table: dict[str, CallStarted] = {}
        self._unwrap: Unwrap | None = None

    def feed(self, event: Event) -> Sequence[Event]:
        if not self.table:
            return (event,)
        if isinstance(event, CallStarted):
            return (self._start(event),)
        if self._unwrap is None:
            return (event,)
        if isinstance(event, CallArgs):
            text = self._unwrap.feed(event.text)
            return (CallArgs(event.id, text),) if text else ()
        if isinstance(event, CallEnded):
            text, self._unwrap = self._unwrap.end(), None
            return (CallArgs(event.id, text), event) if text else (event,)
        return (event,)

    def end(self) -> Sequence[Event]:
        return ()

    def _start(self, event: CallStarted) -> CallStarted:
        known = self.table.get(event.name)
        if known is None:
            return event
        if known.kind == "custom":
            self._unwrap = Unwrap()
        return msgspec.structs.replace(event, name=known.name, kind=known.kind, namespace=known.namespace)
