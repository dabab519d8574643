"""One request of one client, from its body to the last byte of the answer; the one place where errors are caught.

An operation is a function on an exchange: it reads the request, starts a run and delivers it. The exchange answers
errors on the way, ends the run in any case, and reports the turn to its observers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeAlias

from msgspec import UNSET
from starlette.types import Receive, Scope

from toolwire.core.bounds import LARGE_BODY_BYTES
from toolwire.core.errors import BadRequest, Failure, InternalError, ReplyTooLarge, ToolwireError
from toolwire.core.events import TurnFailed
from toolwire.core.notes import TurnStats
from toolwire.core.request import Request
from toolwire.gateway.answer import Answer
from toolwire.gateway.body import read_body
from toolwire.gateway.http import ClientGone, UntilClientGone
from toolwire.gateway.keys import CALLER, Caller
from toolwire.gateway.limits import Meter, Ticket
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.shared import Shared
from toolwire.gateway.sinks import find_request_id
from toolwire.protocols import dialects
from toolwire.turns.observers import ObservedTurn, TurnOutcome
from toolwire.turns.source import TurnSource
from toolwire.upstream.scheduling import give_way


class Sink(Protocol):
    """The destination of an answer."""

    headers: list[tuple[bytes, bytes]]
    status: int
    upstream_id: str
    committed: bool
    has_own_limits: bool
    """Whether `headers` says what is left of the limits of the client's key; the backend's own are then not sent."""

    @property
    def has_shown_output(self) -> bool:
        """Whether the client may have got a part of the answer."""
        ...

    @property
    def outcome(self) -> str:
        """How a background run ended; empty for all others."""
        ...

    @property
    def interruption(self) -> Failure:
        """The failure with which a cancelled exchange ends."""
        ...

    async def send_plain(self, run: TurnSource, answer: Answer, hold: Callable[[int], None]) -> None: ...

    async def send_stream(self, run: TurnSource, answer: Answer) -> None: ...

    async def fail(self, failure: Failure, run: TurnSource | None) -> None: ...

    async def give_up(self) -> None: ...


class Exchange:
    """One request, and the owner of its run: when the client disconnects, the run ends."""

    def __init__(
        self,
        shared: Shared,
        turn: ObservedTurn,
        scope: Scope,
        sink: Sink,
        reservation: Reservation,
        origin: "Exchange | None" = None,
    ) -> None:
        """Begin an exchange, or continue `origin`, whose run has started, with another sink.

        `reservation` holds the bytes of the request and of its reply.
        """
        self.shared = shared
        self.turn = turn
        self.scope = scope
        self.sink = sink
        self.reservation = reservation
        self.seed = turn.report.turn
        """The seed of ids."""
        self.size = 0
        """Bytes of the body."""
        self.closing: list[Callable[[], Awaitable[None]]] = []
        """Called when the exchange is over."""
        if origin is not None:
            self._began, self._owner, self._run = origin._began, origin._owner, origin._run
            self._ticket = origin._ticket
        else:
            self._began, self._owner, self._run = time.perf_counter(), "", None
            self._ticket: Ticket | None = None
        self._answer: Answer | None = None
        self._failure: Failure | None = None
        self._interruption: Failure | None = None
        self._leave: Callable[[], None] | None = None  # ends the watch of an issued key
        self._collected = 0  # bytes of the reply
        self._owns_turn = True

    async def serve(self, operation: "Operation", receive: Receive) -> None:
        """Answer the request with the operation, or with its failure."""
        for observer in self.turn.observers:
            observer.start()
        try:
            try:
                await operation(self, receive)
            except ToolwireError as error:
                await self._fail(error.failure)
            except asyncio.CancelledError:
                # The drain is over, a background run is cancelled, or the key is no longer valid. The cancellation is
                # not propagated.
                await self._fail(self._interruption or self.sink.interruption)
            except ClientGone:
                raise
            except RecursionError:  # while the body is decoded
                await self._fail(BadRequest("The request is nested too deeply.", code="invalid_json").failure)
            except Exception as error:  # noqa: BLE001 - the process must survive any error
                self._report_crash(error)
                await self._fail(InternalError().failure)
        except ClientGone:
            self.sink.status = 499
        except Exception as error:  # noqa: BLE001 - not even the failure could be sent
            self._report_crash(error)
            with suppress(ClientGone):
                await self.sink.give_up()
        finally:
            try:
                await self._end()
            finally:
                await self.close()

    async def _end(self) -> None:
        """End the run after its answer, release its memory, and report the turn."""
        if self._leave is not None:
            self._leave()
        for observer in self.turn.observers:
            observer.stop()
        if not self._owns_turn:
            return
        try:
            if self._run is not None:
                await self._run.finish()
        finally:
            if self._ticket is not None:
                self._ticket.settle(self._count_tokens())
        self.reservation.release()
        self._report()
        if self.sink.status == 499 and self._answer is not None:
            await self._answer.cancel()

    def admit(self, meter: Meter, request: Request) -> None:
        """Count the turn in the limits of its key, until it ends. Raises `LimitReached`."""
        try:
            self._ticket = meter.take(request)
        finally:
            side = dialects()[self.turn.report.dialect]
            self.sink.headers += side.encode_allowances(meter.list_allowances(), time.time())
            self.sink.has_own_limits = True

    def _count_tokens(self) -> int | None:
        """The tokens that the turn used; None if they are not known."""
        stats = self._run.assembly.stats if self._run is not None else TurnStats()
        if stats.usage is not None:
            return stats.usage.total
        has_failed = self._failure is not None or isinstance(stats.ending, TurnFailed)
        return 0 if has_failed and not self.sink.has_shown_output else None

    async def close(self) -> None:
        """Release everything that the exchange holds beside its turn, such as locks."""
        closing, self.closing = self.closing, []
        for close in closing:
            await close()

    def enter(self) -> Caller:
        """Authenticate the client. Raises `Unauthorized`."""
        head = self.turn.head
        caller: Caller = self.scope.get(CALLER) or self.shared.keys.check(head.headers, head.query)
        self._owner = caller.owner
        self.turn.enter(caller.name)
        if caller.is_issued:
            self.watch_key(caller)
        return caller

    def watch_key(self, caller: Caller) -> None:
        """End the exchange, which this task serves, when the key is no longer valid."""
        task = asyncio.current_task()
        if self.shared.keys.issued is None or task is None:
            return

        def stop(failure: Failure) -> None:
            self._interruption = failure
            task.cancel()

        self._leave = self.shared.keys.issued.watch(caller.name, stop)

    async def read_body(self, receive: Receive) -> bytes:
        """Read the body of the request. Raises `BadRequest`, or `Overloaded` if there is no room for it."""
        body = await read_body(self.turn.head.headers, receive, self.shared.bounds, self.reservation)
        self._note_body(body)
        return body

    def take_body(self, body: bytes) -> None:
        """Account for a body that was not read from this exchange's connection."""
        self.reservation.grow(len(body))
        self._note_body(body)

    def _note_body(self, body: bytes) -> None:
        self.size = len(body)
        for tap in self.turn.taps:
            tap.receive(body)

    async def pause(self) -> None:
        """Let other tasks run between two parts of the work on a large request."""
        if self.size >= LARGE_BODY_BYTES:
            await give_way()

    def own(self, run: TurnSource) -> TurnSource:
        """Take ownership of a run: the exchange ends it in any case."""
        self._run = run
        return run

    async def deliver(self, run: TurnSource, answer: Answer, receive: Receive) -> None:
        """Send the run's turn to the client. Raises `ClientGone` when the client disconnects."""
        self._answer = answer
        with UntilClientGone(receive, self.shared.ticker):
            if answer.request.stream:
                await self.sink.send_stream(run, answer)
            else:
                await self.sink.send_plain(run, answer, self._hold)

    def hand_over(self, sink: Sink, *, keeps_locks: bool) -> "Exchange":
        """Return an exchange that continues the turn with another sink, owned by the application.

        It owns the run, the reserved memory and the report from here on, and with `keeps_locks` also the locks. This
        exchange only sends its own answer.
        """
        self.turn.report.background = True
        self._owns_turn = False
        other = Exchange(self.shared, self.turn.detach(), self.scope, sink, self.reservation, origin=self)
        if keeps_locks:
            other.closing, self.closing = self.closing, []
        return other

    def _hold(self, size: int) -> None:
        """Reserve `size` more bytes for a collected reply. Raises `ReplyTooLarge` or `Overloaded`."""
        self.reservation.grow(size)
        self._collected += size
        if self._collected > self.shared.bounds.reply:
            raise ReplyTooLarge(self.shared.bounds.reply)

    async def _fail(self, failure: Failure) -> None:
        self._failure = failure
        if self._owns_turn:
            self.turn.report.error = failure.code or "bad_request"
        await self.sink.fail(failure, self._run if self._owns_turn else None)

    def _report_crash(self, error: Exception) -> None:
        for observer in self.turn.observers:
            observer.crash(self.seed, error)

    def _report(self) -> None:
        run, sink, report = self._run, self.sink, self.turn.report
        stats = run.assembly.stats if run is not None else TurnStats()
        report.status = sink.status
        if sink.outcome:
            report.outcome = sink.outcome
        if isinstance(stats.ending, TurnFailed) and report.error is UNSET:
            report.error = stats.ending.failure.code
        upstream_id = sink.upstream_id
        if run is not None:
            report.backend = run.backend
            if not sink.committed:
                upstream_id = find_request_id(run.headers)
        if upstream_id:
            report.upstream_request_id = upstream_id
        report.stream = self._answer is not None and self._answer.request.stream
        self.turn.end(TurnOutcome(stats, time.perf_counter() - self._began, self._owner, self._failure))


Operation: TypeAlias = Callable[[Exchange, Receive], Awaitable[None]]
"""What an endpoint does with an exchange."""
