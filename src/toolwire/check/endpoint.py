"""The endpoint under test: asks, keeps the time, and holds every answer against the rules."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from toolwire.check.apis import Api, Ask
from toolwire.check.exchange import Exchange, Sent, is_event_stream, is_framed
from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import Json, as_objects, as_text
from toolwire.check.turns.rule import Asked, Finding
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.check.turns.turn import Turn
from toolwire.transport.private import make_folders, open_private

MOST_BYTES = 64 * 1024 * 1024
LATE = "no answer in time"
PATIENCE = 3
"""Answers of one API that may take too long before it is given up."""


class Unreachable(Exception):
    """The endpoint cannot be checked, in one line."""


class GivenUp(Exception):
    """No more requests, and why."""


class BudgetSpent(GivenUp):
    """All requests were made."""


class Target(msgspec.Struct, frozen=True):
    """What is checked, and how much of it."""

    base: str
    model: str
    key: str = ""
    budget: int = 250
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
        self.renamed: dict[str, str] = {}
        """Fields of requests that this model wants under another name."""
        self._told = asked
        self._sent = 0
        self.overdue: Counter[str] = Counter()
        """Answers that took too long, by API."""
        self._is_gone = False

    async def __aenter__(self) -> "Endpoint":
        timeout = aiohttp.ClientTimeout(total=self.target.timeout, sock_connect=10)
        self.session = aiohttp.ClientSession(timeout=timeout, trust_env=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def ask(self, api: Api, ask: Ask, model: str = "", *, leave_after: int = 0) -> Exchange:
        """Ask, and hold the answer against the rules. `leave_after` so many events the connection is cut."""
        body = self.body(api, ask, model)
        tools = tuple(tool.name for tool in ask.tools)
        usage = bool(body.get("stream_options")) or None
        asked = Asked(api.name, tools, usage, forced=bool(ask.named), fields=body)
        answer = _Answer(asked, self.target.key, stream=ask.stream, leave_after=leave_after)
        return await self._fetch("POST", api, api.path, msgspec.json.encode(body), answer)

    def body(self, api: Api, ask: Ask, model: str = "") -> Json:
        """A request as this model wants it."""
        fields = api.body(ask, model or self.target.model)
        return {self.renamed.get(name, name): value for name, value in fields.items()}

    async def post(self, api: Api, body: bytes, path: str = "") -> Exchange:
        """Send a body as it is, about whose answer only the status and the form of an error are known."""
        return await self._fetch("POST", api, path or api.path, body, _Answer(None, self.target.key))

    async def get(self, path: str, api: Api) -> Exchange:
        """Read a small document."""
        return await self._fetch("GET", api, path, b"", _Answer(None, self.target.key))

    def spend(self, api: Api) -> int:
        """The number of the next request. Raises `GivenUp` if there is to be none."""
        if self._sent >= self.target.budget:
            raise BudgetSpent(f"the budget of {self.target.budget} requests was spent before")
        if self.overdue[api.name] >= PATIENCE:
            raise GivenUp(f"{PATIENCE} answers took longer than {self.target.timeout:g} s: raise --timeout")
        if self._is_gone:
            raise GivenUp("the server could not be reached any more")
        self._sent += 1
        return self._sent

    def keep(self, exchange: Exchange) -> Exchange:
        """An exchange is over."""
        self.exchanges.append(exchange)
        self._record(exchange)
        self._told(exchange)
        return exchange

    async def _fetch(self, method: str, api: Api, path: str, body: bytes, answer: "_Answer") -> Exchange:
        number = self.spend(api)
        sent = Sent(method, self.target.base + path, body)
        headers = {**api.headers(self.target.key), **({"content-type": "application/json"} if body else {})}
        try:
            # A redirected POST becomes a GET, and the key goes to another host. It is told instead.
            async with self.session.request(
                method, sent.url, data=body or None, headers=headers, allow_redirects=False
            ) as response:
                await answer.read(response)
        except TimeoutError:
            self.overdue[api.name] += 1
            answer.trouble = f"it did not end in {self.target.timeout:g} s" if answer.status else LATE
        except (aiohttp.ClientError, OSError) as error:
            self._is_gone = isinstance(error, aiohttp.ClientConnectorError) and any(e.status for e in self.exchanges)
            answer.trouble = answer.trouble or f"{type(error).__name__}: {error}".removesuffix(": ")
        return self.keep(answer.exchange(Exchange(number, self.probe, api.name, sent)))

    def _record(self, exchange: Exchange) -> None:
        if self.target.record is None:
            return
        name = f"{exchange.number:03d}-{exchange.api}-{exchange.probe or 'other'}"
        kind = "jsonl" if exchange.is_socket else "sse" if exchange.streamed else "json"
        ending = f"{'left.' if exchange.left else ''}{kind}"
        make_folders(self.target.record)
        parts = {"request.json": exchange.sent.body, ending: exchange.body}
        for suffix, body in parts.items():
            if body or suffix == ending:
                with open_private(self.target.record / f"{name}.{suffix}", "w") as file:
                    file.write(body)


class _Answer:
    """An answer while it comes in."""

    def __init__(self, asked: Asked | None, key: str, *, stream: bool = False, leave_after: int = 0) -> None:
        self._asked = asked
        self._wants_stream = stream
        self._leave_after = leave_after
        self._veil = Veil(key)
        self._began = time.monotonic()
        self._pieces: list[bytes] = []
        self._stream = StreamCheck(asked) if asked is not None else None
        self._type = ""
        self._left = False
        self.status = 0
        self.trouble = ""

    async def read(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self._type = response.headers.get("content-type", "")
        if 300 <= self.status < 400:
            self.trouble = f"status {self.status}, which points to {response.headers.get('location', 'nowhere')}"
        size = 0
        async for data in response.content.iter_any():
            self._take(self._veil.feed(data))
            size += len(data)
            if size > MOST_BYTES:
                self.trouble = f"the answer has more than {MOST_BYTES} bytes"
                return
            if self._stream is not None and self._leave_after and len(self._stream.heard) >= self._leave_after:
                self._left = True
                response.close()
                return

    def _take(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._stream is not None and self._streamed:
            self._stream.feed(data, time.monotonic() - self._began)

    @property
    def _streamed(self) -> bool:
        return self.status == 200 and is_event_stream(self._type)

    def exchange(self, about: Exchange) -> Exchange:
        """The answer as far as it came, and what is wrong with it."""
        seconds = time.monotonic() - self._began
        self._take(self._veil.end())
        body = b"".join(self._pieces)
        about = msgspec.structs.replace(
            about, status=self.status, content_type=self._type, body=body, seconds=seconds, trouble=self.trouble,
            asked=self._asked, left=self._left,
        )  # fmt: skip
        if self._asked is None or self._stream is None or self._left or self.status != 200:
            return about
        if self.trouble:
            heard = tuple(self._stream.heard)
            return msgspec.structs.replace(about, heard=heard, findings=(broken_off(self.trouble, heard),))
        found, turn = self._judge(body, self._stream, self._asked)
        heard = tuple(self._stream.heard)
        return msgspec.structs.replace(about, heard=heard, turn=turn, findings=(*found, *_late(heard)))

    def _judge(self, body: bytes, stream: StreamCheck, asked: Asked) -> tuple[Sequence[Finding], Turn]:
        """A stream is read as one even under another name, and nothing else is held against it then."""
        if not self._wants_stream and not self._streamed:
            return check_plain(body, asked)
        if not self._streamed and not is_framed(body):
            found, turn = check_plain(body, asked)
            found = [each for each in found if each.rule != "plain.json"]
        else:
            if not self._streamed:
                stream.feed(body)
            found, turn = stream.end(), stream.turn
        if not self._wants_stream:
            return [Finding("plain.json", "A plain answer was asked for, and a stream came.", (0,))], turn
        if not self._streamed:
            says = f"A stream was asked for, and the answer is {self._type!r}."
            return [*found, Finding("sse.content-type", says)], turn
        return found, turn


class Veil:
    """A stage that takes a key out of bytes in any chunking: a server may repeat it in its errors.

    What is shorter than a real key is a placeholder, such as `EMPTY`, and may be anywhere.
    """

    def __init__(self, key: str) -> None:
        self._key = key.encode() if len(key) >= 12 else b""
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        if not self._key:
            return data
        data = (self._rest + data).replace(self._key, b"*" * 8)
        kept = next((n for n in range(len(self._key) - 1, 0, -1) if data.endswith(self._key[:n])), 0)
        self._rest = data[len(data) - kept :]
        return data[: len(data) - kept]

    def end(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


LONG = 1.5
"""Seconds from which a stream can be seen to come all at once."""
MANY = 10
"""Events that a stream has more of if that can be seen."""
RATE = 1000
"""Events in a second that no model makes."""


def _late(heard: Sequence[Heard]) -> Iterator[Finding]:
    """A long silence, then everything at once. A model that thinks in silence speaks slower afterwards."""
    times = [0.0, *(each.at for each in heard)]
    silences = [after - before for before, after in pairwise(times)]
    if len(heard) <= MANY or times[-1] < LONG:
        return
    longest = max(silences)
    place = silences.index(longest)
    burst, seconds = len(heard) - place, times[-1] - times[place + 1]
    if longest > 0.9 * times[-1] and burst > MANY and burst > RATE * seconds:
        says = f"{burst} of {len(heard)} events came at once, after {longest:.1f} s of silence."
        yield Finding("stream.live", says, (heard[place].place,))


def broken_off(trouble: str, heard: Sequence[Heard]) -> Finding:
    return Finding("stream.whole", f"The answer broke off: {trouble}.", tuple(each.place for each in heard[-1:]))


_VERSION = re.compile(r"/v\d\w*(/|$)")


def base_of(url: str) -> str:
    """The address up to `/v1`, which may be left out. What stands before the path of an API is taken as it is.

    Raises `ValueError`.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address of an endpoint")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("the address of an endpoint has no query and no password; a key is given with --key")
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/responses", "/messages"):
        if path.endswith(ending):
            return f"{parts.scheme}://{parts.netloc}{path.removesuffix(ending)}"
    return f"{parts.scheme}://{parts.netloc}{path}{'' if _VERSION.search(path) else '/v1'}"


def listed(fields: Json) -> list[str]:
    """The models in a list of them."""
    return [as_text(each.get("id")) for each in as_objects(fields.get("data"))]
