"""Recovers orphaned runs, whose process is gone: retries them, or closes them as failed.

Every run begins with the same few events. A run that has committed no output, and has started nothing that must not be
repeated, is retried: no client can tell the difference. Any other run is closed after its committed events.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from starlette.types import Message, Receive

from toolwire.config.flags import HEADERS
from toolwire.core.errors import Failure
from toolwire.core.raw import to_raw
from toolwire.dialects import responses
from toolwire.dialects.openai import encode_error_object
from toolwire.dialects.responses.response import failed_code_of
from toolwire.dialects.responses.writer import Writer
from toolwire.gateway.body import run_in_steps
from toolwire.gateway.endpoint import open_turn
from toolwire.gateway.exchange import Exchange
from toolwire.gateway.http import OUTPUT_MODE
from toolwire.gateway.keys import CALLER, Caller
from toolwire.gateway.memory_budget import Reservation
from toolwire.gateway.responses.answer import begin_turn
from toolwire.gateway.responses.conversation_lock import LOCK_TIMEOUT, UNLOCKED, ConversationLock, acquire
from toolwire.gateway.responses.history import ResponseHistory, ResumedRequest
from toolwire.gateway.responses.run_log import RunLog, make_chunk
from toolwire.gateway.responses.run_progress import Progress, read_progress
from toolwire.gateway.responses.run_task import CANCELLED, OWNER_LOST, BackgroundRuns, RunTask
from toolwire.gateway.shared import Shared
from toolwire.memory.leases import Leases
from toolwire.memory.membership import Membership
from toolwire.memory.sql.store import Store
from toolwire.memory.store import (
    ClaimedRun,
    Effects,
    EventChunk,
    Fence,
    KeptItem,
    Overtaken,
    Record,
    StoreFailed,
)

MAX_CLAIMS_AT_ONCE = 16
MAX_ATTEMPTS = 5
"""Maximum attempts, so that a run that crashes its process is not retried forever."""
OPENING_EVENTS = 3
"""Number of opening events; they carry no output."""
RECOVERY_LOCK_TIMEOUT = 600.0
"""Seconds for which an orphaned run waits for its conversation."""
MAX_UNCONFIRMED = 10_000
"""Maximum unconfirmed runs; the oldest is forgotten first."""
SECOND_DELETE_AFTER = 60.0
"""Seconds after which an unconfirmed run is deleted once more."""

_OUTCOMES = {CANCELLED.code: "cancelled", OWNER_LOST.code: "owner_lost"}


class RunSpec(msgspec.Struct, frozen=True):
    """The request of a background run, stored with it so that another process can retry it.

    It never contains a key that the client sent for its backend, so no other process can retry a run that needs one.
    """

    body: msgspec.Raw
    """The fields of the request and its new items, with references resolved."""
    headers: dict[str, str] = {}
    """The flags among the headers."""
    output_mode: str = ""
    """The output mode of the path prefix."""
    key_name: str = ""
    """The name of the gateway key that the client sent, for the log."""
    conversation: str = ""
    """The conversation of the turn, even if the request does not name it."""
    answers: str = ""
    """The response whose calls the request answers."""
    needs_key: bool = False
    """Whether the backend gets the client's key, which no other process has."""

    @property
    def scope(self) -> dict[str, Any]:
        """An ASGI scope with the headers and the path prefix of the request."""
        headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in self.headers.items()]
        scope: dict[str, Any] = {"type": "http", "headers": headers}
        return {**scope, OUTPUT_MODE: self.output_mode} if self.output_mode else scope


_decode_spec = msgspec.json.Decoder(RunSpec).decode


def encode_spec(exchange: Exchange, resumed: ResumedRequest, caller: Caller, *, needs_key: bool) -> bytes:
    """The `RunSpec` of a request, as it is stored."""
    headers = exchange.turn.head.headers
    return msgspec.json.encode(
        RunSpec(
            msgspec.Raw(msgspec.json.encode({**resumed.parsed.fields, "input": resumed.parsed.items})),
            {name: headers[name.encode()].decode("latin-1") for name in HEADERS if name.encode() in headers},
            exchange.scope.get(OUTPUT_MODE, ""),
            caller.name,
            resumed.conversation,
            resumed.previous if resumed.answers_calls else "",
            needs_key,
        )
    )


class Recovery:
    """Claims orphaned runs, and retries or closes them."""

    def __init__(
        self,
        shared: Shared,
        membership: Membership,
        leases: Leases,
        history: ResponseHistory,
        runs: BackgroundRuns,
    ) -> None:
        self._shared = shared
        self._store = shared.store
        self._membership = membership
        self._leases = leases
        self._history = history
        self._runs = runs
        self.unconfirmed = UnconfirmedRuns(shared.store)
        # Claimed runs to be recovered, each with the failure to close it with, if that is decided.
        self._pending: dict[Fence, tuple[ClaimedRun, Failure | None]] = {}

    async def recover(self) -> None:
        """Claim and recover all orphaned runs. Raises `StoreFailed`; the rest then waits for the next call."""
        await self._recover_pending()
        while found := await self._store.claim(await self._membership.id(), MAX_CLAIMS_AT_ONCE):
            self._pending.update((claimed.fence, (claimed, None)) for claimed in found)
            await self._recover_pending()

    async def recover_unless_draining(self) -> None:
        """The same, but a draining process claims no more runs."""
        if self._shared.process.condition == "draining":
            await self._recover_pending()
        else:
            await self.recover()

    def forget_claims(self) -> None:
        """Drop the claimed runs: this process was presumed dead, so others may claim them."""
        self._pending.clear()

    async def lock_conversation(
        self, exchange: Exchange, owner: str, id: str, seconds: float = LOCK_TIMEOUT
    ) -> ConversationLock:
        """Wait for the lock of a conversation, and recover orphaned runs, so that none adds a turn to it later."""
        lock = await acquire(self._leases, exchange, "conversation", owner, id, seconds)
        if lock.lease is not None:
            try:
                await self.recover()
            except StoreFailed as error:
                return ConversationLock(refusal=error)
        return lock

    async def _recover_pending(self) -> None:
        for fence, (claimed, decided) in tuple(self._pending.items()):
            if fence not in self._pending:
                continue  # another task has recovered it meanwhile
            try:
                if not await self._runs.store_claimed(claimed):
                    failure = decided or await self._decide(claimed)
                    if failure is None:
                        self._retry(claimed)
                    else:
                        await self._close(claimed, failure)
            except StoreFailed:
                raise
            except Exception as error:  # noqa: BLE001 - one run that cannot be recovered must not hold up the others
                self._shared.log.crash(claimed.record.id, error)
            self._pending.pop(fence, None)

    async def _decide(self, claimed: ClaimedRun) -> Failure | None:
        """The failure with which to close a run; None if it can be retried."""
        if claimed.is_cancelled:
            return CANCELLED
        spec = _read_spec(claimed)
        if claimed.is_started or spec is None or spec.needs_key or claimed.fence.epoch > MAX_ATTEMPTS:
            return OWNER_LOST
        if claimed.next_event <= OPENING_EVENTS:
            return None if claimed.next_event in (0, OPENING_EVENTS) else OWNER_LOST
        progress = await read_progress(self._store, claimed.owner, claimed.record.id)
        return None if progress.items.is_empty else OWNER_LOST  # only keepalives follow the opening events

    def _retry(self, claimed: ClaimedRun) -> None:
        self._shared.process.metrics.count_recovery("asked_again")
        spec, reservation = _decode_spec(claimed.plan), Reservation(self._shared.memory_budget)
        log = RunLog(claimed.owner, claimed.fence, claimed.next_event)
        scope = spec.scope
        turn = open_turn(self._shared, "responses", scope, claimed.record.id.partition("_")[2])
        turn.report.background = turn.report.taken_over = True
        run = RunTask(self._runs, log, reservation, turn.taps, close_early=partial(self._close_early, claimed))
        exchange = Exchange(self._shared, turn, scope, run, reservation)
        self._runs.start(run, exchange.serve(partial(self._produce, claimed, spec, run), wait_forever))

    async def _produce(
        self, claimed: ClaimedRun, spec: RunSpec, run: RunTask, exchange: Exchange, receive: Receive
    ) -> None:
        """Produce the turn of a retried run."""
        exchange.scope[CALLER] = self._shared.keys.act_for(spec.key_name, claimed.owner)
        caller, body = exchange.enter(), bytes(spec.body)
        exchange.take_body(body)
        parsed = await run_in_steps(responses.read_request_steps(body, exchange.shared.bounds), len(body))
        lock = UNLOCKED
        if spec.conversation:
            lock = await self.lock_conversation(exchange, claimed.owner, spec.conversation, RECOVERY_LOCK_TIMEOUT)
        if lock.refusal is not None:  # retried later
            run.log.lose()
            self._pending[claimed.fence] = claimed, None
            return
        resumed = await self._history.open(claimed.owner, parsed, exchange.reservation, lock=lock)
        resumed = msgspec.structs.replace(resumed, conversation=spec.conversation)
        created = int(claimed.record.created)
        source, answer = await begin_turn(exchange, self._history, resumed, caller, run, created=created)
        await exchange.deliver(source, answer, receive)

    async def _close_early(self, claimed: ClaimedRun, failure: Failure) -> None:
        """Close a run that could not be retried. If the store fails, it is closed later."""
        self._pending[claimed.fence] = claimed, failure
        with suppress(StoreFailed):
            await self._close(claimed, failure)
            self._pending.pop(claimed.fence, None)

    async def _close(self, claimed: ClaimedRun, failure: Failure) -> None:
        """End a run with this failure after its committed events, unless another process has done so."""
        progress = await read_progress(self._store, claimed.owner, claimed.record.id)
        record, made, last = end_orphan(claimed.record, progress, failure)
        spec = _read_spec(claimed)
        link = (spec.answers, "") if spec is not None and spec.answers else None  # its outputs may be submitted again
        with suppress(Overtaken):
            await self._store.save(claimed.owner, record, None, made, Effects(link), guard=claimed.fence, last=last)
            self._shared.process.metrics.count_recovery(_OUTCOMES.get(failure.code, "failed"))


def _read_spec(claimed: ClaimedRun) -> RunSpec | None:
    """The spec of a run; None if another version wrote one that this version cannot read."""
    try:
        return _decode_spec(claimed.plan)
    except msgspec.DecodeError:
        return None


class _Item(msgspec.Struct):
    id: str = ""


_decode_item = msgspec.json.Decoder(_Item).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def end_orphan(record: Record, progress: Progress, failure: Failure) -> tuple[Record, list[KeptItem], EventChunk]:
    """The record, the output and the last events of an orphaned run that ends with this failure."""
    writer, output, pieces = Writer(socket=False), progress.items.all_items, list[bytes]()
    response = _decode_fields(record.response)
    if progress.events:
        writer.number = progress.events
    else:
        queued, started = to_raw(response), to_raw({**response, "status": "in_progress"})
        opening = (("created", queued), ("queued", queued), ("in_progress", started))
        pieces += [writer.write(f"response.{type}", {"response": shown}) for type, shown in opening]
    error = encode_error_object(failure)
    pieces.append(writer.write("error", {**error, "error": error}))
    fields: dict[str, Any] = {**response, "output": output, "status": "failed"}
    fields["error"] = {"code": failed_code_of(failure), "message": failure.message}
    pieces.append(writer.write("response.failed", {"response": to_raw(fields)}))
    if failure is CANCELLED:
        fields |= {"status": "cancelled", "error": None}
    body = msgspec.json.encode({**fields, "output": []})
    made = [KeptItem(_decode_item(item).id, item) for item in output]
    ended = msgspec.structs.replace(record, status=fields["status"], response=body)
    return ended, made, make_chunk(progress.events, pieces)


async def wait_forever() -> Message:
    """The `receive` of an exchange without a client."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


class UnconfirmedRuns:
    """Runs that may or may not have been queued, because the store failed meanwhile.

    Their clients got an error and may retry, so such a run is deleted as soon as the store works, and once more later:
    the statement may still be executed after this process stopped waiting for it.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._due: dict[tuple[str, str], tuple[float, bool]] = {}  # when to delete a run, and whether for the last time

    @contextmanager
    def watch(self, owner: str, id: str) -> Generator[None]:
        """Remember the run if the block that queues it fails or is cancelled: it may have been stored."""
        try:
            yield
        except Overtaken:
            raise  # nothing was written
        except (StoreFailed, asyncio.CancelledError):
            if len(self._due) >= MAX_UNCONFIRMED:
                del self._due[next(iter(self._due))]
            self._due[owner, id] = self._clock(), False
            raise

    async def delete(self) -> None:
        """Delete the runs that are due. Raises `StoreFailed`; they then stay due."""
        now = self._clock()
        for (owner, id), (due, is_last) in tuple(self._due.items()):
            if due > now:
                continue
            await self._store.delete(owner, id)
            if is_last:
                self._due.pop((owner, id), None)
            else:
                self._due[owner, id] = now + SECOND_DELETE_AFTER, True
