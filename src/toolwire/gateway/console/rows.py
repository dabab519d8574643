"""One line of the list of turns: the metadata of a turn, without its content."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Literal, TypeAlias

import msgspec

from toolwire.core.jsonrpc import JSON_LINES
from toolwire.core.notes import TurnStats
from toolwire.core.request import Entry, Message, ResultEntry, TextPart
from toolwire.gateway.console.trace import TurnTrace
from toolwire.turns.observers import TurnOutcome, TurnReport

Kept: TypeAlias = Literal["running", "whole", "cut", "metadata", "large", "failed"]
"""What is kept of a turn besides its row. `cut`: a part, because this turn, or those that ran with it, were very long;
`metadata`: nothing, by the settings; `large`: nothing, because the content exceeds a quarter of the ring; `failed`:
nothing, because of a fault in the console."""

CONTENT = ("whole", "cut")
"""The values of `Kept` of a finished turn that has content."""
MAX_NAMES = 32
"""Maximum number of calls, notes and results that a row names."""
MAX_NAME_LENGTH = 128
SEARCHED_LENGTH = MAX_NAME_LENGTH + 64
"""Maximum characters of a name that are searched for secrets."""
CLIENT_LEFT = 499
MAX_TOKENS = 10**9
"""Maximum number of tokens counted for one turn: servers may report any number."""
ROW_SIZE = 1000
"""Bytes of a row without its texts."""
FAILED = " failed"
"""Follows the id of a call whose tool reported a failure."""

SESSION_HEADERS = (b"x-claude-code-session-id", b"session_id", b"session-id", b"conversation_id", b"x-session-id")
"""Headers in which Claude Code, Codex and other clients name the session of a turn."""


class TurnRow(msgspec.Struct, gc=False, omit_defaults=True):
    """The metadata of one turn. `seq` grows with every change of any row."""

    id: str
    at: float
    dialect: str
    seq: int = 0
    worker: str = ""
    key: str = ""
    client: str = ""
    session: str = ""
    model: str = ""
    backend: str = ""
    tried: tuple[str, ...] = ()
    """The backends of failed attempts and of the last one, each as `NAME STATUS`; empty if none failed."""
    status: int = 0
    ms: float = 0.0
    first_ms: float = 0.0
    stream: bool = False
    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    calls: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    call_count: int = 0
    notes: tuple[str, ...] = ()
    error: str = ""
    reason: str = ""
    transport: str = ""
    background: bool = False
    warm_up: bool = False
    """The client asked only for its request to be cached."""
    replay_of: str = ""
    kept: Kept = "metadata"
    pinned: bool = False
    request_id: str = ""
    """The `x-request-id` of the answer."""
    results: tuple[str, ...] = ()
    """Calls whose results came with the request, each followed by ` failed` if its tool failed."""

    @property
    def failed(self) -> bool:
        """Whether the turn failed, even after its answer had begun. A client that disconnects is not a failure."""
        return self.status != CLIENT_LEFT and (self.status >= 400 or bool(self.error))

    @property
    def answer_type(self) -> str:
        """The content type of the answer, if its bytes alone do not tell."""
        return JSON_LINES if self.transport == "websocket" else ""

    @property
    def size(self) -> int:
        """Approximate bytes of memory."""
        texts = (self.client, self.session, self.model, self.error, self.reason)
        names = (*self.calls, *self.call_ids, *self.notes, *self.tried, *self.results)
        return ROW_SIZE + sum(map(str.__sizeof__, (*texts, *names)))


def make_row(trace: TurnTrace, report: TurnReport, outcome: TurnOutcome | None, worker: str) -> TurnRow:
    """Make the row of a turn, which is still running if it has no outcome. Its names may contain secrets."""
    headers = trace.request_headers
    seconds = outcome.seconds if outcome is not None else perf_counter() - trace.began
    row = TurnRow(
        trace.seed,
        trace.wall,
        report.dialect,
        worker=worker,
        key=report.key or "",
        client=_read_header(headers, b"user-agent"),
        session=next((_read_header(headers, name) for name in SESSION_HEADERS if name in headers), ""),
        model=(report.model or "")[:SEARCHED_LENGTH],
        backend=trace.attempts[-1].backend if trace.attempts else "",
        ms=_to_milliseconds(seconds),
        first_ms=_to_milliseconds(trace.first - trace.began) if trace.first else 0.0,
        transport=report.transport or "",
        background=bool(report.background),
        warm_up=bool(report.warm_up),
        replay_of=report.replay_of or "",
        kept="running",
        request_id=report.request_id,
    )
    if outcome is not None:
        _add_outcome(row, trace, report, outcome.stats)
    return row


def _add_outcome(row: TurnRow, trace: TurnTrace, report: TurnReport, stats: TurnStats) -> None:
    """Add what is known at the end of a turn."""
    row.kept = "metadata"
    row.backend = report.backend or ""
    if len(trace.attempts) > 1:  # attempts that were followed by another of the same round, and the last one
        failed = [each for each, after in pairwise(trace.attempts) if each.round == after.round][:MAX_NAMES]
        if failed:
            row.tried = tuple([f"{each.backend} {each.status}" for each in (*failed, trace.attempts[-1])])
    row.status = report.status or 0
    row.stream = bool(report.stream)
    if (usage := stats.usage) is not None:
        row.input, row.output = min(usage.input, MAX_TOKENS), min(usage.output, MAX_TOKENS)
        row.cached, row.reasoning = min(usage.cached, MAX_TOKENS), min(usage.reasoning, MAX_TOKENS)
    if stats.call_ids:
        row.calls = tuple([name[:SEARCHED_LENGTH] for name in stats.call_names[:MAX_NAMES]])
        row.call_ids = tuple([id[:MAX_NAME_LENGTH] for id in stats.call_ids[:MAX_NAMES]])
        row.call_count = len(stats.call_ids)
    if stats.counts:
        row.notes = tuple(stats.counts)[:MAX_NAMES]
    row.error = (report.error or "")[:SEARCHED_LENGTH]
    row.reason = getattr(stats.ending, "reason", "")[:SEARCHED_LENGTH]
    row.results = trace.results


def is_large(report: TurnReport, stats: TurnStats) -> bool:
    """Whether the data behind a row takes much more memory than the row."""
    names = stats.call_names
    return (
        len(report.model or "") > SEARCHED_LENGTH
        or len(names) > MAX_NAMES
        or any([len(name) > SEARCHED_LENGTH for name in names])  # noqa: C419 - most have none, or few
        or any([len(id) > SEARCHED_LENGTH for id in stats.call_ids])  # noqa: C419
    )


def _to_milliseconds(seconds: float) -> float:
    """Milliseconds with one decimal; `round` is slower."""
    return int(seconds * 10_000) / 10


def _read_header(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers[name][:SEARCHED_LENGTH].decode("latin-1") if name in headers else ""


def list_results(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The calls whose results are at the end of a request, the last first. This runs in every turn."""
    found: list[str] = []
    for entry in entries[: -4 * MAX_NAMES - 1 : -1]:
        if isinstance(entry, ResultEntry):
            # Where a dialect has no field for it, a result reports a failure in its text.
            failed = entry.failed or any(
                isinstance(part, TextPart) and part.text[:6].lower() == "error:" for part in entry.parts
            )
            found.append(entry.call_id[:MAX_NAME_LENGTH] + (FAILED if failed else ""))
        elif not isinstance(entry, Message) or entry.role == "assistant":
            break
    return tuple(found[:MAX_NAMES])
