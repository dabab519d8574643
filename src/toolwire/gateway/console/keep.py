"""A trace as it is kept: without secrets, joined and packed. All of it is done in small steps, beside the turns.

Headers are kept by a list of those that are harmless. In bodies the secrets that this gateway knows are removed, and
whatever looks like one, as in recordings. A secret that a model spells over several frames is found in the text that
the frames make together; then none of these frames is kept.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from toolwire.core.bounds import Steps
from toolwire.core.events import Note
from toolwire.core.jsonrpc import JSON_LINES
from toolwire.core.recording import REMOVED, merged, secret_spans, without_spans
from toolwire.gateway.console.reading import Reading, reading
from toolwire.gateway.console.rows import LONGEST, Row
from toolwire.gateway.console.secrets import SHORTEST_SECRET
from toolwire.turns.trace import AttemptTrace, TurnTrace

BYTES_PER_STEP = 64 * 1024
MOST_SPANS = 10_000
"""Secrets of a text from which nothing of it is kept: nobody has so many, and replacing them takes long."""
MARGIN = 16 * 1024
"""Bytes that secrets have at most, with their names. What is longer is removed up to the end of its string."""
NAME = 1024
"""Bytes that the name of a value takes at most, with what is between them."""
_IN_STRING = re.compile(rb'(?:[^"\\]|\\.)+', re.DOTALL)

SHOWN_HEADERS = re.compile(
    r"user-agent|accept|content-(type|length|encoding)|host|anthropic-(version|beta|dangerous-direct-browser-access)"
    r"|openai-(beta|organization|project|processing-ms)|x-stainless-[\w-]+|x-app|originator|version|x-proxy-[\w-]+"
    r"|x-codex-[\w-]+|x-toolwire-[\w-]+|x-claude-code-session-id|x-client-request-id|x-request-id|request-id"
    r"|x-upstream-request-id|session[_-]id|conversation_id|x-session-id|(x-|anthropic-)ratelimit-[\w-]+|retry-after"
    r"|cache-control|date|server|origin|access-control-[\w-]+|vary|transfer-encoding|x-accel-buffering"
)
"""Headers whose values are kept. Of all others the console knows the name."""


class Stream(msgspec.Struct, array_like=True, gc=False):
    """Bytes, and when they passed: seconds since the turn began, and where each part ends."""

    data: bytes = b""
    marks: list[tuple[float, int]] = []
    withheld: bool = False
    """A secret was spread over its frames, so none is kept."""

    def parts(self) -> list[tuple[float, bytes]]:
        starts = [0, *(end for _, end in self.marks)]
        return [(t, self.data[start:end]) for start, (t, end) in zip(starts, self.marks, strict=False)]


class Sent(msgspec.Struct, array_like=True, gc=False):
    """A body or a message for a backend."""

    t: float
    path: str
    body: bytes


class KeptAttempt(msgspec.Struct, array_like=True):
    """One attempt."""

    backend: str
    kind: str
    model: str
    asked: float
    replied: float
    status: int
    headers: list[tuple[str, str]]
    sent_headers: list[tuple[str, str]]
    sent: list[Sent]
    reply: Stream
    content_type: str = ""
    round: int = 0
    """Which turn of the model it belongs to; the gateway runs tools between them."""


class WholeTurn(msgspec.Struct, array_like=True):
    """Everything that is kept of a turn beside its row."""

    request: bytes
    request_headers: list[tuple[str, str]]
    attempts: list[KeptAttempt]
    answer: Stream
    answer_headers: list[tuple[str, str]]
    notes: list[tuple[str, str]]
    is_cut: bool
    is_socket: bool
    path: str = ""


_decode = msgspec.msgpack.Decoder(WholeTurn).decode


def pack(turn: WholeTurn) -> Steps[bytes]:
    """A turn in few bytes."""
    data = msgspec.msgpack.encode(turn)
    yield
    packer = zlib.compressobj(1)
    pieces: list[bytes] = []
    for start in range(0, len(data), BYTES_PER_STEP):
        pieces.append(packer.compress(data[start : start + BYTES_PER_STEP]))
        yield
    return b"".join((*pieces, packer.flush()))


def unpack(packed: bytes) -> WholeTurn:
    return _decode(zlib.decompress(packed))


def whole_turn(trace: TurnTrace, row: Row, notes: Sequence[Note], secrets: tuple[bytes, ...]) -> Steps[WholeTurn]:
    """What is kept of a trace, or shown of one that goes on."""
    began, is_socket, goes_on = trace.began, row.transport == "websocket", row.kept == "running"
    request = yield from redacted(trace.request, secrets)
    attempts: list[KeptAttempt] = []
    for each in trace.attempts:
        made = yield from _attempt(each, request, secrets, goes_on=goes_on)
        attempts.append(made)
    separator = b"\n" if is_socket else b""
    written = [(now, b"".join([piece + separator for piece in pieces])) for now, pieces in trace.written]
    form = JSON_LINES if is_socket else ""
    answer = yield from _spoken(row.dialect, form, written, began, secrets, goes_on=goes_on)
    if any(each.reply.withheld for each in attempts):
        answer = Stream(withheld=True)
    given = {name.decode("latin-1"): value.decode("latin-1") for name, value in trace.request_headers.items()}
    answered = {name.decode("latin-1"): value.decode("latin-1") for name, value in trace.answer_headers}
    return WholeTurn(
        request,
        shown_headers(given, secrets),
        attempts,
        answer,
        shown_headers(answered, secrets),
        [(note.code, _text(note.subject.encode(errors="replace"), secrets)[: 4 * LONGEST]) for note in notes],
        trace.is_cut,
        is_socket,
        _text(trace.path.encode(errors="replace"), secrets)[: 4 * LONGEST],
    )


def _attempt(trace: AttemptTrace, request: bytes, secrets: tuple[bytes, ...], *, goes_on: bool) -> Steps[KeptAttempt]:
    """An attempt as it is kept. What was sent may be the client's request as it came."""
    began = trace.turn.began
    kind = trace.headers.get("content-type", "")
    reply = yield from _spoken(trace.kind, kind, trace.reads, began, secrets, goes_on=goes_on)
    sent: list[Sent] = []
    for now, path, body in trace.sent:
        kept = request if body is trace.turn.request else (yield from redacted(body, secrets))
        sent.append(Sent(_since(now, began), path, kept))
    return KeptAttempt(
        trace.backend,
        trace.kind,
        _text(trace.model.encode(errors="replace"), secrets)[: 4 * LONGEST],
        _since(trace.asked_at, began),
        _since(trace.replied_at, began),
        trace.status,
        shown_headers(trace.headers, secrets),
        shown_headers(trace.sent_headers, secrets),
        sent,
        reply,
        _text(kind.encode(errors="replace"), secrets)[:LONGEST],
        trace.round,
    )


def _since(now: float, began: float) -> float:
    return round(now - began, 5) if now else 0.0


def _spoken(
    kind: str,
    form: str,
    parts: Sequence[tuple[float, bytes]],
    began: float,
    secrets: tuple[bytes, ...],
    *,
    goes_on: bool,
) -> Steps[Stream]:
    """A stream without secrets; nothing of it, if its frames spell one together or, while it goes on, begin to."""
    stream = yield from _stream(parts, began, secrets)
    said = _texts((yield from reading(kind, form, parts)))
    if goes_on and any(_ends_in_secret(text, secrets) for text in (stream.data, *said)):
        return Stream(withheld=True)
    clean: list[bytes] = []
    for text in said:
        clean += ((yield from redacted(text, secrets)),)
    if clean != said:
        kept = yield from reading(kind, form, stream.parts())
        if clean != _texts(kept):
            return Stream(withheld=True)
    return stream


def _ends_in_secret(text: bytes, secrets: tuple[bytes, ...]) -> bool:
    """Whether a text ends with the beginning of a secret."""
    return any(text.endswith(each[:end]) for each in secrets for end in range(SHORTEST_SECRET, len(each)))


def _texts(found: Reading) -> list[bytes]:
    named = [text for call in found.calls for text in (call.id, call.name, call.arguments)]
    texts = (found.text, found.reasoning, found.failure, *named)
    return [text.encode(errors="replace") for text in texts]


def _stream(parts: Iterable[tuple[float, bytes]], began: float, secrets: tuple[bytes, ...]) -> Steps[Stream]:
    parts = list(parts)
    data = b"".join([data for _, data in parts])
    spans = yield from _spans(data, secrets)
    ends = accumulate(len(data) for _, data in parts)
    marks = [(_since(now, began), end) for (now, _), end in zip(parts, moved(ends, spans), strict=True)]
    return Stream(without_spans(data, spans), marks)


def moved(offsets: Iterable[int], spans: Sequence[tuple[int, int]]) -> Iterable[int]:
    """Where these offsets are once the spans are replaced; one inside of a span is behind its replacement."""
    starts = [start for start, _ in spans]
    shifts = [0, *accumulate(len(REMOVED) - (end - start) for start, end in spans)]
    for offset in offsets:
        count = bisect_right(starts, offset - 1)
        inside = count and offset < spans[count - 1][1]
        yield (spans[count - 1][1] if inside else offset) + shifts[count]


def redacted(data: bytes, secrets: tuple[bytes, ...]) -> Steps[bytes]:
    """The data without secrets."""
    return without_spans(data, (yield from _spans(data, secrets)))


def _spans(data: bytes, secrets: tuple[bytes, ...]) -> Steps[list[tuple[int, int]]]:
    """All secrets, step by step. A step looks further than it goes, so that none is cut in two, and a little back, so
    that no long value is without its name."""
    found: list[tuple[int, int]] = []
    start = 0
    while start < len(data):
        until = start + BYTES_PER_STEP
        end = min(until + MARGIN, len(data))
        spans = secret_spans(data, secrets, max(0, start - NAME), end)
        yield
        is_cut = end < len(data) and spans and spans[-1][1] >= end - 1  # or it ends before an escape
        if is_cut and spans[-1][0] < until:
            behind = yield from _end_of_string(data, spans[-1][1])
            spans.append((spans[-1][0], behind))
            until = max(until, behind)
        found += spans
        start = until
        if len(found) > MOST_SPANS:
            return [(0, len(data))]
    return merged(found)


def _end_of_string(data: bytes, at: int) -> Steps[int]:
    """Where the JSON string ends in the middle of which this is."""
    while at < len(data):
        match = _IN_STRING.match(data, at, at + BYTES_PER_STEP)
        if match is None:
            return at
        at = match.end()
        yield
    return at


def _text(data: bytes, secrets: tuple[bytes, ...]) -> str:
    return without_spans(data, secret_spans(data, secrets)).decode(errors="replace")


def shown_headers(headers: Mapping[str, str], secrets: tuple[bytes, ...]) -> list[tuple[str, str]]:
    """The names of all headers, and the values of those that hold no secret."""
    return [(name[:LONGEST], _shown(name, value, secrets)) for name, value in headers.items()]


def _shown(name: str, value: str, secrets: tuple[bytes, ...]) -> str:
    if not SHOWN_HEADERS.fullmatch(name.lower()):
        return "(not kept)"
    return _text(value[:1024].encode(errors="replace"), secrets)
