"""One turn as the page shows it, and as a recording."""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from toolwire.core.notes import CODES
from toolwire.core.recording import Attempt, Head, Line, Sent
from toolwire.gateway.console.ring import RecordedTurn
from toolwire.gateway.console.stored_trace import StoredAttempt, StoredStream, unpack
from toolwire.gateway.console.stream_view import CallView, StreamView, read_stream
from toolwire.reader import ReplySplitter

CONTEXT = 400
"""Characters of a text that are shown around a call that was written in it."""


def view_turn(recorded: RecordedTurn) -> dict[str, object]:
    """All that is kept of a turn; `whole` is None if that is only its row."""
    row = msgspec.to_builtins(recorded.row)
    if not recorded.packed:
        return {"row": row, "whole": None}
    turn = unpack(recorded.packed)
    replies = [(each, read_stream(each.kind, each.content_type, each.reply.parts())) for each in turn.attempts]
    answer = turn.read_answer(recorded.row.dialect)
    accepted = [(attempt.round, view) for attempt, view in replies if 200 <= attempt.status < 300]
    last = turn.attempts[-1].round if turn.attempts else 0
    ran = [call for round, view in accepted if round < last for call in view.calls]
    made = [call for round, view in accepted if round == last for call in view.calls]
    text = "\n".join(view.text for _, view in accepted)
    whole = {
        "path": turn.path,
        "request": {"headers": turn.request_headers, "body": _text(turn.request)},
        "attempts": [
            {
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
                **_view_stream(attempt.reply, view),
            }
            for attempt, view in replies
        ],
        "answer": {"headers": turn.answer_headers, **_view_stream(turn.answer, answer)},
        "calls": [
            # The gateway ran the calls between two turns of the model itself.
            *({"model": call, "client": None, "written": "", "same": True, "ran": True} for call in ran),
            *_pair_calls(made, answer.calls, text),
        ],
        "text": text,
        "notes": [{"code": code, "subject": subject, "says": CODES.get(code, "")} for code, subject in turn.notes],
        "cut": turn.is_cut,
    }
    return {"row": row, "whole": msgspec.to_builtins(whole)}


def _view_stream(stream: StoredStream, view: StreamView) -> dict[str, object]:
    return {
        "withheld": stream.withheld,
        "parts": [(t, _text(data)) for t, data in stream.parts()],
        "frames": [(each.t, each.event or _type_of(each.data), each.lane, each.call) for each in view.frames],
        "calls": view.calls,
        "text": view.text,
        "reasoning": view.reasoning,
        "failure": view.failure,
    }


class _TypedFrame(msgspec.Struct):
    type: str = ""
    method: str = ""


_decode_type = msgspec.json.Decoder(_TypedFrame).decode


def _type_of(data: str) -> str:
    """The type of a frame without an event name, from its data."""
    try:
        found = _decode_type(data)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return data if data == "[DONE]" else ""
    return found.type or found.method


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _pair_calls(made: Sequence[CallView], delivered: Sequence[CallView], text: str) -> Iterator[dict[str, object]]:
    """The model's calls beside the client's, in the client's order; withheld ones come last."""
    originals = _Originals(made, in_order=len(made) == len(delivered))
    blocks = _WrittenCalls(text)
    for call in delivered:
        original = originals.take(call)
        block = blocks.take(call.name) if original is None else ""
        same = original is not None and (original.id, original.name, original.arguments) == (
            call.id,
            call.name,
            call.arguments,
        )
        yield {"model": original, "client": call, "written": block, "same": same}
    for call in originals.left():
        yield {"model": call, "client": None, "written": "", "same": False}


class _Originals:
    """Finds the model's form of a delivered call: by id, by name and arguments, by name, by position."""

    def __init__(self, made: Sequence[CallView], *, in_order: bool) -> None:
        self._left = dict(enumerate(made))
        self._by: dict[object, deque[int]] = {}
        self._in_order = in_order
        for index, call in enumerate(made):
            for mark in self._marks(call):
                self._by.setdefault(mark, deque()).append(index)

    @staticmethod
    def _marks(call: CallView) -> tuple[object, ...]:
        return ("id", call.id), (call.name, call.arguments, ""), ("name", call.name)

    def take(self, call: CallView) -> CallView | None:
        for mark in self._marks(call):
            found = self._by.get(mark, ())
            while found:
                index = found.popleft()
                if index in self._left:
                    return self._left.pop(index)
        return self._left.pop(next(iter(self._left))) if self._in_order and self._left else None

    def left(self) -> Iterable[CallView]:
        return self._left.values()


_BLOCK = re.compile(r"<use_tool|<tool_call|<function|<invoke|<\||\[TOOL_CALLS\]")
"""How calls begin that are written in a text."""


class _WrittenCalls:
    """Finds the passages of a text in which calls were written, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._blocks = [found.start() for found in _BLOCK.finditer(text)]
        self._read = 0

    def take(self, name: str) -> str:
        """The next passage with this name behind the beginning of a block, or else anywhere."""
        text = self._text
        at = first = text.find(name, self._read) if name else -1
        while at >= 0 and self._begin(at) is None:
            at = text.find(name, at + len(name))
        at = first if at < 0 else at
        if at < 0:
            return ""
        begin = self._begin(at)
        self._read = at + len(name)
        return text[text.rfind("\n", 0, at) + 1 if begin is None else begin : at + CONTEXT].strip()

    def _begin(self, at: int) -> int | None:
        """The beginning of the block around this position."""
        index = bisect_left(self._blocks, at) - 1
        begin = self._blocks[index] if index >= 0 else -1
        return begin if begin >= max(self._read, at - CONTEXT) else None


def make_recording(recorded: RecordedTurn) -> bytes:
    """A turn in the format of recordings: its last attempt, preceded by those that failed. Of a turn in which the
    gateway ran tools, this is the model's last turn."""
    turn, row = unpack(recorded.packed), recorded.row
    last = turn.attempts[-1] if turn.attempts else None
    at = datetime.fromtimestamp(row.at, UTC).isoformat(timespec="milliseconds")
    if last is None:
        lines: list[Head | Line] = [Head(1, "demo", row.model, 0, dialect=row.dialect, at=at)]
    else:
        lines = [Head(1, last.kind, last.model, last.status, last.content_type, row.dialect, at)]
    if turn.request:
        lines.append(Line(request=_text(turn.request)))
    if last is not None:
        for each in turn.attempts[:-1]:
            if each.round == last.round:  # else it succeeded, and the gateway ran tools
                sent = [Sent(body.path, _text(body.body)) for body in each.sent]
                reply = _text(each.reply.data)
                lines.append(Line(attempt=Attempt(each.backend, each.kind, each.model, each.status, sent, reply)))
        for body in last.sent:
            since_reply = max(0.0, round(body.t - last.replied, 4))
            lines.append(Line(since_reply, path=body.path, sent=_text(body.body)))
        lines += _read_reply(last)
        if turn.is_cut or last.reply.withheld:
            lines.append(Line(left_out=True))
    return b"\n".join(map(msgspec.json.encode, lines)) + b"\n"


def _read_reply(attempt: StoredAttempt) -> Iterator[Line]:
    parts, splitter = attempt.reply.parts(), ReplySplitter(attempt.content_type)
    for t, data in parts:
        for frame in splitter.feed(data):
            event = frame.event.decode(errors="replace")
            yield Line(max(0.0, round(t - attempt.replied, 4)), event=event, data=_text(frame.data))
    if splitter.is_plain:
        yield Line(round(parts[-1][0] - attempt.replied, 4), body=_text(splitter.body))
