"""Encodes a request for the Chat Completions API: translated, or the JSON of a client of the same dialect."""

from collections import Counter, defaultdict, deque
from typing import Any

import msgspec

from toolwire.adapt.history import OPENING
from toolwire.backends.chat.fold import DIALECT, Fold, is_acceptable
from toolwire.backends.chat.profile import Profile
from toolwire.backends.encoding import split_opening, system_text, without_none
from toolwire.backends.originals import Originals, change_fields
from toolwire.core.events import Note
from toolwire.core.raw import NULL, Fields, Json, fields_of, list_of, objects_of, to_json
from toolwire.core.request import (
    NO_PARAMETERS,
    Message,
    OutputFormat,
    Request,
    TextPart,
    Tool,
    ToolChoice,
)
from toolwire.core.text import hash_long_user_id

_FLAT = frozenset(("type", "function", "custom", "name", "description", "parameters", "strict", "format"))
"""The fields of a flat declaration that a nested one replaces."""
_name = msgspec.json.Decoder(str | None).decode


def encode_request(
    request: Request, profile: Profile, *, stream: bool, declared: tuple[Tool, ...] | None = None
) -> tuple[bytes, list[Note]]:
    """The body to post, and notes about what it lacks. `declared`: the tools before they were lowered."""
    notes: list[Note] = []
    if profile.system == "first":
        request = _join_system_messages(request)
    sampling, caller = request.sampling, request.caller
    keeps_fields = request.dialect == DIALECT and not request.legacy_functions and request.body
    original = fields_of(request.body) if keeps_fields else Fields()
    keeps_messages = (
        not request.instructions
        and request.history_unchanged
        and all(is_acceptable(entry, profile) for entry in request.entries)
    )
    body: Json = {
        "model": request.model,
        "messages": original.get("messages") if keeps_messages else None,
        "n": request.choices if request.choices > 1 else None,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream and profile.usage else None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        profile.max_tokens: sampling.max_tokens,
        "stop": list(sampling.stop) or None,
        "reasoning_effort": sampling.effort,
        "verbosity": sampling.verbosity,
        "service_tier": sampling.service_tier,
        "response_format": _encode_output_format(request.output_format) if request.output_format else None,
        "user": caller.user if request.dialect == DIALECT else hash_long_user_id(caller.user),
        "safety_identifier": caller.safety_identifier,
        "prompt_cache_key": caller.prompt_cache_key,
        "metadata": caller.metadata,
    }
    if body["user"] != caller.user:
        notes.append(Note("value_changed", "user"))
    if body["messages"] is None:
        has_originals = "messages" in original and request.original_entries is not None
        originals = Originals(request, original["messages"]) if has_originals else None
        body["messages"] = Fold(profile, notes, originals).messages(request)
        if request.marks_cache and originals is None:
            notes.append(Note("field_dropped", "cache_control"))
    if request.entries and not body["messages"]:
        body["messages"] = [{"role": "user", "content": OPENING}]
        notes.append(Note("message_added", "user"))
    tools = _encode_tools(request, original, profile, request.tools if declared is None else declared)
    if tools:
        body["tools"] = tools
        choice = request.tool_choice or ToolChoice()
        named = {"type": choice.kind, choice.kind: {"name": choice.name}} if choice.name else choice.mode
        body["tool_choice"] = (choice.hosted or named) if request.tool_choice else None
        body["parallel_tool_calls"] = request.parallel_calls if profile.parallel else None
        if request.parallel_calls is not None and not profile.parallel:
            notes.append(Note("field_dropped", "parallel_tool_calls"))
    if request.dialect == DIALECT:
        body = {**request.extra, **body}  # unknown fields may mean something to the server
    dropped = [] if request.dialect == DIALECT else [*request.extra]
    dropped += [name for name in profile.refuses if body.pop(name, None) is not None]
    notes += [Note("field_dropped", name) for name in dropped]
    return to_json(without_none(**body)), notes


def _join_system_messages(request: Request) -> Request:
    """The request with all opening instructions in one message, and later ones as text of the user."""
    opening, rest = split_opening(request.entries, "system", "developer")
    entries, instructions = [*opening, *rest], request.instructions
    for index, entry in enumerate(rest, len(opening)):
        if isinstance(entry, Message) and entry.role in ("system", "developer"):
            text = TextPart(system_text(_join_texts(entry)))
            entries[index] = msgspec.structs.replace(entry, role="user", parts=(text,), raw=None)
    if len(opening) > 1 or (opening and instructions):
        text = "\n\n".join(text for text in (instructions, *map(_join_texts, opening)) if text)
        entries[: len(opening)] = [Message("system", (TextPart(text),), message=opening[0].message)]
        instructions = ""
    return msgspec.structs.replace(request, entries=tuple(entries), instructions=instructions)


def _join_texts(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def _encode_tools(
    request: Request, original: Fields, profile: Profile, declared: tuple[Tool, ...]
) -> msgspec.Raw | list[Any]:
    """The tools as the client declared them, with only the necessary changes."""
    count = len(declared) + len(request.hosted_tools)
    if count and request.allowed_tools is declared and b"null" not in bytes(original.get("tools", b"null")):
        tools = objects_of(original["tools"])
        if len(tools) == count and all("function" in tool or "custom" in tool for tool in tools):  # as documented
            return original["tools"]
    # Each tool is merged with the client's declaration, in the client's order; those without one follow.
    names = frozenset(request.tool_names)
    every = enumerate(zip(declared, request.tools, strict=True))
    pairs = {index: (tool, lower) for index, (tool, lower) in every if lower.name in names}
    indexes: defaultdict[str, deque[int]] = defaultdict(deque)  # several tools may have the same name
    for index, (tool, _) in pairs.items():
        indexes[tool.name].append(index)
    hosted = Counter(bytes(tool.raw) for tool in request.hosted_tools)
    out: list[Any] = []
    for raw in list_of(original["tools"]) if bytes(original.get("tools", b"")).startswith(b"[") else ():
        fields = fields_of(raw)
        kind = next((kind for kind in ("function", "custom") if bytes(fields.get(kind, b"")).startswith(b"{")), "")
        inner = fields_of(fields[kind]) if kind else fields
        if hosted[bytes(raw)]:
            hosted[bytes(raw)] -= 1
            out.append(raw)
        elif found := indexes.get(_name(inner.get("name", NULL)) or ""):
            tool, new = pairs.pop(found.popleft())
            if kind != new.kind:  # declared flat, or as another kind
                unknown = {name: value for name, value in fields.items() if name not in _FLAT}
                out.append({**unknown, **_encode_tool(new, profile)})
            elif inner.get("parameters") == NULL:
                out.append({**fields, kind: {**inner, **_encode_tool(new, profile)[kind]}})
            elif new is tool:
                out.append(raw)
            else:
                out.append({**fields, kind: change_fields(inner, tool, new, "parameters")})
    return [*out, *(_encode_tool(lower, profile) for _, lower in pairs.values()), *map(msgspec.Raw, hosted.elements())]


def _encode_tool(tool: Tool, profile: Profile) -> Json:
    named = without_none(name=tool.name, description=tool.description or None)
    if tool.kind == "custom":
        return {"type": "custom", "custom": {**named, **without_none(format=tool.format)}}
    parameters, strict = tool.parameters or NO_PARAMETERS, tool.strict if profile.strict else None
    return {"type": "function", "function": {**named, **without_none(parameters=parameters, strict=strict)}}


def _encode_output_format(format: OutputFormat) -> Json:
    if format.schema is None:
        return {"type": "json_object"}
    name, description = format.name or "answer", format.description or None
    schema = without_none(name=name, schema=format.schema, strict=format.strict, description=description)
    return {"type": "json_schema", "json_schema": schema}
