"""The reasoning of one answer in the fields in which its server wrote it and needs it back.

    {"reasoning_content": "…"}                                         DeepSeek, Kimi, GLM
    {"reasoning": "…"}                                                 vLLM, Ollama, Cerebras
    {"reasoning": "…", "reasoning_details": [{"type": …, "index": …}]}  OpenRouter

In a stream the items of `reasoning_details` come in fragments: those with the same type and index are one item.
"""

import msgspec

from toolwire.backends.chat.wire import ReplyMessage
from toolwire.core.raw import NULL, Fields, Json, fields_of, list_of, text_of, to_json

TEXTS = ("reasoning_content", "reasoning")
"""The fields that hold the text."""
DETAILS = "reasoning_details"
FIELDS = (*TEXTS, DETAILS)
MAX_REASONING_CHARS = 8 * 1024 * 1024
"""Longer reasoning is not kept for the next request."""

_GROWING = ("text", "summary", "data")


class ReasoningFields:
    """Collects the reasoning of one answer, streamed or plain."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._details: list[_Item | msgspec.Raw] = []
        self._growing: dict[tuple[bytes, bytes], _Item] = {}  # by type and index
        self._size = 0
        self._json: str | None = ""  # None: not encoded yet

    def add(self, message: ReplyMessage) -> None:
        """Take in a delta or a whole message."""
        for field, text in zip(TEXTS, (message.reasoning_content, message.reasoning), strict=True):
            if text is not None:
                self._json = None
                self._size += len(text)
                if self._size <= MAX_REASONING_CHARS:
                    self._texts.setdefault(field, []).append(text)
        details = message.reasoning_details
        if details is not msgspec.UNSET and bytes(details).startswith(b"["):
            self._json = None
            self._size += len(bytes(details))
            for raw in list_of(details) if self._size <= MAX_REASONING_CHARS else ():
                piece = fields_of(raw) if bytes(raw).startswith(b"{") else None
                if piece is None:
                    self._details.append(raw)
                    continue
                key = (bytes(piece.get("type", NULL)), bytes(piece.get("index", NULL)))
                item = self._growing.get(key)
                if item is not None and key[1] != b"null" and item.matches(piece.get("id", NULL)):
                    item.add(piece)
                else:
                    item = self._growing[key] = _Item(piece)
                    self._details.append(item)

    def encode(self) -> str:
        """The fields as a JSON object; the empty string if there are none or they are too large."""
        if self._json is None:
            fields: Json = {field: "".join(texts) for field, texts in self._texts.items()}
            if self._details:
                fields[DETAILS] = [item.merge() if isinstance(item, _Item) else item for item in self._details]
            self._json = to_json(fields).decode() if fields and self._size <= MAX_REASONING_CHARS else ""
        return self._json


class _Item:
    """One item of `reasoning_details`, whose text may come in fragments."""

    def __init__(self, fields: Fields) -> None:
        self._fields: Fields = {}
        self._pieces: dict[str, list[str]] = {}
        self.add(fields)

    def matches(self, id: msgspec.Raw) -> bool:
        return self._fields.get("id", NULL) in (NULL, id) or id == NULL

    def add(self, piece: Fields) -> None:
        for name, value in piece.items():
            if value != NULL or name not in self._fields:
                self._fields[name] = value
            if name in _GROWING and bytes(value).startswith(b'"'):
                self._pieces.setdefault(name, []).append(text_of(value))

    def merge(self) -> Json:
        grown = {name: "".join(pieces) for name, pieces in self._pieces.items() if len(pieces) > 1}
        return {**self._fields, **grown}
