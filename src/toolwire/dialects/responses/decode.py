"""Decodes a Responses body to a `Request`. Raises a `BadRequest` that names the field.

`read_request` returns a `ParsedRequest`, which names the earlier response; once its items are found in the store,
`ParsedRequest.decode` returns the request. Both have a variant that works in steps, so that a large body does not block
other tasks.
"""

from collections.abc import Sequence

import msgspec

from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, check_entries, run_steps, take_bounded
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.raw import Fields, fields_of, list_of
from toolwire.core.request import (
    SEARCH,
    Caller,
    OutputFormat,
    Request,
    Sampling,
    ToolChoice,
    ToolsEntry,
)
from toolwire.dialects import reading
from toolwire.dialects.openai import MODES, check_choice
from toolwire.dialects.reading import DeclaredTools, extra_fields, read, read_at, require_tool_name
from toolwire.dialects.responses import wire
from toolwire.dialects.responses.history import decode_items, read_found_tools
from toolwire.dialects.responses.tools import read_tools

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_outputs = msgspec.json.Decoder(wire.ToolOutputs).decode
_decode_choice = msgspec.json.Decoder(wire.ToolChoiceParam | str).decode

_READ_FIELDS = frozenset(wire.Body.__struct_fields__) - {"include", "truncation", "max_tool_calls", "top_logprobs"}
_DEFAULTS = frozenset(
    (b"null", b"0", b"0.0", b"false", b"[]", b"{}", b'"disabled"', b'["reasoning.encrypted_content"]')
)
# Fields that a response does not repeat.
_NOT_KEPT = frozenset(("input", "stream", "stream_options", "type", "stream_id", "generate"))


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
        declared = read_tools[(bytes(tools) if tools is not None else b"[]", *added), tuple(found)]
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
            extra=extra_fields(fields, _READ_FIELDS, _DEFAULTS),
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
        raise BadRequest(f"{field} must be auto, none or required; received {given.mode!r}.", field)
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
