"""A request in the words of the Chat Completions API: as it was written, where the client speaks it, or translated."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from toolwire.backends.chat.fold import DIALECT, Fold, stands
from toolwire.backends.chat.profile import Profile
from toolwire.backends.written import Originals, changed_fields
from toolwire.core.events import Note
from toolwire.core.history import OPENING
from toolwire.core.request import NO_PARAMETERS, OutputFormat, Request, Tool, ToolChoice
from toolwire.core.text import shortened

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_string = msgspec.json.Decoder(str).decode
_NULL = msgspec.Raw(b"null")

Key = TypeVar("Key", str, bytes)
Value = TypeVar("Value")


def encode_request(
    request: Request, profile: Profile, *, stream: bool, declared: tuple[Tool, ...] | None = None
) -> tuple[bytes, list[Note]]:
    """The body to post, and notes of what it could not hold. `declared`: the tools before they were made to fit."""
    notes: list[Note] = []
    sampling, caller = request.sampling, request.caller
    asked = _asked(request)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": asked.get("messages") if _can_stand(request, profile) else None,
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
        "response_format": _format(request.output_format) if request.output_format else None,
        "user": caller.user if request.dialect == DIALECT else shortened(caller.user),
        "safety_identifier": caller.safety_identifier,
        "prompt_cache_key": caller.prompt_cache_key,
        "metadata": caller.metadata,
    }
    if body["user"] != caller.user:
        notes.append(Note("value_changed", "user"))
    if body["messages"] is None:
        has_written = "messages" in asked and request.written is not None
        originals = Originals(request, asked["messages"]) if has_written else None
        body["messages"] = Fold(profile, notes, originals).messages(request)
        if request.marks_cache and originals is None:
            notes.append(Note("field_dropped", "cache_control"))
    if request.entries and not body["messages"]:
        body["messages"] = [{"role": "user", "content": OPENING}]
        notes.append(Note("message_added", "user"))
    tools = _tools(request, asked, profile, request.tools if declared is None else declared)
    if tools:
        body["tools"] = tools
        body["tool_choice"] = _tool_choice(request.tool_choice) if request.tool_choice else None
        body["parallel_tool_calls"] = request.parallel_calls if profile.parallel else None
        if request.parallel_calls is not None and not profile.parallel:
            notes.append(Note("field_dropped", "parallel_tool_calls"))
    if request.dialect == DIALECT:
        body = {**request.extra, **body}  # what we do not know, the server may
    dropped = [] if request.dialect == DIALECT else [*request.extra]
    dropped += [name for name in profile.refuses if body.pop(name, None) is not None]
    notes += [Note("field_dropped", name) for name in dropped]
    return _encode({name: value for name, value in body.items() if value is not None}), notes


def _asked(request: Request) -> dict[str, msgspec.Raw]:
    """The body's fields as they came, from a client that speaks as the server does."""
    if request.dialect != DIALECT or request.legacy_functions or not request.body:
        return {}
    return _fields(request.body)


def _can_stand(request: Request, profile: Profile) -> bool:
    """Whether the messages can go on as the client wrote them: unchanged, and nothing in them that servers refuse."""
    if request.instructions or not request.is_as_written:
        return False
    return all(stands(entry, profile) for entry in request.entries)


def _tools(
    request: Request, asked: dict[str, msgspec.Raw], profile: Profile, declared: tuple[Tool, ...]
) -> msgspec.Raw | list[Any]:
    """The tools as the client wrote them; those that must change, with what must."""
    if request.allowed_tools is declared and _are_sound(asked, len(declared) + len(request.hosted_tools)):
        return asked["tools"]
    return [*_each_tool(request, asked, profile, declared)]


def _are_sound(asked: dict[str, msgspec.Raw], count: int) -> bool:
    """Whether there are so many tools, all in the form that the API documents."""
    if "tools" not in asked or not count or b"null" in bytes(asked["tools"]):
        return False
    written = _objects(asked["tools"])
    return len(written) == count and all("function" in tool or "custom" in tool for tool in written)


def _each_tool(
    request: Request, asked: dict[str, msgspec.Raw], profile: Profile, declared: tuple[Tool, ...]
) -> Iterator[Any]:
    """The tools, each over what the client wrote of it, in the client's order; then those that it did not write."""
    names = frozenset(request.tool_names)
    new = _Left(
        (tool.name, (tool, own)) for tool, own in zip(declared, request.tools, strict=True) if own.name in names
    )
    hosted = _Left((bytes(tool.raw), tool.raw) for tool in request.hosted_tools)
    for raw in _list(asked["tools"]) if bytes(asked.get("tools", b"")).startswith(b"[") else ():
        written = _Written(raw)
        if hosted.take(bytes(raw)) is not None:
            yield raw
        elif (pair := new.take(written.name)) is not None:
            yield written.over(*pair, profile)
    yield from (_tool(own, profile) for _, own in new.rest())
    yield from hosted.rest()


class _Left(Generic[Key, Value]):
    """Values in order, several of which may have the same key, until they are taken."""

    def __init__(self, values: Iterable[tuple[Key, Value]]) -> None:
        self._values = dict(enumerate(values))
        self._places: dict[Key, deque[int]] = {}
        for place, (key, _) in self._values.items():
            self._places.setdefault(key, deque()).append(place)

    def take(self, key: Key) -> Value | None:
        """The first that is left of these."""
        places = self._places.get(key)
        return self._values.pop(places.popleft())[1] if places else None

    def rest(self) -> list[Value]:
        return [value for _, value in self._values.values()]


class _Written:
    """A tool as a client declared it."""

    def __init__(self, raw: msgspec.Raw) -> None:
        self._raw = raw
        self._fields = _fields(raw)
        self._kind = next((kind for kind in ("function", "custom") if self._has_object(kind)), "")
        self._inner = _fields(self._fields[self._kind]) if self._kind else self._fields
        name = self._inner.get("name", _NULL)
        self.name = _string(name) if name != _NULL else ""

    def _has_object(self, kind: str) -> bool:
        return bytes(self._fields.get(kind, b"")).startswith(b"{")

    def over(self, tool: Tool, new: Tool, profile: Profile) -> Any:
        """The tool as the server takes it, with all that the client wrote beyond our words."""
        if self._kind != new.kind:  # flat, or of another kind there
            return {**{name: self._fields[name] for name in self._fields if name not in _FLAT}, **_tool(new, profile)}
        if self._inner.get("parameters") == _NULL:
            return {**self._fields, self._kind: {**self._inner, **_tool(new, profile)[self._kind]}}
        if new is tool:
            return self._raw
        return {**self._fields, self._kind: changed_fields(self._inner, tool, new, "parameters")}


_FLAT = frozenset(("type", "function", "custom", "name", "description", "parameters", "strict", "format"))


def _tool(tool: Tool, profile: Profile) -> dict[str, Any]:
    if tool.kind == "custom":
        custom = {"name": tool.name, "description": tool.description or None, "format": tool.format}
        return {"type": "custom", "custom": {key: value for key, value in custom.items() if value is not None}}
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or NO_PARAMETERS
    if tool.strict is not None and profile.strict:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.hosted is not None:
        return choice.hosted
    if choice.name:
        return {"type": choice.kind, choice.kind: {"name": choice.name}}
    return choice.mode


def _format(format: OutputFormat) -> dict[str, Any]:
    if format.schema is None:
        return {"type": "json_object"}
    schema = {
        "name": format.name or "answer",
        "schema": format.schema,
        "strict": format.strict,
        "description": format.description or None,
    }
    return {"type": "json_schema", "json_schema": {key: value for key, value in schema.items() if value is not None}}
