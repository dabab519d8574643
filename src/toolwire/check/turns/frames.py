r"""The bytes of a stream as frames, read as strictly as the strictest client does.

event: message_start\n
data: {"type":"message_start",…}\n
\n
"""

import re
from contextlib import suppress
from typing import Any

import msgspec

from toolwire.check.turns.loose import as_object
from toolwire.check.turns.rule import Finding, Rule

RULES = (
    Rule(
        "sse.content-type",
        "MUST",
        "A stream has the content type `text/event-stream`.",
        "WHATWG server-sent events",
        "Browsers and several SDKs refuse to read it, or read it as one JSON document.",
    ),
    Rule(
        "sse.utf8",
        "MUST",
        "A stream is UTF-8.",
        "WHATWG server-sent events",
        "Letters of other scripts arrive as replacement characters, inside of arguments too.",
    ),
    Rule(
        "sse.field",
        "MUST",
        "Every line is a field (`data`, `event`, `id`, `retry`) or a comment.",
        "WHATWG server-sent events",
        "Readers drop any other line without a word, such as an error that is written as bare JSON.",
    ),
    Rule(
        "sse.json",
        "MUST",
        "The data of every event is one JSON object, or `[DONE]`.",
        "the OpenAI and Anthropic SDKs, which parse every event",
        "The SDK raises in the middle of a turn.",
    ),
    Rule(
        "sse.ended",
        "MUST",
        "The last event is ended by a blank line.",
        "WHATWG server-sent events",
        "Readers drop an event that is not ended: mostly the one that says how the turn ended.",
    ),
    Rule(
        "sse.one-line",
        "SHOULD",
        "The data of an event is one line.",
        "clients that read line by line",
        "They take the pieces for events of their own.",
    ),
    Rule(
        "sse.space",
        "SHOULD",
        "A space follows the colon of a field.",
        "clients that look for `data: `",
        "They see no event at all.",
    ),
    Rule(
        "sse.newline",
        "SHOULD",
        "Lines end with a line feed alone.",
        "clients that split at two line feeds",
        "They see one event that never ends.",
    ),
    Rule(
        "sse.empty-event",
        "SHOULD",
        "A comment is followed by an event, not by a blank line of its own.",
        "clients that split at blank lines",
        "They take the comment for an event without data and stop or raise.",
    ),
)

DONE = "[DONE]"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELDS = ("data", "event", "id", "retry")


class Heard(msgspec.Struct, frozen=True):
    """One event of a stream as it came."""

    place: int
    at: float
    """Seconds since the request."""
    event: str | None
    data: str
    value: Any = None
    """The data as JSON; None if it is none."""
    raw: bytes = b""

    @property
    def is_done(self) -> bool:
        return self.data == DONE

    @property
    def fields(self) -> dict[str, Any]:
        """The data, if it is an object, or nothing."""
        return as_object(self.value)


class FrameCheck:
    """A stage from bytes in any chunking to frames. What is wrong with them is kept in `findings`."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._rest = b""
        self._lines: list[bytes] = []
        self._raw: list[bytes] = []
        self._place = 0
        self._complained: set[str] = set()

    def feed(self, data: bytes, at: float = 0.0) -> list[Heard]:
        out: list[Heard] = []
        self._rest += data
        start = 0
        for end in _LINE_END.finditer(self._rest):
            if end.group() == b"\r" and end.end() == len(self._rest):
                break  # a line feed may follow
            if end.group() != b"\n":
                self._complain("sse.newline", "A line ends with a carriage return.")
            line = self._rest[start : end.start()]
            self._raw.append(self._rest[start : end.end()])
            start = end.end()
            if line:
                self._lines.append(line)
            else:
                out += self._ended(at)
        self._rest = self._rest[start:]
        return out

    def end(self, at: float = 0.0) -> list[Heard]:
        """The stream is over. An event that was not ended is no event, as for a browser."""
        lines = [*self._lines, *([self._rest] if self._rest.strip() else [])]
        if any(line.startswith(b"data") for line in lines):
            self.findings.append(Finding("sse.ended", f"The stream ends with {_shown(lines[-1])}.", (self._place - 1,)))
        elif lines:
            self._fields(lines)
        return []

    def _ended(self, at: float) -> list[Heard]:
        lines, self._lines = self._lines, []
        raw, self._raw = b"".join(self._raw), []
        fields = self._fields(lines)
        data = [value for name, value in fields if name == "data"]
        if not data:
            if lines:
                self._complain("sse.empty-event", f"{_shown(lines[0])} stands between blank lines.")
            return []
        if len(data) > 1:
            self._complain("sse.one-line", f"The data of one event has {len(data)} lines.")
        names = [value for name, value in fields if name == "event"]
        heard = self._heard(names[-1] if names else None, "\n".join(data), raw, at)
        self._place += 1
        return [heard]

    def _heard(self, name: str | None, data: str, raw: bytes, at: float) -> Heard:
        value: Any = None
        if data != DONE:
            with suppress(msgspec.DecodeError):
                value = msgspec.json.decode(data)
            if not isinstance(value, dict):
                self.findings.append(Finding("sse.json", f"An event has the data {data[:80]!r}.", (self._place,)))
        return Heard(self._place, at, name, data, value, raw)

    def _fields(self, lines: list[bytes]) -> list[tuple[str, str]]:
        out: list[tuple[str, str]] = []
        for line in lines:
            if line.startswith(b":"):
                continue
            try:
                text = line.decode()
            except UnicodeDecodeError:
                text = line.decode(errors="replace")
                self._complain("sse.utf8", f"{_shown(line)} is not UTF-8.")
            name, colon, value = text.partition(":")
            if name not in _FIELDS:
                self._complain("sse.field", f"{_shown(line)} is no field.")
                continue
            if colon and value and not value.startswith(" "):
                self._complain("sse.space", f"{_shown(line)} has no space behind its colon.")
            out.append((name, value.removeprefix(" ")))
        return out

    def _complain(self, rule: str, says: str) -> None:
        """Once for each rule: what is wrong with one line is wrong with all of them."""
        if rule not in self._complained:
            self._complained.add(rule)
            self.findings.append(Finding(rule, says, (self._place,)))


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace")
    return f"`{text[:60]}…`" if len(text) > 60 else f"`{text}`"
