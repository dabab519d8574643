"""Decodes a Chat Completions body to a `Request`. Raises a `BadRequest` that names the field.

One assistant message becomes its text and its calls, in that order. Results are paired here only where the message does
not name its call: a `function` message belongs to the last unanswered call of its name, a `tool` message without an id
to the first unanswered call without one, or to the only unanswered call.
"""

from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, run_steps, take_bounded
from toolwire.core.errors import BadRequest
from toolwire.core.events import CallKind, Note
from toolwire.core.raw import Fields, arguments_text, fields_of, list_of, text_of, to_json, to_raw
from toolwire.core.request import (
    NO_HEAD,
    AudioPart,
    CallEntry,
    Caller,
    Entry,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OtherPart,
    OutputFormat,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    RequestHead,
    ResultEntry,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
)
from toolwire.dialects import reading
from toolwire.dialects.chat import wire
from toolwire.dialects.openai import MODES, ROLES, check_choice
from toolwire.dialects.reading import DeclaredTools, find_extra, make_tool_cache, read_at, require_tool_name
from toolwire.dialects.responses.decode import decode_items

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_known_body = msgspec.json.Decoder(wire.KnownBody).decode
_decode_message = msgspec.json.Decoder(wire.ChatMessage).decode
_decode_tool = msgspec.json.Decoder(wire.ToolDeclaration).decode
_decode_choice = msgspec.json.Decoder(wire.ToolChoiceParam | str).decode

_KNOWN = frozenset(wire.Body.__struct_fields__)
_DEFAULTS = frozenset((b"null", b"0", b"0.0", b"false", b"[]", b"{}", b'["text"]'))
UNNAMED = "call_unnamed_"
"""The prefix of the ids that we assign to calls without one."""


def decode_request(body: bytes) -> Request:
    """Decode a body. Raises `BadRequest`."""
    return run_steps(decode_steps(body))


def decode_steps(body: bytes, bounds: Bounds = UNBOUNDED, head: RequestHead = NO_HEAD) -> Steps[Request]:
    """Decode a body step by step, so that a large one does not block other tasks. Raises `BadRequest`."""
    read, extra = yield from _read_body(body)
    if not read.model.strip():
        raise BadRequest("model must not be empty.", "model", "model_required")
    if read.n is not None and read.n < 1:
        raise BadRequest(f"n must be at least 1; received {read.n}.", "n")
    has_tools = reading.value_of(read.tools) is not None
    field = "tools" if has_tools else "functions"
    schemas = [each.parameters for each in read.functions or ()] if read.tools is msgspec.UNSET else [read.tools]
    bounds.check_preamble(sum(len(each) for each in schemas if each is not msgspec.UNSET), field)
    declared = _read_declared_tools(read)
    bounds.check_tools(len(declared.tools) + len(declared.hosted), field)
    yield
    notes: list[Note] = []
    entries = yield from take_bounded(
        _decode_entries(read, notes), bounds.entries, "messages" if read.messages else "input"
    )
    messages = enumerate(read.messages or ())
    rewritten = {index for index, message in messages if needs_rewriting(message)}
    original = tuple(None if entry.message in rewritten else entry for entry in entries) if rewritten else entries
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
        tool_choice=_read_tool_choice(read, declared),
        parallel_calls=False if read.functions and not has_tools else read.parallel_tool_calls,
        output_format=_read_output_format(read.response_format),
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
        original_entries=original if read.messages else None,
        notes=tuple(notes),
    )


def _read_body(body: bytes) -> Steps[tuple[wire.Body, Fields]]:
    """The body, and its fields without a counterpart in `Request`."""
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
    return read, find_extra(fields_of(body), _KNOWN, _DEFAULTS)


def _decode_entries(read: wire.Body, notes: list[Note]) -> Iterator[Entry]:
    """The conversation, which some clients send in the `input` field of Responses."""
    input = reading.value_of(read.input)
    if read.messages is None and input is not None:
        items = list_of(input) if reading.begins_with(input, b"[") else [to_raw({"role": "user", "content": input})]
        return decode_items(items, 0, notes)
    if read.messages is None:
        raise reading.missing_field("messages")
    if not read.messages:
        raise BadRequest("messages must hold at least one message.", "messages")
    if input is not None:
        notes.append(Note("field_dropped", "input"))
    return decode_messages(read.messages)


def _read_function(function: wire.ToolFields, path: str) -> Tool:
    name = require_tool_name(function.name, path)
    return Tool(name, function.description or "", reading.value_of(function.parameters), function.strict)


def _read_tool(raw: msgspec.Raw, path: str) -> Tool | HostedTool:
    tool = read_at(_decode_tool, raw, path)
    if tool.type is None:
        raise reading.missing_field(f"{path}.type")
    if tool.type == "function":
        function = _read_function(tool.function or tool, f"{path}.function")
        cache = reading.value_of(tool.cache_control)
        return msgspec.structs.replace(function, cache=cache) if cache is not None else function
    if tool.type != "custom":
        return HostedTool(tool.type, raw)
    custom, path = tool.custom or tool, f"{path}.custom"
    name = require_tool_name(custom.name, path)
    format = reading.value_of(custom.format)
    fields = read_at(fields_of, format, f"{path}.format") if format is not None else {}
    if "grammar" in fields:  # only chat nests the grammar in an object of its own
        grammar = reading.value_of(fields.pop("grammar"))
        inner = read_at(fields_of, grammar, f"{path}.format.grammar") if grammar is not None else {}
        format = to_raw({**fields, **inner})
    return Tool(name, custom.description or "", kind="custom", format=format)


_tool_lists = make_tool_cache(_read_tool)


def _read_declared_tools(read: wire.Body) -> DeclaredTools:
    raw = reading.value_of(read.tools)
    if raw is not None and bytes(raw) != b"[]":
        return _tool_lists[bytes(raw)]
    functions = enumerate(read.functions or ())
    return DeclaredTools(tuple(_read_function(function, f"functions[{index}]") for index, function in functions))


def _read_tool_choice(read: wire.Body, declared: DeclaredTools) -> ToolChoice | None:
    field, raw = "tool_choice", reading.value_of(read.tool_choice)
    if raw is not None:
        given = read_at(_decode_choice, raw, field)
    elif read.function_call is None or reading.value_of(read.tools) is not None:
        return None
    else:
        field, given = "function_call", read.function_call
    if isinstance(given, str):
        if given not in MODES:
            raise BadRequest(f"{field} must be auto, none, required or an object; received {given!r}.", field)
        choice = ToolChoice(MODES[given])
    elif not isinstance(given, wire.ToolChoiceParam):
        choice = ToolChoice("required", require_tool_name(given.name, field))
    elif given.type == "allowed_tools" and given.allowed_tools is not None:
        path, mode = f"{field}.allowed_tools", given.allowed_tools.mode
        if mode not in ("auto", "required"):
            raise BadRequest(f"{path}.mode must be auto or required.", f"{path}.mode")
        names = (
            require_tool_name((tool.function or tool.custom or tool).name, f"{path}.tools[{index}]")
            for index, tool in enumerate(given.allowed_tools.tools)
        )
        choice = ToolChoice(MODES[mode], allowed=tuple(names), limited=True)
    elif given.type == "custom":
        choice = ToolChoice("required", require_tool_name((given.custom or given).name, f"{field}.custom"), "custom")
    elif given.type in ("function", None):
        choice = ToolChoice("required", require_tool_name((given.function or given).name, f"{field}.function"))
    else:
        choice = ToolChoice("required", hosted=raw)
    return check_choice(choice, declared, field)


def _read_output_format(format: wire.ResponseFormat | None) -> OutputFormat | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return OutputFormat()
    if format.type != "json_schema":
        raise BadRequest("response_format.type must be text, json_object or json_schema.", "response_format.type")
    schema = format.json_schema
    found = reading.value_of(schema.schema) if schema is not None else None
    if schema is None or found is None:
        raise BadRequest("response_format.json_schema.schema: This field is required.", "response_format.json_schema")
    return OutputFormat(found, schema.name or "answer", schema.description or "", schema.strict)


def decode_messages(messages: Sequence[wire.ChatMessage]) -> Iterator[Entry]:
    """The entries of these messages. Raises `BadRequest`."""
    unanswered: dict[str, CallEntry] = {}
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if message.role in ("tool", "function"):
            call_id = _find_answered_call(message, unanswered, path)
            call = unanswered.pop(call_id, None)
            kind: CallKind = call.kind if call is not None else "function"
            yield ResultEntry(call_id, tuple(_decode_parts(message.content, path)), kind, message=index)
            continue
        role = ROLES.get(message.role)
        if role is None:
            roles = "system, developer, user, assistant, tool or function"
            raise BadRequest(f"{path}.role must be {roles}; received {message.role!r}.", f"{path}.role")
        parts = _decode_parts(message.content, path)
        cache = reading.value_of(message.cache_control)
        if cache is not None:  # marks the last text of the message
            last = next((part for part in reversed(parts) if isinstance(part, TextPart)), None)
            parts = [msgspec.structs.replace(part, cache=cache) if part is last else part for part in parts]
        if message.refusal:
            parts.append(RefusalPart(message.refusal))
        if reading.value_of(message.audio) is not None:
            parts.append(OtherPart("audio"))
        reasoning = [*_decode_reasoning(message, index)] if role == "assistant" else []
        yield from reasoning
        if parts or role != "assistant" or not (reasoning or message.tool_calls or message.function_call):
            yield Message(role, tuple(parts), message.name or "", message=index)
        for call in _decode_calls(message, index):
            unanswered[call.id] = call
            yield call


def needs_rewriting(message: wire.ChatMessage) -> bool:
    """Whether a message has calls that servers refuse: without id or type, or with arguments that are not a string."""
    for call in message.tool_calls or ():
        if not call.id or not call.type or call.arguments is not msgspec.UNSET:
            return True
        arguments = call.function.arguments if call.function is not None else msgspec.UNSET
        if arguments is not msgspec.UNSET and not bytes(arguments).startswith(b'"'):
            return True
    legacy = message.function_call
    return legacy is not None and not bytes(reading.value_of(legacy.arguments) or b'"').startswith(b'"')


def _decode_reasoning(message: wire.ChatMessage, index: int) -> Iterator[ReasoningEntry]:
    """The reasoning of a message. Unless only `reasoning_content` is set, all its fields form the signature."""
    fields: Fields = {}
    for name in ("reasoning_content", "reasoning", "reasoning_details"):
        value = reading.value_of(getattr(message, name))
        if value is not None:
            fields[name] = value
    if not fields:
        return
    texts = [text_of(value) for value in fields.values() if bytes(value).startswith(b'"')]
    if texts and [*fields] == ["reasoning_content"]:
        yield ReasoningEntry(content=(texts[0],), message=index)
        return
    yield ReasoningEntry(content=tuple(texts[:1]), signature=to_json(fields).decode(), origin="chat", message=index)


def _find_answered_call(message: wire.ChatMessage, unanswered: dict[str, CallEntry], path: str) -> str:
    """The id of the call that a message answers."""
    if message.tool_call_id:
        return message.tool_call_id
    if message.role == "function":
        named = [id for id, call in unanswered.items() if call.name == message.name]
        return named[-1] if named else f"{message.name or 'function'} ({path})"
    unnamed = [id for id in unanswered if id.startswith(UNNAMED)]
    if unnamed or len(unanswered) == 1:
        return next(iter(unnamed or unanswered))
    raise reading.missing_field(f"{path}.tool_call_id")


def _decode_calls(message: wire.ChatMessage, index: int) -> Iterator[CallEntry]:
    for number, call in enumerate(message.tool_calls or ()):
        path = f"messages[{index}].tool_calls[{number}]"
        id = call.id or f"{UNNAMED}{index}_{number}"
        if call.custom is not None:
            if not call.custom.name:
                raise BadRequest(f"{path}.custom.name: A call needs a name.", f"{path}.custom.name")
            yield CallEntry(id, call.custom.name, call.custom.input, "custom", message=index)
            continue
        function = call.function
        if function is None or not function.name:
            raise BadRequest(f"{path}.function.name: A call needs a name.", f"{path}.function.name")
        arguments = arguments_text(function.arguments) or arguments_text(call.arguments)
        signed = reading.value_of(call.extra_content)
        signature = bytes(signed).decode() if signed is not None else ""
        yield CallEntry(id, function.name, arguments, signature=signature, message=index)
    legacy = message.function_call
    if legacy is not None and not message.tool_calls:
        if not legacy.name:
            path = f"messages[{index}].function_call.name"
            raise BadRequest(f"{path}: A call needs a name.", path)
        yield CallEntry(f"call_function_{index}", legacy.name, arguments_text(legacy.arguments), message=index)


def _decode_parts(content: str | list[wire.ContentPart | str] | None, path: str) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    return [_decode_part(part, f"{path}.content[{index}]") for index, part in enumerate(content or ())]


def _decode_part(part: wire.ContentPart | str, path: str) -> Part:
    if isinstance(part, str):
        return TextPart(part)
    match part.type:
        case "text" | "input_text" | "output_text":
            return TextPart(part.text or "", reading.value_of(part.cache_control))
        case "refusal":
            return RefusalPart(part.refusal or "")
        case "image_url" | "input_image" if part.image_url is not None:
            image = part.image_url
            return ImagePart(image) if isinstance(image, str) else ImagePart(image.url, image.detail or "")
        case "file" | "input_file" if part.file is not None:
            return FilePart(part.file.file_data or "", part.file.file_id or "", part.file.filename or "")
        case "input_audio" if part.input_audio is not None:
            return AudioPart(part.input_audio.data, part.input_audio.format)
        case "image_url" | "file" | "input_audio":
            raise reading.missing_field(f"{path}.{part.type}")
        case _:
            return OtherPart(part.type)
