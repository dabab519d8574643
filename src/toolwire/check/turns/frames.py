r"""Reads the bytes of a stream as frames, as strictly as the strictest client does.

event: message_start\n
data: {"type":"message_start",…}\n
\n
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolwire.check.turns.loose import Json, as_object, as_text, parse_json
from toolwire.check.turns.rule import Finding

DONE = "[DONE]"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_FIELDS = ("data", "event", "id", "retry")


class ReceivedFrame(msgspec.Struct, frozen=True):
    """One event of a stream as it was received."""

    position: int
    at: float
    """Seconds since the request, without those in which this process could not run."""
    event: str | None
    data: str
    value: Any = None
    """The data parsed as JSON; None if it is invalid."""
    raw: bytes = b""
    id: str | None = None
    """The SSE id, if it has one."""

    @property
    def is_done(self) -> bool:
        """Whether the data is `[DONE]`."""
        return self.data == DONE

    @property
    def is_event(self) -> bool:
        """Whether the data is a JSON object."""
        return isinstance(self.value, dict)

    @property
    def fields(self) -> Json:
        """The data as an object; empty if it is not one."""
        return as_object(self.value)

    @property
    def type(self) -> str:
        """The type that the data names, such as `response.output_text.delta`."""
        return as_text(self.fields.get("type"))

    @property
    def stem(self) -> str:
        """The type without its last part."""
        return self.type.rpartition(".")[0]

    @property
    def verb(self) -> str:
        """The last part of the type."""
        return self.type.rpartition(".")[2]

    def inner(self, key: str) -> Json:
        """An object in the data; empty if it is not one."""
        return as_object(self.fields.get(key))

    def __str__(self) -> str:
        return f"event {self.position} ({self.type})"


def check_done_marker(rule: str, received: Sequence[ReceivedFrame]) -> Iterator[Finding]:
    """A finding if a stream does not end with `[DONE]`, or has it more than once."""
    markers = [each.position for each in received if each.is_done]
    if len(markers) != 1 or not received[-1].is_done:
        positions = (*markers, *(each.position for each in received[-1:]))
        yield Finding(rule, f"`[DONE]` comes {len(markers)} times, or not last.", positions)


class FrameCheck:
    """A stage that splits bytes, in any chunking, into frames; `findings` is complete after `end`."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._rest: list[bytes] = []
        """The chunks of an unfinished line, joined once when it ends."""
        self._lines: list[bytes] = []
        self._raw: list[bytes] = []
        self._position = 0
        self._at = 0.0
        self._reported: set[str] = set()
        self._ids: set[str] = set()

    def feed(self, data: bytes, at: float = 0.0) -> list[ReceivedFrame]:
        """The frames that these bytes complete."""
        waits_for_line_feed = bool(self._rest) and self._rest[-1].endswith(b"\r")
        if data:
            self._rest.append(data)
        if not waits_for_line_feed and _LINE_END.search(data) is None:
            return []
        self._at = at
        whole = b"".join(self._rest)
        out: list[ReceivedFrame] = []
        start = 0
        for end in _LINE_END.finditer(whole):
            if end.group() == b"\r" and end.end() == len(whole):
                break  # a line feed may follow
            if end.group() != b"\n":
                self._report("sse.newline", "A line ends with a carriage return.")
            line = whole[start : end.start()]
            self._raw.append(whole[start : end.end()])
            start = end.end()
            if line:
                self._lines.append(line)
            else:
                out += self._end_frame()
        self._rest = [whole[start:]] if start < len(whole) else []
        return out

    def end(self) -> list[ReceivedFrame]:
        """End the stream. An event without its blank line is dropped, as browsers do."""
        rest = b"".join(self._rest)
        frames = self.feed(b"\n", self._at) if rest.endswith(b"\r") else []
        rest = b"".join(self._rest)
        lines = [*self._lines, *([rest] if rest.strip() else [])]
        names = [line.partition(b":")[0].decode(errors="replace") for line in lines]
        if any(name and any(field.startswith(name) for field in _FIELDS) for name in names):
            detail = f"The stream ends with {_quote_line(lines[-1])}."
            self.findings.append(Finding("sse.ended", detail, (self._position,)))
        else:
            self._read_fields(lines)
        last = self._position - 1  # the latest frame: a finding about a frame that was never completed is moved to it
        for number, finding in enumerate(self.findings):
            positions = tuple(min(position, last) for position in finding.frames) if last >= 0 else ()
            self.findings[number] = msgspec.structs.replace(finding, frames=positions)
        return frames

    def _end_frame(self) -> list[ReceivedFrame]:
        lines, self._lines = self._lines, []
        raw, self._raw = b"".join(self._raw), []
        fields = self._read_fields(lines)
        data = [value for name, value in fields if name == "data"]
        if not data:
            names = [line.partition(b":")[0].decode(errors="replace") for line in lines]
            if lines and all(name in ("", *_FIELDS) for name in names):
                self._report("sse.empty-event", f"{_quote_line(lines[0])} stands between blank lines.")
            return []
        if len(data) > 1:
            self._report("sse.one-line", f"The data of one event has {len(data)} lines.")
        last, text = dict(fields), "\n".join(data)
        id, value = last.get("id"), parse_json(text) if text != DONE else None
        frame = ReceivedFrame(self._position, self._at, last.get("event"), text, value, raw, id)
        if not frame.is_done and not frame.is_event:
            detail = f"An event has the data {text[:80]!r}."
            self.findings.append(Finding("sse.json", detail, (self._position,), (text[:80],)))
        if id is not None:
            if id in self._ids or "\0" in id:
                what = "repeats the id" if id in self._ids else "has the id"
                self._report("sse.id", f"An event {what} {id!r}.", f"id: {id}")
            self._ids.add(id)
        self._position += 1
        return [frame]

    def _read_fields(self, lines: list[bytes]) -> list[tuple[str, str]]:
        out: list[tuple[str, str]] = []
        for line in lines:
            text = line.decode(errors="replace")
            if "\ufffd" in text and text.encode() != line:
                self._report("sse.utf8", f"{_quote_line(line)} is not UTF-8.")
            name, colon, value = text.partition(":")
            if name in _FIELDS[1:] or not name:  # the name of a comment is empty
                self._report("sse.data-only", f"{_quote_line(line)} is no data.", text)
            if name not in _FIELDS:
                if name:
                    self._report("sse.field", f"{_quote_line(line)} is no field.", text)
                continue
            if colon and value and not value.startswith(" "):
                self._report("sse.space", f"{_quote_line(line)} has no space after its colon.", f"{name}:")
            out.append((name, value.removeprefix(" ")))
        return out

    def _report(self, rule: str, detail: str, part: str = "") -> None:
        """Add a finding, once for each rule, about the next frame and this part of it."""
        if rule not in self._reported:
            self._reported.add(rule)
            self.findings.append(Finding(rule, detail, (self._position,), (part,) if part else ()))


def _quote_line(line: bytes) -> str:
    text = line.decode(errors="replace")
    return f"`{text[:60]}…`" if len(text) > 60 else f"`{text}`"
