"""The sink that answers an HTTP request with the events of a run, as a stream or in one piece.

Status and headers are sent with the first visible event, or after `server.commit_after` seconds; until then a failure
has a real status. All events of one read become one write. During silence a comment keeps the connection alive.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toolwire.core.bounds import LARGE_BODY_BYTES
from toolwire.core.collect import Collector
from toolwire.core.errors import UNAVAILABLE, Failure, InternalError
from toolwire.core.events import Delta, Event, TurnFailed
from toolwire.core.sse import CONTENT_TYPE
from toolwire.gateway.answer import Answer, Pace
from toolwire.gateway.http import EXPOSED, PIECE, send_json, send_pieces
from toolwire.gateway.http_request import HttpRequest, find_request
from toolwire.protocols import Encoder
from toolwire.turns.observers import ObservedTurn
from toolwire.turns.run import find_early_failure
from toolwire.turns.source import TurnSource
from toolwire.upstream.scheduling import give_way

SSE_HEADERS = (
    (b"content-type", CONTENT_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

# Prefixes of the upstream's headers that the client receives.
_PASSED = ("x-ratelimit-", "anthropic-ratelimit-", "x-codex-", "openai-processing-ms")

# The id of a request, as sent by OpenAI and most others, Anthropic, ChatGPT, Azure, Bedrock, Cloudflare.
_REQUEST_IDS = ("x-request-id", "request-id", "x-oai-request-id", "apim-request-id", "x-amzn-requestid", "cf-ray")
_UNSAFE = re.compile(r"[^!-~]")
Sampler: TypeAlias = Callable[[Delta], tuple[bytes, int] | None]
"""`sample` of an encoder, which not every dialect has."""
MAX_ID = 128
"""Characters of an upstream's request id."""

SHUTTING_DOWN = Failure(503, "shutting_down", "The gateway is shutting down.")


class HttpSink:
    """One answer on one connection. Afterwards `status` is the status that the client received."""

    def __init__(
        self,
        send: Send,
        turn: ObservedTurn,
        pace: Pace,
        loop: asyncio.AbstractEventLoop,
        encode_error: Callable[[Failure], bytes],
    ) -> None:
        self._send = send
        self._turn = turn
        self._pace = pace
        self._loop = loop
        self._encode_error = encode_error
        self.encoder: Encoder | None = None
        """The encoder of a stream that has begun."""
        self._answer: Answer | None = None
        self.late: Sequence[Event] = ()
        """Events that could not be sent while the run waited."""
        self.unsent: Sequence[bytes] = ()
        """A large part that was encoded then."""
        self._spoke = 0.0  # when something was sent
        self._due = 0.0  # when a keepalive will be
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.upstream_id = ""
        """The upstream's id of the request."""
        self.committed = False
        self.has_own_limits = False
        self.outcome = ""
        self.ended = False
        """Nothing more may be sent: the last bytes were sent, or are being sent."""
        self.interruption = SHUTTING_DOWN

    @property
    def has_shown_output(self) -> bool:
        return self.committed and self.status == 200

    async def send_plain(self, run: TurnSource, answer: Answer, hold: Callable[[int], None]) -> None:
        """Collect the turn and send it in one piece. `hold` reserves more bytes, and may raise."""
        collector = Collector()
        held = 0
        while not run.finished:
            for event in await run.read(float("inf")):
                collector.feed(event)
            hold(collector.size - held)
            held = collector.size
        if held >= LARGE_BODY_BYTES:
            await give_way()
        [turn] = collector.end()
        if turn.failure is not None:
            await self.refuse(turn.failure, run)
            return
        [body] = await answer.settle([answer.encode_whole(turn, run)])
        headers = [*self.headers, *self._select_headers(run), *run.assembly.stats.headers()]
        await self._send_whole(200, body, headers)

    async def send_stream(self, run: TurnSource, answer: Answer) -> None:
        """Send the turn as a stream."""
        loop, pace = self._loop, answer.pace or self._pace
        self._spoke = loop.time()
        self._due = self._spoke + pace.commit_after
        events: Sequence[Event] = ()
        if not pace.opens_at_once:
            events = await run.read(self._due)
            failure = find_early_failure(events)
            if failure is not None:
                await self.refuse(failure, run)
                return
        self._answer, self.encoder = answer, answer.get_encoder(run)
        self._commit(200)
        await self._open(run)
        if pace.opens_at_once:
            events = await self._wait_openly(run, self.encoder, pace)
            self.encoder = answer.get_encoder(run)  # with the notes of the attempt that was shown
        else:
            events = events or run.commit()
        keepalive, request = pace.keepalive or float("inf"), find_request(self._send)
        listener = _Listener(self, run, answer, request, keepalive) if request is not None else None
        while True:
            pieces, self.unsent = [*self.unsent, *self.encode(events)], ()
            now = loop.time()
            if not pieces and now >= self._due:
                pieces = self.encoder.keepalive(now - self._spoke)
            if run.finished:
                await self._end_with(await answer.settle(pieces))
                return
            if pieces:
                await self._put(pieces)
                self._due = now + keepalive
            answer.check()
            events = await run.read(self._due, listener)
            events, self.late = self.late or events, ()

    def note_sent(self, pieces: Sequence[bytes], keepalive: float) -> None:
        """Note bytes that are sent while the run waits; the next keepalive follows after so many seconds."""
        for tap in self._turn.taps:
            tap.write(pieces)
        self._spoke = self._loop.time()
        self._due = self._spoke + keepalive

    def encode(self, events: Sequence[Event]) -> list[bytes]:
        """The bytes of events that are about to be sent."""
        assert self.encoder is not None
        feed = self.encoder.feed
        pieces = [piece for event in events for piece in feed(event)]
        for tap in self._turn.taps:
            tap.look(events)
        if pieces:
            self._spoke = self._loop.time()
        return pieces

    async def _wait_openly(self, run: TurnSource, encoder: Encoder, pace: Pace) -> Sequence[Event]:
        """Send keepalives until there are events to show; returns these. Retries remain possible meanwhile."""
        began, silent = self._loop.time(), 0.0
        while True:
            await self._put(encoder.keepalive(silent))
            events = await run.read(began + silent + (pace.keepalive or float("inf")))
            if events or run.finished:
                return events
            silent = self._loop.time() - began

    async def _open(self, run: TurnSource) -> None:
        assert self.encoder is not None
        content_type = (b"content-type", self.encoder.content_type)
        start = [content_type, *SSE_HEADERS[1:], *self.headers, *self._select_headers(run)]
        for tap in self._turn.taps:
            tap.send_head(start)
        await self._send({"type": "http.response.start", "status": 200, "headers": start})

    def _put(self, pieces: Sequence[bytes], *, last: bool = False) -> Awaitable[None]:
        """Send the pieces, which come from one read, in one write."""
        for tap in self._turn.taps:
            tap.write(pieces)
        if len(pieces) == 1 and len(pieces[0]) <= PIECE and not last:
            return self._send({"type": "http.response.body", "body": pieces[0], "more_body": True})
        return send_pieces(self._send, pieces, last=last)

    async def fail(self, failure: Failure, run: TurnSource | None) -> None:
        """Send a failure: with a status before the commit, else inside the stream."""
        if not self.committed:
            await self.refuse(failure, run)
        elif not self.ended and self.encoder is not None and self._answer is not None:
            await self._end_with(await self._answer.settle(self.encoder.feed(TurnFailed(failure))))

    async def refuse(self, failure: Failure, run: TurnSource | None) -> None:
        """Answer with the status of a failure and the dialect's error object."""
        headers = [*self.headers, *(self._select_headers(run) if run is not None else ())]
        if failure.retry_after:
            headers.append((b"retry-after", failure.retry_after.encode()))
        if failure.code == UNAVAILABLE:
            headers.append((b"x-should-retry", b"false"))  # the SDKs of OpenAI and Anthropic obey it
        if failure.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self._send_whole(failure.status, self._encode_error(failure), headers)

    async def give_up(self) -> None:
        """Answer with an internal error: the failure itself could not be encoded."""
        if not self.committed:
            await self.refuse(InternalError().failure, None)
        elif not self.ended and self.encoder is not None:
            await self._end_with(self.encoder.break_off())

    async def send_stored(self, kept: bytes | AsyncIterator[bytes]) -> None:
        """Answer with a body or a stream that does not depend on this connection."""
        self._commit(200)
        self.ended = True
        if isinstance(kept, bytes):
            for tap in self._turn.taps:
                tap.send_head(self.headers)
                tap.write((kept,))
            await send_json(self._send, 200, kept, self.headers)
            return
        start = [*SSE_HEADERS, *self.headers]
        for tap in self._turn.taps:
            tap.send_head(start)
        await self._send({"type": "http.response.start", "status": 200, "headers": start})
        async for piece in kept:
            for tap in self._turn.taps:
                tap.write((piece,))
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def send_response(self, response: Response, scope: Scope, receive: Receive) -> None:
        """Answer with a ready response."""
        self._commit(response.status_code)
        self.ended = True
        await response(scope, receive, self._send)

    async def _send_whole(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._commit(status)
        self.ended = True
        for tap in self._turn.taps:
            tap.send_head(headers)
            tap.write((body,))
        await send_json(self._send, status, body, headers)

    async def _end_with(self, pieces: Sequence[bytes]) -> None:
        """Send the last bytes, and end the answer."""
        self.ended = True
        await self._put(pieces, last=True)

    def _commit(self, status: int) -> None:
        self.status = status
        self.committed = True

    def _select_headers(self, run: TurnSource) -> list[tuple[bytes, bytes]]:
        """The upstream's headers for the client. Sets `upstream_id`."""
        out = [
            (passed, value.encode("latin-1", "replace"))
            for name, value in run.headers.items()
            if (passed := _encode_passed_name(name)) is not None
        ]
        if self.has_own_limits:
            out = [each for each in out if b"ratelimit" not in each[0]]
        out.append((b"x-toolwire-backend", run.backend.encode()))
        self.upstream_id = find_request_id(run.headers)
        if self.upstream_id:
            out.append((b"x-upstream-request-id", self.upstream_id.encode()))
        return out


class _Listener:
    """Sends the events of a run to an HTTP client while `send_stream` waits for them."""

    def __init__(self, sink: HttpSink, run: TurnSource, answer: Answer, request: HttpRequest, keepalive: float) -> None:
        self._sink = sink
        self._run = run
        self._answer = answer
        self._request = request
        self._keepalive = keepalive

    @property
    def is_ready(self) -> bool:
        return self._request.is_writable

    def show(self, events: Sequence[Event]) -> bool:
        sink = self._sink
        if self._run.finished or not self._request.is_writable:
            sink.late = events
            return False
        pieces = sink.encode(events)
        if sum(map(len, pieces)) > PIECE:
            sink.unsent = pieces
            return False
        if pieces:
            sink.note_sent(pieces, self._keepalive)
            self._request.write(b"".join(pieces))
        self._answer.check()
        return True

    def sample(self, event: Delta) -> tuple[bytes, int] | None:
        sample: Sampler | None = getattr(self._sink.encoder, "sample", None)
        return sample(event) if sample is not None else None

    def send(self, piece: bytes) -> None:
        self._sink.note_sent((piece,), self._keepalive)
        self._request.write(piece)

    def take_in(self, events: Sequence[Event]) -> bytes:
        encoder = self._sink.encoder
        assert encoder is not None
        pieces = [piece for event in events for piece in encoder.feed(event)]
        self._answer.check()
        return b"".join(pieces)


def find_request_id(headers: Mapping[str, str]) -> str:
    """The upstream's id of a request, in characters that are safe in a header and a log."""
    for name in _REQUEST_IDS:
        if value := headers.get(name):
            return _UNSAFE.sub("", value)[:MAX_ID]
    return ""


@lru_cache(maxsize=512)
def _encode_passed_name(name: str) -> bytes | None:
    """An upstream header's name as the client receives it, or None if it does not."""
    name = name.lower()
    passes = name.startswith(_PASSED) and name not in EXPOSED
    return name.encode("latin-1", "replace") if passes else None
