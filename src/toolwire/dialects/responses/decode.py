"""Decodes a Responses body to a `Request`. Raises a `BadRequest` that names the field.

`read_request` returns a `ParsedRequest`, which names the earlier response; once its items are found in the store,
`ParsedRequest.decode` returns the request. Both have a variant that works in steps, so that a large body does not block
other tasks.

Each input item becomes an entry, which keeps its raw form for a backend that speaks Responses.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from toolwire.adapt.names import is_minted_item_id
from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, check_entries, run_steps, take_bounded
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.raw import Fields, arguments_text, fields_of, list_of, to_raw
from toolwire.core.request import (
    SEARCH,
    AudioPart,
    CallEntry,
    Caller,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    OutputFormat,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    Sampling,
    TextPart,
    ToolChoice,
    ToolPart,
    ToolsEntry,
)
from toolwire.core.signatures import is_packed, unpack
from toolwire.dialects import reading
from toolwire.dialects.openai import MODES, ROLES, Audio, check_choice
from toolwire.dialects.reading import DeclaredTools, as_bad_request, find_extra, read, read_at, require_tool_name
from toolwire.dialects.responses import compaction, wire
from toolwire.dialects.responses.tools import declared_tools

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_outputs = msgspec.json.Decoder(wire.ToolOutputs).decode
_decode_choice = msgspec.json.Decoder(wire.ToolChoiceParam | str).decode
_decode_item = msgspec.json.Decoder(wire.InputItem).decode
_decode_output = msgspec.json.Decoder(str | list[wire.Part]).decode
_decode_audio = msgspec.json.Decoder(Audio).decode

_READ_FIELDS = frozenset(wire.Body.__struct_fields__) - {"include", "truncation", "max_tool_calls", "top_logprobs"}
_DEFAULTS = frozenset(
    (b"null", b"0", b"0.0", b"false", b"[]", b"{}", b'"disabled"', b'["reasoning.encrypted_content"]')
)
# Fields that a response does not repeat.
_NOT_KEPT = frozenset(("input", "stream", "stream_options", "type", "stream_id", "generate"))

_CALLS = frozenset(("function_call", "custom_tool_call"))
_OUTPUTS = frozenset(("function_call_output", "tool_output", "custom_tool_call_output"))
_READ_TYPES = _CALLS | _OUTPUTS | {"", "message", "reasoning", "compaction", "item_reference", "additional_tools"}
"""Types of items that become entries of their own kind."""
_SEARCH_OUTPUT = f"{SEARCH}_output"


class ParsedRequest(msgspec.Struct, frozen=True):
    """A request before its earlier items are looked up: its body, all its fields, and its new items."""

    body: wire.Body
    fields: Fields
    items: tuple[msgspec.Raw, ...]

    @property
    def conversation(self) -> str:
        """The id of the conversation that the request belongs to, if any."""
        given = self.body.conversation
        return given.id if isinstance(given, wire.ConversationParam) else given or ""

    def decode(self, earlier: Sequence[msgspec.Raw] = (), *, store: bool = False) -> Request:
        """Decode the request, with earlier items before its new ones. Raises `BadRequest`."""
        return run_steps(self.decode_steps(earlier, store=store))

    def decode_steps(
        self, earlier: Sequence[msgspec.Raw] = (), bounds: Bounds = UNBOUNDED, *, store: bool = False
    ) -> Steps[Request]:
        """Decode the request step by step."""
        body = self.body
        notes: list[Note] = []
        items = decode_items((*earlier, *self.items), len(earlier), notes)
        entries = yield from take_bounded(items, bounds.entries, "input")
        added = [bytes(entry.tools) for entry in entries if isinstance(entry, ToolsEntry)]
        found = [bytes(tools) for entry in entries if (tools := read_found_tools(entry)) is not None]
        bounds.check_preamble(sum(map(len, (*added, *found))), "input")
        tools = reading.value_of(body.tools)
        declared = declared_tools[(bytes(tools) if tools is not None else b"[]", *added), tuple(found)]
        bounds.check_tools(len(declared.tools) + len(declared.hosted), "tools")
        yield
        notes += declared.notes
        fields = {name: value for name, value in self.fields.items() if name not in _NOT_KEPT}
        fields["store"] = msgspec.Raw(b"true" if store else b"false")
        return Request(
            model=body.model or "",
            dialect="responses",
            history_field="input",
            results_anywhere=True,
            several_messages=True,
            instructions=body.instructions or "",
            entries=entries,
            original_entries=entries,
            continues=bool(earlier) or bool(body.previous_response_id),
            stream=bool(body.stream),
            tools=declared.tools,
            hosted_tools=declared.hosted,
            tool_choice=_read_tool_choice(body, declared),
            parallel_calls=body.parallel_tool_calls,
            output_format=_read_output_format(body.text.format if body.text else None),
            sampling=Sampling(
                temperature=body.temperature,
                top_p=body.top_p,
                max_tokens=body.max_output_tokens,
                effort=body.reasoning.effort if body.reasoning else None,
                verbosity=body.text.verbosity if body.text else None,
                service_tier=body.service_tier,
            ),
            caller=Caller(
                user=body.user,
                safety_identifier=body.safety_identifier,
                prompt_cache_key=body.prompt_cache_key,
                metadata=self.fields.get("metadata") if body.metadata else None,
            ),
            extra=find_extra(fields, _READ_FIELDS, _DEFAULTS),
            fields=fields,
            notes=tuple(notes),
        )


def decode_request(body: bytes) -> Request:
    """Decode a body, and ignore stored items that it refers to. Raises `BadRequest`."""
    return read_request(body).decode()


def decode_whole(body: bytes) -> Request:
    """Decode a body. Raises `BadRequest` also if it refers to stored items."""
    parsed = read_request(body)
    field = "previous_response_id" if parsed.body.previous_response_id else "conversation"
    if parsed.body.previous_response_id or parsed.conversation:
        message = f"{field}: The earlier items are not in this body; send all items as input."
        raise BadRequest(message, field, "unsupported_parameter")
    return parsed.decode()


def read_request(data: bytes, *, needs_input: bool = True) -> ParsedRequest:
    """Read a body, without its earlier items. Raises `BadRequest`."""
    return run_steps(read_request_steps(data, needs_input=needs_input))


def read_request_steps(data: bytes, bounds: Bounds = UNBOUNDED, *, needs_input: bool = True) -> Steps[ParsedRequest]:
    """Read a body step by step."""
    fields = read(fields_of, data)
    bounds.check_preamble(len(data) - len(fields.get("input", b"")))
    yield
    body = read(_decode_body, data)
    yield
    if not (body.model or "").strip():
        raise BadRequest("model: This field is required.", "model", "model_required")
    if body.previous_response_id and body.conversation is not None:
        raise BadRequest(
            "previous_response_id and conversation both name earlier items; send one of them.",
            "previous_response_id",
        )
    if body.n is not None and body.n != 1:
        raise BadRequest(f"n must be 1: a response is one turn; received {body.n}.", "n")
    if body.background and body.store is False:
        raise BadRequest(
            "background needs store: a response that is not stored cannot be retrieved later.", "background"
        )
    continues = body.previous_response_id or body.conversation is not None or body.generate is False
    input = reading.value_of(body.input)
    if input is None:
        if needs_input and not continues:
            raise reading.missing_field("input")
        items = []
    elif reading.begins_with(input, b'"'):
        message = b'{"type":"message","role":"user","content":[{"type":"input_text","text":' + bytes(input) + b"}]}"
        items = [msgspec.Raw(message)]
    elif reading.begins_with(input, b"["):
        items = list_of(input)
    else:
        raise BadRequest("input must be a string or a list of items.", "input", "invalid_type")
    check_entries(len(items), bounds.entries, "input")
    yield
    return ParsedRequest(body, fields, tuple(items))


def check_items(items: Sequence[msgspec.Raw], path: str) -> None:
    """Raise `BadRequest` if one of these items is invalid."""
    for _ in decode_items(items, 0, [], path):
        pass


def read_tool_outputs(data: bytes) -> wire.ToolOutputs:
    """Decode the body of a submit_tool_outputs request. Raises `BadRequest`."""
    return read(_decode_outputs, data)


def _read_tool_choice(body: wire.Body, declared: DeclaredTools) -> ToolChoice | None:
    raw = reading.value_of(body.tool_choice)
    if raw is None:
        return None
    given = read_at(_decode_choice, raw, "tool_choice")
    if isinstance(given, str):
        if given not in MODES:
            raise BadRequest(f"tool_choice must be auto, none or required; received {given!r}.", "tool_choice")
        return check_choice(ToolChoice(MODES[given]), declared)
    if not given.type:
        raise reading.missing_field("tool_choice.type")
    if given.mode not in MODES or given.mode == "none":
        field = "tool_choice.mode"
        raise BadRequest(f"{field} must be auto or required; received {given.mode!r}.", field)
    if given.type in ("function", "custom"):
        kind = "custom" if given.type == "custom" else "function"
        choice = ToolChoice("required", require_tool_name(given.name, "tool_choice"), kind)
    elif given.type == SEARCH and any(tool.kind == "search" for tool in declared.tools):
        choice = ToolChoice("required", SEARCH, "search")
    elif given.type == "allowed_tools":
        allowed = tuple(tool.name for tool in given.tools or () if tool.name)
        choice = ToolChoice(MODES[given.mode], allowed=allowed, limited=True)
    else:
        choice = ToolChoice("required", hosted=raw)
    return check_choice(choice, declared, needs_tools=choice.limited)


def _read_output_format(format: wire.Format | None) -> OutputFormat | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return OutputFormat()
    schema = reading.value_of(format.schema)
    if format.type != "json_schema":
        raise BadRequest("text.format.type must be text, json_object or json_schema.", "text.format.type")
    if schema is None:
        raise reading.missing_field("text.format.schema")
    return OutputFormat(schema, format.name or "answer", format.description or "", format.strict)


def decode_items(items: Sequence[msgspec.Raw], first: int, notes: list[Note], field: str = "input") -> Iterator[Entry]:
    """The entries of these items. The first `first` are stored items, which error paths do not count.

    Calls that were not completed are dropped with a note. Raises `BadRequest`.
    """
    calls: dict[str, str] = {}  # call ids by the ids of their items
    searches: deque[str] = deque()  # ids of searches that a server ran; their outputs have no id
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
        found = declared_tools[(bytes(tools),), ()].tools
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
            declared_tools[(bytes(tools),), ()]
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
    if content is None or output is None:  # other JSON becomes text, and null an empty text
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
