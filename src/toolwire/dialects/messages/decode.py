"""Decodes a Messages body to a `Request`. Raises a `BadRequest` that names the field.

One message becomes its text, reasoning, calls and results, in their order.
"""

from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, run_steps, take_bounded
from toolwire.core.errors import BadRequest
from toolwire.core.raw import (
    NOT_AN_OBJECT,
    arguments_text,
    as_object,
    fields_of,
    list_of,
    text_of,
    to_raw,
    unwrap_arguments,
    wrap_arguments,
)
from toolwire.core.request import (
    NO_HEAD,
    SEARCH,
    CallEntry,
    Caller,
    Entry,
    FilePart,
    HostedTool,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    OutputFormat,
    Part,
    ReasoningEntry,
    Request,
    RequestHead,
    ResultEntry,
    Role,
    Sampling,
    TextPart,
    Tool,
    ToolChoice,
    ToolMode,
    ToolPart,
)
from toolwire.core.signatures import is_packed, unpack
from toolwire.dialects import reading
from toolwire.dialects.messages import wire
from toolwire.dialects.reading import DeclaredTools, find_extra, make_tool_cache, read, read_at, require_tool_name

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_tool = msgspec.json.Decoder(wire.ToolParam).decode
_decode_message = msgspec.json.Decoder(wire.MessageParam).decode
_decode_block = msgspec.json.Decoder(wire.Block).decode
_decode_source = msgspec.json.Decoder(wire.Source).decode
_decode_found = msgspec.json.Decoder(wire.FoundTools).decode
_decode_content = msgspec.json.Decoder(str | list[wire.Block]).decode

_MODES: dict[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none"}
_READ_FIELDS = frozenset(wire.Body.__struct_fields__)
_DEFAULTS = frozenset((b"null", b"0", b"false", b"[]", b"{}"))
ORIGIN = "messages"
"""The origin of signatures that a client sends unpacked."""

SERVER_ID = "srvtoolu_"
"""The prefix of ids of calls that the server itself answers."""

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "developer"}
_CONTENT = frozenset(("text", "image", "document", "search_result"))
_NO_CONTENT = (b"[]", b'""')
_RESULT = msgspec.Raw(b'"tool_result"')


def decode_request(body: bytes) -> Request:
    """Decode a body. Raises `BadRequest`."""
    return run_steps(decode_steps(body))


def decode_steps(body: bytes, bounds: Bounds = UNBOUNDED, head: RequestHead = NO_HEAD) -> Steps[Request]:
    """Decode a body and the header `anthropic-beta` step by step, so that a large body does not block other tasks.

    Raises `BadRequest`.
    """
    fields = read(fields_of, body)
    bounds.check_preamble(len(body) - len(fields.get("messages", b"")))
    yield
    parsed = read(_decode_body, body)
    yield
    if not (parsed.model or "").strip():
        raise reading.missing_field("model")
    messages = reading.value_of(parsed.messages)
    if messages is None or not reading.begins_with(messages, b"["):
        raise BadRequest("messages: A list of messages is required.", "messages")
    tools = reading.value_of(parsed.tools)
    declared = _tool_lists[bytes(tools)] if tools is not None else DeclaredTools()
    bounds.check_tools(len(declared.tools) + len(declared.hosted), "tools")
    yield
    listed = list_of(messages)
    yield
    control = TurnControl()
    entries = yield from take_bounded(decode_messages(listed, control, declared.tools), bounds.entries, "messages")
    if not entries:
        raise BadRequest("messages must hold at least one message.", "messages")
    if parsed.n is not None and parsed.n != 1:
        raise BadRequest(f"n must be 1: a message is one turn; received {parsed.n}.", "n")
    if reading.value_of(parsed.thread) is not None:
        message = "thread: Threads are not supported; send the whole conversation."
        raise BadRequest(message, "thread", "thread_unsupported_request")
    choice, system = parsed.tool_choice, parsed.system or ""
    config = parsed.output_config or wire.OutputConfig()
    format = config.format or parsed.output_format
    schema = reading.value_of(format.schema) if format is not None else None
    return Request(
        model=parsed.model or "",
        dialect="messages",
        instructions=system if isinstance(system, str) else "\n\n".join(block.text for block in system if block.text),
        entries=entries,
        stream=bool(parsed.stream),
        tools=declared.tools,
        hosted_tools=declared.hosted,
        tool_choice=_read_tool_choice(choice, declared),
        parallel_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        output_format=OutputFormat(schema, "answer") if schema is not None else None,
        sampling=Sampling(
            temperature=parsed.temperature,
            top_p=parsed.top_p,
            max_tokens=parsed.max_tokens,
            stop=tuple(parsed.stop_sequences or ()),
            effort=control.effort or config.effort or _effort_of(parsed.thinking),
            service_tier=parsed.service_tier if parsed.service_tier != "standard_only" else "default",
        ),
        caller=Caller(user=parsed.metadata.user_id if parsed.metadata else None),
        include_usage=True,
        betas=head.headers.get(b"anthropic-beta", b"").decode("latin-1"),
        extra=find_extra(fields, _READ_FIELDS, _DEFAULTS),
        fields=fields,
        original_entries=entries,
    )


def _read_tool(raw: msgspec.Raw, path: str) -> Tool | HostedTool:
    tool = read_at(_decode_tool, raw, path)
    if tool.type not in (None, "custom"):
        return HostedTool(tool.type or "", raw)
    name, schema = require_tool_name(tool.name, path), reading.value_of(tool.input_schema)
    cache, deferred = reading.value_of(tool.cache_control), bool(tool.defer_loading)
    return Tool(name, tool.description or "", schema, tool.strict, cache=cache, deferred=deferred)


_tool_lists = make_tool_cache(_read_tool)


def _read_tool_choice(choice: wire.ToolChoiceParam | None, declared: DeclaredTools) -> ToolChoice | None:
    if choice is None:
        return None
    if choice.type in _MODES:
        return ToolChoice(_MODES[choice.type])
    if choice.type != "tool":
        message = f"tool_choice.type must be auto, any, tool or none; received {choice.type!r}."
        raise BadRequest(message, "tool_choice.type")
    if choice.name in [_decode_tool(tool.raw).name for tool in declared.hosted]:
        return ToolChoice("required", hosted=to_raw({"type": "tool", "name": choice.name}))
    if choice.name not in [tool.name for tool in declared.tools]:
        raise BadRequest(f"tool_choice names {choice.name!r}, which is not a declared tool.", "tool_choice.name")
    return ToolChoice("required", choice.name or "")


def _effort_of(thinking: wire.Thinking | None) -> str | None:
    """The effort that a thinking budget stands for."""
    if thinking is None:
        return None
    if thinking.type == "disabled":
        return "none"
    budget = thinking.budget_tokens
    if budget is None:
        return None
    return "low" if budget < 4096 else "medium" if budget < 16384 else "high"


class TurnControl:
    """The effort that system messages set for the answer.

    A system message right after new user input sets the effort of the answer to it; elsewhere it sets the effort from
    the next new input on. A user message that contains only results is not new input.
    """

    def __init__(self) -> None:
        self.effort: str | None = None
        self._next: str | None = None  # from the next new input on
        self._previous: wire.MessageParam | None = None

    def pass_message(self, message: wire.MessageParam) -> None:
        """Process a user or assistant message."""
        self._previous = message
        if self._next is not None and _is_new_input(message):
            self.effort, self._next = self._next, None

    def set_effort(self, effort: str) -> None:
        """Set the effort, from a system message."""
        if self._previous is not None and _is_new_input(self._previous):
            self.effort = effort
        else:
            self._next = effort


def _is_new_input(message: wire.MessageParam) -> bool:
    if message.role != "user" or not reading.begins_with(message.content, b"["):
        return message.role == "user"
    return any(fields_of(block).get("type") != _RESULT for block in list_of(message.content))


def decode_messages(
    messages: Sequence[msgspec.Raw], control: TurnControl, tools: Sequence[Tool] = ()
) -> Iterator[Entry]:
    """The entries of these messages. System messages without effect on the model yield none. Raises `BadRequest`."""
    last_user = -1  # the index of the last user message, once it is needed
    for index, raw in enumerate(messages):
        path = f"messages[{index}]"
        message = read_at(_decode_message, raw, path)
        role = _ROLES.get(message.role)
        if role is None:
            raise BadRequest(
                f"{path}.role must be user, assistant or system; received {message.role!r}.", f"{path}.role"
            )
        if role == "developer":
            effort = message.output_config.effort if message.output_config is not None else None
            if effort:
                control.set_effort(effort)
            clears = message.clear_at == "next_user_message"
            if clears and last_user < 0:
                last_user = _find_last_user(messages)
            if (effort and b"".join(bytes(message.content).split()) in _NO_CONTENT) or (clears and index < last_user):
                continue
        if reading.begins_with(message.content, b"["):
            yield from _decode_blocks(list_of(message.content), role, path, index, tools)
        else:
            text = read_at(text_of, message.content, f"{path}.content")
            yield Message(role, (TextPart(text),), raw=message.content, message=index)
        if role != "developer":
            control.pass_message(message)


def _find_last_user(messages: Sequence[msgspec.Raw]) -> int:
    """The index of the last user message, or 0."""
    backwards = range(len(messages) - 1, 0, -1)
    roles = ((index, read_at(_decode_message, messages[index], f"messages[{index}]").role) for index in backwards)
    return next((index for index, role in roles if role == "user"), 0)


def _decode_blocks(
    blocks: Sequence[msgspec.Raw], role: Role, path: str, message: int, tools: Sequence[Tool]
) -> Iterator[Entry]:
    parts: list[Part] = []
    raws: list[msgspec.Raw] = []
    for index, raw in enumerate(blocks):
        where = f"{path}.content[{index}]"
        block = read_at(_decode_block, raw, where)
        if block.type in _CONTENT:
            parts.append(_decode_part(block, where))
            raws.append(raw)
            continue
        if parts:
            yield _make_message(role, parts, raws, message)
            parts, raws = [], []
        yield _decode_entry(block, where, raw, message, tools)
    if parts or not blocks:
        yield _make_message(role, parts, raws, message)


def _make_message(role: Role, parts: list[Part], blocks: list[msgspec.Raw], message: int) -> Message:
    return Message(role, tuple(parts), raw=to_raw(blocks), message=message)


def _decode_entry(block: wire.Block, path: str, raw: msgspec.Raw, message: int, tools: Sequence[Tool]) -> Entry:
    match block.type:
        case "tool_use":
            for field, value in (("id", block.id), ("name", block.name)):
                if not value:
                    raise reading.missing_field(f"{path}.{field}")
            arguments, written = _decode_arguments(block, raw, tools)
            return CallEntry(block.id or "", block.name or "", arguments, raw=written, message=message)
        case "tool_result":
            if not block.tool_use_id:
                raise reading.missing_field(f"{path}.tool_use_id")
            parts = tuple(_decode_result(block, path))
            return ResultEntry(block.tool_use_id, parts, raw=raw, failed=bool(block.is_error), message=message)
        case "thinking":
            return _decode_reasoning(block.thinking or "", block.signature or "", raw, message)
        case "redacted_thinking":
            return _decode_reasoning("", block.data or "", raw, message, redacted=True)
        case "server_tool_use" if (block.name or "").startswith(SEARCH):
            arguments, _ = _decode_arguments(block, raw, tools)
            id = (block.id or "").removeprefix(SERVER_ID)
            call = CallEntry(id, block.name or "", arguments, "search", message=message)
            return OtherEntry(block.type, raw, message, call)
        case "tool_search_tool_result":
            return OtherEntry(block.type, raw, message, _decode_search_output(block, message))
        case _:
            return OtherEntry(block.type, raw, message)


def _decode_search_output(block: wire.Block, message: int) -> ResultEntry | None:
    """The result of a search for tools; None if it has an unknown form."""
    content = reading.value_of(block.content)
    try:
        found = _decode_found(content) if content is not None else wire.FoundTools()
    except msgspec.ValidationError:
        return None
    failed = found.error_code is not None
    parts: tuple[Part, ...] = tuple(ToolPart(each.tool_name) for each in found.tool_references if each.tool_name)
    if failed:
        parts = (TextPart(found.error_message or found.error_code or ""),)
    id = (block.tool_use_id or "").removeprefix(SERVER_ID)
    return ResultEntry(id, parts, "search", failed=failed, message=message)


def _decode_reasoning(
    text: str, signature: str, raw: msgspec.Raw, message: int, *, redacted: bool = False
) -> ReasoningEntry:
    """Reasoning with its signature. A packed signature has its own text, which wins over that of the block."""
    packed = unpack(signature)
    if packed is not None:
        signature, origin, redacted = packed.signature, packed.origin, packed.redacted
        return ReasoningEntry(packed.id, packed.text, (), signature, origin, redacted, message=message)
    summary = (text,) if text else ()
    if is_packed(signature):  # but damaged
        return ReasoningEntry(summary=summary, message=message)
    return ReasoningEntry("", summary, (), signature, ORIGIN, redacted, raw, message)


def _decode_arguments(block: wire.Block, raw: msgspec.Raw, tools: Sequence[Tool]) -> tuple[str, msgspec.Raw]:
    """The arguments, and the block with its input as an object; some clients omit it or send a string."""
    given = reading.value_of(block.input)
    if given is not None and bytes(given).startswith(b"{"):
        text = bytes(given).decode()
        schemas = (bytes(tool.parameters or b"") for tool in tools if tool.name == block.name)
        is_parameter = NOT_AN_OBJECT in text and any(f'"{NOT_AN_OBJECT}"'.encode() in schema for schema in schemas)
        return text if is_parameter else unwrap_arguments(given), raw
    text = arguments_text(given) if given is not None else "{}"
    fields = {**fields_of(raw), "input": as_object(text) or wrap_arguments(text)}
    return text, to_raw(fields)


def _decode_result(block: wire.Block, path: str) -> Iterator[Part]:
    raw = reading.value_of(block.content)
    if raw is None:
        return
    content = read_at(_decode_content, raw, f"{path}.content")
    if isinstance(content, str):
        yield TextPart(content)
        return
    for index, part in enumerate(content):
        yield _decode_part(part, f"{path}.content[{index}]")


def _decode_part(block: wire.Block, path: str) -> Part:
    if block.type == "text":
        return TextPart(block.text or "", reading.value_of(block.cache_control))
    if block.type == "tool_reference" and block.tool_name:
        return ToolPart(block.tool_name)
    source = reading.value_of(block.source)
    if block.type == "search_result":
        address = arguments_text(source) if source is not None else ""
        texts = [part.text for part in _decode_result(block, path) if isinstance(part, TextPart)]
        return TextPart("\n".join(text for text in (block.title or "", address, *texts) if text))
    if block.type not in ("image", "document") or source is None:
        return OtherPart(block.type)
    try:
        read = _decode_source(source)
    except msgspec.ValidationError:
        return OtherPart(block.type)
    if read.type == "text":
        return TextPart(read.data or "")
    url = read.url or (f"data:{read.media_type};base64,{read.data}" if read.data else "")
    if block.type == "image":
        return ImagePart(url, id=read.file_id or "")
    if url.startswith("data:"):
        return FilePart(url, read.file_id or "", block.title or "document.pdf")
    return FilePart("", read.file_id or "", block.title or "", url)
