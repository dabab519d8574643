"""The fields of a request as its client wrote them, with what was lowered changed in them and nothing else.

A server that speaks the client's dialect gets those fields, so that what we do not know survives. A tool that had to be
renamed, or to lose a part of its schema, is changed there as well.
"""

from typing import Any, TypeAlias

import msgspec

from toolwire.core.request import NO_PARAMETERS, Entry, Request, Tool, ToolsEntry

Fields: TypeAlias = dict[str, Any]
Changes: TypeAlias = dict[tuple[str, str], tuple[Tool, Tool]]
"""Tools before and after, by namespace and name."""

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(Fields).decode
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_name = msgspec.json.Decoder(str | None).decode


def as_written(request: Request, lower: Request, schema_field: str) -> Request:
    """The lowered request, its fields and declarations changed as its tools are."""
    if not request.fields:
        return lower
    pairs = zip(request.tools, lower.tools, strict=True)
    changes = {(tool.namespace, tool.name): (tool, new) for tool, new in pairs if tool is not new}
    if not changes and not _may_lack_schema(request):
        return lower
    fields = {**request.fields}
    if bytes(fields.get("tools", b"")).startswith(b"["):
        fields["tools"] = _tools(fields["tools"], "", changes, schema_field)
    choice = fields.get("tool_choice", b"")
    if bytes(choice).startswith(b"{"):
        names = {tool.name: new.name for tool, new in changes.values()}
        fields["tool_choice"] = msgspec.Raw(_encode(_renamed(_fields(choice), names)))
    entries = tuple(_declaration(entry, changes, schema_field) for entry in lower.entries)
    return msgspec.structs.replace(lower, fields=fields, entries=entries)


def _may_lack_schema(request: Request) -> bool:
    """Whether there may be null for the schema of a tool, which servers refuse; a quick look."""
    further = (entry.tools for entry in request.entries if isinstance(entry, ToolsEntry))
    return any(b"null" in bytes(tools) for tools in (request.fields.get("tools", b""), *further))


def _declaration(entry: Entry, changes: Changes, schema_field: str) -> Entry:
    if not isinstance(entry, ToolsEntry):
        return entry
    tools = _tools(entry.tools, "", changes, schema_field)
    return ToolsEntry(tools, msgspec.Raw(_encode({**_raw_fields(entry.raw), "tools": tools})))


def _tools(raw: msgspec.Raw, namespace: str, changes: Changes, schema_field: str) -> msgspec.Raw:
    return msgspec.Raw(_encode([_tool(each, namespace, changes, schema_field) for each in _list(raw)]))


def _tool(raw: msgspec.Raw, namespace: str, changes: Changes, schema_field: str) -> Any:
    fields: Fields = _raw_fields(raw)
    name = _name(fields.get("name", _NULL)) or ""
    if fields.get("tools", _NULL) != _NULL and fields.get("type") == _NAMESPACE:
        return {**fields, "tools": _tools(fields["tools"], name, changes, schema_field)}
    is_null, is_changed = fields.get(schema_field) == _NULL, (namespace, name) in changes
    if not _is_ours(fields) or not (is_null or is_changed):
        return raw
    if is_null:
        fields[schema_field] = NO_PARAMETERS
    if not is_changed:
        return fields
    tool, new = changes[namespace, name]
    changed = {"name": new.name, "description": new.description, schema_field: new.parameters, "strict": new.strict}
    was = {"name": tool.name, "description": tool.description, schema_field: tool.parameters, "strict": tool.strict}
    for field, value in changed.items():
        if value is None and was[field] is not None:
            fields.pop(field, None)
        elif value != was[field]:
            fields[field] = value
    return fields


def _is_ours(fields: Fields) -> bool:
    """A tool that the client runs; of the others a server knows by name."""
    return fields.get("type", _NULL) in _OURS


_NULL = msgspec.Raw(b"null")
_NAMESPACE = msgspec.Raw(b'"namespace"')
_OURS = [_NULL, *(msgspec.Raw(type) for type in (b'"function"', b'"custom"'))]


def _renamed(choice: Fields, names: dict[str, str]) -> Fields:
    """A tool choice with the names in it changed: its own, and those of a list of tools."""
    if isinstance(choice.get("name"), str):
        return {**choice, "name": names.get(choice["name"], choice["name"])}
    if isinstance(choice.get("tools"), list):
        return {**choice, "tools": [_renamed(each, names) for each in choice["tools"]]}
    return choice
