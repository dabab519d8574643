"""A Responses body to our own request form, or a `BadRequest` that names the field.

Reading takes two steps, because stored items are looked up between them: `read_request` gives a `ParsedRequest`, which
names the earlier response; its method `request` takes the earlier items and gives the request.
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
from toolwire.dialects.openai import MODES, checked_choice
from toolwire.dialects.reading import DeclaredTools, extra_fields, read, read_at, tool_name
from toolwire.dialects.responses import wire
from toolwire.dialects.responses.history import decode_items, found_tools
from toolwire.dialects.responses.tools import read_tools

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_outputs = msgspec.json.Decoder(wire.ToolOutputs).decode
_decode_choice = msgspec.json.Decoder(wire.ToolChoiceParam | str).decode

_READ_FIELDS = frozenset(wire.Body.__struct_fields__) - {"include", "truncation", "max_tool_calls", "top_logprobs"}
_DEFAULTS = frozenset(
    (b"null", b"0", b"0.0", b"false", b"[]", b"{}", b'"disabled"', b'["reasoning.encrypted_content"]')
)
# Fields that begin or continue a turn, but are not properties of it.
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

    def request(self, earlier: Sequence[msgspec.Raw] = (), *, store: bool = False) -> Request:
        """The request, with earlier items before its new ones."""
        return run_steps(self.decoding(earlier, store=store))

    def decoding(
        self, earlier: Sequence[msgspec.Raw] = (), bounds: Bounds = UNBOUNDED, *, store: bool = False
    ) -> Steps[Request]:
        """The same, step by step."""
        body = self.body
        notes: list[Note] = []
        items = decode_items((*earlier, *self.items), len(earlier), notes)
        entries = yield from take_bounded(items, bounds.entries, "input")
        further = [bytes(entry.tools) for entry in entries if isinstance(entry, ToolsEntry)]
        found = [bytes(tools) for entry in entries if (tools := found_tools(entry)) is not None]
        bounds.check_preamble(sum(map(len, (*further, *found))), "input")
        declared = _tools(body, further, found)
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
            tool_choice=_tool_choice(body, declared),
            parallel_calls=body.parallel_tool_calls,
            output_format=_output_format(body.text.format if body.text else None),
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
    """The request in a body that does not refer to stored items."""
    return read_request(body).request()


def decode_whole(body: bytes) -> Request:
    """The request in a body. Raises `BadRequest` if it refers to stored items."""
    parsed = read_request(body)
    field = "previous_response_id" if parsed.body.previous_response_id else "conversation"
    if parsed.body.previous_response_id or parsed.conversation:
        message = f"{field}: What came before is not in this body; send all items as input."
        raise BadRequest(message, field, "unsupported_parameter")
    return parsed.request()


def read_request(data: bytes, *, needs_input: bool = True) -> ParsedRequest:
    """The request in a body, before its earlier items are looked up."""
    return run_steps(reading_request(data, needs_input=needs_input))


def reading_request(data: bytes, bounds: Bounds = UNBOUNDED, *, needs_input: bool = True) -> Steps[ParsedRequest]:
    """The same, step by step."""
    fields = read(fields_of, data)
    bounds.check_preamble(len(data) - len(fields.get("input", b"")))
    yield
    body = read(_decode_body, data)
    yield
    if not (body.model or "").strip():
        raise BadRequest("model: This field is required.", "model", "model_required")
    if body.previous_response_id and body.conversation is not None:
        raise BadRequest(
            "previous_response_id and conversation both name what came before; send one of them.",
            "previous_response_id",
        )
    if body.n is not None and body.n != 1:
        raise BadRequest(f"n must be 1: a response is one turn; received {body.n}.", "n")
    if body.background and body.store is False:
        raise BadRequest("background needs store: a response that is not kept cannot be asked for later.", "background")
    continues = body.previous_response_id or body.conversation is not None or body.generate is False
    items = _items(body, optional=bool(continues) or not needs_input)
    check_entries(len(items), bounds.entries, "input")
    yield
    return ParsedRequest(body, fields, tuple(items))


def check_items(items: Sequence[msgspec.Raw], path: str) -> None:
    """Raise a `BadRequest` if one of these items is invalid."""
    for _ in decode_items(items, 0, [], path):
        pass


def read_tool_outputs(data: bytes) -> wire.ToolOutputs:
    """The body of a submit_tool_outputs request."""
    return read(_decode_outputs, data)


def _items(body: wire.Body, *, optional: bool) -> list[msgspec.Raw]:
    raw = reading.given(body.input)
    if raw is None:
        if optional:
            return []
        raise reading.required("input")
    if reading.begins_with(raw, b'"'):
        message = b'{"type":"message","role":"user","content":[{"type":"input_text","text":' + bytes(raw) + b"}]}"
        return [msgspec.Raw(message)]
    if not reading.begins_with(raw, b"["):
        raise BadRequest("input must be a string or a list of items.", "input", "invalid_type")
    return list_of(raw)


def _tools(body: wire.Body, further: Sequence[bytes], found: Sequence[bytes]) -> DeclaredTools:
    """The tools of the request, followed by those that its items declare, and those that searches have found."""
    tools = reading.given(body.tools)
    return read_tools[(bytes(tools) if tools is not None else b"[]", *further), tuple(found)]


def _tool_choice(body: wire.Body, declared: DeclaredTools) -> ToolChoice | None:
    raw = reading.given(body.tool_choice)
    if raw is None:
        return None
    choice = _read_choice(raw, declared)
    return checked_choice(choice, declared, needs_tools=choice.limited)


def _read_choice(raw: msgspec.Raw, declared: DeclaredTools) -> ToolChoice:
    given = read_at(_decode_choice, raw, "tool_choice")
    mode = given if isinstance(given, str) else given.mode
    if not isinstance(given, str) and not given.type:
        raise reading.required("tool_choice.type")
    if mode not in MODES or (mode == "none" and not isinstance(given, str)):
        field = "tool_choice" if isinstance(given, str) else "tool_choice.mode"
        raise BadRequest(f"{field} must be auto, none or required; received {mode!r}.", field)
    if isinstance(given, str):
        return ToolChoice(MODES[mode])
    if given.type in ("function", "custom"):
        kind = "custom" if given.type == "custom" else "function"
        return ToolChoice("required", tool_name(given.name, "tool_choice"), kind)
    if given.type == SEARCH and any(tool.kind == "search" for tool in declared.tools):
        return ToolChoice("required", SEARCH, "search")
    if given.type != "allowed_tools":
        return ToolChoice("required", hosted=raw)
    tools = given.tools or ()
    return ToolChoice(MODES[mode], allowed=tuple(tool.name for tool in tools if tool.name), limited=True)


def _output_format(format: wire.Format | None) -> OutputFormat | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return OutputFormat()
    schema = reading.given(format.schema)
    if format.type != "json_schema":
        raise BadRequest("text.format.type must be text, json_object or json_schema.", "text.format.type")
    if schema is None:
        raise reading.required("text.format.schema")
    return OutputFormat(schema, format.name or "answer", format.description or "", format.strict)
