"""Decodes input items to entries. Each keeps its raw form, for a backend that speaks Responses."""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from toolwire.adapt.names import is_minted_item_id
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.raw import arguments_text, fields_of, to_raw
from toolwire.core.request import (
    SEARCH,
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    Part,
    ReasoningEntry,
    RefusalPart,
    ResultEntry,
    TextPart,
    ToolPart,
    ToolsEntry,
)
from toolwire.core.signatures import is_packed, unpack
from toolwire.dialects import reading
from toolwire.dialects.openai import ROLES
from toolwire.dialects.reading import as_bad_request, read_at
from toolwire.dialects.responses import compaction, wire
from toolwire.dialects.responses.tools import read_tools

_decode_item = msgspec.json.Decoder(wire.InputItem).decode
_decode_output = msgspec.json.Decoder(str | list[wire.Part]).decode
_decode_audio = msgspec.json.Decoder(wire.Audio).decode

_CALLS = frozenset(("function_call", "custom_tool_call"))
_OUTPUTS = frozenset(("function_call_output", "tool_output", "custom_tool_call_output"))
_READ_TYPES = _CALLS | _OUTPUTS | {"", "message", "reasoning", "compaction", "item_reference", "additional_tools"}
"""Types of items that become entries of their own kind."""
_SEARCH_OUTPUT = f"{SEARCH}_output"


def decode_items(items: Sequence[msgspec.Raw], first: int, notes: list[Note], field: str = "input") -> Iterator[Entry]:
    """The entries of these items; the first `first` are stored ones, which do not count in the paths of errors.

    Calls that were not completed are dropped with a note. Raises `BadRequest`.
    """
    calls: dict[str, str] = {}  # call ids by the ids of their items
    searches: deque[str] = deque()  # ids of searches that a server ran, whose outputs have none
    for index, raw in enumerate(items):
        path = f"{field}[{index - first}]"
        try:
            item = _decode_item(raw)
        except msgspec.ValidationError as error:
            try:
                item = wire.InputItem(wire.decode_item_type(raw).type)
            except msgspec.ValidationError:
                item = wire.InputItem("")
            if item.type in _READ_TYPES:  # the fields of other types are not checked
                raise as_bad_request(error, path) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"{path} is not valid JSON: {error}", path, "invalid_json") from None
        if item.type in _CALLS and item.status == "incomplete":
            notes.append(Note("call_dropped", item.call_id or ""))
            continue
        entry = _decode_search(item, raw, index, searches) or _decode_entry(item, raw, path)
        if isinstance(entry, CallEntry) and item.id:
            calls[item.id] = entry.id
        elif isinstance(entry, ResultEntry) and entry.call_id in calls:
            # Some clients send the id of the item instead of that of the call.
            called = calls[entry.call_id]
            fixed = to_raw({**fields_of(entry.raw), "call_id": called}) if entry.raw is not None else None
            entry = msgspec.structs.replace(entry, call_id=called, raw=fixed)
        yield entry


def _decode_search(item: wire.InputItem, raw: msgspec.Raw, index: int, searches: deque[str]) -> OtherEntry | None:
    """The call or the output of a search for tools; None for any other item."""
    if item.type == f"{SEARCH}_call":
        id = item.call_id or item.id or f"{SEARCH}_{index}"
        searches += () if item.call_id else (id,)
        given = reading.value_of(item.arguments)
        arguments = arguments_text(given) if given is not None else "{}"
        return OtherEntry(item.type or "", raw, means=CallEntry(id, SEARCH, arguments, "search"))
    tools = reading.value_of(item.tools) if item.type == _SEARCH_OUTPUT else None
    if tools is None or not (item.call_id or searches):
        return None
    try:
        found = read_tools[(bytes(tools),), ()].tools
    except BadRequest:
        return None  # only its own server can read it
    parts = tuple(ToolPart(tool.name, tool.namespace) for tool in found)
    id = item.call_id or searches.popleft()
    return OtherEntry(_SEARCH_OUTPUT, raw, means=ResultEntry(id, parts, "search", failed=item.status == "incomplete"))


def read_found_tools(entry: Entry) -> msgspec.Raw | None:
    """The tools in the output of a search, as JSON; None for any other entry."""
    if not isinstance(entry, OtherEntry) or entry.type != _SEARCH_OUTPUT or entry.means is None:
        return None
    return fields_of(entry.raw)["tools"]


def _decode_entry(item: wire.InputItem, raw: msgspec.Raw, path: str) -> Entry:
    type = item.type or ("message" if item.role else "")
    if type == "message":
        role = ROLES.get(item.role or "")
        if role is None:
            names = "system, developer, user or assistant"
            raise BadRequest(f"{path}.role must be {names}; received {item.role!r}.", f"{path}.role")
        return Message(role, tuple(_decode_parts(item.content, f"{path}.content")), raw=raw)
    if type in _CALLS:
        return _decode_call(item, raw, path)
    if type in _OUTPUTS and (item.call_id or item.tool_call_id or not item.name):
        return _decode_result(item, raw, path)
    if type == "reasoning":
        return _decode_reasoning(item, raw)
    if type == "additional_tools":
        tools = reading.value_of(item.tools)
        if tools is None:
            raise reading.missing_field(f"{path}.tools")
        try:
            read_tools[(bytes(tools),), ()]
        except BadRequest as error:
            raise BadRequest(f"{path}.{error.message}", f"{path}.{error.param}", error.code) from None
        return ToolsEntry(tools, raw)
    if type == "compaction" and item.encrypted_content and compaction.is_ours(item.encrypted_content):
        return compaction.expand(item.encrypted_content, path)
    if type == "item_reference":
        raise BadRequest(f"{path}: There is no item {item.id!r} here.", path, "item_not_found", status=404)
    if not type:
        raise reading.missing_field(f"{path}.type")
    return OtherEntry(type, raw)


def _decode_reasoning(item: wire.InputItem, raw: msgspec.Raw) -> ReasoningEntry:
    """Reasoning with its signature, which is packed if its origin is another dialect."""
    packed = unpack(item.encrypted_content or "")
    if packed is not None:
        signature, origin = packed.signature, packed.origin
        return ReasoningEntry(packed.id, packed.text, signature=signature, origin=origin, redacted=packed.redacted)
    id, signature = item.id or "", item.encrypted_content or ""
    summary = tuple(part.text or "" for part in item.summary or ())
    content = tuple(part.text or "" for part in item.content or () if isinstance(part, wire.Part))
    if is_packed(signature):  # but damaged
        return ReasoningEntry(id, summary, content)
    # An id of ours without a signature belongs to plain reasoning of a chat server.
    origin = "responses" if signature else "chat" if is_minted_item_id(id) else ""
    return ReasoningEntry(id, summary, content, signature, origin, raw=raw)


def _decode_call(item: wire.InputItem, raw: msgspec.Raw, path: str) -> CallEntry:
    custom = item.type == "custom_tool_call"
    for field, value in (("call_id", item.call_id), ("name", item.name)):
        if not value:
            raise reading.missing_field(f"{path}.{field}")
    given = reading.value_of(item.input if custom else item.arguments)
    text = arguments_text(given) if given is not None else ""
    if given is None or not bytes(given).startswith(b'"'):  # servers accept only a string
        name, written = ("input", text) if custom else ("arguments", text or "{}")
        raw = to_raw({**fields_of(raw), name: written})
    kind = "custom" if custom else "function"
    return CallEntry(item.call_id or "", item.name or "", text, kind, item.namespace or "", raw)


def _decode_result(item: wire.InputItem, raw: msgspec.Raw, path: str) -> ResultEntry:
    call_id = item.call_id or item.tool_call_id
    if not call_id:
        raise reading.missing_field(f"{path}.call_id")
    kind = "custom" if item.type == "custom_tool_call_output" else "function"
    if item.output is msgspec.UNSET:
        raise reading.missing_field(f"{path}.output")
    output = reading.value_of(item.output)
    failed = item.status == "incomplete"  # this dialect has no other sign of failure
    try:
        content = _decode_output(output) if output is not None else ""
    except msgspec.ValidationError:
        content = None
    if content is None or output is None:  # any other JSON is passed on as text, and null as an empty text
        return ResultEntry(call_id, (TextPart(bytes(output or b"").decode()),), kind, failed=failed)
    # `tool_output` and `tool_call_id` are spellings that no backend accepts.
    is_standard = item.type != "tool_output" and item.call_id
    parts = tuple(_decode_parts(content, f"{path}.output"))
    return ResultEntry(call_id, parts, kind, raw if is_standard else None, failed)


def _decode_parts(content: str | list[wire.Part] | None, path: str) -> Iterator[Part]:
    if isinstance(content, str):
        yield TextPart(content)
        return
    for index, part in enumerate(content or ()):
        match part.type:
            case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
                yield TextPart(part.text or "")
            case "refusal":
                yield RefusalPart(part.refusal or "")
            case "input_image":
                yield ImagePart(part.image_url or "", part.detail or "", part.file_id or "")
            case "input_file":
                yield FilePart(part.file_data or "", part.file_id or "", part.filename or "", part.file_url or "")
            case "input_audio" if (audio := reading.value_of(part.input_audio)) is not None:
                read = read_at(_decode_audio, audio, f"{path}[{index}].input_audio")
                yield AudioPart(read.data, read.format)
            case "":
                raise reading.missing_field(f"{path}[{index}].type")
            case _:
                yield OtherPart(part.type)
