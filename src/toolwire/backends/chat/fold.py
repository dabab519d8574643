"""A flat history folded into the messages of the API.

The calls of one batch stand in one assistant message, their results follow at once, and what came between is put behind
them. Messages of a client that speaks the API too go on as they were written; of one that must change, only what must.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from toolwire.backends.chat.profile import Profile
from toolwire.backends.chat.reasoning import DETAILS, FIELDS, TEXTS
from toolwire.backends.written import Originals
from toolwire.core.events import Note
from toolwire.core.request import (
    AudioPart,
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
    ToolsEntry,
)
from toolwire.core.text import is_blank

DIALECT = "chat"
"""The dialect of clients that speak as this backend does, and the issuer of its reasoning."""

Fields = dict[str, msgspec.Raw]

_fields = msgspec.json.Decoder(Fields).decode
_objects = msgspec.json.Decoder(list[Fields]).decode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_string = msgspec.json.Decoder(str).decode

_OURS = frozenset(("role", "content", "refusal", "tool_calls", "function_call", "tool_call_id", *FIELDS))
"""Fields of a message that are written anew when it changes; all others stay as they are."""
_CALLS_OWN = frozenset(("id", "type", "function", "custom", "name", "arguments", "extra_content"))


def stands(entry: Entry, profile: Profile) -> bool:
    """Whether the server takes an entry as its client wrote it."""
    match entry:
        case Message(role):
            return role != "developer" or profile.developer
        case CallEntry():
            return not is_blank(entry.arguments) and profile.content_beside_calls == "null"
        case ResultEntry(_, (TextPart(text),)):
            return bool(text)
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
        self._out: list[dict[str, Any]] = []
        self._assistant: dict[str, Any] | None = None  # the open message of the model
        self._texts: dict[str, _Text] = {}  # those of its fields that are texts, which may go on
        self._seen: list[dict[str, Any]] = []  # what results show beside text, for a message behind them

    def messages(self, request: Request) -> list[dict[str, Any]]:
        if request.instructions:
            self._out.append({"role": "system", "content": request.instructions})
        for index, entries in groupby(request.entries, _message_of):
            if self._originals is not None and index >= 0:
                self._add_message([*entries], self._originals, index)
            else:
                for entry in entries:
                    self._add(entry)
        self._show()
        self._close()
        if self._originals is not None:
            self._out += self._originals.silent()
        return self._out

    def _add_message(self, entries: list[Entry], originals: Originals, index: int) -> None:
        """The entries of one message of the client: the message itself, or it with what must change."""
        if not isinstance(entries[0], ResultEntry):
            self._show()
        self._close()
        self._out += originals.silent(index)
        if originals.are_whole(entries) and all(stands(entry, self._profile) for entry in entries):
            self._out.append(originals.messages[index])
            return
        begun = len(self._out)
        for entry in entries:
            self._add(entry)
        self._close()
        if len(self._out) > begun:
            self._out[begun] = self._over(originals, index, self._out[begun], entries)

    def _over(
        self, originals: Originals, index: int, message: dict[str, Any], entries: Sequence[Entry]
    ) -> dict[str, Any]:
        """A message that was made anew, with all of the client's own that did not have to change."""
        original = originals.messages[index]
        if "tool_calls" in message:
            calls = [entry for entry in entries if isinstance(entry, CallEntry)]
            message["tool_calls"] = _calls_over(original, message["tool_calls"], [*map(originals.has, calls)])
        spoken = [entry for entry in entries if isinstance(entry, Message | ResultEntry)]
        if all(map(originals.says, spoken)) and self._may_keep_content(spoken, original):
            message.pop("content", None)
            message |= {"content": original["content"]} if "content" in original else {}
        elif any(isinstance(part, TextPart) and part.cache for entry in spoken for part in entry.parts):
            self._notes.append(Note("field_dropped", "cache_control"))
        ordered = {name: message.get(name, original[name]) for name in original if name in message or name not in _OURS}
        return {**ordered, **message}

    def _may_keep_content(self, spoken: Sequence[Message | ResultEntry], original: Fields) -> bool:
        if not spoken:
            return self._profile.content_beside_calls == "null" or "tool_calls" not in original
        return all(isinstance(entry, Message) or stands(entry, self._profile) for entry in spoken)

    def _add(self, entry: Entry) -> None:
        match entry:
            case CallEntry():
                self._show()
                self._call(entry)
            case ResultEntry():
                self._result(entry)
            case Message(role="assistant"):
                self._show()
                self._say(entry)
            case Message():
                self._show()
                self._close()
                self._out.append(self._message(entry))
            case ReasoningEntry():
                self._think(entry)
            case OtherEntry():
                self._notes.append(Note("item_dropped", entry.type))
            case ToolsEntry():
                pass  # declared with the others

    def _message(self, entry: Message) -> dict[str, Any]:
        role = "system" if entry.role == "developer" and not self._profile.developer else entry.role
        named = {"name": entry.name} if entry.name else {}
        return {"role": role, "content": self._content(entry.parts), **named}

    def _open(self) -> dict[str, Any]:
        if self._assistant is None:
            self._assistant = {"role": "assistant"}
        return self._assistant

    def _close(self) -> None:
        message, self._assistant = self._assistant, None
        if message is None:
            return
        message |= {name: text.whole() for name, text in self._texts.items()}
        self._texts = {}
        if "tool_calls" in message and not message.get("content"):
            message.pop("content", None)
        if "content" not in message and "refusal" not in message:
            if "tool_calls" not in message:
                return  # reasoning alone is no message
            if self._profile.content_beside_calls != "omit":
                message["content"] = None if self._profile.content_beside_calls == "null" else ""
        self._out.append(message)

    def _say(self, entry: Message) -> None:
        message = self._open()  # what is said behind the calls stands before them here
        text = "".join(part.text for part in entry.parts if isinstance(part, TextPart))
        refusal = "".join(part.text for part in entry.parts if isinstance(part, RefusalPart))
        if text or not refusal:
            self._text(message, "content").add(text)
        if refusal:
            self._text(message, "refusal").add(refusal)

    def _text(self, message: dict[str, Any], name: str) -> "_Text":
        """A field of the open message that is a text; it has its place there from now on."""
        message.setdefault(name, "")
        return self._texts.setdefault(name, _Text())

    def _call(self, entry: CallEntry) -> None:
        if entry.kind == "custom":
            written: dict[str, Any] = {"type": "custom", "custom": {"name": entry.name, "input": entry.arguments}}
        else:
            arguments = "{}" if is_blank(entry.arguments) else entry.arguments
            written = {"type": "function", "function": {"name": entry.name, "arguments": arguments}}
        if entry.seal:
            written["extra_content"] = msgspec.Raw(entry.seal.encode())
        self._open().setdefault("tool_calls", []).append({"id": entry.id, **written})

    def _think(self, entry: ReasoningEntry) -> None:
        if self._profile.reasoning == "drop" or not _may_return(entry, self._profile):
            if entry.text or entry.seal:
                self._notes.append(Note("reasoning_dropped", entry.id))
            return
        fields = _fields(entry.seal) if entry.seal else {TEXTS[0]: msgspec.Raw(msgspec.json.encode(_shown(entry)))}
        self._show()
        message = self._open()
        for name, value in fields.items():
            if name == DETAILS and bytes(value).startswith(b"["):
                if not isinstance(message.get(name), list):
                    message[name] = []
                message[name] += _raws(value)
            elif name in TEXTS and bytes(value).startswith(b'"'):
                text, told = self._text(message, self._profile.reasoning or name), _string(value)
                if not text.says(told):
                    text.add("\n\n" if text.length else "")
                    text.add(told)
            else:
                message[name] = value

    def _result(self, entry: ResultEntry) -> None:
        self._close()
        texts = [part.text for part in entry.told if isinstance(part, TextPart)]
        others = [part for part in entry.told if not isinstance(part, TextPart)]
        shown = [written for part in others if (written := self._part(part))]
        if shown:
            texts.append("\n" * bool(texts) + f"(The result of {entry.call_id} is shown in the next message.)")
            self._seen += [{"type": "text", "text": f"The result of {entry.call_id}:"}, *shown]
        text = "".join(texts) or self._profile.empty_result
        self._out.append({"role": "tool", "tool_call_id": entry.call_id, "content": text})

    def _show(self) -> None:
        """Chat tool messages are text only: what else results hold comes after all of them."""
        seen, self._seen = self._seen, []
        if seen:
            self._out.append({"role": "user", "content": seen})

    def _content(self, parts: tuple[Part, ...]) -> Any:
        if all(isinstance(part, TextPart) for part in parts):
            return "".join(part.text for part in parts if isinstance(part, TextPart))
        return [written for part in parts if (written := self._part(part))]

    def _part(self, part: Part) -> dict[str, Any] | None:
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
                self._notes.append(Note("part_dropped", type(part).__name__.removesuffix("Part").lower()))
                return None


class _Text:
    """A text that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.length = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)

    def says(self, text: str) -> bool:
        return self.length == len(text) and self.whole() == text

    def whole(self) -> str:
        return "".join(self._pieces)


def _message_of(entry: Entry) -> int:
    return entry.message


def _may_return(entry: ReasoningEntry, profile: Profile) -> bool:
    """Whether a chat server made it, as far as can be told; one that says where it wants reasoning gets all."""
    if entry.seal:
        return entry.issuer == DIALECT
    return bool(entry.text) and (entry.issuer == DIALECT or not entry.id or bool(profile.reasoning))


def _shown(entry: ReasoningEntry) -> str:
    return "\n\n".join(entry.content or entry.summary)


def _calls_over(original: Fields, calls: list[dict[str, Any]], unchanged: list[bool]) -> list[Any]:
    """The calls of a message, each over what the client wrote of it."""
    raws = _objects(original["tool_calls"]) if bytes(original.get("tool_calls", b"")).startswith(b"[") else []
    if len(raws) != len(calls):
        return calls
    return [
        raw if is_same and not _is_blank_call(raw) else _call_over(raw, call)
        for raw, call, is_same in zip(raws, calls, unchanged, strict=True)
    ]


def _call_over(raw: Fields, call: dict[str, Any]) -> dict[str, Any]:
    kind = call["type"]
    inner = {**_fields(raw[kind]), **call[kind]} if bytes(raw.get(kind, b"")).startswith(b"{") else call[kind]
    return {**{name: value for name, value in raw.items() if name not in _CALLS_OWN}, **call, kind: inner}


def _is_blank_call(raw: Fields) -> bool:
    """Whether a call has no arguments, which servers do not take."""
    inner = _fields(raw["function"]) if bytes(raw.get("function", b"")).startswith(b"{") else {}
    return "function" in raw and is_blank(bytes(inner.get("arguments", b'""')).decode().strip('"'))
