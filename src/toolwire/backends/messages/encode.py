"""Encodes a request for the Messages API. The JSON of a client of the same dialect is kept where possible.

The flat history is folded into messages, which alternate. All results of parallel calls are in one user message, before
its text; the reasoning, text and calls of an answer are in one assistant message, in their order.
"""

from base64 import b64encode
from itertools import groupby
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from toolwire.adapt.history import OPENING
from toolwire.backends.encoding import encode_arguments, note_dropped_part, split_opening, without_none, wrap_system
from toolwire.backends.messages.decode import DIALECT
from toolwire.backends.messages.profile import Profile
from toolwire.backends.originals import Originals
from toolwire.core.events import Note
from toolwire.core.raw import Json, fields_of, object_in, objects_of, text_of, to_json
from toolwire.core.request import (
    NO_PARAMETERS,
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
    ToolsEntry,
)

_RESULT = msgspec.Raw(b'"tool_result"')
_ENABLED = msgspec.Raw(b'"enabled"')
_NONE = msgspec.Raw(b'"none"')

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}


def encode_request(request: Request, profile: Profile, *, stream: bool) -> tuple[bytes, list[Note]]:
    """The body to post, and notes about what it lacks."""
    notes: list[Note] = []
    build = _encode_original if request.dialect == DIALECT else _encode_foreign
    body = build(request, profile, notes)
    body |= {"model": request.model, "stream": stream}
    refused = [name for name in profile.refuses if _remove_field(body, name)]
    notes += [Note("field_dropped", name) for name in refused]
    return to_json(without_none(**body)), notes


def _encode_original(request: Request, profile: Profile, notes: list[Note]) -> Json:
    """The body of a client of the same dialect: its fields, with only the necessary changes to messages."""
    body: Json = {"max_tokens": profile.max_tokens, **request.fields}
    if request.tools_changed:
        body["tools"] = _encode_tools(request.tools, request)
    if not request.history_unchanged or any(map(is_refused, request.entries)):
        originals = Originals(request, request.fields["messages"])
        body["messages"] = Fold(notes, profile, originals).fold(request)
        if any(map(is_foreign, request.entries)) and object_in(body, "thinking").get("type") == _ENABLED:
            body["thinking"] = {"type": "disabled"}  # it would require the thinking blocks that were dropped
            notes.append(Note("field_dropped", "thinking"))
    if request.parallel_calls is not None and request.tools:
        choice = object_in(body, "tool_choice") or {"type": msgspec.Raw(b'"auto"')}
        if choice.get("type") != _NONE:
            body["tool_choice"] = {**choice, "disable_parallel_tool_use": not request.parallel_calls}
    return body


def _encode_foreign(request: Request, profile: Profile, notes: list[Note]) -> Json:
    fold = Fold(notes, profile)
    messages = fold.fold(request)
    sampling = request.sampling
    body: Json = {
        "max_tokens": sampling.max_tokens or profile.max_tokens,
        "system": fold.fold_system(request) or None,
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


def _remove_field(body: Json, name: str) -> bool:
    """Remove a field, or, as `tools.name`, a field of every tool. Returns whether it was there."""
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


def is_foreign(entry: Entry) -> bool:
    """Whether this is reasoning of another server, or of unknown origin."""
    return isinstance(entry, ReasoningEntry) and (
        entry.origin != DIALECT or not (entry.signature or entry.from_this_backend)
    )


def is_refused(entry: Entry) -> bool:
    """Whether the API refuses an entry: reasoning of another origin, or a blank text."""
    if isinstance(entry, Message):
        return any(isinstance(part, TextPart) and not part.text.strip() for part in entry.parts)
    return is_foreign(entry)


class Fold:
    """Folds a flat history into alternating messages; those of a client of the same dialect stay as they are."""

    def __init__(self, notes: list[Note], profile: Profile, originals: Originals | None = None) -> None:
        self._notes = notes
        self._profile = profile
        self._originals = originals
        self._system: list[TextPart] = []
        self._out: list[Json] = []

    def fold_system(self, request: Request) -> str | list[Json]:
        """The instructions: one text, or blocks if one of them has a cache marker."""
        format = request.output_format
        texts = [TextPart(request.instructions), *self._system]
        if format is not None and format.schema is None:
            texts.append(TextPart("Answer with one JSON object and nothing else."))
        if any(part.cache for part in texts):
            return [_encode_text(part) for part in texts if part.text]
        return "\n\n".join(part.text for part in texts if part.text)

    def fold(self, request: Request) -> list[Json]:
        """The messages of a request."""
        if self._originals is not None:
            return self._merge(request, self._originals)
        opening, rest = split_opening(request.entries, "system", "developer")
        self._system = [self._join_texts(entry.parts) for entry in opening]
        for entry in rest:
            self._add(entry)
        if request.entries:
            self._ensure_user_first()
        for message in self._out:
            _put_results_first(message)
        return self._out

    def _merge(self, request: Request, originals: Originals) -> list[Json]:
        """The client's messages; those in which something must change are rebuilt."""
        out: list[Json] = []
        joined: dict[int, Json] = {}  # messages joined from several
        whole = False  # the last message is an original
        for index, group in groupby(request.entries, lambda entry: entry.message):
            entries = [*group]
            out += originals.take_unread(index) if index >= 0 else ()
            is_whole = originals.are_whole(entries) and not any(map(is_refused, entries))
            if is_whole:
                made = [originals.messages[index]]
            else:
                for entry in entries:
                    self._add(entry)
                made, self._out = self._out, []
                if index >= 0 and len(made) == 1:
                    made = [{**originals.messages[index], "content": made[0]["content"]}]
                for message in made:
                    _put_results_first(message)
            for message in made:
                # All results belong in one message, before anything else.
                if out and _role_of(message) == _role_of(out[-1]) == "user" and not (whole and is_whole):
                    if len(out) not in joined:
                        joined[len(out)] = out[-1] = {**out[-1], "content": [*_content_of(out[-1])]}
                    out[-1]["content"] += _content_of(message)
                    whole = False
                    continue
                out.append(message)
                whole = is_whole
        for message in joined.values():
            _put_results_first(message)
        if not out:
            self._ensure_user_first()
        return [*(out or self._out), *originals.take_unread()]

    def _ensure_user_first(self) -> None:
        """Add a user message if needed: the API refuses conversations that are empty or begin with the assistant."""
        if not self._out and self._system:
            self._add_blocks("user", [_encode_text(self._system.pop())])
        elif not self._out or self._out[0]["role"] == "assistant":
            self._out.insert(0, {"role": "user", "content": [{"type": "text", "text": OPENING}]})
            self._notes.append(Note("message_added", "user"))

    def _add(self, entry: Entry) -> None:
        if self._originals is not None and entry.raw is not None and not is_refused(entry):
            self._add_original(entry, entry.raw, is_changed=not self._originals.is_unchanged(entry))
            return
        match entry:
            case Message(role="assistant"):
                text = self._join_texts(entry.parts)
                self._add_blocks("assistant", [_encode_text(text)] if text.text.strip() else [])
            case Message(role="user"):
                self._add_blocks("user", [block for part in entry.parts if (block := self._encode_part(part))])
            case Message():
                # An instruction in the middle of the conversation, for which not every model has a role.
                if text := self._join_texts(entry.parts).text:
                    self._add_blocks("user", [{"type": "text", "text": wrap_system(text)}])
            case CallEntry():
                arguments = encode_arguments(entry, self._notes)
                block = {"type": "tool_use", "id": entry.id, "name": entry.name, "input": arguments}
                self._add_blocks("assistant", [block])
            case ResultEntry():
                self._add_blocks("user", [self._encode_result(entry)])
            case ReasoningEntry() if is_foreign(entry):
                is_empty = not (entry.signature or entry.summary or entry.content)
                self._notes += [] if is_empty else [Note("reasoning_dropped", entry.id)]
            case ReasoningEntry(signature=signature):
                thinking = "".join(entry.summary + entry.content)
                shown = {"type": "thinking", "thinking": thinking, "signature": signature}
                self._add_blocks(
                    "assistant", [{"type": "redacted_thinking", "data": signature} if entry.redacted else shown]
                )
            case OtherEntry():
                self._notes.append(Note("item_dropped", entry.type))
            case ToolsEntry():
                pass  # declared with the others

    def _add_original(self, entry: Entry, raw: msgspec.Raw, *, is_changed: bool) -> None:
        """Add an entry as the client wrote it, except for changed ids and names."""
        match entry:
            case Message(role="system" | "developer"):
                self._out.append({"role": "system", "content": raw})
            case Message(role, parts):
                written = objects_of(raw) if bytes(raw).startswith(b"[") else [_encode_text(self._join_texts(parts))]
                self._add_blocks(role, [*written])
            case ResultEntry(call_id):
                changed = {"tool_use_id": call_id} if is_changed else {}
                self._add_blocks("user", [{**fields_of(raw), **changed}])
            case CallEntry(id, name):
                changed = {"id": id, "name": name} if is_changed else {}
                self._add_blocks("assistant", [{**fields_of(raw), **changed}])
            case _:
                self._add_blocks("assistant", [fields_of(raw)])

    def _add_blocks(self, role: str, blocks: list[Any]) -> None:
        if not blocks:
            return
        if self._out and self._out[-1]["role"] == role:
            self._out[-1]["content"] += blocks
        else:
            self._out.append({"role": role, "content": blocks})

    def _encode_result(self, entry: ResultEntry) -> Json:
        content = [block for part in entry.parts if (block := self._encode_part(part))]
        if not content and self._profile.empty_result:
            content = [{"type": "text", "text": self._profile.empty_result}]
        result: Json = {"type": "tool_result", "tool_use_id": entry.call_id, "content": content}
        marks = [block.pop("cache_control") for block in content if "cache_control" in block]
        if marks:  # the block of the result is what the API caches
            result["cache_control"] = marks[-1]
        if len(content) == 1 and content[0]["type"] == "text":
            result["content"] = content[0]["text"]
        return {**result, "is_error": True} if entry.failed else result

    def _join_texts(self, parts: tuple[Part, ...]) -> TextPart:
        """The texts of these parts as one, with their last cache marker; other parts are dropped with a note."""
        self._notes += [note_dropped_part(part) for part in parts if not isinstance(part, TextPart | RefusalPart)]
        markers = (part.cache for part in reversed(parts) if isinstance(part, TextPart) and part.cache)
        text = "".join(part.text for part in parts if isinstance(part, TextPart | RefusalPart))
        return TextPart(text, next(markers, None))

    def _encode_part(self, part: Part) -> Json | None:
        match part:
            case TextPart(text) | RefusalPart(text):
                return _encode_text(part) if text.strip() else None
            case ImagePart(url, _, id):
                return {"type": "image", "source": _encode_source(url) if url else {"type": "file", "file_id": id}}
            case FilePart(data, id, name, url):
                source = _encode_source(data or url) if data or url else {"type": "file", "file_id": id}
                titled = {"title": name} if name else {}
                return {"type": "document", "source": source, **titled}
            case _:
                self._notes.append(note_dropped_part(part))
                return None


def _role_of(message: Json) -> str:
    role = message["role"]
    return text_of(role) if isinstance(role, msgspec.Raw) else role


def _content_of(message: Json) -> list[Any]:
    """The blocks of a message, which may be raw JSON of the client."""
    content = message["content"]
    if not isinstance(content, msgspec.Raw):
        return content
    return [*objects_of(content)] if bytes(content).startswith(b"[") else [_encode_text(TextPart(text_of(content)))]


def _put_results_first(message: Json) -> None:
    """Sort results before all other blocks, as the API requires."""
    if _role_of(message) == "user":
        blocks: list[Json] = message["content"]
        blocks.sort(key=lambda block: block["type"] not in ("tool_result", _RESULT))


def _encode_text(part: TextPart | RefusalPart) -> Json:
    block: Json = {"type": "text", "text": part.text}
    return {**block, "cache_control": part.cache} if isinstance(part, TextPart) and part.cache else block


def _encode_source(url: str) -> dict[str, str]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    kind, comma, data = url.removeprefix("data:").partition(",")
    kind, coded, _ = kind.partition(";base64")
    if comma and not coded:
        data = b64encode(unquote_to_bytes(data)).decode()
    return {"type": "base64", "media_type": kind.partition(";")[0], "data": data}
