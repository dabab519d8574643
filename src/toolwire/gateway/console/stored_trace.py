"""A trace without secrets, as it is shown, sent to other workers and kept after it was viewed once.

Headers are kept by a list of harmless names. From bodies the secrets that this gateway knows are removed, and whatever
looks like one. A secret that a model spells over several frames is found in the text that the frames make together;
then the whole stream is withheld.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from toolwire.core.events import Note
from toolwire.core.jsonrpc import JSON_LINES
from toolwire.core.secret_patterns import REMOVED, remove_spans
from toolwire.gateway.console.rows import MAX_NAME_LENGTH, TurnRow
from toolwire.gateway.console.secrets import MIN_SECRET_SIZE, find_secrets, redact, redact_text
from toolwire.gateway.console.stream_view import StreamView, read_stream
from toolwire.gateway.console.trace import AttemptTrace, TurnTrace
from toolwire.gateway.keys import presented_key

MAX_TEXT_LENGTH = 4 * MAX_NAME_LENGTH
"""Characters of a path, a model's name or a note's subject."""
MAX_HEADER_LENGTH = 1024

SHOWN_HEADERS = re.compile(
    r"user-agent|accept|content-(type|length|encoding)|host|anthropic-(version|beta|dangerous-direct-browser-access)"
    r"|openai-(beta|organization|project|processing-ms)|x-stainless-[\w-]+|x-app|originator|version|x-proxy-[\w-]+"
    r"|x-codex-[\w-]+|x-toolwire-[\w-]+|x-claude-code-session-id|x-client-request-id|x-request-id|request-id"
    r"|x-upstream-request-id|session[_-]id|conversation_id|x-session-id|(x-|anthropic-)ratelimit-[\w-]+|retry-after"
    r"|cache-control|date|server|origin|access-control-[\w-]+|vary|transfer-encoding|x-accel-buffering"
)
"""Headers whose values are shown. Of all others only the name is."""

Headers = list[tuple[str, str]]


class StoredStream(msgspec.Struct, array_like=True, gc=False):
    """Bytes, and when they passed: for each part the seconds since the turn began, and its end."""

    data: bytes = b""
    marks: list[tuple[float, int]] = []
    withheld: bool = False
    """Nothing is kept, because a secret is spread over its frames."""

    def parts(self) -> list[tuple[float, bytes]]:
        starts = [0, *(end for _, end in self.marks)]
        return [(t, self.data[start:end]) for start, (t, end) in zip(starts, self.marks, strict=False)]


class SentBody(msgspec.Struct, array_like=True, gc=False):
    """A body or a message that was sent to a backend."""

    t: float
    path: str
    body: bytes


class StoredAttempt(msgspec.Struct, array_like=True):
    """One attempt."""

    backend: str
    kind: str
    model: str
    asked: float
    replied: float
    status: int
    headers: Headers
    sent_headers: Headers
    sent: list[SentBody]
    reply: StoredStream
    content_type: str = ""
    round: int = 0
    """Which turn of the model it belongs to; between them the gateway runs tools."""


class StoredTrace(msgspec.Struct, array_like=True):
    """Everything that is kept of a turn beside its row."""

    request: bytes
    request_headers: Headers
    attempts: list[StoredAttempt]
    answer: StoredStream
    answer_headers: Headers
    notes: list[tuple[str, str]]
    is_cut: bool
    is_socket: bool
    path: str = ""

    def read_answer(self, dialect: str) -> StreamView:
        """The view of the answer to the client."""
        return read_stream(dialect, JSON_LINES if self.is_socket else "", self.answer.parts())


_decode = msgspec.msgpack.Decoder(StoredTrace).decode


def pack(stored: StoredTrace) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(stored), 1)


def unpack(packed: bytes) -> StoredTrace:
    return _decode(zlib.decompress(packed))


def remove_secrets(trace: TurnTrace, row: TurnRow, notes: Sequence[Note], secrets: tuple[bytes, ...]) -> StoredTrace:
    """A trace without secrets. This takes long for a large one.

    Args:
        trace: The trace; nothing may be added to it meanwhile.
        row: The turn's row, which says whether the turn still runs.
        notes: The turn's notes.
        secrets: What to remove; the key that the client sent is removed too.
    """
    own = presented_key(trace.request_headers)
    remover = _Remover((*secrets, own) if len(own) >= MIN_SECRET_SIZE else secrets, trace, row.kept == "running")
    is_socket = row.transport == "websocket"
    request = redact(trace.request, remover.secrets)
    attempts = [remover.attempt(each, request) for each in trace.attempts]
    separator = b"\n" if is_socket else b""
    written = [(now, b"".join([piece + separator for piece in pieces])) for now, pieces in trace.written]
    answer = remover.stream(row.dialect, JSON_LINES if is_socket else "", written)
    if any(each.reply.withheld for each in attempts):
        answer = StoredStream(withheld=True)
    return StoredTrace(
        request,
        filter_headers(_decode_headers(trace.request_headers.items()), remover.secrets),
        attempts,
        answer,
        filter_headers(_decode_headers(trace.answer_headers), remover.secrets),
        [(note.code, remover.text(note.subject)) for note in notes],
        trace.is_cut,
        is_socket,
        remover.text(trace.path),
    )


class _Remover:
    """Removes secrets from the parts of one trace."""

    def __init__(self, secrets: tuple[bytes, ...], trace: TurnTrace, is_running: bool) -> None:
        self.secrets = secrets
        self._began = trace.began
        self._client_body = trace.request
        self._is_running = is_running

    def text(self, text: str) -> str:
        return redact_text(text, self.secrets)[:MAX_TEXT_LENGTH]

    def attempt(self, trace: AttemptTrace, request: bytes) -> StoredAttempt:
        """An attempt; `request` is the client's body without secrets, which may have been sent as it was."""
        content_type = trace.headers.get("content-type", "")
        return StoredAttempt(
            trace.backend,
            trace.kind,
            self.text(trace.model),
            self._since_begin(trace.asked_at),
            self._since_begin(trace.replied_at),
            trace.status,
            filter_headers(trace.headers, self.secrets),
            filter_headers(trace.sent_headers, self.secrets),
            [
                SentBody(
                    self._since_begin(now),
                    path,
                    request if body is self._client_body else redact(body, self.secrets),
                )
                for now, path, body in trace.sent
            ],
            self.stream(trace.kind, content_type, trace.reads),
            redact_text(content_type, self.secrets)[:MAX_NAME_LENGTH],
            trace.round,
        )

    def stream(self, kind: str, content_type: str, parts: Sequence[tuple[float, bytes]]) -> StoredStream:
        """A stream without secrets; withheld if its frames spell one together or, while it runs, begin to."""
        data = b"".join([data for _, data in parts])
        spans = find_secrets(data, self.secrets)
        ends = move_offsets(accumulate(len(data) for _, data in parts), spans)
        marks = [(self._since_begin(now), end) for (now, _), end in zip(parts, ends, strict=True)]
        stream = StoredStream(remove_spans(data, spans), marks)
        texts = _list_texts(read_stream(kind, content_type, parts))
        if self._is_running and any(map(self._ends_in_secret, (stream.data, *texts))):
            return StoredStream(withheld=True)
        clean = [redact(text, self.secrets) for text in texts]
        if clean != texts and clean != _list_texts(read_stream(kind, content_type, stream.parts())):
            return StoredStream(withheld=True)
        return stream

    def _ends_in_secret(self, text: bytes) -> bool:
        """Whether a text ends with the beginning of a secret."""
        return any(text.endswith(each[:end]) for each in self.secrets for end in range(MIN_SECRET_SIZE, len(each)))

    def _since_begin(self, now: float) -> float:
        return round(now - self._began, 5) if now else 0.0


def _list_texts(view: StreamView) -> list[bytes]:
    named = [text for call in view.calls for text in (call.id, call.name, call.arguments)]
    return [text.encode(errors="replace") for text in (view.text, view.reasoning, view.failure, *named)]


def move_offsets(offsets: Iterable[int], spans: Sequence[tuple[int, int]]) -> Iterable[int]:
    """Where these offsets are once the spans are replaced; one inside a span is moved behind its replacement."""
    starts = [start for start, _ in spans]
    shifts = [0, *accumulate(len(REMOVED) - (end - start) for start, end in spans)]
    for offset in offsets:
        count = bisect_right(starts, offset - 1)
        is_inside = count and offset < spans[count - 1][1]
        yield (spans[count - 1][1] if is_inside else offset) + shifts[count]


def _decode_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def filter_headers(headers: Mapping[str, str], secrets: tuple[bytes, ...]) -> Headers:
    """The names of all headers, and the values of the harmless ones."""
    return [
        (
            name[:MAX_NAME_LENGTH],
            redact_text(value[:MAX_HEADER_LENGTH], secrets) if SHOWN_HEADERS.fullmatch(name.lower()) else "(not kept)",
        )
        for name, value in headers.items()
    ]
