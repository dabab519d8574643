"""A request in the words of the Messages API.

The history is folded into turns that alternate: all results of a batch of calls stand in one user message, before any
text of it; thoughts, text and calls of one answer stand in one assistant message, in their order.
"""

from typing import Any, cast

import msgspec

from toolwire.backends.messages.decode import ISSUER
from toolwire.backends.messages.profile import Profile
from toolwire.core.events import Note
from toolwire.core.request import (
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    Part,
    ReasoningEntry,
    RefusalPart,
    Request,
    ResultEntry,
    TextPart,
    Tool,
    ToolChoice,
)
from toolwire.core.text import as_object, wrapped

_encode = msgspec.json.Encoder().encode

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}


def encode_request(request: Request, profile: Profile, *, stream: bool) -> tuple[bytes, list[Note]]:
    """The body to post, and notes of what it could not hold."""
    notes: list[Note] = []
    if request.dialect == ISSUER and request.entries is request.written and not any(map(_is_foreign, request.entries)):
        return _encode_as_asked(request, profile, stream=stream)
    fold = Fold(notes)
    messages = fold.messages(request)
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": request.model,
        "max_tokens": sampling.max_tokens or profile.max_tokens,
        "system": fold.system(request) or None,
        "messages": messages,
        "stream": stream,
        "temperature": _temperature(sampling.temperature, notes),
        "top_p": sampling.top_p,
        "stop_sequences": list(sampling.stop) or None,
        "metadata": {"user_id": user} if (user := request.caller.user or request.caller.safety_identifier) else None,
    }
    tools = _allowed(request.tools, request.tool_choice)
    if tools or request.hosted_tools:
        body["tools"] = [*(_tool(tool, profile, notes) for tool in tools), *(tool.raw for tool in request.hosted_tools)]
        body["tool_choice"] = _tool_choice(request)
    _add_reasoning(body, request, profile, notes)
    if request.output_format is not None and request.output_format.schema is not None:
        format = {"type": "json_schema", "schema": request.output_format.schema}
        body["output_config"] = {**(body.get("output_config") or {}), "format": format}
    lost = {"verbosity": sampling.verbosity, "service_tier": sampling.service_tier, "metadata": request.caller.metadata}
    dropped = [name for name, value in lost.items() if value not in (None, "auto", "default")]
    dropped += [*request.extra, *(name for name in profile.refuses if body.pop(name, None) is not None)]
    notes += [Note("field_dropped", name) for name in dropped]
    return _encode({name: value for name, value in body.items() if value is not None}), notes


def _encode_as_asked(request: Request, profile: Profile, *, stream: bool) -> tuple[bytes, list[Note]]:
    """The body of a client that speaks Messages too, whose history needed no change: all its fields as they came."""
    body: dict[str, Any] = {**request.fields, "model": request.model, "stream": stream}
    body.setdefault("max_tokens", profile.max_tokens)
    refused = [name for name in profile.refuses if body.pop(name, None) is not None]
    return _encode(body), [Note("field_dropped", name) for name in refused]


def _is_foreign(entry: Entry) -> bool:
    """A thought that somebody else sealed."""
    return isinstance(entry, ReasoningEntry) and entry.issuer != ISSUER


def _temperature(asked: float | None, notes: list[Note]) -> float | None:
    if asked is None or asked <= 1:
        return asked
    notes.append(Note("value_changed", "temperature"))
    return 1.0


def _add_reasoning(body: dict[str, Any], request: Request, profile: Profile, notes: list[Note]) -> None:
    effort = request.sampling.effort
    if not effort:
        return
    forced: dict[str, Any] = body.get("tool_choice") or {}
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
    elif not profile.effort or effort not in _EFFORTS or forced.get("type") in ("any", "tool"):
        # A forced call and thinking exclude each other.
        notes.append(Note("field_dropped", "reasoning_effort"))
    else:
        body["thinking"] = {"type": "adaptive"}
        body["output_config"] = {"effort": _EFFORTS[effort]}


class Fold:
    """Folds a flat history into messages that alternate."""

    def __init__(self, notes: list[Note]) -> None:
        self._notes = notes
        self._system: list[str] = []
        self._out: list[dict[str, Any]] = []

    def system(self, request: Request) -> str:
        asked = request.output_format
        wants_json = (
            "Answer with one JSON object and nothing else." if asked is not None and asked.schema is None else ""
        )
        return "\n\n".join(text for text in (request.instructions, *self._system, wants_json) if text)

    def messages(self, request: Request) -> list[dict[str, Any]]:
        opening = True
        for entry in request.entries:
            if opening and isinstance(entry, Message) and entry.role in ("system", "developer"):
                self._system.append(_text(entry.parts))
                continue
            opening = False
            self._add(entry)
        for message in self._out:
            if message["role"] == "user":  # results first: the API insists
                message["content"].sort(key=_after_results)
        return self._out

    def _add(self, entry: Entry) -> None:
        match entry:
            case Message(role="assistant"):
                self._blocks(
                    "assistant", [{"type": "text", "text": text}] if (text := _text(entry.parts)).strip() else []
                )
            case Message(role="user"):
                self._blocks("user", [block for part in entry.parts if (block := self._part(part))])
            case Message():
                # An instruction in the middle of the conversation, where not every model takes the role.
                self._blocks("user", [{"type": "text", "text": f"<system>\n{_text(entry.parts)}\n</system>"}])
            case CallEntry():
                block = {"type": "tool_use", "id": entry.id, "name": entry.name, "input": self._input(entry)}
                self._blocks("assistant", [block])
            case ResultEntry():
                self._blocks("user", [self._result(entry)])
            case ReasoningEntry():
                self._blocks("assistant", self._thought(entry))
            case OtherEntry():
                self._notes.append(Note("item_dropped", entry.type))

    def _blocks(self, role: str, blocks: list[dict[str, Any]]) -> None:
        if not blocks:
            return
        if self._out and self._out[-1]["role"] == role:
            self._out[-1]["content"] += blocks
        else:
            self._out.append({"role": role, "content": blocks})

    def _input(self, entry: CallEntry) -> msgspec.Raw:
        given = as_object(entry.arguments)
        if given is not None:
            return given
        self._notes.append(Note("arguments_wrapped", entry.id))
        return wrapped(entry.arguments)

    def _result(self, entry: ResultEntry) -> dict[str, Any]:
        content = [block for part in entry.parts if (block := self._part(part))]
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": entry.call_id, "content": content}
        if len(content) == 1 and content[0]["type"] == "text":
            result["content"] = content[0]["text"]
        return {**result, "is_error": True} if entry.failed else result

    def _thought(self, entry: ReasoningEntry) -> list[dict[str, Any]]:
        if entry.issuer != ISSUER or not entry.seal:
            if entry.seal or entry.summary or entry.content:
                self._notes.append(Note("reasoning_dropped", entry.id))
            return []
        if entry.redacted:
            return [{"type": "redacted_thinking", "data": entry.seal}]
        return [{"type": "thinking", "thinking": "".join(entry.summary + entry.content), "signature": entry.seal}]

    def _part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextPart(text) | RefusalPart(text):
                return {"type": "text", "text": text} if text.strip() else None
            case ImagePart(url, _, id):
                return {"type": "image", "source": _source(url) if url else {"type": "file", "file_id": id}}
            case FilePart(data, id, name, url):
                source = _source(data or url) if data or url else {"type": "file", "file_id": id}
                titled = {"title": name} if name else {}
                return {"type": "document", "source": source, **titled}
            case _:
                self._notes.append(Note("part_dropped", type(part).__name__.removesuffix("Part").lower()))
                return None


def _after_results(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_result"


def _source(url: str) -> dict[str, str]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": kind, "data": data}


def _text(parts: tuple[Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart | RefusalPart))


def _allowed(tools: tuple[Tool, ...], choice: ToolChoice | None) -> tuple[Tool, ...]:
    """The API has no list of allowed tools: the others are not shown."""
    if choice is None or not choice.limited:
        return tools
    return tuple(tool for tool in tools if tool.name in choice.allowed)


def _tool(tool: Tool, profile: Profile, notes: list[Note]) -> dict[str, Any]:
    schema: Any = msgspec.json.decode(tool.parameters) if tool.parameters is not None else None
    written: dict[str, Any] = {"name": tool.name, "input_schema": _as_object(schema, tool.name, notes)}
    if tool.description:
        written["description"] = tool.description
    if tool.strict is not None and profile.strict:
        written["strict"] = tool.strict
    return written


def _as_object(schema: Any, name: str, notes: list[Note]) -> dict[str, Any]:
    """A schema whose top is an object without alternatives: the API refuses any other."""
    if not isinstance(schema, dict):
        return NO_PARAMETERS
    read = cast("dict[str, Any]", schema)
    changed = {key: value for key, value in read.items() if key not in ("anyOf", "oneOf", "allOf")}
    if len(changed) != len(read):
        notes.append(Note("schema_changed", name))
    return {**changed, "type": "object"}


def _tool_choice(request: Request) -> dict[str, Any] | None:
    choice = request.tool_choice
    written: dict[str, Any] = {"type": "auto"}
    if choice is not None and choice.name:
        written = {"type": "tool", "name": choice.name}
    elif choice is not None:
        written = {"type": {"auto": "auto", "none": "none", "required": "any"}[choice.mode]}
    if request.parallel_calls is False and written["type"] != "none":
        return {**written, "disable_parallel_tool_use": True}
    return written if choice is not None else None
