"""One turn as the page shows it, and as a recording."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice

import msgspec

from toolwire.adapt.arguments import ArgumentJudge
from toolwire.core.errors import BackendFault
from toolwire.core.events import CallStarted
from toolwire.core.recording import Attempt, Head, Line, Sent
from toolwire.core.request import Request
from toolwire.gateway.console.content import (
    AttemptContent,
    CallView,
    FrameView,
    StreamContent,
    StreamView,
    read_stream,
    split_parts,
    unpack,
)
from toolwire.gateway.console.prompts import decode_request
from toolwire.gateway.console.ring import RecordedTurn
from toolwire.gateway.console.said import view_request
from toolwire.note_texts import meaning_of
from toolwire.reader import ReplySplitter
from toolwire.turns.validate import validate

MAX_REPAIRS = 10
"""Maximum number of calls of one turn whose repair is shown."""
MAX_REPAIRED_LENGTH = 100_000
"""Maximum characters of arguments whose repair is shown."""
CONTEXT = 400
"""Characters of a text that are shown around a call written in it."""
SHOWN_OF_ATTEMPT = ("backend", "kind", "model", "round", "asked", "replied", "status", "headers", "sent_headers")
"""The fields of an attempt that are shown as they are."""


def view_turn(recorded: RecordedTurn) -> dict[str, object]:
    """All that is kept of a turn; `whole` is None if only its row is kept."""
    row = msgspec.to_builtins(recorded.row)
    if not recorded.packed:
        return {"row": row, "whole": None}
    turn = unpack(recorded.packed)
    replies = [(each, read_stream(each.kind, each.content_type, each.reply.parts())) for each in turn.attempts]
    answer = turn.read_answer(recorded.row)
    accepted = [(attempt.round, view) for attempt, view in replies if 200 <= attempt.status < 300]
    last = turn.attempts[-1].round if turn.attempts else 0
    ran = [call for round, view in accepted if round < last for call in view.calls]
    made = [call for round, view in accepted if round == last for call in view.calls]
    text = "\n".join(view.text for _, view in accepted)
    request = decode_request(recorded.row.dialect, turn.request)
    whole = {
        "said": view_request(request),
        "path": turn.path,
        "request": {"headers": turn.request_headers, "body": _text(turn.request)},
        "attempts": [
            {
                **{name: getattr(attempt, name) for name in SHOWN_OF_ATTEMPT},
                "sent": [{"t": each.t, "path": each.path, "body": _text(each.body)} for each in attempt.sent],
                **_view_stream(attempt.reply, view),
            }
            for attempt, view in replies
        ],
        "answer": {"headers": turn.answer_headers, **_view_stream(turn.answer, answer)},
        "calls": [
            # Calls of the model's earlier turns were run by the gateway.
            *({"model": call, "client": None, "written": "", "same": True, "ran": True} for call in ran),
            *_pair_calls(made, answer.calls, text),
        ],
        "repairs": dict(_list_repairs(request, turn.notes, answer.calls)),
        "text": text,
        "notes": [{"code": code, "subject": subject, "says": meaning_of(code)} for code, subject in turn.notes],
        "cut": turn.is_cut,
    }
    return {"row": row, "whole": msgspec.to_builtins(whole)}


def _list_repairs(
    request: Request | None, notes: Sequence[tuple[str, str]], calls: Sequence[CallView]
) -> Iterator[tuple[str, dict[str, object]]]:
    """What `tools.arguments = "repair"` would make of calls with invalid arguments, by id."""
    noted = {subject.partition(" ")[0] for code, subject in notes if code == "arguments_invalid"}
    if request is None or not noted:
        return
    judge = ArgumentJudge(request.tools, validate)
    found = (call for call in calls if call.id in noted and len(call.arguments) <= MAX_REPAIRED_LENGTH)
    for call in islice(found, MAX_REPAIRS):
        repaired = judge.repair(CallStarted(call.id, call.name), call.arguments).repaired
        yield call.id, {"text": repaired.text, "fixes": repaired.fixes} if repaired is not None else {"text": ""}


def _view_stream(stream: StreamContent, view: StreamView) -> dict[str, object]:
    return {
        "withheld": stream.withheld,
        "parts": [(t, _text(data)) for t, data in stream.parts()],
        "frames": [(each.t, _name_frame(each), each.lane, each.call) for each in view.frames],
        "calls": view.calls,
        "text": view.text,
        "reasoning": view.reasoning,
        "failure": view.failure,
    }


class _TypedFrame(msgspec.Struct):
    type: str = ""
    method: str = ""


_decode_type = msgspec.json.Decoder(_TypedFrame).decode


def _name_frame(frame: FrameView) -> str:
    """The name of a frame's event, or the type in its data."""
    if frame.event:
        return frame.event
    try:
        found = _decode_type(frame.data)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return frame.data if frame.data == "[DONE]" else ""
    return found.type or found.method


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


# Calls


def _pair_calls(made: Sequence[CallView], delivered: Sequence[CallView], text: str) -> Iterator[dict[str, object]]:
    """The model's calls beside the client's, in the client's order; withheld ones come last.

    The model's form of a call is found by id, by name and arguments, by name, or, if none is missing, by position.
    """
    left = dict(enumerate(made))
    indexes: defaultdict[object, list[int]] = defaultdict(list)
    for index, call in left.items():
        for mark in _list_marks(call):
            indexes[mark].append(index)
    untried = {mark: iter(found) for mark, found in indexes.items()}  # so that all calls are tried in linear time
    blocks = _WrittenCalls(text)
    for call in delivered:
        found = (index for mark in _list_marks(call) for index in untried.get(mark, ()) if index in left)
        index = next(found, None)
        if index is None and len(made) == len(delivered):
            index = next(iter(left), None)
        original = left.pop(index) if index is not None else None
        same = original is not None and _list_marks(original) == _list_marks(call)
        written = "" if original is not None else blocks.take(call.name)
        yield {"model": original, "client": call, "written": written, "same": same}
    for call in left.values():
        yield {"model": call, "client": None, "written": "", "same": False}


def _list_marks(call: CallView) -> tuple[object, ...]:
    return ("id", call.id), (call.name, call.arguments, ""), ("name", call.name)


_BLOCK = re.compile(r"<use_tool|<tool_call|<function|<invoke|<\||\[TOOL_CALLS\]")
"""The ways in which a call written in text begins."""


class _WrittenCalls:
    """Finds the passages of a text in which calls were written, in order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._blocks = [found.start() for found in _BLOCK.finditer(text)]
        self._read = 0

    def take(self, name: str) -> str:
        """The next passage with this name after the beginning of a block, or else anywhere."""
        text = self._text
        at = first = text.find(name, self._read) if name else -1
        while at >= 0 and self._find_block(at) is None:
            at = text.find(name, at + len(name))
        at = first if at < 0 else at
        if at < 0:
            return ""
        begin = self._find_block(at)
        self._read = at + len(name)
        return text[text.rfind("\n", 0, at) + 1 if begin is None else begin : at + CONTEXT].strip()

    def _find_block(self, at: int) -> int | None:
        """The beginning of the block around this position."""
        index = bisect_left(self._blocks, at) - 1
        begin = self._blocks[index] if index >= 0 else -1
        return begin if begin >= max(self._read, at - CONTEXT) else None


# Recordings


def make_recording(recorded: RecordedTurn) -> bytes:
    """A turn in the format of recordings: its last attempt, preceded by those that failed.

    If the gateway ran tools in the turn, only the model's last turn is recorded.
    """
    turn, row = unpack(recorded.packed), recorded.row
    last = turn.attempts[-1] if turn.attempts else None
    at = datetime.fromtimestamp(row.at, UTC).isoformat(timespec="milliseconds")
    head = Head(1, "demo", row.model, 0, dialect=row.dialect, at=at)
    if last is not None:
        head = Head(1, last.kind, last.model, last.status, last.content_type, row.dialect, at)
    lines: list[Head | Line] = [head]
    if turn.request:
        lines.append(Line(request=_text(turn.request)))
    if last is not None:
        for each in turn.attempts[:-1]:
            if each.round == last.round:  # else it succeeded, and the gateway ran tools
                sent = [Sent(body.path, _text(body.body)) for body in each.sent]
                reply = _text(each.reply.data)
                lines.append(Line(attempt=Attempt(each.backend, each.kind, each.model, each.status, sent, reply)))
        lines += _list_lines(last)
        if turn.is_cut or last.reply.withheld:
            lines.append(Line(left_out=True))
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _list_lines(attempt: AttemptContent) -> Iterator[Line]:
    """What the backend was sent, and its reply; times count from the beginning of the reply."""
    for body in attempt.sent:
        yield Line(max(0.0, round(body.t - attempt.replied, 4)), path=body.path, sent=_text(body.body))
    parts, splitter = attempt.reply.parts(), ReplySplitter(attempt.content_type)
    with suppress(BackendFault):  # a frame is too large; the turn failed too
        for t, frame in split_parts(splitter, parts):
            yield Line(max(0.0, round(t - attempt.replied, 4)), event=_text(frame.event), data=_text(frame.data))
    if splitter.is_plain:
        yield Line(round(parts[-1][0] - attempt.replied, 4), body=_text(splitter.body))
