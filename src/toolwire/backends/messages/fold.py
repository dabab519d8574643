"""A flat history folded into the messages of the API, which alternate.

All results of a batch of calls stand in one user message, before any text of it; thoughts, text and calls of one answer
stand in one assistant message, in their order.
"""

from base64 import b64encode
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from toolwire.backends.messages.decode import ISSUER
from toolwire.backends.messages.profile import Profile
from toolwire.core.events import Note
from toolwire.core.history import OPENING
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
    ToolsEntry,
)
from toolwire.core.text import as_object, wrapped

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_RESULT = msgspec.Raw(b'"tool_result"')


def is_foreign(entry: Entry) -> bool:
    """A thought that the server has not sealed."""
    return isinstance(entry, ReasoningEntry) and (entry.issuer != ISSUER or not entry.seal)


def cannot_stand(entry: Entry) -> bool:
    """What the API refuses: a thought that is not its own, or a text that says nothing."""
    if isinstance(entry, Message):
        return any(isinstance(part, TextPart) and not part.text.strip() for part in entry.parts)
    return is_foreign(entry)


class Fold:
    """Folds a flat history into messages that alternate. In the same dialect what was not changed stays as written."""

    def __init__(self, notes: list[Note], profile: Profile, *, same_dialect: bool = False) -> None:
        self._notes = notes
        self._profile = profile
        self._same_dialect = same_dialect
        self._system: list[TextPart] = []
        self._out: list[dict[str, Any]] = []

    def system(self, request: Request) -> str | list[dict[str, Any]]:
        """The instructions: one text, or blocks if the client has marked one of them for the cache."""
        asked = request.output_format
        texts = [TextPart(request.instructions), *self._system]
        if asked is not None and asked.schema is None:
            texts.append(TextPart("Answer with one JSON object and nothing else."))
        if any(part.cache for part in texts):
            return [_text_block(part) for part in texts if part.text]
        return "\n\n".join(part.text for part in texts if part.text)

    def messages(self, request: Request) -> list[dict[str, Any]]:
        opening = not self._same_dialect
        for entry in request.entries:
            if opening and isinstance(entry, Message) and entry.role in ("system", "developer"):
                self._system.append(TextPart(_text(entry.parts), _cache(entry.parts)))
                continue
            opening = False
            self._add(entry)
        if request.entries:
            self._begin_with_the_user()
        for message in self._out:
            if message["role"] == "user":  # results first: the API insists
                message["content"].sort(key=_after_results)
        return self._out

    def _begin_with_the_user(self) -> None:
        """The API takes no conversation that is empty, or that the model begins."""
        if not self._out and self._system:
            self._blocks("user", [_text_block(self._system.pop())])
        elif not self._out or (self._out[0]["role"] == "assistant" and not self._same_dialect):
            self._out.insert(0, {"role": "user", "content": [{"type": "text", "text": OPENING}]})
            self._notes.append(Note("message_added", "user"))

    def _add(self, entry: Entry) -> None:
        if self._same_dialect and entry.raw is not None and not cannot_stand(entry):
            self._add_as_written(entry)
            return
        match entry:
            case Message(role="assistant"):
                text = TextPart(_text(entry.parts), _cache(entry.parts))
                self._blocks("assistant", [_text_block(text)] if text.text.strip() else [])
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
            case ToolsEntry():
                pass  # declared with the others

    def _add_as_written(self, entry: Entry) -> None:
        raw = bytes(entry.raw or b"[]")
        match entry:
            case Message(role="system" | "developer"):
                self._out.append({"role": "system", "content": entry.raw})
            case Message(role, parts):
                written = _list(raw) if raw.startswith(b"[") else [_text_block(TextPart(_text(parts)))]
                self._blocks(role, [*written])
            case ResultEntry():
                self._blocks("user", [_fields(raw)])
            case _:
                self._blocks("assistant", [_fields(raw)])

    def _blocks(self, role: str, blocks: list[Any]) -> None:
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
        if not content and self._profile.empty_result:
            content = [{"type": "text", "text": self._profile.empty_result}]
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": entry.call_id, "content": content}
        marks = [block.pop("cache_control") for block in content if "cache_control" in block]
        if marks:  # the block of the result is what the API caches
            result["cache_control"] = marks[-1]
        if len(content) == 1 and content[0]["type"] == "text":
            result["content"] = content[0]["text"]
        return {**result, "is_error": True} if entry.failed else result

    def _thought(self, entry: ReasoningEntry) -> list[dict[str, Any]]:
        if is_foreign(entry):
            if entry.seal or entry.summary or entry.content:
                self._notes.append(Note("reasoning_dropped", entry.id))
            return []
        if entry.redacted:
            return [{"type": "redacted_thinking", "data": entry.seal}]
        return [{"type": "thinking", "thinking": "".join(entry.summary + entry.content), "signature": entry.seal}]

    def _part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextPart(text) | RefusalPart(text):
                return _text_block(part) if text.strip() else None
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
    return block["type"] not in ("tool_result", _RESULT)


def _text_block(part: TextPart | RefusalPart) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": part.text}
    return {**block, "cache_control": part.cache} if isinstance(part, TextPart) and part.cache else block


def _cache(parts: tuple[Part, ...]) -> msgspec.Raw | None:
    """The last of the marks on these parts, which become one."""
    return next((part.cache for part in reversed(parts) if isinstance(part, TextPart) and part.cache), None)


def _source(url: str) -> dict[str, str]:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    kind, comma, data = url.removeprefix("data:").partition(",")
    kind, coded, _ = kind.partition(";base64")
    if comma and not coded:
        data = b64encode(unquote_to_bytes(data)).decode()
    return {"type": "base64", "media_type": kind.partition(";")[0], "data": data}


def _text(parts: tuple[Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart | RefusalPart))
