"""One line per turn on stderr: JSON in a pipe, words on a terminal. Never a body, a prompt or a key."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.events import TurnFailed
from toolwire.core.request import Request
from toolwire.gateway.log_text import text_line
from toolwire.turns.observers import TurnObserver, TurnOutcome, TurnReport

LEVELS = ("debug", "info", "warning", "error")
Format: TypeAlias = Literal["json", "text"]
DELAY = 0.02
"""Seconds a line may wait for others, so that a busy gateway writes many at once."""

SHORT = 1000
"""Bytes of a line in which nothing is looked for to be cut."""
LONGEST = 128
"""Chars of a name, and names of a list, that a line has."""
LONGEST_FAILURE = 400
"""Chars of what went wrong."""

_encode = msgspec.json.Encoder().encode


class Log(TurnObserver):
    """The gateway's log. Lines are encoded here, without a chain of processors: every turn pays for it."""

    def __init__(
        self, level: str, loop: asyncio.AbstractEventLoop, format: Format = "json", worker: int | None = None
    ) -> None:
        self._level = LEVELS.index(level)
        self._who = {} if worker is None else {"worker": worker}
        self._loop = loop
        self._format: Format = format
        self._out = sys.stderr.buffer
        self._lines: list[bytes] = []

    def end(self, report: TurnReport, outcome: TurnOutcome) -> None:
        """Write the line of a turn."""
        stats, failure = outcome.stats, outcome.failure
        usage = stats.usage
        if isinstance(stats.ending, TurnFailed):
            failure = stats.ending.failure
        level = 1 if failure is None or report.status == 499 else 2 if failure.status < 500 else 3
        self._write(
            level,
            {
                "timestamp": datetime.now(UTC),
                "level": LEVELS[level],
                "event": "turn",
                **msgspec.to_builtins(report),
                "ms": round(outcome.seconds * 1000, 1),
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
                **(_explanation(failure) if failure is not None else {}),
            },
        )

    def ask(self, report: TurnReport, request: Request) -> None:
        """Write what a client asks for, in numbers; only at the level debug."""
        if self._level > 0:
            return
        numbers = {
            "stream": request.stream,
            "entries": len(request.entries),
            "tools": len(request.tools),
            "hosted_tools": len(request.hosted_tools),
            "extra": sorted(request.extra),
        }
        line = {"timestamp": datetime.now(UTC), "level": "debug", "event": "asked"}
        self._write(0, {**line, **msgspec.to_builtins(report), **numbers})

    def refused(self, method: str, path: str, failure: Failure) -> None:
        """A request for something that is not here."""
        line = {"event": "refused", "method": method, "path": path, "status": failure.status}
        self._write(2, {"timestamp": datetime.now(UTC), "level": "warning", **line, **_explanation(failure)})

    def store(self, reason: str, detail: str) -> None:
        """The store fails for this reason; or, without one, it works again."""
        level = 3 if reason else 1
        line = {"event": "store", "state": "failing" if reason else "ok", "reason": reason, "detail": detail}
        self._write(level, {"timestamp": datetime.now(UTC), "level": LEVELS[level], **line})

    def crash(self, turn: str, error: Exception) -> None:
        """Write where a fault of ours happened, without the values it happened to."""
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
            self._out.write(b"\n".join((*lines, b"")))  # one write: lines of other threads stay apart
            self._out.flush()

    def _write(self, level: int, line: dict[str, Any]) -> None:
        if level < self._level:
            return
        if not self._lines:
            self._loop.call_later(DELAY, self.flush)
        self._lines.append(written_line({**line, **self._who} if self._who else line, self._format))


def written_line(line: dict[str, Any], format: Format) -> bytes:
    """A line as it is written, without its end."""
    written = _encode(line)
    if not _is_harmless(written) or format == "text":
        line = {field: _clean(field, value) for field, value in line.items()}
        written = _encode(line) if format == "json" else text_line(line).encode()
    return written


def _explanation(failure: Failure) -> dict[str, str]:
    """What went wrong, where, and what can be done about it. A backend's own words are not repeated."""
    said = f"status {failure.status} {failure.code}".rstrip() if failure.quoted else failure.message
    shown = {"failure": said.removesuffix(failure.hint).rstrip(), "url": failure.url, "hint": failure.hint}
    return {name: value for name, value in shown.items() if value}


def _is_harmless(line: bytes) -> bool:
    """A quick look: no name in it is long, and no character but the printable ones of ASCII."""
    return len(line) <= SHORT and line.isascii() and b"\\" not in line and b"\x7f" not in line


_FREE_TEXT = frozenset(("failure", "hint", "url", "path", "detail"))


def _clean(field: str, value: Any) -> Any:
    """What a client or a backend may have named as it likes, short and without control characters."""
    longest = LONGEST_FAILURE if field in _FREE_TEXT else LONGEST
    if isinstance(value, str):
        return value if len(value) <= longest and value.isprintable() else _cut(value, longest)
    if isinstance(value, list):
        return [_clean(field, name) for name in cast("list[Any]", value)[:longest]]
    return value


def _cut(name: str, longest: int) -> str:
    shown = "".join(char if char.isprintable() else "\ufffd" for char in name[:longest])
    return shown if len(name) <= longest else shown + "…"
