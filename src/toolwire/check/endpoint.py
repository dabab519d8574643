"""The endpoint under test: asks, keeps the time, and holds every answer against the rules."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import msgspec

from toolwire.check.apis import Api, Ask
from toolwire.check.exchange import Exchange, Sent
from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import Json, as_objects, as_text
from toolwire.check.turns.rule import Asked, Finding
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.core.events import Dialect

MOST_BYTES = 64 * 1024 * 1024


class Unreachable(Exception):
    """The endpoint cannot be checked, in one line."""


class BudgetSpent(Exception):
    """No more requests."""


class Target(msgspec.Struct):
    """What is checked, and how much of it."""

    base: str
    model: str
    key: str = ""
    budget: int = 150
    """Requests at most."""
    timeout: float = 120.0
    """Seconds for one answer."""
    record: Path | None = None
    """Where every exchange is written to."""


class Endpoint:
    """One address, asked again and again."""

    def __init__(self, target: Target, asked: Callable[[Exchange], None] = lambda _: None) -> None:
        self.target = target
        self.exchanges: list[Exchange] = []
        self.probe = ""
        """What is being tried, for the records."""
        self._told = asked
        self._session: aiohttp.ClientSession | None = None
        self._sent = 0

    async def __aenter__(self) -> "Endpoint":
        timeout = aiohttp.ClientTimeout(total=self.target.timeout, sock_connect=10)
        self._session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, api: Api, ask: Ask, model: str = "", *, leave_after: int = 0) -> Exchange:
        """Ask, and hold the answer against the rules. `leave_after` so many events the connection is cut."""
        body = api.body(ask, model or self.target.model)
        asked = Asked(api.name, tuple(tool.name for tool in ask.tools), bool(body.get("stream_options")) or None)
        return await self._post(api, msgspec.json.encode(body), asked, leave_after=leave_after)

    async def post(self, api: Api, body: bytes, path: str = "") -> Exchange:
        """Send a body as it is, about whose answer only the status and the form of an error are known."""
        return await self._post(api, body, None, path)

    async def get(self, path: str, api: Api) -> Exchange:
        """Read a small document."""
        return await self._fetch("GET", api, path, b"", None)

    async def _post(
        self, api: Api, body: bytes, asked: Asked | None, path: str = "", *, leave_after: int = 0
    ) -> Exchange:
        return await self._fetch("POST", api, path or api.path, body, asked, leave_after)

    async def _fetch(
        self, method: str, api: Api, path: str, body: bytes, asked: Asked | None, leave_after: int = 0
    ) -> Exchange:
        if self._sent >= self.target.budget:
            raise BudgetSpent
        self._sent += 1
        sent = Sent(method, self.target.base + path, body)
        answer = _Answer(asked, leave_after)
        headers = {**api.headers(self.target.key), **({"content-type": "application/json"} if body else {})}
        assert self._session is not None
        try:
            async with self._session.request(method, sent.url, data=body or None, headers=headers) as response:
                await answer.read(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            answer.trouble = answer.trouble or f"{type(error).__name__}: {error}".removesuffix(": ")
        exchange = answer.exchange(self._sent, self.probe, api.name, sent)
        self.exchanges.append(exchange)
        self._record(exchange)
        self._told(exchange)
        return exchange

    def _record(self, exchange: Exchange) -> None:
        if self.target.record is None:
            return
        name = f"{exchange.number:03d}-{exchange.api}-{exchange.probe or 'other'}"
        self.target.record.mkdir(parents=True, exist_ok=True)
        (self.target.record / f"{name}.request.json").write_bytes(exchange.sent.body)
        ending = "sse" if exchange.streamed else "json"
        (self.target.record / f"{name}.{ending}").write_bytes(exchange.body)


class _Answer:
    """An answer while it comes in."""

    def __init__(self, asked: Asked | None, leave_after: int) -> None:
        self._asked = asked
        self._leave_after = leave_after
        self._began = time.monotonic()
        self._pieces: list[bytes] = []
        self._stream = StreamCheck(asked) if asked is not None else None
        self._status = 0
        self._type = ""
        self._left = False
        self.trouble = ""

    async def read(self, response: aiohttp.ClientResponse) -> None:
        self._status = response.status
        self._type = response.headers.get("content-type", "")
        size = 0
        async for data in response.content.iter_any():
            self._pieces.append(data)
            size += len(data)
            if size > MOST_BYTES:
                self.trouble = f"the answer has more than {MOST_BYTES} bytes"
                return
            if self._stream is not None and self._streamed:
                self._stream.feed(data, time.monotonic() - self._began)
                if self._leave_after and len(self._stream.heard) >= self._leave_after:
                    self._left = True
                    response.close()
                    return

    @property
    def _streamed(self) -> bool:
        return self._status == 200 and "event-stream" in self._type

    def exchange(self, number: int, probe: str, api: Dialect, sent: Sent) -> Exchange:
        body, seconds = b"".join(self._pieces), time.monotonic() - self._began
        about = Exchange(number, probe, api, sent, self._status, self._type, body, (), seconds, self.trouble)
        if self._asked is None or self._stream is None or self._left or self._status != 200:
            return about
        heard = tuple(self._stream.heard)
        if self.trouble:
            broke = Finding("stream.whole", f"The answer broke off: {self.trouble}.", _last(heard))
            return msgspec.structs.replace(about, heard=heard, findings=(broke,))
        if self._streamed:
            found, turn = [*self._stream.end()], self._stream.turn
        else:
            found, turn = check_plain(body, self._asked)
        wanted = "stream" if b'"stream":true' in sent.body else "plain answer"
        if (wanted == "stream") != self._streamed:
            found.append(Finding("sse.content-type", f"A {wanted} was asked for, and the answer is {self._type!r}."))
        found += _late(heard, seconds)
        return msgspec.structs.replace(about, heard=heard, turn=turn, findings=tuple(found))


LONG = 1.5
"""Seconds from which a stream can be seen to come all at once."""


def _late(heard: Sequence[Heard], seconds: float) -> Iterator[Finding]:
    if len(heard) > 10 and seconds > LONG and heard[0].at > 0.9 * heard[-1].at:
        yield Finding("stream.live", f"The first event came after {heard[0].at:.1f} s of {seconds:.1f} s.", (0,))


def _last(heard: Sequence[Heard]) -> tuple[int, ...]:
    return (heard[-1].place,) if heard else ()


def base_of(url: str) -> str:
    """The address up to `/v1`, which may be left out."""
    base = url.rstrip("/")
    for ending in ("/chat/completions", "/responses", "/messages"):
        base = base.removesuffix(ending)
    return base if base.rsplit("/", 1)[-1][:1] == "v" and base[-1:].isdigit() else f"{base}/v1"


def listed(fields: Json) -> list[str]:
    """The models in a list of them."""
    return [as_text(each.get("id")) for each in as_objects(fields.get("data"))]
