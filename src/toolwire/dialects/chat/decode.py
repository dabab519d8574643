"""A Chat Completions body to our own request form, or a `BadRequest` that names the field."""

from collections.abc import Iterator

import msgspec

from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, run_steps, take_bounded
from toolwire.core.cache import Cache
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.raw import Fields, fields_of, list_of, to_raw
from toolwire.core.request import (
    Caller,
    Entry,
    HostedTool,
    OutputFormat,
    Request,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
)
from toolwire.dialects import reading
from toolwire.dialects.chat import wire
from toolwire.dialects.chat.history import decode_messages, needs_rewriting
from toolwire.dialects.reading import as_bad_request
from toolwire.dialects.responses.history import decode_items

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_known_body = msgspec.json.Decoder(wire.KnownBody).decode
_decode_tools = msgspec.json.Decoder(list[wire.ToolDeclaration]).decode
_decode_choice = msgspec.json.Decoder(wire.ToolChoiceParam | str).decode

_KNOWN = frozenset(wire.Body.__struct_fields__)
_DEFAULTS = frozenset((b"null", b"0", b"0.0", b"false", b"[]", b"{}", b'["text"]'))
_MODES: dict[str, ToolMode] = {"auto": "auto", "none": "none", "required": "required"}


def decode_request(body: bytes) -> Request:
    """The request in a body."""
    return run_steps(decoding(body))


def decoding(body: bytes, bounds: Bounds = UNBOUNDED) -> Steps[Request]:
    """The request, step by step."""
    read, extra = yield from _read(body)
    if not read.model.strip():
        raise BadRequest("model must not be empty.", "model", "model_required")
    if read.n is not None and read.n < 1:
        raise BadRequest(f"n must be at least 1; received {read.n}.", "n")
    notes: list[Note] = []
    has_tools = reading.given(read.tools) is not None
    bounds.check_preamble(_size_of_tools(read), "tools" if has_tools else "functions")
    tools, hosted = _tools(read)
    bounds.check_tools(len(tools) + len(hosted), "tools" if has_tools else "functions")
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
        tools=tools,
        hosted_tools=hosted,
        tool_choice=_tool_choice(read, tools, hosted),
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
    return decode_messages(read.messages, notes)


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
        read = _decode_body(body)
        yield
        return read, _extra(body)
    except msgspec.ValidationError as error:
        raise _with_message_index(error, body) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None


def _with_message_index(error: msgspec.ValidationError, body: bytes = b"") -> BadRequest:
    """The error with the index of the message, which msgspec does not report."""
    found = as_bad_request(error)
    if not body or not (found.param or "").startswith("messages[...]"):
        return found
    index = f"[{_wrong_entry(fields_of(body)['messages'], wire.ChatMessage)}]"
    message, param = (text.replace("[...]", index, 1) for text in (found.message, found.param or ""))
    return BadRequest(message, param, found.code)


def _wrong_entry(data: bytes | msgspec.Raw, kind: type[msgspec.Struct]) -> int:
    """The index of the first entry of a list that cannot be decoded; msgspec does not report it."""
    entries = list_of(data)
    for index, entry in enumerate(entries):
        try:
            msgspec.json.decode(entry, type=kind)
        except msgspec.ValidationError:
            return index
    return len(entries)


def _extra(body: bytes) -> Fields:
    fields = fields_of(body)
    return {name: value for name, value in fields.items() if name not in _KNOWN and bytes(value) not in _DEFAULTS}


def _tools(read: wire.Body) -> tuple[tuple[Tool, ...], tuple[HostedTool, ...]]:
    raw = reading.given(read.tools)
    if raw is not None and bytes(raw) != b"[]":
        return _known_tools[bytes(raw)]
    functions = read.functions or ()
    return tuple(_function(function, f"functions[{index}]") for index, function in enumerate(functions)), ()


def _size_of_tools(read: wire.Body) -> int:
    """Bytes of the tools as they were declared, or of the schemas of functions."""
    if read.tools is not msgspec.UNSET:
        return len(read.tools)
    schemas = (each.parameters for each in read.functions or ())
    return sum(len(schema) for schema in schemas if schema is not msgspec.UNSET)


def _read_tools(data: bytes) -> tuple[tuple[Tool, ...], tuple[HostedTool, ...]]:
    """The declared tools."""
    if not data.startswith(b"["):
        raise BadRequest("tools must be a list.", "tools")
    try:
        declared = _decode_tools(data)
    except msgspec.ValidationError as error:
        raise _wrong_tool(data, error) from None
    tools: list[Tool] = []
    hosted: list[HostedTool] = []
    raws = list_of(data)
    for index, each in enumerate(declared):
        tool = _tool(each, f"tools[{index}]")
        if tool is not None:
            tools.append(tool)
        elif each.type is not None:
            hosted.append(HostedTool(each.type, raws[index]))
    return tuple(tools), tuple(hosted)


_known_tools = Cache(_read_tools)
"""An agent sends the same ones with every request, so they are read once."""


def _wrong_tool(data: bytes, error: msgspec.ValidationError) -> BadRequest:
    refused = _with_message_index(error)
    path = (refused.param or "").replace("[...]", f"[{_wrong_entry(data, wire.ToolDeclaration)}]", 1)
    message = refused.message.partition(": ")[2] or refused.message
    return BadRequest(f"tools{path}: {message}", f"tools{path}", refused.code)


def _tool(tool: wire.ToolDeclaration, path: str) -> Tool | None:
    """A tool that the client runs, or None for one that the backend runs."""
    if tool.type is None:
        raise reading.required(f"{path}.type")
    if tool.type == "function":
        flat = wire.FunctionTool(tool.name, tool.description, tool.parameters, tool.strict)
        function = _function(tool.function or flat, f"{path}.function")
        cache = reading.given(tool.cache_control)
        return msgspec.structs.replace(function, cache=cache) if cache is not None else function
    if tool.type == "custom":
        custom = tool.custom or wire.CustomTool(tool.name, tool.description, tool.format)
        name = _required_name(custom.name, f"{path}.custom")
        format = _grammar(reading.given(custom.format), f"{path}.custom.format")
        return Tool(name, custom.description or "", kind="custom", format=format)
    return None


def _grammar(format: msgspec.Raw | None, path: str) -> msgspec.Raw | None:
    """A custom tool's format. Only chat nests the grammar in an object of its own."""
    if format is None:
        return None
    fields = _object(format, path)
    if "grammar" not in fields:
        return format
    inner = reading.given(fields.pop("grammar"))
    grammar = _object(inner, f"{path}.grammar") if inner is not None else {}
    return to_raw({**fields, **grammar})


def _object(raw: msgspec.Raw, path: str) -> Fields:
    try:
        return fields_of(raw)
    except msgspec.ValidationError as error:
        raise as_bad_request(error, path) from None


def _function(function: wire.FunctionTool, path: str) -> Tool:
    name = _required_name(function.name, path)
    return Tool(name, function.description or "", reading.given(function.parameters), function.strict)


def _required_name(name: str | None, path: str) -> str:
    if not name:
        raise BadRequest(f"{path}.name: A tool needs a name.", f"{path}.name")
    return name


def _tool_choice(read: wire.Body, tools: tuple[Tool, ...], hosted: tuple[HostedTool, ...]) -> ToolChoice | None:
    field, raw = "tool_choice", reading.given(read.tool_choice)
    if raw is not None:
        choice = _read_choice(raw)
    elif read.function_call is not None and reading.given(read.tools) is None:
        field = "function_call"
        choice = _read_function_call(read.function_call)
    else:
        return None
    declared = {tool.name for tool in tools}
    if not tools and not hosted:
        if choice.mode == "required" or choice.name:
            raise BadRequest(f"{field} asks for a call, but no tools are declared.", field)
        return choice if choice.mode == "none" else None  # there may be others than the client's
    for name in (choice.name, *choice.allowed):
        if name and name not in declared:
            raise BadRequest(f"{field} names {name!r}, which is not a declared tool.", field)
    return choice


def _read_function_call(given: wire.NamedTool | str) -> ToolChoice:
    if isinstance(given, str):
        return _mode(given, "function_call")
    return ToolChoice("required", _required_name(given.name, "function_call"))


def _mode(given: str, field: str) -> ToolChoice:
    if given not in _MODES:
        raise BadRequest(f"{field} must be auto, none, required or an object; received {given!r}.", field)
    return ToolChoice(_MODES[given])


def _read_choice(raw: msgspec.Raw) -> ToolChoice:
    field = "tool_choice"
    try:
        given = _decode_choice(raw)
    except msgspec.ValidationError as error:
        raise as_bad_request(error, field) from None
    if isinstance(given, str):
        return _mode(given, field)
    allowed = given.allowed_tools
    if given.type == "allowed_tools" and allowed is not None:
        if allowed.mode not in ("auto", "required"):
            raise BadRequest(f"{field}.allowed_tools.mode must be auto or required.", f"{field}.allowed_tools.mode")
        names = tuple(_allowed_names(allowed, f"{field}.allowed_tools"))
        return ToolChoice(_MODES[allowed.mode], allowed=names, limited=True)
    if given.type == "custom":
        name = given.custom.name if given.custom else given.name
        return ToolChoice("required", _required_name(name, f"{field}.custom"), "custom")
    if given.type in ("function", None):
        name = given.function.name if given.function else given.name
        return ToolChoice("required", _required_name(name, f"{field}.function"))
    return ToolChoice("required", hosted=raw)


def _allowed_names(allowed: wire.AllowedTools, path: str) -> Iterator[str]:
    for index, tool in enumerate(allowed.tools):
        nested = tool.function or tool.custom
        yield _required_name(nested.name if nested else tool.name, f"{path}.tools[{index}]")


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
