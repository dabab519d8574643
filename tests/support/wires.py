"""One gateway in this process between two wires of memory, with a clock that the test sets: every read is the test's."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any
from unittest import mock

import msgspec

from tests.support.client_readers import PATHS
from tests.support.gateway import with_store
from tests.support.scripts import NAMES, Name
from toolwire.config.settings import Settings, load
from toolwire.core.backend import Opening
from toolwire.core.events import Event
from toolwire.core.lane import Lane
from toolwire.core.request import RequestHead
from toolwire.gateway import app, connections, http, sinks
from toolwire.gateway.http_request import HttpRequest
from toolwire.turns.observers import AttemptInfo, TurnObserver, TurnOutcome, TurnReport
from toolwire.upstream import connection

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%b\r\n"
KEY = b"sk-0123456789abcdefghijklmnop"
"""The key of the client, which the backend gets and must not repeat."""
ITERATIONS = 3
"""Iterations of the event loop in which everything happens that a read causes."""


class Wait(msgspec.Struct, frozen=True):
    """Time passes, in steps of a second at most."""

    seconds: float


class Slow(msgspec.Struct, frozen=True):
    """The client stops reading, or reads again."""

    reads: bool = False


class Gone(msgspec.Struct, frozen=True):
    """The client goes away."""


class Cut(msgspec.Struct, frozen=True):
    """The backend's connection breaks."""


class Drain(msgspec.Struct, frozen=True):
    """The gateway's patience with this request is over."""


Step = bytes | Wait | Slow | Gone | Cut | Drain


class Played(msgspec.Struct):
    """What a turn left behind: the writes to the client, and all that its observers saw."""

    written: list[bytes]
    seen: list[Any]
    asked: bytes = b""
    aborted: bool = False
    """Whether the backend's connection was closed before its reply was whole."""
    paused: bool = False
    """Whether reading from the backend ever paused."""
    shown: int = 0
    """Reads whose bytes left in the callback that received them."""
    passed: int = 0
    """Those among them that passed by the stages."""

    @property
    def body(self) -> bytes:
        """The answer's body, without its transfer coding."""
        rest, out = b"".join(self.written).partition(b"\r\n\r\n")[2], b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            out, rest = out + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return out


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, hear: Callable[[bytes], None]) -> None:
        super().__init__()
        self.hear = hear
        self.closed = False
        self.aborted = False
        self.paused = self.was_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1)

    def write(self, data: Any) -> None:
        if not self.closed:
            self.hear(bytes(data))

    def pause_reading(self) -> None:
        self.paused = self.was_paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def write_eof(self) -> None:
        pass


class Witness(TurnObserver):
    """An observer that writes everything down, as the console, the log, metrics and recordings may."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self._look: Any = None

    def begin(self, report: TurnReport, head: RequestHead, path: str) -> "Witness":
        self._look = None
        return self

    def attempt(self, info: AttemptInfo) -> "Witness":
        return self

    def ask(self, *given: Any) -> None:
        if isinstance(given[0], Opening):
            self.seen.append("ask")

    def reply(self, status: int, headers: Mapping[str, str]) -> None:
        self.seen.append(("reply", status))

    def read(self, data: bytes) -> None:
        self.seen.append(("read", data))

    def send(self, messages: Sequence[Any]) -> None:
        pass

    def close(self) -> None:
        self.seen.append("close")

    def receive(self, body: bytes) -> None:
        pass

    def look(self, events: Sequence[Event]) -> None:
        for event in events:
            look = ("look", type(event).__name__)
            if look != self._look:  # events like the one before may pass unseen
                self.seen.append(look)
            self._look = look

    def send_head(self, headers: Any) -> None:
        self.seen.append("head")

    def write(self, pieces: Sequence[bytes]) -> None:
        self.seen.append(("write", blanked(b"".join(pieces))))

    def crash(self, turn: str, error: Exception) -> None:
        self.seen.append(("crash", repr(error)))

    def end(self, *given: Any) -> None:
        if given:
            report, outcome = given
            assert isinstance(outcome, TurnOutcome)
            facts = {name: value for name, value in msgspec.structs.asdict(report).items() if name != "turn"}
            stats = {name: repr(value) for name, value in vars(outcome.stats).items()}
            self.seen.append(("end", repr(facts), stats, outcome.failure))
        else:
            self.seen.append("whole")


def blanked(data: bytes) -> bytes:
    """The bytes without times of day."""
    data = re.sub(rb'"(?:created|created_at|completed_at)":\d{10}', lambda found: found[0][:-10] + b"1" * 10, data)
    return re.sub(rb"date: [^\r]*\r\n", b"", data)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b"0\r\n\r\n"


class Wires:
    """The gateway, and the two ends that the test holds."""

    def __init__(self, gateway: app.Gateway, settings: Settings, witness: Witness, stack: ExitStack) -> None:
        self._gateway = gateway
        self._witness = witness
        self._loop = asyncio.get_running_loop()
        self._stack = stack
        self._connections = connections.Connections(gateway, settings.server, gateway._budget)  # pyright: ignore
        self._connections.check(self._loop.time())
        self._ahead = 0.0
        own_time = self._loop.time
        self._stack.enter_context(
            mock.patch.object(self._loop, "time", lambda: own_time() + self._ahead)  # noqa: PT008
        )
        self._stack.enter_context(
            mock.patch.object(
                connection.Pool,
                "_connect",
                lambda *given: self._connect(*given),  # noqa: PLW0108
            )
        )
        self.errors: list[Any] = []
        """What reached the event loop."""
        self._loop.set_exception_handler(lambda _, context: self.errors.append(context))

    async def _connect(self, pool: Any, address: Any, loop: Any) -> connection.Connection:
        self._server = connection.Connection(pool, address, loop)
        self._far = Wire(self._hear_request)
        self._server.connection_made(self._far)
        return self._server

    def _hear_request(self, data: bytes) -> None:
        self._asked.append(data)

    async def settle(self) -> None:
        for _ in range(ITERATIONS):
            await asyncio.sleep(0)

    async def play(
        self, dialect: Name, body: Any, steps: Iterable[Step], *, head: bytes = b"", shows: bool = True
    ) -> Played:
        """Answer a request with these reads. With `shows` false nothing is shown in the callback that received it."""
        self._asked: list[bytes] = []
        digits = iter(range(1 << 30))
        self._played = played = Played([], [])
        self._witness.seen = played.seen
        client = connections.HttpConnection(self._connections)
        near = Wire(lambda data: played.written.append(blanked(data)))
        client.connection_made(near)
        write, feed = HttpRequest.write, Lane.feed

        def count(request: HttpRequest, data: bytes) -> None:
            played.shown += 1
            write(request, data)

        def count_passed(lane: Lane, data: bytes) -> bytes | None:
            written = feed(lane, data)
            played.passed += written is not None
            return written

        with (
            mock.patch.object(http.RandomHex, "take", lambda _, size: f"{next(digits):0{size}x}"),
            mock.patch.object(sinks, "find_request", sinks.find_request if shows else lambda _: None),
            mock.patch.object(HttpRequest, "write", count),
            mock.patch.object(Lane, "feed", count_passed),
        ):
            data = msgspec.json.encode(body)
            about = b"host: 127.0.0.1\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n" % (KEY, len(data))
            client.data_received(b"POST %b HTTP/1.1\r\n" % PATHS[dialect].encode() + about + data)
            while not self._asked and not played.written:  # noqa: ASYNC110 - it is this loop that must turn
                await asyncio.sleep(0)
            self._server.data_received(HEAD % head)
            await self.settle()
            for step in steps:
                await self._do(step, client, near)
            while tasks := tuple(self._connections.tasks):  # the store has a thread of its own
                assert (await asyncio.wait(tasks, timeout=30))[0], "the turn has not ended"
        played.asked, played.aborted, played.paused = b"".join(self._asked), self._far.aborted, self._far.was_paused
        near.close()
        client.connection_lost(None)
        return played

    async def _do(self, step: Step, client: connections.HttpConnection, near: Wire) -> None:
        match step:
            case bytes():
                passed = self._played.passed
                if not self._far.closed:
                    self._server.data_received(step)
                if self._played.passed > passed:
                    return  # nothing is left to do
            case Wait(seconds):
                while seconds > 0:
                    self._ahead += min(1.0, seconds)
                    seconds -= 1.0
                    await self.settle()
            case Slow(reads):
                (client.resume_writing if reads else client.pause_writing)()
            case Gone():
                near.close()
                client.connection_lost(None)
                await self._do(Wait(1), client, near)
            case Cut():
                self._server.connection_lost(None)
            case Drain():
                for task in tuple(self._connections.tasks):
                    task.cancel()
        await self.settle()


@asynccontextmanager
async def wires(config: str = "") -> AsyncIterator[Wires]:
    """A gateway with a backend of every kind, named after it."""
    witness = Witness()
    opening = app.open_application

    @asynccontextmanager
    async def opened(*given: Any) -> AsyncIterator[Any]:
        async with opening(*given) as state:
            state.shared.observers.append(witness)  # type: ignore[attr-defined]
            yield state

    tables = "".join(
        f'[[backends]]\nname = "{kind}"\nkind = "{kind}"\nbase_url = "http://127.0.0.1:9/v1"\nretries = 0\n'
        for kind in NAMES
    )
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(with_store(f"{config}\n{tables}"))
        file.flush()
        settings = load(file.name, {})
    gateway = app.Gateway(settings)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(app, "open_application", opened))
        async with gateway.lifespan():
            yield Wires(gateway, settings, witness, stack)
