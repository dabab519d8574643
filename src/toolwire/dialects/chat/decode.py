"""A Chat Completions body to our own request form, or a `BadRequest` that names the field."""

from collections.abc import Iterator

import msgspec

from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, run_steps, take_bounded
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.raw import Fields, fields_of, list_of, to_raw
from toolwire.core.request import (
    NO_HEAD,
    Caller,
    Entry,
    HostedTool,
    OutputFormat,
    Request,
    RequestHead,
    Sampling,
    Tool,
    ToolChoice,
)
from toolwire.dialects import reading
from toolwire.dialects.chat import wire
from toolwire.dialects.chat.history import decode_messages, needs_rewriting
from toolwire.dialects.openai import MODES, checked_choice
from toolwire.dialects.reading import DeclaredTools, extra_fields, read_at, tool_cache, tool_name
from toolwire.dialects.responses.history import decode_items

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_known_body = msgspec.json.Decoder(wire.KnownBody).decode
_decode_message = msgspec.json.Decoder(wire.ChatMessage).decode
_decode_tool = msgspec.json.Decoder(wire.ToolDeclaration).decode
_decode_choice = msgspec.json.Decoder(wire.ToolChoiceParam | str).decode

_KNOWN = frozenset(wire.Body.__struct_fields__)
_DEFAULTS = frozenset((b"null", b"0", b"0.0", b"false", b"[]", b"{}", b'["text"]'))


def decode_request(body: bytes) -> Request:
    """The request in a body."""
    return run_steps(decoding(body))


def decoding(body: bytes, bounds: Bounds = UNBOUNDED, head: RequestHead = NO_HEAD) -> Steps[Request]:
    """The request, step by step."""
    read, extra = yield from _read(body)
    if not read.model.strip():
        raise BadRequest("model must not be empty.", "model", "model_required")
    if read.n is not None and read.n < 1:
        raise BadRequest(f"n must be at least 1; received {read.n}.", "n")
    notes: list[Note] = []
    has_tools = reading.given(read.tools) is not None
    bounds.check_preamble(_size_of_tools(read), "tools" if has_tools else "functions")
    declared = _tools(read)
    bounds.check_tools(len(declared.tools) + len(declared.hosted), "tools" if has_tools else "functions")
    yield
    entries = yield from take_bounded(_entries(read, notes), bounds.entries, "messages" if read.messages else "input")
    return Request(
        model=read.model,
        dialect="chat",
        carries_signatures=False,
        reasoning_in_messages=True,
        instructions=read.instructions or "",
        entries=entries,
        stream=bool(read.stream),
        tools=declared.tools,
        hosted_tools=declared.hosted,
        tool_choice=_tool_choice(read, declared),
        parallel_calls=False if read.functions and not has_tools else read.parallel_tool_calls,
        output_format=_output_format(read.response_format),
        sampling=Sampling(
            temperature=read.temperature,
            top_p=read.top_p,
            max_tokens=read.max_completion_tokens if read.max_completion_tokens is not None else read.max_tokens,
            stop=(read.stop,) if isinstance(read.stop, str) else tuple(read.stop or ()),
            effort=read.reasoning_effort,
            verbosity=read.verbosity,
            service_tier=read.service_tier,
        ),
        caller=Caller(
            user=read.user,
            safety_identifier=read.safety_identifier,
            prompt_cache_key=read.prompt_cache_key,
            metadata=to_raw(read.metadata) if read.metadata else None,
        ),
        legacy_functions=bool(read.functions) and not has_tools,
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        choices=read.n or 1,
        extra=extra,
        body=body,
        original_entries=_original_entries(read.messages, entries) if read.messages else None,
        notes=tuple(notes),
    )


def _entries(read: wire.Body, notes: list[Note]) -> Iterator[Entry]:
    """The conversation, which some clients send in the `input` field of Responses."""
    given = reading.given(read.input)
    if read.messages is None and given is not None:
        items = list_of(given) if reading.begins_with(given, b"[") else [to_raw({"role": "user", "content": given})]
        return decode_items(items, 0, notes)
    if read.messages is None:
        raise reading.required("messages")
    if not read.messages:
        raise BadRequest("messages must hold at least one message.", "messages")
    if given is not None:
        notes.append(Note("field_dropped", "input"))
    return decode_messages(read.messages)


def _original_entries(messages: list[wire.ChatMessage], entries: tuple[Entry, ...]) -> tuple[Entry | None, ...]:
    """The entries, with None for those of messages that cannot be sent as they are."""
    rewritten = {index for index, message in enumerate(messages) if message.tool_calls and needs_rewriting(message)}
    return tuple(None if entry.message in rewritten else entry for entry in entries) if rewritten else entries


def _read(body: bytes) -> Steps[tuple[wire.Body, Fields]]:
    """The body, and those of its fields that have no counterpart in a `Request`."""
    try:
        return _decode_known_body(body), {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    yield
    try:
        read = reading.read(_decode_body, body)
    except BadRequest as refused:
        if (refused.param or "").startswith("messages[...]"):  # msgspec does not report the index of the message
            for index, message in enumerate(list_of(fields_of(body)["messages"])):
                read_at(_decode_message, message, f"messages[{index}]")
        raise
    yield
    return read, extra_fields(fields_of(body), _KNOWN, _DEFAULTS)


def _tools(read: wire.Body) -> DeclaredTools:
    raw = reading.given(read.tools)
    if raw is not None and bytes(raw) != b"[]":
        return _known_tools[bytes(raw)]
    functions = enumerate(read.functions or ())
    return DeclaredTools(tuple(_function(function, f"functions[{index}]") for index, function in functions))


def _size_of_tools(read: wire.Body) -> int:
    """Bytes of the tools as they were declared, or of the schemas of functions."""
    if read.tools is not msgspec.UNSET:
        return len(read.tools)
    schemas = (each.parameters for each in read.functions or ())
    return sum(len(schema) for schema in schemas if schema is not msgspec.UNSET)


def _tool(raw: msgspec.Raw, path: str) -> Tool | HostedTool:
    tool = read_at(_decode_tool, raw, path)
    if tool.type is None:
        raise reading.required(f"{path}.type")
    if tool.type == "function":
        function = _function(tool.function or tool, f"{path}.function")
        cache = reading.given(tool.cache_control)
        return msgspec.structs.replace(function, cache=cache) if cache is not None else function
    if tool.type == "custom":
        custom = tool.custom or tool
        name = tool_name(custom.name, f"{path}.custom")
        format = _grammar(reading.given(custom.format), f"{path}.custom.format")
        return Tool(name, custom.description or "", kind="custom", format=format)
    return HostedTool(tool.type, raw)


_known_tools = tool_cache(_tool)


def _grammar(format: msgspec.Raw | None, path: str) -> msgspec.Raw | None:
    """A custom tool's format. Only chat nests the grammar in an object of its own."""
    if format is None:
        return None
    fields = read_at(fields_of, format, path)
    if "grammar" not in fields:
        return format
    inner = reading.given(fields.pop("grammar"))
    grammar = read_at(fields_of, inner, f"{path}.grammar") if inner is not None else {}
    return to_raw({**fields, **grammar})


def _function(function: wire.FunctionTool, path: str) -> Tool:
    name = tool_name(function.name, path)
    return Tool(name, function.description or "", reading.given(function.parameters), function.strict)


def _tool_choice(read: wire.Body, declared: DeclaredTools) -> ToolChoice | None:
    raw = reading.given(read.tool_choice)
    if raw is not None:
        return checked_choice(_read_choice(raw), declared)
    if read.function_call is None or reading.given(read.tools) is not None:
        return None
    return checked_choice(_read_function_call(read.function_call), declared, "function_call")


def _read_function_call(given: wire.NamedTool | str) -> ToolChoice:
    if isinstance(given, str):
        return _mode(given, "function_call")
    return ToolChoice("required", tool_name(given.name, "function_call"))


def _mode(given: str, field: str) -> ToolChoice:
    if given not in MODES:
        raise BadRequest(f"{field} must be auto, none, required or an object; received {given!r}.", field)
    return ToolChoice(MODES[given])


def _read_choice(raw: msgspec.Raw) -> ToolChoice:
    field = "tool_choice"
    given = read_at(_decode_choice, raw, field)
    if isinstance(given, str):
        return _mode(given, field)
    allowed = given.allowed_tools
    if given.type == "allowed_tools" and allowed is not None:
        if allowed.mode not in ("auto", "required"):
            raise BadRequest(f"{field}.allowed_tools.mode must be auto or required.", f"{field}.allowed_tools.mode")
        names = (
            tool_name((tool.function or tool.custom or tool).name, f"{field}.allowed_tools.tools[{index}]")
            for index, tool in enumerate(allowed.tools)
        )
        return ToolChoice(MODES[allowed.mode], allowed=tuple(names), limited=True)
    if given.type == "custom":
        return ToolChoice("required", tool_name((given.custom or given).name, f"{field}.custom"), "custom")
    if given.type in ("function", None):
        return ToolChoice("required", tool_name((given.function or given).name, f"{field}.function"))
    return ToolChoice("required", hosted=raw)


def _output_format(format: wire.ResponseFormat | None) -> OutputFormat | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return OutputFormat()
    if format.type != "json_schema":
        raise BadRequest("response_format.type must be text, json_object or json_schema.", "response_format.type")
    schema = format.json_schema
    found = reading.given(schema.schema) if schema is not None else None
    if schema is None or found is None:
        raise BadRequest("response_format.json_schema.schema: This field is required.", "response_format.json_schema")
    return OutputFormat(found, schema.name or "answer", schema.description or "", schema.strict)
