"""Encodes a request for the Messages API: translated, or the JSON of a client of the same dialect."""

from typing import Any

import msgspec

from toolwire.backends.encoding import without_none
from toolwire.backends.messages.decode import DIALECT
from toolwire.backends.messages.fold import Fold, is_foreign, is_refused
from toolwire.backends.messages.profile import Profile
from toolwire.backends.originals import Originals
from toolwire.core.events import Note
from toolwire.core.raw import Json, fields_of, object_in, objects_of, to_json
from toolwire.core.request import NO_PARAMETERS, CallEntry, Message, Request, Tool, ToolChoice

_ENABLED = msgspec.Raw(b'"enabled"')
_NONE = msgspec.Raw(b'"none"')

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}


def encode_request(request: Request, profile: Profile, *, stream: bool) -> tuple[bytes, list[Note]]:
    """The body to post, and notes about what it lacks."""
    notes: list[Note] = []
    build = _encode_original if request.dialect == DIALECT else _translate
    body = build(request, profile, notes)
    body |= {"model": request.model, "stream": stream}
    refused = [name for name in profile.refuses if _remove(body, name)]
    notes += [Note("field_dropped", name) for name in refused]
    return to_json(without_none(**body)), notes


def _encode_original(request: Request, profile: Profile, notes: list[Note]) -> Json:
    """The body of a client of the same dialect: its fields, with only the necessary changes to messages."""
    body: Json = {"max_tokens": profile.max_tokens, **request.fields}
    if request.tools_changed:
        body["tools"] = _encode_tools(request.tools, request)
    if not request.history_unchanged or any(map(is_refused, request.entries)):
        originals = Originals(request, request.fields["messages"])
        body["messages"] = Fold(notes, profile, originals).messages(request)
        if any(map(is_foreign, request.entries)) and object_in(body, "thinking").get("type") == _ENABLED:
            body["thinking"] = {"type": "disabled"}  # it would require the thinking blocks that were dropped
            notes.append(Note("field_dropped", "thinking"))
    if request.parallel_calls is not None and request.tools:
        choice = object_in(body, "tool_choice") or {"type": msgspec.Raw(b'"auto"')}
        if choice.get("type") != _NONE:
            body["tool_choice"] = {**choice, "disable_parallel_tool_use": not request.parallel_calls}
    return body


def _translate(request: Request, profile: Profile, notes: list[Note]) -> Json:
    fold = Fold(notes, profile)
    messages = fold.messages(request)
    sampling = request.sampling
    body: Json = {
        "max_tokens": sampling.max_tokens or profile.max_tokens,
        "system": fold.system(request) or None,
        "messages": messages,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop_sequences": list(sampling.stop) or None,
        "metadata": {"user_id": user} if (user := request.caller.user or request.caller.safety_identifier) else None,
    }
    if sampling.temperature is not None and sampling.temperature > 1:
        body["temperature"] = 1.0
        notes.append(Note("value_changed", "temperature"))
    tools = request.allowed_tools  # the API has no `allowed_tools`, so the others are omitted
    if tools or request.hosted_tools:
        body["tools"] = _encode_tools(tools, request)
        body["tool_choice"] = _encode_tool_choice(request)
    elif called := {entry.name: None for entry in request.entries if isinstance(entry, CallEntry)}:
        # Calls in a history need their tools declared, even if none may be called any more.
        body["tools"] = [{"name": name, "input_schema": NO_PARAMETERS} for name in called]
        body["tool_choice"] = {"type": "none"}
        notes.append(Note("tools_declared", ", ".join(called)))
    _add_reasoning(body, request, profile, notes)
    if request.output_format is not None and request.output_format.schema is not None:
        format = {"type": "json_schema", "schema": request.output_format.schema}
        body["output_config"] = {**(body.get("output_config") or {}), "format": format}
    lost = {"verbosity": sampling.verbosity, "service_tier": sampling.service_tier, "metadata": request.caller.metadata}
    dropped = [name for name, value in lost.items() if value not in (None, "auto", "default")]
    if any(isinstance(entry, Message) and entry.name for entry in request.entries):
        dropped.append("messages.name")
    if request.output_format is not None and request.output_format.schema is None:
        dropped.append("response_format")  # the system text asks for it
    notes += [Note("field_dropped", name) for name in (*dropped, *request.extra)]
    return body


def _remove(body: Json, name: str) -> bool:
    """Remove a field, or, as `tools.name`, a field of every tool; returns whether it was there."""
    field, _, inner = name.partition(".")
    if not inner:
        return body.pop(name, None) is not None
    tools = objects_of(to_json(body.get(field) or []))
    if not any(inner in tool for tool in tools):
        return False
    body[field] = [{key: value for key, value in tool.items() if key != inner} for tool in tools]
    return True


def _add_reasoning(body: Json, request: Request, profile: Profile, notes: list[Note]) -> None:
    effort = request.sampling.effort
    if not effort:
        return
    forced: Json = body.get("tool_choice") or {}
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
    elif not profile.effort or effort not in _EFFORTS or forced.get("type") in ("any", "tool"):
        # A forced call and thinking exclude each other.
        notes.append(Note("field_dropped", "reasoning_effort"))
    else:
        body["thinking"] = {"type": "adaptive"}
        body["output_config"] = {"effort": _EFFORTS[effort]}
        for field, least in (("temperature", 1.0), ("top_p", 0.95)):  # thinking models refuse lower values
            if body[field] is not None and body[field] < least:
                body[field] = None
                notes.append(Note("field_dropped", field))


def _encode_tools(tools: tuple[Tool, ...], request: Request) -> list[Any]:
    """These tools and the hosted ones; tools that a search found come last, so that the list only grows."""
    hosted, written = [tool.raw for tool in request.hosted_tools], list[Any]()
    for tool in tools:
        more = without_none(description=tool.description or None, strict=tool.strict, cache_control=tool.cache)
        written.append({"name": tool.name, "input_schema": tool.parameters or NO_PARAMETERS, **more})
    return [*hosted, *written] if request.tools_changed else [*written, *hosted]


def _encode_tool_choice(request: Request) -> Json | None:
    choice = request.tool_choice or ToolChoice()
    written: Json
    if choice.hosted is not None:
        written = {**fields_of(choice.hosted)}
    elif choice.name:
        written = {"type": "tool", "name": choice.name}
    else:
        written = {"type": {"auto": "auto", "none": "none", "required": "any"}[choice.mode]}
    if request.parallel_calls is False and written["type"] != "none":
        return {**written, "disable_parallel_tool_use": True}
    return written if request.tool_choice is not None else None
