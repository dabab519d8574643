"""One turn as the page shows it, and as a recording."""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from toolwire.core.bounds import run_steps
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.notes import CODES
from toolwire.core.recording import Attempt, Head, Line, Sent
from toolwire.core.sse import FrameReader
from toolwire.gateway.console.keep import KeptAttempt, Stream, WholeTurn, unpack
from toolwire.gateway.console.reading import ReadCall, Reading, reading
from toolwire.gateway.console.ring import Kept

AROUND = 400
"""Characters of a text that are shown around a call that was written in it."""


def turn_view(kept: Kept) -> dict[str, Any]:
    """All that is kept of a turn."""
    row = msgspec.to_builtins(kept.row)
    if not kept.packed:
        return {"row": row, "whole": None}
    turn = unpack(kept.packed)
    replies = [_read(each.kind, each.content_type, each.reply) for each in turn.attempts]
    answer = _read(kept.row.dialect, JSON_LINES if turn.is_socket else "", turn.answer)
    good = [(each.round, found) for each, found in zip(turn.attempts, replies, strict=True) if _is_good(each)]
    last = turn.attempts[-1].round if turn.attempts else 0
    made = [call for round, found in good if round == last for call in found.calls]
    ran = [call for round, found in good if round < last for call in found.calls]
    texts = "\n".join(found.text for _, found in good)
    notes = [{"code": code, "subject": subject, "says": CODES.get(code, "")} for code, subject in turn.notes]
    whole = {
        "path": turn.path,
        "request": {"headers": turn.request_headers, "body": _text(turn.request)},
        "attempts": [_attempt(each, found) for each, found in zip(turn.attempts, replies, strict=True)],
        "answer": {"headers": turn.answer_headers, **_stream(turn.answer, answer)},
        "calls": [*map(_ran, ran), *_calls(made, answer.calls, texts)],
        "text": texts,
        "notes": notes,
        "cut": turn.is_cut,
    }
    return {"row": row, "whole": whole}


def _is_good(attempt: KeptAttempt) -> bool:
    return 200 <= attempt.status < 300


def _read(kind: str, content_type: str, stream: Stream) -> Reading:
    return run_steps(reading(kind, content_type, stream.parts()))


def _attempt(attempt: KeptAttempt, found: Reading) -> dict[str, Any]:
    return {
        "backend": attempt.backend,
        "kind": attempt.kind,
        "model": attempt.model,
        "round": attempt.round,
        "asked": attempt.asked,
        "replied": attempt.replied,
        "status": attempt.status,
        "headers": attempt.headers,
        "sent_headers": attempt.sent_headers,
        "sent": [{"t": each.t, "path": each.path, "body": _text(each.body)} for each in attempt.sent],
        **_stream(attempt.reply, found),
    }


def _stream(stream: Stream, found: Reading) -> dict[str, Any]:
    return {
        "withheld": stream.withheld,
        "parts": [(t, _text(data)) for t, data in stream.parts()],
        "frames": [(each.t, each.event or _type(each.data), each.lane, each.call) for each in found.frames],
        "calls": msgspec.to_builtins(found.calls),
        "text": found.text,
        "reasoning": found.reasoning,
        "failure": found.failure,
    }


class _Typed(msgspec.Struct):
    type: str = ""
    method: str = ""


_typed = msgspec.json.Decoder(_Typed).decode


def _type(data: str) -> str:
    """What a frame without a name is, by its data."""
    try:
        found = _typed(data)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return data if data == "[DONE]" else ""
    return found.type or found.method


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _calls(made: Sequence[ReadCall], delivered: Sequence[ReadCall], text: str) -> Iterator[dict[str, Any]]:
    """The calls of the model beside those of the client, in the client's order; withheld ones come last."""
    twins = _Twins(made, in_order=len(made) == len(delivered))
    written = _Written(text)
    for call in delivered:
        twin = twins.take(call)
        block = written.take(call.name) if twin is None else ""
        yield {"model": _built(twin), "client": _built(call), "written": block, "same": _is_same(twin, call)}
    for call in twins.left():
        yield {"model": _built(call), "client": None, "written": "", "same": False}


def _ran(call: ReadCall) -> dict[str, Any]:
    """A call between two turns of the model, which the gateway ran itself."""
    return {"model": _built(call), "client": None, "written": "", "same": True, "ran": True}


def _built(call: ReadCall | None) -> Any:
    return msgspec.to_builtins(call) if call is not None else None


def _is_same(made: ReadCall | None, call: ReadCall) -> bool:
    return made is not None and (made.id, made.name, made.arguments) == (call.id, call.name, call.arguments)


class _Twins:
    """Finds the model's own form of calls that were delivered: by id, by name and arguments, by name, by place."""

    def __init__(self, made: Sequence[ReadCall], *, in_order: bool) -> None:
        self._left = dict(enumerate(made))
        self._by: dict[object, deque[int]] = {}
        self._in_order = in_order
        for index, call in enumerate(made):
            for mark in self._marks(call):
                self._by.setdefault(mark, deque()).append(index)

    @staticmethod
    def _marks(call: ReadCall) -> tuple[object, ...]:
        return ("id", call.id), (call.name, call.arguments, ""), ("name", call.name)

    def take(self, call: ReadCall) -> ReadCall | None:
        for mark in self._marks(call):
            found = self._by.get(mark, ())
            while found:
                index = found.popleft()
                if index in self._left:
                    return self._left.pop(index)
        return self._left.pop(next(iter(self._left))) if self._in_order and self._left else None

    def left(self) -> Iterable[ReadCall]:
        return self._left.values()


_BLOCK = re.compile(r"<use_tool|<tool_call|<function|<invoke|<\||\[TOOL_CALLS\]")
"""How calls begin that are written in a text."""


class _Written:
    """Finds the parts of a text in which calls were written, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._blocks = [found.start() for found in _BLOCK.finditer(text)]
        self._read = 0

    def take(self, name: str) -> str:
        """The next part in which this name stands behind the beginning of a block, or else anywhere."""
        text = self._text
        at = first = text.find(name, self._read) if name else -1
        while at >= 0 and self._begin(at) is None:
            at = text.find(name, at + len(name))
        at = first if at < 0 else at
        if at < 0:
            return ""
        begin = self._begin(at)
        self._read = at + len(name)
        return text[text.rfind("\n", 0, at) + 1 if begin is None else begin : at + AROUND].strip()

    def _begin(self, at: int) -> int | None:
        """Where the block begins in which this place is."""
        index = bisect_left(self._blocks, at) - 1
        begin = self._blocks[index] if index >= 0 else -1
        return begin if begin >= max(self._read, at - AROUND) else None


def as_recording(kept: Kept) -> bytes:
    """A turn in the format of recordings: its last attempt, and before that those that failed. Of a turn in which the
    gateway ran tools, it has the model's last turn."""
    turn = unpack(kept.packed)
    return b"\n".join(map(msgspec.json.encode, _lines(turn, kept))) + b"\n"


def _lines(turn: WholeTurn, kept: Kept) -> Iterator[Head | Line]:
    last = turn.attempts[-1] if turn.attempts else None
    at = datetime.fromtimestamp(kept.row.at, UTC).isoformat(timespec="milliseconds")
    if last is None:
        yield Head(1, "demo", kept.row.model, 0, dialect=kept.row.dialect, at=at)
    else:
        yield Head(1, last.kind, last.model, last.status, last.content_type, kept.row.dialect, at)
    if turn.request:
        yield Line(request=_text(turn.request))
    if last is None:
        return
    for each in turn.attempts[:-1]:
        if each.round == last.round:  # else the gateway ran tools after it
            yield Line(attempt=_failed(each))
    for each in last.sent:
        yield Line(max(0.0, round(each.t - last.replied, 4)), path=each.path, sent=_text(each.body))
    yield from _reply_lines(last)
    if turn.is_cut or last.reply.withheld:
        yield Line(left_out=True)


def _failed(attempt: KeptAttempt) -> Attempt:
    """An attempt after which there was another."""
    sent = [Sent(each.path, _text(each.body)) for each in attempt.sent]
    return Attempt(attempt.backend, attempt.kind, attempt.model, attempt.status, sent, _text(attempt.reply.data))


def _reply_lines(attempt: KeptAttempt) -> Iterator[Line]:
    parts = attempt.reply.parts()
    whole = attempt.reply.data.lstrip()
    lines = attempt.content_type == JSON_LINES
    if whole.startswith(b"{") and not lines:
        yield Line(round(parts[-1][0] - attempt.replied, 4), body=_text(whole))
        return
    reader = LineReader() if lines else FrameReader()
    for t, data in parts:
        for frame in reader.feed(data):
            event = frame.event.decode(errors="replace")
            yield Line(max(0.0, round(t - attempt.replied, 4)), event=event, data=_text(frame.data))
