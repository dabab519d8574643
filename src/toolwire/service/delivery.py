"""A delivery: one run being sent to one client connection.

Status and headers leave with the first event that shows something, or after a while of waiting; until then a failure
has a real status. All events of one read become one write. While nothing comes, a comment keeps the connection alive.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec
from starlette.types import Send

from toolwire.core.bounds import LARGE
from toolwire.core.collect import Collector, Turn
from toolwire.core.errors import Failure, InternalError
from toolwire.core.events import Event, TurnFailed
from toolwire.runs.run import AnyRun, early_failure
from toolwire.service.http import EXPOSED, PIECE, send_json
from toolwire.transport.fairness import give_way

SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

# Which of the upstream's headers the client may see.
_PASSED = ("x-ratelimit-", "anthropic-ratelimit-", "x-codex-", "openai-processing-ms")

# Where servers tell the id of a request: OpenAI and most others, Anthropic, ChatGPT, Azure, Bedrock, Cloudflare.
_REQUEST_IDS = ("x-request-id", "request-id", "x-oai-request-id", "apim-request-id", "x-amzn-requestid", "cf-ray")
_UNSAFE = re.compile(r"[^!-~]")
_LONGEST_ID = 128


class Encoder(Protocol):
    def feed(self, event: Event, /) -> Sequence[bytes]: ...

    def keepalive(self, silent: float, /) -> Sequence[bytes]: ...

    def break_off(self) -> Sequence[bytes]:
        """The end of the stream when nothing else can be encoded."""
        ...


class Dialect(Protocol):
    """What a delivery needs of a dialect, bound to one request."""

    def stream(self) -> Encoder:
        """The encoder of the stream: always the same one."""
        ...

    def turn(self, turn: Turn) -> bytes: ...

    def error(self, failure: Failure) -> bytes: ...

    def check(self) -> None:
        """Raise if the turn has become larger than may be held."""
        ...

    async def settle(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """The turn is over and its last bytes have not left: keep what must be kept; returns what is to leave."""
        ...


class Pace(msgspec.Struct, frozen=True):
    """Seconds until headers leave without an event, and of silence before a sign of life (0: none)."""

    commit_after: float = 10.0
    keepalive: float = 15.0
    opens_at_once: bool = False
    """The headers wait for nothing. Until something is shown the backend may be asked again all the same."""


class Delivery:
    """One answer on one connection. Afterwards `status` is what the client got."""

    def __init__(self, dialect: Dialect, send: Send, pace: Pace, loop: asyncio.AbstractEventLoop) -> None:
        self._dialect = dialect
        self._send = send
        self.pace = pace
        self._loop = loop
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.committed = False
        self.ended = False
        """Nothing more may be sent: the last bytes are on their way."""

    async def plain(self, run: AnyRun, hold: Callable[[int], None]) -> None:
        """Collect the turn and send it in one piece. `hold` hears of so many bytes more, and may refuse them."""
        collector = Collector()
        held = 0
        while not run.finished:
            for event in await run.read(float("inf")):
                collector.feed(event)
            hold(collector.size - held)
            held = collector.size
        if held >= LARGE:
            await give_way()
        [turn] = collector.end()
        if turn.failure is not None:
            await self.refuse(turn.failure, run)
            return
        [body] = await self._dialect.settle([self._dialect.turn(turn)])
        headers = [*self.headers, *passed_on(run), *run.assembly.tally.headers()]
        await self._send_whole(200, body, headers)

    async def stream(self, run: AnyRun) -> None:
        """Send the turn as it comes."""
        loop = self._loop
        spoke = loop.time()
        due = spoke + self.pace.commit_after
        events: Sequence[Event] = ()
        if not self.pace.opens_at_once:
            events = await run.read(due)
            failure = early_failure(events)
            if failure is not None:
                await self.refuse(failure, run)
                return
        encoder = self._dialect.stream()
        self._commit(200)
        await self._open(run)
        if self.pace.opens_at_once:
            events = await self._wait_openly(run, encoder)
            encoder = self._dialect.stream()  # with the notes of the attempt that was shown
        else:
            events = events or run.commit()
        feed = encoder.feed
        while True:
            pieces: Sequence[bytes] = [piece for event in events for piece in feed(event)]
            now = loop.time()
            if pieces:
                spoke = now
            elif now >= due:
                pieces = encoder.keepalive(now - spoke)
            if run.finished:
                pieces = await self._dialect.settle(pieces)
                self.ended = True
            if pieces:
                await self._put(pieces)
                due = now + (self.pace.keepalive or float("inf"))
            if run.finished:
                break
            self._dialect.check()
            events = await run.read(due)
        await self._close()

    async def _wait_openly(self, run: AnyRun, encoder: Encoder) -> Sequence[Event]:
        """The first events to show; until they come, signs of life. The backend may be asked again meanwhile."""
        began, silent = self._loop.time(), 0.0
        while True:
            await self._put(encoder.keepalive(silent))
            events = await run.read(began + silent + (self.pace.keepalive or float("inf")))
            if events or run.finished:
                return events
            silent = self._loop.time() - began

    async def _open(self, run: AnyRun) -> None:
        start = [*SSE_HEADERS, *self.headers, *passed_on(run)]
        await self._send({"type": "http.response.start", "status": 200, "headers": start})

    async def _put(self, pieces: Sequence[bytes]) -> None:
        """All events of one read in one write."""
        data = b"".join(pieces)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        if len(data) > PIECE:  # what comes next is not made before the client has taken this
            await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def _close(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def refuse(self, failure: Failure, run: AnyRun | None) -> None:
        """A failure before anything was sent: its own status and the dialect's error object."""
        headers = [*self.headers, *(passed_on(run) if run is not None else ())]
        if failure.retry_after and not any(name == b"retry-after" for name, _ in headers):
            headers.append((b"retry-after", failure.retry_after.encode()))
        if failure.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self._send_whole(failure.status, self._dialect.error(failure), headers)

    async def break_off(self, failure: Failure) -> None:
        """A failure of ours in the middle of a stream."""
        pieces = self._dialect.stream().feed(TurnFailed(failure))
        await self._end_with(await self._dialect.settle(pieces))

    async def give_up(self) -> None:
        """Even the failure could not be told: say that much, which always can be said."""
        if self.ended:
            return
        if self.committed:
            await self._end_with(self._dialect.stream().break_off())
        else:
            await self.refuse(InternalError().failure, None)

    async def _send_whole(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._commit(status)
        self.ended = True
        await send_json(self._send, status, body, headers)

    async def _end_with(self, pieces: Sequence[bytes]) -> None:
        self.ended = True
        await self._put(pieces)
        await self._close()

    def _commit(self, status: int) -> None:
        self.status = status
        self.committed = True


def passed_on(run: AnyRun) -> list[tuple[bytes, bytes]]:
    out = [
        (passed, value.encode("latin-1", "replace"))
        for name, value in run.headers.items()
        if (passed := _passed_name(name)) is not None
    ]
    id = upstream_request_id(run.headers)
    return [*out, (b"x-upstream-request-id", id.encode())] if id else out


def upstream_request_id(headers: Mapping[str, str]) -> str:
    """What the upstream calls the request, in characters that are safe in a header and a log."""
    for name in _REQUEST_IDS:
        if value := headers.get(name):
            return _UNSAFE.sub("", value)[:_LONGEST_ID]
    return ""


@lru_cache(maxsize=512)
def _passed_name(name: str) -> bytes | None:
    """An upstream header's name as we pass it on, or None if we do not."""
    name = name.lower()
    passes = name == "retry-after" or (name.startswith(_PASSED) and name not in EXPOSED)
    return name.encode("latin-1", "replace") if passes else None
