"""The client's original JSON, with only the necessary changes.

A server that speaks the client's dialect gets the client's fields, tools and messages, so that unknown fields survive.
A tool that had to be renamed, or to lose a part of its schema, is changed in that JSON as well.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from toolwire.core.raw import NULL, Fields, Json, fields_of, list_of, objects_of, to_raw
from toolwire.core.request import NO_PARAMETERS, Entry, Message, Request, ResultEntry, Tool, ToolsEntry

Changes: TypeAlias = dict[tuple[str, str], tuple[Tool, Tool]]
"""Changed tools, as declared and as lowered, by namespace and name."""

_decode_choice = msgspec.json.Decoder(Json).decode
_name = msgspec.json.Decoder(str | None).decode


def restore_original_fields(request: Request, lower: Request, declared: tuple[Tool, ...], schema_field: str) -> Request:
    """The lowered request, with its original fields and declarations changed like its tools.

    `declared` are the tools of the lowered request as the client declared them.
    """
    if not request.fields:
        return lower
    pairs = zip(declared, lower.tools, strict=True)
    changes = {(tool.namespace, tool.name): (tool, new) for tool, new in pairs if tool is not new}
    further = (entry.tools for entry in request.entries if isinstance(entry, ToolsEntry))
    # The schema of a tool may be null, which servers refuse.
    may_lack_schema = any(b"null" in bytes(tools) for tools in (request.fields.get("tools", b""), *further))
    if not changes and not may_lack_schema:
        return lower
    fields = {**request.fields}
    if bytes(fields.get("tools", b"")).startswith(b"["):
        fields["tools"] = _change_tools(fields["tools"], "", changes, schema_field)
    choice = fields.get("tool_choice", b"")
    if bytes(choice).startswith(b"{"):
        names = {tool.name: new.name for tool, new in changes.values()}
        fields["tool_choice"] = to_raw(_rename(_decode_choice(choice), names))
    entries = [*lower.entries]
    for index, entry in enumerate(entries):
        if isinstance(entry, ToolsEntry):
            tools = _change_tools(entry.tools, "", changes, schema_field)
            entries[index] = ToolsEntry(tools, to_raw({**fields_of(entry.raw), "tools": tools}))
    return msgspec.structs.replace(lower, fields=fields, entries=tuple(entries))


def _change_tools(raw: msgspec.Raw, namespace: str, changes: Changes, schema_field: str) -> msgspec.Raw:
    return to_raw([_change_tool(each, namespace, changes, schema_field) for each in list_of(raw)])


def _change_tool(raw: msgspec.Raw, namespace: str, changes: Changes, schema_field: str) -> Any:
    fields: Json = {**fields_of(raw)}
    name = _name(fields.get("name", NULL)) or ""
    if fields.get("tools", NULL) != NULL and fields.get("type") == _NAMESPACE:
        return {**fields, "tools": _change_tools(fields["tools"], name, changes, schema_field)}
    is_null, is_changed = fields.get(schema_field) == NULL, (namespace, name) in changes
    is_client_tool = fields.get("type", NULL) in _CLIENT_TYPES  # servers identify their own tools by name
    if not is_client_tool or not (is_null or is_changed):
        return raw
    if is_null:
        fields = {**fields, schema_field: NO_PARAMETERS}
    return change_fields(fields, *changes[namespace, name], schema_field) if is_changed else fields


def change_fields(fields: Mapping[str, Any], tool: Tool, new: Tool, schema_field: str) -> Json:
    """The fields of a declared tool, updated where its new form differs."""
    out = {**fields}
    after = {"name": new.name, "description": new.description, schema_field: new.parameters, "strict": new.strict}
    before = {"name": tool.name, "description": tool.description, schema_field: tool.parameters, "strict": tool.strict}
    for field, value in after.items():
        if value is None and before[field] is not None:
            out.pop(field, None)
        elif value != before[field]:
            out[field] = value
    return out


_NAMESPACE = msgspec.Raw(b'"namespace"')
_CLIENT_TYPES = [NULL, *(msgspec.Raw(type) for type in (b'"function"', b'"custom"'))]


def _rename(choice: Json, names: dict[str, str]) -> Json:
    """A tool choice with renamed tools: the one it names, or those of its list."""
    if isinstance(choice.get("name"), str):
        return {**choice, "name": names.get(choice["name"], choice["name"])}
    if isinstance(choice.get("tools"), list):
        return {**choice, "tools": [_rename(each, names) for each in choice["tools"]]}
    return choice


class Originals:
    """The messages of a client of the same dialect, and the entries that were decoded from each."""

    def __init__(self, request: Request, messages: msgspec.Raw) -> None:
        self.messages = objects_of(messages)
        entries = [entry for entry in request.original_entries or () if entry is not None]
        self._entries = {id(entry): entry for entry in entries}
        self._parts = {(each.message, id(each.parts)) for each in entries if isinstance(each, Message | ResultEntry)}
        self._counts = Counter(entry.message for entry in entries)
        kept = {entry.message for entry in request.entries}
        empty = (index for index in range(len(self.messages)) if not self._counts[index] and index not in kept)
        self._unread = deque(index for index in empty if "tool_calls" not in self.messages[index])

    def is_unchanged(self, entry: Entry) -> bool:
        """Whether an entry is unchanged since it was decoded."""
        return entry.message >= 0 and self._entries.get(id(entry)) is entry

    def has_unchanged_parts(self, entry: Message | ResultEntry) -> bool:
        """Whether the parts of an entry are unchanged since it was decoded."""
        return entry.message >= 0 and (entry.message, id(entry.parts)) in self._parts

    def are_whole(self, entries: Sequence[Entry]) -> bool:
        """Whether these are all entries of their message, unchanged."""
        return self._counts[entries[0].message] == len(entries) and all(map(self.is_unchanged, entries))

    def take_unread(self, until: int | None = None) -> Iterator[Fields]:
        """The messages before this one (or all) that no entry was decoded from. Each is returned once."""
        while self._unread and (until is None or self._unread[0] < until):
            yield self.messages[self._unread.popleft()]
