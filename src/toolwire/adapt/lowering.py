"""Lowers a request to the features of a server (flat functions, short names, narrow ids) and restores its calls.

Namespaces are flattened into names, custom tools become functions with one argument, schemas lose what the server
refuses, and invalid names are replaced. Everything can be undone from the request alone, so no state is kept between
turns.

A server without tool search gets a function for the search, and only those deferred tools that the history names. They
follow all other tools, in the order in which they were found, so that the declarations only grow.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import is_not
from typing import Any

import msgspec

from toolwire.adapt.history import FreshIds
from toolwire.adapt.names import Limits, Naming
from toolwire.adapt.schemas import adjust
from toolwire.adapt.unwrap import WRAPPED, Unwrap, choose_wrapper_key, wrap
from toolwire.core.cache import BoundedDict, size_of
from toolwire.core.events import CallArgs, CallEnded, CallKind, CallStarted, Event, Note
from toolwire.core.raw import to_raw
from toolwire.core.request import (
    CallEntry,
    Entry,
    OtherEntry,
    Part,
    Request,
    ResultEntry,
    TextPart,
    Tool,
    ToolChoice,
    ToolPart,
    ToolsEntry,
)


def make_search_parameters(query: str) -> msgspec.Raw:
    """The schema of a search for tools, with this description of its query."""
    properties = {
        "query": {"type": "string", "description": query},
        "limit": {"type": "integer", "description": "How many tools to find at most."},
    }
    return to_raw({"type": "object", "properties": properties, "required": ["query"]})


SEARCH_PARAMETERS = make_search_parameters("What the tool should do.")
"""The default schema of a search for tools."""


def lower_request(request: Request, limits: Limits) -> tuple[Request, "Restore"]:
    """Lower a request to the server's limits; returns it with the stage that restores its calls."""
    if limits.search and (limits.search != request.dialect or "tool_search" in request.without):
        # Namespaces go too: a tool found later would change one, and servers without search may refuse them.
        namespaces = (
            limits.namespaces
            and "tool_search" not in request.without
            and not any(tool.deferred for tool in request.tools)
        )
        limits = msgspec.structs.replace(limits, search="", namespaces=namespaces)
    # An agent sends the same tuple of tools with every request, so it is lowered once.
    tools = _cache.find((id(request.tools), limits))
    if tools is None or tools.tools is not request.tools:
        tools = _LoweredTools(request.tools, limits)
        _cache.keep((id(request.tools), limits), tools)
    kept: Sequence[Entry] = request.entries
    if not limits.additional_tools:
        kept = [entry for entry in kept if not isinstance(entry, ToolsEntry)]
    if not limits.search:
        kept = replace_searches(kept)
    entries = tuple(map(tools.lower_entry, kept))
    if limits.unique_ids:
        entries = _make_ids_unique(entries)
    declared, shown = tools.select(request)
    changed: dict[str, Any] = {} if shown is request.tools else {"tools": shown}
    if tools.is_declared_anew:
        changed["tools_changed"] = True
    if len(entries) != len(request.entries) or any(map(is_not, entries, request.entries)):
        changed["entries"] = entries
    if request.tool_choice is not None:
        choice = tools.lower_choice(request.tool_choice)
        if choice != request.tool_choice:
            changed["tool_choice"] = choice
    lowered = msgspec.structs.replace(request, **changed) if changed else request
    return lowered, Restore(tools.table, tools.notes, declared)


class _LoweredTools:
    """The tools of a request for one server, and their names there. Unchanged tools are not copied."""

    def __init__(self, tools: tuple[Tool, ...], limits: Limits) -> None:
        self.tools = tools
        self._limits = limits
        self._naming = Naming([(tool.namespace, tool.name) for tool in tools], limits)
        self._keys = {(tool.namespace, tool.name): _wrapper_key_of(tool) for tool in tools if tool.kind == "custom"}
        self.notes: list[Note] = []
        lowered = tuple(map(self._lower_tool, tools))
        pairs = tuple(zip(tools, lowered, strict=True))
        self.lowered = tools if all(one is other for one, other in pairs) else lowered
        self.table = {
            (lower.namespace, lower.name): tool
            for tool, lower in pairs
            if (tool.name, tool.namespace, tool.kind) != (lower.name, lower.namespace, lower.kind)
        }
        if self.table:
            # A model may omit a tool's namespace, or write a dot after it: both are valid if the name is unique.
            bare = [(tool.name, tool) for tool in tools if tool.namespace]
            dotted = [(f"{tool.namespace}.{tool.name}", tool) for tool in tools if tool.namespace]
            names = Counter([*(tool.name for tool in (*tools, *lowered)), *(name for name, _ in dotted)])
            self.table |= {("", name): tool for name, tool in (*bare, *dotted) if names[name] == 1}
        self._deferred = {(tool.namespace, tool.name): index for index, tool in enumerate(tools) if tool.deferred}
        self.is_declared_anew = not limits.search and any(
            tool.deferred or tool.kind == "search" or tool.namespace != lower.namespace for tool, lower in pairs
        )

    def select(self, request: Request) -> tuple[tuple[Tool, ...], tuple[Tool, ...]]:
        """The tools to declare, and their lowered form. Of the deferred tools, only those that were found."""
        if not self._deferred or self._limits.search:
            return self.tools, self.lowered
        named = [*request.named_tools, *(key for key in self._deferred if key[1] == request.forced_tool)]
        indexes = [index for index, tool in enumerate(self.tools) if not tool.deferred]
        indexes += [self._deferred[key] for key in dict.fromkeys(named) if key in self._deferred]
        return tuple(self.tools[index] for index in indexes), tuple(self.lowered[index] for index in indexes)

    def _lower_tool(self, tool: Tool) -> Tool:
        limits, lower = self._limits, tool
        if lower.strict is not None and not limits.strict:
            self.notes += [Note("field_dropped", f"{tool.name}.strict")] if tool.strict else ()
            lower = msgspec.structs.replace(lower, strict=None)
        change = adjust(tool.parameters, limits.schema) if tool.parameters is not None else None
        if change is not None:
            if change.lost:
                self.notes.append(Note("schema_changed", tool.name))
            description = "\n\n".join(text for text in (tool.description, change.remark) if text)
            lower = msgspec.structs.replace(lower, parameters=change.parameters, description=description)
        if tool.kind == "search" and not limits.search:
            lower = msgspec.structs.replace(lower, kind="function", parameters=lower.parameters or SEARCH_PARAMETERS)
        if tool.kind == "custom" and not limits.custom:
            key = _wrapper_key_of(tool)
            properties = {key: {"type": "string", "description": "The input of the tool, as plain text."}}
            schema = {"type": "object", "properties": properties, "required": [key], "additionalProperties": False}
            description = tool.description + _grammar_of(tool)
            lower = msgspec.structs.replace(
                lower, description=description, parameters=to_raw(schema), kind="function", format=None
            )
        lower = lower if limits.search else lower.shown
        name, namespace = self._naming.name_of(tool.namespace, tool.name), self._lower_namespace(tool.namespace)
        if (name, namespace) == (tool.name, tool.namespace):
            return lower
        return msgspec.structs.replace(lower, name=name, namespace=namespace)

    def lower_entry(self, entry: Entry) -> Entry:
        if isinstance(entry, CallEntry):
            name, id = self._naming.name_of(entry.namespace, entry.name), self._limits.fit_id(entry.id)
            kind, namespace = self._lower_kind(entry.kind), self._lower_namespace(entry.namespace)
            if (name, id, kind, namespace) == (entry.name, entry.id, entry.kind, entry.namespace):
                return entry
            arguments = entry.arguments
            if entry.kind == "custom" and kind != "custom":
                arguments = wrap(arguments, self._keys.get((entry.namespace, entry.name), WRAPPED))
            return msgspec.structs.replace(entry, id=id, name=name, arguments=arguments, kind=kind, namespace=namespace)
        if isinstance(entry, ResultEntry):
            id, kind = self._limits.fit_id(entry.call_id), self._lower_kind(entry.kind)
            if not self._limits.search and (entry.kind == "search" or ToolPart in map(type, entry.parts)):
                parts = self._spell_out_tools(entry)
                return msgspec.structs.replace(entry, call_id=id, kind=kind, parts=parts, raw=None)
            if (id, kind) != (entry.call_id, entry.kind):
                return msgspec.structs.replace(entry, call_id=id, kind=kind)
        return entry

    def _spell_out_tools(self, entry: ResultEntry) -> tuple[Part, ...]:
        """The parts of a result, with a sentence in place of the tools that it names."""
        out: list[Part] = []
        for is_tool, parts in groupby(entry.parts, lambda part: isinstance(part, ToolPart)):
            if is_tool:
                found = [part for part in parts if isinstance(part, ToolPart)]
                names = [self._naming.name_of(part.namespace, part.name) for part in found]
                tools = f"tool {names[0]}" if len(names) == 1 else f"tools {', '.join(names)}"
                out.append(TextPart(f"The {tools} can be called."))
            else:
                out += parts
        return tuple(out) or (TextPart("No tool was found."),)

    def lower_choice(self, choice: ToolChoice) -> ToolChoice:
        if not choice.name and not choice.allowed and choice.kind == "function":
            return choice
        names: dict[str, list[str]] = {}
        for tool in self.tools:
            names.setdefault(tool.name, []).append(self._naming.name_of(tool.namespace, tool.name))
        return msgspec.structs.replace(
            choice,
            name=names.get(choice.name, [choice.name])[0],
            kind=self._lower_kind(choice.kind),
            allowed=tuple(dict.fromkeys(name for allowed in choice.allowed for name in names.get(allowed, ()))),
        )

    def _lower_kind(self, kind: CallKind) -> CallKind:
        is_known = self._limits.custom if kind == "custom" else self._limits.search
        return kind if is_known else "function"

    def _lower_namespace(self, namespace: str) -> str:
        return namespace if self._limits.namespaces else ""


_cache: BoundedDict[tuple[int, Limits], _LoweredTools] = BoundedDict(
    lambda _, made: size_of(made.tools) + size_of(made.lowered)
)


def replace_searches(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Replace searches for tools with calls and results, if both halves are there."""
    halves = [entry.means for entry in entries if isinstance(entry, OtherEntry) and entry.means is not None]
    if not halves:
        return entries
    calls = {half.id for half in halves if isinstance(half, CallEntry)}
    both = calls & {half.call_id for half in halves if isinstance(half, ResultEntry)}
    out: list[Entry] = []
    for entry in entries:
        half = entry.means if isinstance(entry, OtherEntry) else None
        id = half.id if isinstance(half, CallEntry) else half.call_id if half is not None else ""
        out.append(half if half is not None and id in both else entry)
    return out


def _make_ids_unique(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Give every call a distinct id. Servers that number their calls start again in each turn."""
    ids = [entry.id for entry in entries if isinstance(entry, CallEntry)]
    if len(set(ids)) == len(ids):
        return entries
    fresh, renamed, out = FreshIds(ids), dict[str, str](), list[Entry]()
    for entry in entries:
        if isinstance(entry, CallEntry):
            id = renamed[entry.id] = fresh.make(entry.id) if entry.id in renamed else entry.id
            out.append(msgspec.structs.replace(entry, id=id) if id != entry.id else entry)
        elif isinstance(entry, ResultEntry) and renamed.get(entry.call_id, entry.call_id) != entry.call_id:
            out.append(msgspec.structs.replace(entry, call_id=renamed[entry.call_id]))
        else:
            out.append(entry)
    return tuple(out)


class _Format(msgspec.Struct):
    type: str = ""
    definition: str = ""


def _wrapper_key_of(tool: Tool) -> str:
    return choose_wrapper_key(tool.description + _grammar_of(tool))


def _grammar_of(tool: Tool) -> str:
    try:
        format = msgspec.json.decode(tool.format or b"{}", type=_Format)
    except msgspec.ValidationError:
        return ""
    return f"\n\nThe input follows this grammar:\n{format.definition}" if format.type == "grammar" else ""


class Restore:
    """A stage that restores the names, namespaces and kinds of calls."""

    def __init__(
        self, table: Mapping[tuple[str, str], Tool], notes: Sequence[Note] = (), declared: tuple[Tool, ...] = ()
    ) -> None:
        self.declared = declared
        """The client's tools that are declared to the server, in the order of the lowered ones."""
        self.table = table
        """The tools that have another name, namespace or kind at the server, by namespace and name there."""
        self.notes = notes
        """Notes about removed parts of the request."""
        self._unwrap: Unwrap | None = None

    @property
    def original_names(self) -> dict[str, str]:
        """The client's names of tools that have another name at the server, by the name there."""
        return {name: tool.name for (_, name), tool in self.table.items() if tool.name != name}

    def restore_name(self, namespace: str, name: str) -> str:
        """The client's name of a tool."""
        tool = self.table.get((namespace, name))
        return tool.name if tool is not None else name

    def feed(self, event: Event) -> Sequence[Event]:
        if not self.table:
            return (event,)
        if isinstance(event, CallStarted):
            tool = self.table.get((event.namespace, event.name))
            if tool is None:
                return (event,)
            if tool.kind == "custom" and event.kind == "function":
                self._unwrap = Unwrap(_wrapper_key_of(tool))
            return (msgspec.structs.replace(event, name=tool.name, kind=tool.kind, namespace=tool.namespace),)
        if self._unwrap is None:
            return (event,)
        if isinstance(event, CallArgs):
            text = self._unwrap.feed(event.text)
            return (CallArgs(event.id, text),) if text else ()
        if isinstance(event, CallEnded):
            text, self._unwrap = self._unwrap.end(), None
            return (CallArgs(event.id, text), event) if text else (event,)
        return (event,)
