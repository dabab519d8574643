"""One line of the list of turns: the facts of a turn, without anything that was said in it."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.core.events import Usage
from toolwire.core.notes import TurnStats
from toolwire.core.recording import REMOVED, secret_spans, without_spans
from toolwire.gateway.console.secrets import SHORTEST_SECRET
from toolwire.gateway.keys import presented_key
from toolwire.turns.trace import AttemptTrace, TurnTrace

Content: TypeAlias = Literal["running", "waiting", "whole", "cut", "metadata", "busy", "large", "failed"]
"""What is kept of a turn beside its row. `waiting`: all of it, once it is prepared; `cut`: a part, for it was very
long; `metadata`: nothing, by the settings; `busy`: nothing, because of load; `large`: nothing, for lack of room;
`failed`: nothing, by a fault of ours."""

NAMES = 32
"""Most calls and notes that a row names."""
LONGEST = 128
"""Characters of a name."""
RAW = LONGEST + 64
"""Characters of a name in which secrets are looked for."""
CLIENT_LEFT = 499
MOST_TOKENS = 10**9
"""Tokens that a turn counts for at most: servers report whatever they like."""
SIZE = 1000
"""Bytes that a row counts for, beside its texts."""

COMMON_IDS = ("call_", "toolu_", "fc_", "chatcmpl-tool-", "functions.")
COMMON_LENGTH = 72
"""How ids of calls begin as servers make them, and how long they are at most."""
FAILED = " failed"
"""Stands behind the id of a call whose tool says that it failed."""

SESSIONS = (b"x-claude-code-session-id", b"session_id", b"session-id", b"conversation_id", b"x-session-id")
"""Headers in which clients say which session a turn belongs to: Claude Code, Codex, and others."""


class Row(msgspec.Struct, gc=False, omit_defaults=True):
    """The facts of one turn. `seq` grows with every change of any row."""

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
    """The backends of attempts that failed, and that of the last one, each as `NAME STATUS`; empty if none failed."""
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
    replay_of: str = ""
    kept: Content = "metadata"
    pinned: bool = False
    request_id: str = ""
    """The `x-request-id` of the answer."""
    results: tuple[str, ...] = ()
    """Calls whose results came with the request, each with ` failed` behind it if its tool says so."""

    @property
    def failed(self) -> bool:
        """Whether it went wrong, if only after its answer had begun. A client that left has its reasons."""
        return self.status != CLIENT_LEFT and (self.status >= 400 or bool(self.error))

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        texts = (self.client, self.session, self.model, self.error, self.reason)
        return SIZE + sum(
            map(str.__sizeof__, (*texts, *self.calls, *self.call_ids, *self.notes, *self.tried, *self.results))
        )


class Names:
    """Names that clients and backends chose, as rows have them: short, and without secrets.

    Most of them come with every turn, so what was found once is remembered.
    """

    def __init__(self, secrets: tuple[bytes, ...]) -> None:
        self._secrets = secrets
        self._texts = [secret.decode(errors="replace") for secret in secrets]
        self._known = lru_cache(maxsize=4096)(self._find)

    def clean(self, rows: Sequence[Row]) -> None:
        """Make all such names of these rows as they are kept."""
        known = self._known
        for row in rows:
            row.client, row.session, row.model = known(row.client), known(row.session), known(row.model)
            row.error, row.reason = known(row.error), known(row.reason)
            if row.calls:
                row.calls = tuple([known(name) for name in row.calls])
        self._clean_ids(rows)

    def _clean_ids(self, rows: Sequence[Row]) -> None:
        """Ids of calls, each of which is new. Common ones are only looked at for known secrets, all at once."""
        ids = [id for row in rows for id in (*row.call_ids, *row.results)]
        everything = "\n".join(ids)
        if all(map(_is_common, ids)) and not any(secret in everything for secret in self._texts):
            return
        for row in rows:
            row.call_ids = tuple([self._find(id) for id in row.call_ids])
            row.results = tuple([self._find(id) for id in row.results])

    def _find(self, name: str) -> str:
        data = name.encode(errors="replace")
        spans = secret_spans(data, self._secrets)
        return (without_spans(data, spans).decode(errors="replace") if spans else name)[:LONGEST]


def is_large(facts: Mapping[str, Any], stats: TurnStats) -> bool:
    """Whether what a row is made from takes much more than the row."""
    names = stats.call_names
    return (
        len(facts.get("model", "")) > RAW
        or len(names) > NAMES
        or any([len(name) > RAW for name in names])  # noqa: C419 - most have none, or few
        or any([len(id) > RAW for id in stats.call_ids])  # noqa: C419
    )


def _is_common(id: str) -> bool:
    return id.startswith(COMMON_IDS) and len(id) <= COMMON_LENGTH and " " not in id.removesuffix(FAILED)


def running_row(trace: TurnTrace, facts: Mapping[str, Any], now: float, worker: str) -> Row:
    """The row of a turn that is under way, with names as they came."""
    headers = trace.request_headers
    row = Row(
        trace.seed,
        trace.wall,
        facts["dialect"],
        worker=worker,
        key=facts.get("key", ""),
        client=_value(headers, b"user-agent"),
        session=_session(headers),
        model=facts.get("model", "")[:RAW],
        backend=trace.attempts[-1].backend if trace.attempts else "",
        ms=_tenths_ms(now - trace.began),
        first_ms=_tenths_ms(trace.first - trace.began) if trace.first else 0.0,
        transport=facts.get("transport", ""),
        background="background" in facts,
        replay_of=facts.get("replay_of", ""),
        kept="running",
        request_id=facts["request_id"],
    )
    return _without_own_key(row, headers)


def finished_row(trace: TurnTrace, facts: Mapping[str, Any], stats: TurnStats, seconds: float, worker: str) -> Row:
    """The row of a turn that is over, with names as they came."""
    headers, attempts, usage = trace.request_headers, trace.attempts, stats.usage or _NO_USAGE
    row = Row(
        trace.seed,
        trace.wall,
        facts["dialect"],
        0,
        worker,
        facts.get("key", ""),
        _value(headers, b"user-agent"),
        _session(headers),
        facts.get("model", "")[:RAW],
        facts.get("backend", ""),
        _tried(attempts) if len(attempts) > 1 else (),
        facts["status"],
        _tenths_ms(seconds),
        _tenths_ms(trace.first - trace.began) if trace.first else 0.0,
        facts["stream"],
        min(usage.input, MOST_TOKENS),
        min(usage.output, MOST_TOKENS),
        min(usage.cached, MOST_TOKENS),
        min(usage.reasoning, MOST_TOKENS),
        tuple([name[:RAW] for name in stats.call_names[:NAMES]]) if stats.call_names else (),
        tuple([id[:LONGEST] for id in stats.call_ids[:NAMES]]) if stats.call_ids else (),
        len(stats.call_ids),
        tuple(stats.counts)[:NAMES] if stats.counts else (),
        facts.get("error", "")[:RAW],
        getattr(stats.ending, "reason", "")[:RAW],
        facts.get("transport", ""),
        "background" in facts,
        facts.get("replay_of", ""),
        request_id=facts["request_id"],
        results=trace.results,
    )
    return _without_own_key(row, headers)


def _tried(attempts: Sequence[AttemptTrace]) -> tuple[str, ...]:
    """Attempts after which the same was asked once more, and the last one."""
    failed = [each for each, after in pairwise(attempts) if each.round == after.round]
    return tuple([f"{each.backend} {each.status}" for each in (*failed[:NAMES], attempts[-1])]) if failed else ()


def _without_own_key(row: Row, headers: Mapping[bytes, bytes]) -> Row:
    """The row without the key that the client sent, which may be no secret of this gateway."""
    key = presented_key(headers).decode("latin-1")
    if len(key) >= SHORTEST_SECRET:
        removed = REMOVED.decode()
        for field in ("model", "client", "session", "error"):
            if key in getattr(row, field):
                setattr(row, field, getattr(row, field).replace(key, removed))
        for field in ("calls", "call_ids", "results"):
            if getattr(row, field):
                setattr(row, field, tuple([name.replace(key, removed) for name in getattr(row, field)]))
    return row


_NO_USAGE = Usage()


def _tenths_ms(seconds: float) -> float:
    """Milliseconds with one decimal; `round` takes longer."""
    return int(seconds * 10_000) / 10


def _value(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers[name][:RAW].decode("latin-1") if name in headers else ""


def _session(headers: Mapping[bytes, bytes]) -> str:
    for name in SESSIONS:
        if name in headers:
            return _value(headers, name)
    return ""
