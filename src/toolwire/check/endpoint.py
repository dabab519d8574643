"""The endpoint under test: sends requests, measures times and checks every answer against the rules."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from pathlib import Path

import aiohttp
import msgspec

from toolwire.check.address import CONNECT_TIMEOUT, explain_failure
from toolwire.check.apis import Api
from toolwire.check.exchange import Exchange, SentRequest, is_event_stream, is_framed
from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import as_object, as_text
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.streams import StreamCheck, check_answer
from toolwire.core.redact import BlankCredentials, CredentialFilter
from toolwire.memory.private_files import make_folders, open_private

MAX_BYTES = 16 * 1024 * 1024
"""The maximum size of an answer; probes ask for short ones."""
MAX_TOTAL_BYTES = 8 * MAX_BYTES
"""The maximum total size of answers, which are kept for the report."""
MAX_KEPT_BYTES = 64 * 1024
"""Bytes that are kept of an answer that is too large."""
TOO_LARGE = f"the answer has more than {MAX_BYTES} bytes"
LATE = "no answer in time"
USER_AGENT = "toolwire-check"
"""Identifies the requests of a check in server logs and in the console."""
MAX_TIMEOUTS = 3
"""Maximum number of timeouts, or of oversized answers, before an API is given up."""


class Unreachable(Exception):
    """The endpoint cannot be checked; the message is one line for the user."""


class GivenUp(Exception):
    """No more requests are made; the message says why."""


class BudgetSpent(GivenUp):
    """The budget of requests is used up."""


class Target(msgspec.Struct, frozen=True):
    """The endpoint that is checked, and the limits of the check."""

    base: str
    model: str
    key: str = ""
    budget: int = 300
    """The maximum number of requests."""
    timeout: float = 120.0
    """Seconds that one answer may take."""
    record: Path | None = None
    """The directory that every exchange is written to."""
    headers: dict[str, str] = {}
    """Headers of every request, and parameters of its URL; neither is shown."""
    query: dict[str, str] = {}


TICK_SECONDS = 0.05


class OwnClock:
    """Seconds in which this process ran: while its machine is too busy to run it, a tick is all that passes.

    Otherwise what a server sent meanwhile would seem to arrive at once, after a silence.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._ticked = time.monotonic()

    def read(self) -> float:
        """The time of this clock."""
        return self._seconds + min(time.monotonic() - self._ticked, 2 * TICK_SECONDS)

    async def tick(self) -> None:
        """Keep the clock going, until this is cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._seconds, self._ticked = self.read(), time.monotonic()


class Endpoint:
    """Sends requests to one address and keeps all exchanges."""

    def __init__(self, target: Target, on_exchange: Callable[[Exchange], None] = lambda _: None) -> None:
        self.target = target
        self.exchanges: list[Exchange] = []
        self.probe = ""
        """The name of the probe that is running."""
        self.renamed: dict[str, str] = {}
        """Request fields that this model expects under another name."""
        self._on_exchange = on_exchange
        self._sent = 0
        self.overdue: Counter[str] = Counter()
        """The number of timeouts, by API."""
        self._too_large: Counter[str] = Counter()
        self._received_bytes = 0
        self._is_gone = False
        self.clock = OwnClock()

    async def __aenter__(self) -> "Endpoint":
        self._ticking = asyncio.create_task(self.clock.tick())
        timeout = aiohttp.ClientTimeout(total=self.target.timeout, sock_connect=CONNECT_TIMEOUT)
        self.session = aiohttp.ClientSession(headers={"user-agent": USER_AGENT}, timeout=timeout, trust_env=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticking.cancel()
        await self.session.close()

    async def fetch(
        self, api: Api, path: str, body: bytes = b"", facts: RequestFacts | None = None, *, leave_after: int = 0
    ) -> Exchange:
        """Send a request: POST with a body, GET without one. With `facts` its answer is checked as a turn.

        With `leave_after` the client disconnects after that many events.
        """
        sent = SentRequest("POST" if body else "GET", api.find_base(self.target.base) + path, body)
        exchange = Exchange(self.spend(api), self.probe, api.name, sent, facts=facts)
        answer = _Answer(exchange, self.target.key, leave_after, self.clock)
        headers = self.make_headers(api) | ({"content-type": "application/json"} if body else {})
        try:
            # A redirected POST becomes a GET, and the key would go to another host: the redirect is reported instead.
            async with self.session.request(
                sent.method,
                sent.url,
                params=self.target.query,
                data=body or None,
                headers=headers,
                allow_redirects=False,
            ) as response:
                await answer.read(response)
        except aiohttp.ConnectionTimeoutError as error:
            exchange.failure = explain_failure(error)
        except TimeoutError:
            self.overdue[api.name] += 1
            exchange.failure = f"it did not end in {self.target.timeout:g} s" if exchange.status else LATE
        except (aiohttp.ClientError, OSError) as error:
            self._is_gone = isinstance(error, aiohttp.ClientConnectorError) and any(e.status for e in self.exchanges)
            exchange.failure = exchange.failure or explain_failure(error)
        answer.end()
        self.add(exchange)
        if facts is not None and exchange.status == 401:  # further requests would be refused too
            raise GivenUp(self.explain_refusal(exchange))
        return exchange

    def make_headers(self, api: Api) -> dict[str, str]:
        """The headers of every request: the key, and those that the user gave."""
        return {**api.make_headers(self.target.key), **self.target.headers}

    def explain_refusal(self, exchange: Exchange) -> str:
        """Explain an answer with status 401 or 403."""
        status = describe_status(exchange)
        if self.target.key:
            return f"the key is refused ({status})"
        return f"a key is needed ({status}): give one with --key or in TOOLWIRE_CHECK_KEY"

    def spend(self, api: Api) -> int:
        """Count a request and return its number. Raises `GivenUp` if no more may be made."""
        if self._sent >= self.target.budget:
            raise BudgetSpent(f"the budget of {self.target.budget} requests is spent")
        if self.overdue[api.name] >= MAX_TIMEOUTS:
            raise GivenUp(f"{MAX_TIMEOUTS} answers took longer than {self.target.timeout:g} s: raise --timeout")
        if self._too_large[api.name] >= MAX_TIMEOUTS:
            raise GivenUp(f"{MAX_TIMEOUTS} answers had more than {MAX_BYTES} bytes")
        if self._received_bytes > MAX_TOTAL_BYTES:
            raise GivenUp(f"all answers together had more than {MAX_TOTAL_BYTES} bytes")
        if self._is_gone:
            raise GivenUp("the server can no longer be reached")
        self._sent += 1
        return self._sent

    def add(self, exchange: Exchange) -> Exchange:
        """Keep a finished exchange, record it and report it."""
        self._received_bytes += len(exchange.body)
        self._too_large[exchange.api] += exchange.failure == TOO_LARGE
        self.exchanges.append(exchange)
        if self.target.record is not None:
            _record(exchange, self.target.record)
        self._on_exchange(exchange)
        return exchange


def _record(exchange: Exchange, folder: Path) -> None:
    name = f"{exchange.number:03d}-{exchange.api}-{exchange.probe or 'other'}"
    kind = "jsonl" if exchange.is_socket else "sse" if exchange.streamed else "json"
    ending = f"{'left.' if exchange.left else ''}{kind}"
    make_folders(folder)
    for suffix, body in (("request.json", exchange.sent.body), (ending, exchange.body)):
        if body or suffix == ending:
            with open_private(folder / f"{name}.{suffix}", "w") as file:
                file.write(body)


class _Answer:
    """Reads an answer and fills in its exchange."""

    def __init__(self, exchange: Exchange, key: str, leave_after: int, clock: OwnClock) -> None:
        self._exchange = exchange
        self._leave_after = leave_after
        self._redactor = BlankCredentials(CredentialFilter((key,)))
        self._began = time.monotonic()
        self._clock, self._started = clock, clock.read()
        self._pieces: list[bytes] = []
        self._stream = StreamCheck(exchange.facts or RequestFacts(exchange.api))

    async def read(self, response: aiohttp.ClientResponse) -> None:
        exchange = self._exchange
        exchange.status = response.status
        exchange.content_type = response.headers.get("content-type", "")
        if 300 <= exchange.status < 400:
            location = response.headers.get("location", "nowhere")
            exchange.failure = f"status {exchange.status}, which points to {location}"
        size = 0
        async for data in response.content.iter_any():
            self._take(self._redactor.feed(data))
            size += len(data)
            if size > MAX_BYTES:
                exchange.failure = TOO_LARGE
                return
            if self._leave_after and len(self._stream.received) >= self._leave_after:
                exchange.left = True
                response.close()
                return

    def _take(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._streamed:
            self._stream.feed(data, self._clock.read() - self._started)

    @property
    def _streamed(self) -> bool:
        return self._exchange.status == 200 and is_event_stream(self._exchange.content_type)

    def end(self) -> None:
        """End the answer, and check it if it should be a turn."""
        exchange = self._exchange
        exchange.seconds = time.monotonic() - self._began
        self._take(self._redactor.end())
        exchange.body = b"".join(self._pieces)[: MAX_KEPT_BYTES if exchange.failure == TOO_LARGE else None]
        facts, stream = exchange.facts, self._stream
        if facts is None or exchange.left or exchange.status != 200:
            return
        if exchange.failure:
            exchange.received = keep_frames(stream.received, exchange.failure)
            exchange.findings = (make_cut_finding(exchange),)
            return
        wants_stream = bool(facts.fields.get("stream"))
        if self._streamed:
            found, exchange.turn, exchange.received = stream.end(), stream.turn, tuple(stream.received)
            if not wants_stream:
                found = [Finding("plain.json", "A plain answer was requested, but a stream came.", (0,))]
        else:  # a stream with a wrong content type is still read as a stream
            is_stream = wants_stream and is_framed(exchange.body)
            found, exchange.turn, exchange.received = check_answer(exchange.body, facts, is_stream=is_stream)
            if wants_stream:
                detail = f"A stream was requested, but the answer is {exchange.content_type!r}."
                found = [*(each for each in found if each.rule != "plain.json"), Finding("sse.content-type", detail)]
        exchange.findings = (*found, *_check_liveness(exchange.received))


MIN_LIVE_SECONDS = 1.5
MIN_LIVE_EVENTS = 10
"""Shorter streams, and those with at most this many events, are not tested for `stream.live`."""
MAX_MODEL_RATE = 1000
"""Events per second; no model is faster."""


def _check_liveness(received: Sequence[ReceivedFrame]) -> Iterator[Finding]:
    """A finding if a burst of events follows a long silence. After silent reasoning, events arrive more slowly."""
    times = [0.0, *(each.at for each in received)]
    silences = [after - before for before, after in pairwise(times)]
    if len(received) <= MIN_LIVE_EVENTS or times[-1] < MIN_LIVE_SECONDS:
        return
    longest = max(silences)
    position = silences.index(longest)
    burst, seconds = len(received) - position, times[-1] - times[position + 1]
    if longest > 0.9 * times[-1] and burst > MIN_LIVE_EVENTS and burst > MAX_MODEL_RATE * seconds:
        detail = f"{burst} of {len(received)} events came at once, after {longest:.1f} s of silence."
        yield Finding("stream.live", detail, (received[position].position,))


def keep_frames(received: Sequence[ReceivedFrame], failure: str) -> tuple[ReceivedFrame, ...]:
    """The events to keep of an incomplete answer: all, unless it is too large."""
    if failure != TOO_LARGE:
        return tuple(received)
    sizes = accumulate((len(each.raw) for each in received), initial=0)
    return tuple(each for each, _ in zip(received, takewhile(lambda size: size <= MAX_KEPT_BYTES, sizes), strict=False))


def make_cut_finding(exchange: Exchange) -> Finding:
    """The finding about a truncated answer."""
    last = tuple(each.position for each in exchange.received[-1:])
    return Finding("stream.whole", f"The answer broke off: {exchange.failure}.", last)


def describe_status(exchange: Exchange) -> str:
    """The status of an answer with its error message."""
    fields = exchange.fields
    error = fields.get("error")
    message = as_text(as_object(error).get("message")) or as_text(error) or as_text(fields.get("detail"))
    if not message and "html" in exchange.content_type:
        message = "a web page"
    return f"status {exchange.status}: {message or exchange.body[:200].decode(errors='replace')}".removesuffix(": ")
