"""One structured line per turn, on stderr. Never a body, a prompt or a key."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import structlog

from toolwire.core.notes import TurnStats
from toolwire.core.request import Request

LEVELS = ("debug", "info", "warning", "error")
DELAY = 0.02
"""Seconds a line may wait for others, so that a busy gateway writes many at once."""

SHORT = 1000
"""Bytes of a line in which nothing is looked for to be cut."""
LONGEST = 128
"""Letters of a name, and names of a list, that a line has."""

_encode = msgspec.json.Encoder().encode


class Log:
    """The gateway's log. Lines are encoded here, without a chain of processors: every turn pays for it."""

    def __init__(self, level: str, loop: asyncio.AbstractEventLoop) -> None:
        self._level = LEVELS.index(level)
        self._loop = loop
        self._out = structlog.BytesLogger(sys.stderr.buffer)
        self._lines: list[bytes] = []

    def turn(self, facts: dict[str, Any], stats: TurnStats, seconds: float) -> None:
        """The line of one turn."""
        usage = stats.usage
        self._write(
            1,
            {
                "timestamp": datetime.now(UTC),
                "level": "info",
                "event": "turn",
                **facts,
                "ms": round(seconds * 1000, 1),
                "reason": getattr(stats.ending, "reason", None),
                "has_tool_calls": stats.call_count > 0,
                "tool_call_count": stats.call_count,
                "tool_call_names": stats.call_names,
                "tool_call_ids": stats.call_ids,
                "tool_call_truncated": stats.truncated,
                "stop_after_tools_mode": stats.mode,
                "notes": stats.counts,
                "input_tokens": usage.input if usage else None,
                "output_tokens": usage.output if usage else None,
            },
        )

    def asked(self, facts: dict[str, Any], request: Request) -> None:
        """What a client asked for, in numbers; only at the level debug."""
        if self._level > 0:
            return
        numbers = {
            "stream": request.stream,
            "entries": len(request.entries),
            "tools": len(request.tools),
            "hosted_tools": len(request.hosted_tools),
            "extra": sorted(request.extra),
        }
        self._write(0, {"timestamp": datetime.now(UTC), "level": "debug", "event": "asked", **facts, **numbers})

    def store(self, reason: str, detail: str) -> None:
        """The store fails for this reason; or, without one, it works again."""
        level = 3 if reason else 1
        line = {"event": "store", "state": "failing" if reason else "ok", "reason": reason, "detail": detail}
        self._write(level, {"timestamp": datetime.now(UTC), "level": LEVELS[level], **line})

    def crashed(self, turn: str, error: Exception) -> None:
        """A fault of ours: where it happened, without the values it happened to."""
        step = error.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        where = f"{step.tb_frame.f_code.co_filename[-100:]}:{step.tb_lineno}" if step is not None else ""
        line = {"event": "crash", "turn": turn, "error": type(error).__name__, "where": where}
        self._write(3, {"timestamp": datetime.now(UTC), "level": "error", **line})
        self.flush()

    def flush(self) -> None:
        """Write what waits."""
        lines, self._lines = self._lines, []
        if lines:
            self._out.msg(b"\n".join(lines))

    def _write(self, level: int, line: dict[str, Any]) -> None:
        if level < self._level:
            return
        if not self._lines:
            self._loop.call_later(DELAY, self.flush)
        written = _encode(line)
        if not _is_harmless(written):
            written = _encode({field: _clean(value) for field, value in line.items()})
        self._lines.append(written)


def _is_harmless(line: bytes) -> bool:
    """A quick look: no name in it is long, and no character but the printable ones of ASCII."""
    return len(line) <= SHORT and line.isascii() and b"\\" not in line and b"\x7f" not in line


def _clean(value: Any) -> Any:
    """What a client or a backend may have named as it likes, short and without control characters."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST and value.isprintable() else _cut(value)
    if isinstance(value, list):
        return [_clean(name) for name in cast("list[Any]", value)[:LONGEST]]
    return value


def _cut(name: str) -> str:
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in name[:LONGEST])
    return shown if len(name) <= LONGEST else shown + "…"
