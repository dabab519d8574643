"""Encodes a request for the Chat Completions API. The JSON of a client of the same dialect is kept where possible.

The flat history is folded into messages. Parallel calls are in one assistant message, directly followed by their
results, and anything between them comes after. A changed message of a client of the same dialect keeps all fields that
need no change.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from typing import Any

import msgspec

from toolwire.adapt.history import OPENING
from toolwire.backends.chat.profile import Profile
from toolwire.backends.chat.reasoning import DETAILS, FIELDS, TEXTS
from toolwire.backends.encoding import note_dropped_part, split_opening, without_none, wrap_system
from toolwire.backends.originals import Originals, change_fields
from toolwire.core.events import Note
from toolwire.core.raw import NULL, Fields, Json, fields_of, list_of, objects_of, text_of, to_json, to_raw
from toolwire.core.request import (
    NO_PARAMETERS,
    AudioPart,
    CallEntry,
    Entry,
    FilePart,
    ImagePart,
    Message,
    OtherEntry,
    OtherPart,
    OutputFormat,
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
from toolwire.core.signatures import UNKNOWN_THOUGHT_SIGNATURE
from toolwire.core.text import hash_long_user_id, is_blank

DIALECT = "chat"
"""The dialect of this backend's protocol, and the origin of its reasoning."""

_WRITTEN_FIELDS = frozenset(("role", "content", "refusal", "tool_calls", "function_call", "tool_call_id", *FIELDS))
"""Fields of a message that are rewritten when it changes; all others stay as they are."""
_CALL_FIELDS = frozenset(("id", "type", "function", "custom", "name", "arguments", "extra_content"))
_FLAT = frozenset(("type", "function", "custom", "name", "description", "parameters", "strict", "format"))
"""The fields of a flat declaration that a nested one replaces."""
_FUNCTION = msgspec.Raw(b'"function"')
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
        and "reasoning" not in request.without
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
        body["messages"] = Fold(profile, notes, originals).fold(request)
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
    """The request with all opening instructions in one message, and later ones as user text."""
    opening, rest = split_opening(request.entries, "system", "developer")
    entries, instructions = [*opening, *rest], request.instructions
    for index, entry in enumerate(rest, len(opening)):
        if isinstance(entry, Message) and entry.role in ("system", "developer"):
            text = TextPart(wrap_system(_join_texts(entry)))
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


def is_acceptable(entry: Entry, profile: Profile) -> bool:
    """Whether the server accepts an entry as its client wrote it."""
    match entry:
        case Message(role):
            return role != "developer" or profile.developer
        case CallEntry():
            is_signed = bool(entry.signature) or not profile.thought_signatures
            return is_signed and not is_blank(entry.arguments) and profile.content_beside_calls == "null"
        case ResultEntry():
            known = [part for part in entry.parts if not isinstance(part, OtherPart)]
            return len(known) == 1 and isinstance(known[0], TextPart) and bool(known[0].text)
        case ReasoningEntry():
            return not profile.reasoning
        case _:
            return False


class Fold:
    """Folds a flat history into messages."""

    def __init__(self, profile: Profile, notes: list[Note], originals: Originals | None = None) -> None:
        self._profile = profile
        self._notes = notes
        self._originals = originals
        self._out: list[Json] = []
        self._assistant: Json | None = None  # the open assistant message
        self._texts: dict[str, StringIO] = {}  # its text fields, which may still grow
        self._rewritten: set[str] = set()  # the ids of calls that were not sent as the client wrote them
        self._is_unsigned = False  # the server has refused the signatures of calls
        self._attachments: list[Json] = []  # parts of results other than text, for a message after them

    def fold(self, request: Request) -> list[Json]:
        """The messages of a request."""
        self._is_unsigned = self._profile.thought_signatures and "reasoning" in request.without
        if request.instructions:
            self._out.append({"role": "system", "content": request.instructions})
        for index, entries in groupby(request.entries, lambda entry: entry.message):
            if self._originals is not None and index >= 0:
                self._add_message([*entries], self._originals, index)
            else:
                for entry in entries:
                    self._add(entry)
        self._flush_attachments()
        self._close_message()
        if self._originals is not None:
            self._out += self._originals.take_unread()
        return self._out

    def _add_message(self, entries: list[Entry], originals: Originals, index: int) -> None:
        """Add the entries of one message of the client: the original message, or a changed one."""
        if not isinstance(entries[0], ResultEntry):
            self._flush_attachments()
        self._close_message()
        self._out += originals.take_unread(index)
        # A `function` message may answer only a `function_call` that was not rewritten.
        answers = originals.messages[index].get("role") == _FUNCTION and not self._rewritten.isdisjoint(
            entry.call_id for entry in entries if isinstance(entry, ResultEntry)
        )
        is_accepted = not answers and all(is_acceptable(entry, self._profile) for entry in entries)
        if is_accepted and not self._is_unsigned and originals.are_whole(entries):
            self._out.append(originals.messages[index])
            return
        start = len(self._out)
        for entry in entries:
            self._add(entry)
        self._close_message()
        if len(self._out) > start:
            self._out[start] = self._merge(originals, index, self._out[start], entries)

    def _merge(self, originals: Originals, index: int, message: Json, entries: Sequence[Entry]) -> Json:
        """A rewritten message, with the original's fields where they need no change."""
        original = originals.messages[index]
        if "tool_calls" in message:
            calls = [entry for entry in entries if isinstance(entry, CallEntry)]
            accepted = [not self._is_unsigned and is_acceptable(call, self._profile) for call in calls]
            unchanged = [originals.is_unchanged(call) and each for call, each in zip(calls, accepted, strict=True)]
            message["tool_calls"] = _merge_calls(original, message["tool_calls"], unchanged)
        with_content = [entry for entry in entries if isinstance(entry, Message | ResultEntry)]
        if with_content:
            is_accepted = all(isinstance(each, Message) or is_acceptable(each, self._profile) for each in with_content)
        else:
            is_accepted = self._profile.content_beside_calls == "null" or "tool_calls" not in original
        if is_accepted and all(map(originals.has_unchanged_parts, with_content)):
            message.pop("content", None)
            message |= {"content": original["content"]} if "content" in original else {}
        elif any(isinstance(part, TextPart) and part.cache for entry in with_content for part in entry.parts):
            self._notes.append(Note("field_dropped", "cache_control"))
        ordered = {
            name: message.get(name, original[name])
            for name in original
            if name in message or name not in _WRITTEN_FIELDS
        }
        return {**ordered, **message}

    def _add(self, entry: Entry) -> None:
        match entry:
            case CallEntry():
                self._add_call(entry)
            case ResultEntry():
                self._add_result(entry)
            case Message(role="assistant"):
                self._flush_attachments()
                self._add_text(entry)
            case Message():
                self._flush_attachments()
                self._close_message()
                role = "system" if entry.role == "developer" and not self._profile.developer else entry.role
                named = {"name": entry.name} if entry.name else {}
                content: Any = "".join(part.text for part in entry.parts if isinstance(part, TextPart))
                if not all(isinstance(part, TextPart) for part in entry.parts):
                    content = [written for part in entry.parts if (written := self._encode_part(part))]
                if content:
                    self._out.append({"role": role, "content": content, **named})
            case ReasoningEntry():
                self._add_reasoning(entry)
            case OtherEntry():
                self._notes.append(Note("item_dropped", entry.type))
            case ToolsEntry():
                pass  # declared with the others

    def _add_call(self, entry: CallEntry) -> None:
        self._flush_attachments()
        self._rewritten.add(entry.id)
        if entry.kind == "custom":
            call: Json = {"type": "custom", "custom": {"name": entry.name, "input": entry.arguments}}
        else:
            arguments = "{}" if is_blank(entry.arguments) else entry.arguments
            call = {"type": "function", "function": {"name": entry.name, "arguments": arguments}}
        calls = self._open_message().setdefault("tool_calls", [])
        if entry.signature and not self._is_unsigned:
            call["extra_content"] = msgspec.Raw(entry.signature.encode())
        elif self._profile.thought_signatures and not calls:
            self._notes.append(Note("signature_missing", entry.id))
            call["extra_content"] = {"google": {"thought_signature": UNKNOWN_THOUGHT_SIGNATURE}}
        calls.append({"id": entry.id, **call})

    def _open_message(self) -> Json:
        if self._assistant is None:
            self._assistant = {"role": "assistant"}
        return self._assistant

    def _close_message(self) -> None:
        message, self._assistant = self._assistant, None
        if message is None:
            return
        message |= {name: text.getvalue() for name, text in self._texts.items()}
        self._texts = {}
        if "tool_calls" in message and not message.get("content"):
            message.pop("content", None)
        if "content" not in message and "refusal" not in message:
            if "tool_calls" not in message:
                return  # reasoning alone is not a message
            if self._profile.content_beside_calls != "omit":
                message["content"] = None if self._profile.content_beside_calls == "null" else ""
        self._out.append(message)

    def _add_text(self, entry: Message) -> None:
        """Add text of the assistant. Text after its calls moves before them."""
        for name, kind in (("content", TextPart), ("refusal", RefusalPart)):
            if text := "".join(part.text for part in entry.parts if isinstance(part, kind)):
                self._buffer_of(self._open_message(), name).write(text)
        self._notes += [note_dropped_part(part) for part in entry.parts if not isinstance(part, TextPart | RefusalPart)]

    def _buffer_of(self, message: Json, name: str) -> StringIO:
        """The buffer of a text field of the open message. Its first use fixes the field's position."""
        message.setdefault(name, "")
        return self._texts.setdefault(name, StringIO())

    def _add_reasoning(self, entry: ReasoningEntry) -> None:
        is_own = entry.origin == DIALECT
        # Reasoning without an id may be its own, too. A server with a configured field gets all reasoning.
        may_be_own = is_own or not entry.id or bool(self._profile.reasoning)
        is_returnable = is_own if entry.signature else bool(entry.text) and may_be_own
        if self._profile.reasoning == "drop" or not is_returnable:
            if entry.text or entry.signature:
                self._notes.append(Note("reasoning_dropped", entry.id))
            return
        shown = to_raw("\n\n".join(entry.content or entry.summary))
        fields = fields_of(entry.signature) if entry.signature else {TEXTS[0]: shown}
        self._flush_attachments()
        message = self._open_message()
        for name, value in fields.items():
            if name == DETAILS and bytes(value).startswith(b"["):
                if not isinstance(message.get(name), list):
                    message[name] = []
                message[name] += list_of(value)
            elif name in TEXTS and bytes(value).startswith(b'"'):
                text, more = self._buffer_of(message, self._profile.reasoning or name), text_of(value)
                if text.tell() != len(more) or text.getvalue() != more:  # both fields may hold the same text
                    text.write(("\n\n" if text.tell() else "") + more)
            else:
                message[name] = value

    def _add_result(self, entry: ResultEntry) -> None:
        self._close_message()
        texts = [part.text for part in entry.parts_with_error if isinstance(part, TextPart)]
        others = [part for part in entry.parts_with_error if not isinstance(part, TextPart)]
        shown = [written for part in others if (written := self._encode_part(part))]
        if shown:
            texts.append(f"(The result of {entry.call_id} is shown in the next message.)")
            self._attachments += [{"type": "text", "text": f"The result of {entry.call_id}:"}, *shown]
        text = "\n".join(texts) or self._profile.empty_result
        self._out.append({"role": "tool", "tool_call_id": entry.call_id, "content": text})

    def _flush_attachments(self) -> None:
        """Write images and files of results in a user message after them, because tool messages hold only text."""
        attachments, self._attachments = self._attachments, []
        if attachments:
            self._out.append({"role": "user", "content": attachments})

    def _encode_part(self, part: Part) -> Json | None:
        match part:
            case TextPart(text) | RefusalPart(text):
                return {"type": "text", "text": text}
            case ImagePart(url, detail) if url:
                return {"type": "image_url", "image_url": {"url": url, "detail": detail or "auto"}}
            case FilePart(data, id, name) if data or id:
                named = {"file_id": id, "file_data": data, "filename": name}
                return {"type": "file", "file": {key: value for key, value in named.items() if value}}
            case AudioPart(data, format):
                return {"type": "input_audio", "input_audio": {"data": data, "format": format}}
            case _:
                self._notes.append(note_dropped_part(part))
                return None


def _merge_calls(original: Fields, calls: list[Json], unchanged: list[bool]) -> list[Any]:
    """The calls of a message, each merged with the client's original."""
    raws = objects_of(original["tool_calls"]) if bytes(original.get("tool_calls", b"")).startswith(b"[") else []
    if len(raws) != len(calls):
        return calls
    merged: list[Any] = []
    for raw, call, is_same in zip(raws, calls, unchanged, strict=True):
        kind = call["type"]
        inner = _read_object(raw, kind)
        arguments = bytes(_read_object(raw, "function").get("arguments", b'""')).decode()
        if is_same and not ("function" in raw and is_blank(arguments.strip('"'))):  # servers refuse blank arguments
            merged.append(raw)
        else:
            kept = {name: value for name, value in raw.items() if name not in _CALL_FIELDS}
            merged.append({**kept, **call, kind: {**inner, **call[kind]}})
    return merged


def _read_object(fields: Fields, name: str) -> Fields:
    return fields_of(fields[name]) if bytes(fields.get(name, b"")).startswith(b"{") else {}
