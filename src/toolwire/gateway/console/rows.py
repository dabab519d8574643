"""One line of the list of turns: the facts of a turn, without anything that was said in it."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.core.events import Usage
from toolwire.core.notes import TurnStats
from toolwire.turns.trace import TurnTrace

Kept: TypeAlias = Literal["running", "waiting", "whole", "facts", "busy"]
"""`waiting`: it is whole and being prepared; `facts`: nothing else is kept; `busy`: for there was no time for more."""

NAMES = 32
"""Most calls and notes that a row names."""
LONGEST = 128
"""Characters of a name."""
SIZE, NAMED = 1500, 160
"""Bytes that a row counts for, and each thing that it names."""

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
    """The backends of all attempts, each as `NAME STATUS`."""
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
    kept: Kept = "facts"
    pinned: bool = False
    results: tuple[str, ...] = ()
    """Calls whose results came with the request, each with ` failed` behind it if its tool says so."""

    @property
    def size(self) -> int:
        named = len(self.calls) + len(self.call_ids) + len(self.notes) + len(self.tried) + len(self.results)
        return SIZE + NAMED * named


def running_row(trace: TurnTrace, facts: Mapping[str, Any], now: float) -> Row:
    """The row of a turn that is under way."""
    headers = trace.request_headers
    return Row(
        trace.seed,
        trace.wall,
        facts["dialect"],
        key=facts.get("key", ""),
        client=_named(headers, b"user-agent"),
        session=_session(headers),
        model=facts.get("model", "")[:LONGEST],
        backend=trace.attempts[-1].backend if trace.attempts else "",
        ms=round((now - trace.began) * 1000, 1),
        first_ms=_first(trace),
        transport=facts.get("transport", ""),
        background="background" in facts,
        replay_of=facts.get("replay_of", ""),
        kept="running",
    )


def finished_row(trace: TurnTrace, facts: Mapping[str, Any], stats: TurnStats, seconds: float, worker: str) -> Row:
    """The row of a turn that is over. Every turn pays for it, so it is made at once."""
    headers, attempts, usage = trace.request_headers, trace.attempts, stats.usage or _NO_USAGE
    return Row(
        trace.seed,
        trace.wall,
        facts["dialect"],
        0,
        worker,
        facts.get("key", ""),
        _named(headers, b"user-agent"),
        _session(headers),
        facts.get("model", "")[:LONGEST],
        facts.get("backend", ""),
        tuple([f"{each.backend} {each.status}" for each in attempts[:NAMES]]) if len(attempts) > 1 else (),
        facts["status"],
        round(seconds * 1000, 1),
        _first(trace),
        facts["stream"],
        usage.input,
        usage.output,
        usage.cached,
        usage.reasoning,
        tuple([name[:LONGEST] for name in stats.call_names[:NAMES]]) if stats.call_names else (),
        tuple([id[:LONGEST] for id in stats.call_ids[:NAMES]]) if stats.call_ids else (),
        len(stats.call_ids),
        tuple(stats.counts)[:NAMES] if stats.counts else (),
        facts.get("error", ""),
        getattr(stats.ending, "reason", ""),
        facts.get("transport", ""),
        "background" in facts,
        facts.get("replay_of", ""),
    )


_NO_USAGE = Usage()


def _first(trace: TurnTrace) -> float:
    return round((trace.first - trace.began) * 1000, 1) if trace.first else 0.0


def _named(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers[name][:LONGEST].decode("latin-1") if name in headers else ""


def _session(headers: Mapping[bytes, bytes]) -> str:
    for name in SESSIONS:
        if name in headers:
            return _named(headers, name)
    return ""
