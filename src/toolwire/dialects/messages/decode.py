"""Decodes a Messages body to a `Request`. Raises a `BadRequest` that names the field."""

import msgspec

from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, run_steps, take_bounded
from toolwire.core.errors import BadRequest
from toolwire.core.raw import fields_of, list_of, to_raw
from toolwire.core.request import (
    NO_HEAD,
    Caller,
    HostedTool,
    OutputFormat,
    Request,
    RequestHead,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
)
from toolwire.dialects import reading
from toolwire.dialects.messages import wire
from toolwire.dialects.messages.history import TurnControl, decode_messages
from toolwire.dialects.reading import DeclaredTools, cache_tools, extra_fields, read, read_at, require_tool_name

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_tool = msgspec.json.Decoder(wire.ToolParam).decode

_MODES: dict[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none"}
_READ_FIELDS = frozenset(wire.Body.__struct_fields__)
_DEFAULTS = frozenset((b"null", b"0", b"false", b"[]", b"{}"))


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
        extra=extra_fields(fields, _READ_FIELDS, _DEFAULTS),
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


_tool_lists = cache_tools(_read_tool)


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
