"""Decodes a `generateContent` request to a `Request`. Raises a `BadRequest` that names the field.

    POST /v1beta/models/demo:streamGenerateContent?alt=sse
    {"contents":[…],"systemInstruction":{…},"tools":[{"functionDeclarations":[…]}],"generationConfig":{…}}

The path says which model and whether to stream, and the query how the stream is framed: as server-sent events or as a
JSON array. A body by itself, such as a recorded one, may say so in `model` and `stream`.
"""

import re
from collections.abc import Sequence
from urllib.parse import parse_qs

import msgspec

from toolwire.core.bounds import UNBOUNDED, Bounds, Steps, run_steps, take_bounded
from toolwire.core.cache import Cache
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.raw import Fields, fields_of, to_raw
from toolwire.core.request import (
    NO_HEAD,
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
from toolwire.dialects.gemini import wire
from toolwire.dialects.gemini.history import decode_contents, join_contents, list_parts
from toolwire.dialects.gemini.schema import read_json_schema, read_schema
from toolwire.dialects.openai import check_choice
from toolwire.dialects.reading import DeclaredTools, find_extra, read, read_at, require_tool_name

_decode_body = msgspec.json.Decoder(wire.Body).decode
_decode_content = msgspec.json.Decoder(wire.Content).decode
_decode_part = msgspec.json.Decoder(wire.Part).decode
_decode_config = msgspec.json.Decoder(wire.GenerationConfig).decode
_decode_thinking = msgspec.json.Decoder(wire.ThinkingConfig).decode
_decode_tool_config = msgspec.json.Decoder(wire.ToolConfig).decode
_decode_calling = msgspec.json.Decoder(wire.FunctionCallingConfig).decode
_decode_declaration = msgspec.json.Decoder(wire.FunctionDeclaration).decode

STREAMED = "streamGenerateContent"
COUNTED = "countTokens"
ARRAY = "array"
"""A stream that is one JSON array; otherwise it is server-sent events."""
_JSON = "application/json"
_MODES: dict[str, ToolMode] = {
    "": "auto",
    "MODE_UNSPECIFIED": "auto",
    "AUTO": "auto",
    "VALIDATED": "auto",
    "ANY": "required",
    "NONE": "none",
}
_TIERS = {"standard": "default", "unspecified": None}
_BUDGETS = ((0, "none"), (1024, "low"), (8192, "medium"))
"""The efforts up to these numbers of thinking tokens."""
_DEFAULTS = frozenset((b"null", b"0", b"false", b"[]", b"{}", b'""'))
_READ_FIELDS = frozenset(map(wire.camel_name, wire.Body.__struct_fields__)) - {"toolConfig"}
_READ_CONFIG = frozenset(map(wire.camel_name, wire.GenerationConfig.__struct_fields__))

# Whatever is before the version is a prefix that the client's base URL has.
_resource = re.compile(
    r"(?:(?:.*?/)?v1(?:alpha|beta1?)?/)?/?(?:projects/[^/]+/locations/[^/]+/)?"
    r"(?:publishers/google/models/|models/(?=.)|publishers/(?P<publisher>[^/]+)/models/)?(?P<model>.*)"
)


def read_model(resource: str) -> str:
    """The name of the model in the path of its resource."""
    found = _resource.fullmatch(resource)
    if found is None:
        return resource
    return f"{found['publisher']}/{found['model']}" if found["publisher"] else found["model"]


def decode_request(body: bytes) -> Request:
    """Decode a body without its path. Raises `BadRequest`."""
    return run_steps(_decode_steps(body, UNBOUNDED, NO_HEAD))


def decode_steps(body: bytes, bounds: Bounds = UNBOUNDED, head: RequestHead = NO_HEAD) -> Steps[Request]:
    """Decode a body and its path step by step, so that a large body does not block other tasks. Raises `BadRequest`."""
    request = yield from _decode_steps(body, bounds, head)
    if not request.model.strip():
        raise reading.missing_field("model")
    return request


def _decode_steps(body: bytes, bounds: Bounds, head: RequestHead) -> Steps[Request]:
    method = head.parameters.get("method") or ""
    fields = _read_fields(msgspec.Raw(body))
    if not method and "generateContentRequest" in fields:  # of countTokens
        fields = _read_fields(fields["generateContentRequest"])
    bounds.check_preamble(len(body) - len(fields.get("contents", b"")))
    yield
    parsed = read(_decode_body, msgspec.json.encode(fields))
    model = read_model(parsed.model or head.parameters.get("resource") or "")
    for name in ("model", "stream"):
        fields.pop(name, None)
    contents = reading.value_of(parsed.contents)
    if contents is None or not (reading.begins_with(contents, b"[") or reading.begins_with(contents, b"{")):
        raise BadRequest("contents: A list of contents is required.", "contents", "missing_required_parameter")
    tools = reading.value_of(parsed.tools)
    declared = _tool_lists[bytes(tools)] if tools is not None else DeclaredTools()
    bounds.check_tools(len(declared.tools) + len(declared.hosted), "tools")
    yield
    joined, fields["contents"] = join_contents(contents)
    yield
    found = yield from take_bounded(decode_contents(joined), bounds.entries, "contents")
    if not found:
        raise BadRequest("contents must hold at least one part.", "contents")
    entries = tuple(entry for entry, _ in found)
    instructions, notes = _read_instructions(parsed)
    config_raw = reading.value_of(parsed.generation_config)
    config_fields, thinking = _read_config(config_raw)
    config = read_at(_decode_config, to_raw(config_fields), "generationConfig")
    if config_raw is not None:
        fields["generationConfig"] = to_raw(config_fields)
    form = _read_format(config)
    extra = find_extra(config_fields, _READ_CONFIG, _DEFAULTS) | find_extra(fields, _READ_FIELDS, _DEFAULTS)
    if form is None and config.response_mime_type not in (None, "", "text/plain"):
        extra["responseMimeType"] = to_raw(config.response_mime_type)
    choice, others = _read_tool_config(parsed, declared)
    extra = {name: value for name, value in extra.items() if name != "toolConfig"} | others
    is_streamed = method == STREAMED or (not method and bool(parsed.stream))
    query = parse_qs(head.query.decode("latin-1"))
    choices = config.candidate_count or 1
    return Request(
        model=model,
        dialect="gemini",
        history_field="contents",
        instructions=instructions,
        entries=entries,
        stream=is_streamed,
        stream_form=ARRAY if method == STREAMED and query.get("alt", ["json"])[-1] != "sse" else "",
        tools=declared.tools,
        hosted_tools=declared.hosted,
        tool_choice=choice,
        output_format=form,
        sampling=Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            max_tokens=config.max_output_tokens,
            stop=tuple(config.stop_sequences or ()),
            effort=_effort_of(thinking),
            service_tier=_TIERS.get(tier := (parsed.service_tier or "unspecified").lower(), tier),
        ),
        include_usage=True,
        choices=choices,
        needs_own_dialect="cachedContent" if "cachedContent" in extra else "candidateCount" if choices > 1 else "",
        extra=extra,
        fields=fields,
        original_entries=tuple(entry if as_written else None for entry, as_written in found),
        notes=notes,
    )


def _read_fields(body: msgspec.Raw) -> Fields:
    return {wire.camel_name(name): value for name, value in read(fields_of, body).items()}


def shows_thoughts(request: Request) -> bool:
    """Whether the client wants to see thoughts. A caller that sent no request gets them."""
    if "contents" not in request.fields:
        return True
    config = request.fields.get("generationConfig")
    return bool(_read_config(config)[1].include_thoughts)


def _read_config(raw: msgspec.Raw | None) -> tuple[Fields, wire.ThinkingConfig]:
    """The fields of `generationConfig` in camelCase, and its thinking configuration."""
    if raw is None:
        return {}, wire.ThinkingConfig()
    fields = read_at(fields_of, wire.camel(raw), "generationConfig")
    thinking = reading.value_of(fields.get("thinkingConfig", msgspec.UNSET))
    if thinking is None:
        return fields, wire.ThinkingConfig()
    fields["thinkingConfig"] = thinking = wire.camel(thinking)
    return fields, read_at(_decode_thinking, thinking, "generationConfig.thinkingConfig")


def _effort_of(thinking: wire.ThinkingConfig) -> str | None:
    level, budget = (thinking.thinking_level or "").lower(), thinking.thinking_budget
    if level and not level.endswith("unspecified"):
        return level
    if budget is None or budget < 0:
        return None
    return next((effort for limit, effort in _BUDGETS if budget <= limit), "high")


def _read_format(config: wire.GenerationConfig) -> OutputFormat | None:
    """The structured output, if the answer shall be JSON."""
    if (config.response_mime_type or "") != _JSON:
        return None
    if (schema := reading.value_of(config.response_json_schema)) is not None:
        return OutputFormat(read_json_schema(schema), "answer")
    schema = reading.value_of(config.response_schema)
    return OutputFormat(read_schema(schema) if schema is not None else None, "answer")


def _read_instructions(parsed: wire.Body) -> tuple[str, tuple[Note, ...]]:
    """The text of the system instruction. Media in it are dropped."""
    raw = reading.value_of(parsed.system_instruction)
    if raw is None:
        return "", ()
    path = "systemInstruction"
    content = read_at(_decode_content, raw, path)
    parts = [read_at(_decode_part, wire.camel(part), where) for where, part in list_parts(content.parts, path)]
    dropped = (Note("part_dropped", path) for part in parts if part.text is None)
    return "\n\n".join(part.text for part in parts if part.text), tuple(dropped)


def _declare(data: bytes) -> DeclaredTools:
    """The tools in a list of tools, each of which may declare many functions."""
    if not data.startswith((b"[", b"{")):
        raise BadRequest("tools must be a list.", "tools")
    tools, hosted = list[Tool](), list[HostedTool]()
    for index, raw in enumerate(wire.listed(msgspec.Raw(data))):
        path = f"tools[{index}]"
        for name, value in read_at(fields_of, wire.camel(raw), path).items():
            if name != "functionDeclarations":
                hosted.append(HostedTool(name, to_raw({name: value})))
            elif reading.value_of(value) is not None:
                where = f"{path}.{name}"
                listed = read_at(wire.listed, value, where)
                tools += [_read_tool(each, f"{where}[{number}]") for number, each in enumerate(listed)]
    return DeclaredTools(tuple(tools), tuple(hosted))


_tool_lists: Cache[bytes, DeclaredTools] = Cache(_declare)


def _read_tool(raw: msgspec.Raw, path: str) -> Tool:
    declared = read_at(_decode_declaration, wire.camel(raw), path)
    name = require_tool_name(declared.name, path)
    schema, googles = reading.value_of(declared.parameters_json_schema), reading.value_of(declared.parameters)
    if schema is not None:
        schema = read_json_schema(schema)
    elif googles is not None:
        schema = read_schema(googles)
    return Tool(name, declared.description or "", schema)


def _read_tool_config(parsed: wire.Body, declared: DeclaredTools) -> tuple[ToolChoice | None, Fields]:
    """The tool choice, and the other fields of the configuration."""
    raw = reading.value_of(parsed.tool_config)
    if raw is None:
        return None, {}
    path = "toolConfig.functionCallingConfig"
    fields = read_at(fields_of, wire.camel(raw), "toolConfig")
    others = find_extra(fields, frozenset(("functionCallingConfig",)), _DEFAULTS)
    given = reading.value_of(read_at(_decode_tool_config, to_raw(fields), "toolConfig").function_calling_config)
    if given is None:
        return None, others
    calling = read_at(_decode_calling, wire.camel(given), path)
    mode = _MODES.get((calling.mode or "").upper())
    if mode is None:
        message = f"{path}.mode must be AUTO, ANY, NONE or VALIDATED; received {calling.mode!r}."
        raise BadRequest(message, f"{path}.mode")
    return check_choice(_make_choice(mode, calling.allowed_function_names or ()), declared, path), others


def _make_choice(mode: ToolMode, names: Sequence[str]) -> ToolChoice:
    if not names or mode == "none":
        return ToolChoice(mode)
    if mode == "required" and len(names) == 1:
        return ToolChoice(mode, names[0])
    return ToolChoice(mode, allowed=tuple(names), limited=True)
