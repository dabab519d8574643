"""One line per turn on stderr: JSON in a pipe, text at a terminal. Never a body, a prompt or a key.

12:04:31 chat → openai gpt-5-mini · 200 · 1.2 s · calls get_weather, read_file · notes retried
12:04:33 messages → local qwen3-coder · 502 · 3 ms · Backend `local` cannot be reached: connection refused. …
12:04:35 chat → openai gpt-5-mini · 200 · 0.8 s · worker 2
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, cast

import msgspec

from toolwire.core.errors import Failure
from toolwire.core.events import TurnFailed
from toolwire.core.request import Request
from toolwire.turns.observers import TurnObserver, TurnOutcome, TurnReport

LEVELS = ("debug", "info", "warning", "error")
Format: TypeAlias = Literal["json", "text"]
DELAY = 0.02
"""Seconds that a line may wait for others, so that a busy gateway writes many at once."""

MAX_UNCHECKED = 1000
"""Maximum bytes of a line whose values are written without checking each."""
MAX_NAME = 128
"""Maximum characters of a name, and names in a list."""
MAX_TEXT = 400
"""Maximum characters of a failure, a hint, a URL or a path."""
MAX_NAMES_SHOWN = 5
"""Maximum names of a list that a line of text shows."""

_FREE_TEXT = frozenset(("failure", "hint", "url", "path", "detail"))
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31"}
_encode = msgspec.json.Encoder().encode


class Log(TurnObserver):
    """The gateway's log. Lines are encoded directly, not by a chain of processors, because every turn pays for it."""

    def __init__(
        self, level: str, loop: asyncio.AbstractEventLoop, format: Format = "json", worker: int | None = None
    ) -> None:
        self._level = LEVELS.index(level)
        self._process = {} if worker is None else {"worker": worker}
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
                **(_explain(failure) if failure is not None else {}),
            },
        )

    def ask(self, report: TurnReport, request: Request) -> None:
        """Log the sizes of a request, at level debug only."""
        if self._level > 0:
            return
        sizes = {
            "stream": request.stream,
            "entries": len(request.entries),
            "tools": len(request.tools),
            "hosted_tools": len(request.hosted_tools),
            "extra": sorted(request.extra),
        }
        line = {"timestamp": datetime.now(UTC), "level": "debug", "event": "asked"}
        self._write(0, {**line, **msgspec.to_builtins(report), **sizes})

    def refuse(self, method: str, path: str, failure: Failure) -> None:
        """Log a request that was refused because its path or method is not served."""
        line = {"event": "refused", "method": method, "path": path, "status": failure.status}
        self._write(2, {"timestamp": datetime.now(UTC), "level": "warning", **line, **_explain(failure)})

    def store(self, reason: str, detail: str) -> None:
        """Log that the store fails for this reason; without a reason, that it works again."""
        level = 3 if reason else 1
        line = {"event": "store", "state": "failing" if reason else "ok", "reason": reason, "detail": detail}
        self._write(level, {"timestamp": datetime.now(UTC), "level": LEVELS[level], **line})

    def crash(self, turn: str, error: Exception) -> None:
        """Log where an unexpected exception was raised, without the values involved."""
        step = error.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        where = f"{step.tb_frame.f_code.co_filename[-100:]}:{step.tb_lineno}" if step is not None else ""
        line = {"event": "crash", "turn": turn, "error": type(error).__name__, "where": where}
        self._write(3, {"timestamp": datetime.now(UTC), "level": "error", **line})
        self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        lines, self._lines = self._lines, []
        if lines:
            self._out.write(b"\n".join((*lines, b"")))  # one write, so that lines of other threads do not mix in
            self._out.flush()

    def _write(self, level: int, line: dict[str, Any]) -> None:
        if level < self._level:
            return
        if not self._lines:
            self._loop.call_later(DELAY, self.flush)
        self._lines.append(encode_log_line({**line, **self._process} if self._process else line, self._format))


def _explain(failure: Failure) -> dict[str, str]:
    """The reason of a failure, its URL and its hint. A backend's own words are not repeated."""
    reason = f"status {failure.status} {failure.code}".rstrip() if failure.quoted else failure.message
    shown = {"failure": reason.removesuffix(failure.hint).rstrip(), "url": failure.url, "hint": failure.hint}
    return {name: value for name, value in shown.items() if value}


def encode_log_line(line: dict[str, Any], format: Format) -> bytes:
    """The bytes of a line, without its end."""
    encoded = _encode(line)
    is_clean = len(encoded) <= MAX_UNCHECKED and encoded.isascii() and b"\\" not in encoded and b"\x7f" not in encoded
    if is_clean and format == "json":
        return encoded
    line = {field: _clean(field, value) for field, value in line.items()}
    return _encode(line) if format == "json" else _write_text(line).encode()


def _clean(field: str, value: Any) -> Any:
    """A value that a client or a backend may have chosen, shortened and without control characters."""
    limit = MAX_TEXT if field in _FREE_TEXT else MAX_NAME
    if isinstance(value, list):
        return [_clean(field, name) for name in cast("list[Any]", value)[:limit]]
    if not isinstance(value, str) or (len(value) <= limit and value.isprintable()):
        return value
    shown = "".join(char if char.isprintable() else "\ufffd" for char in value[:limit])
    return shown if len(value) <= limit else shown + "…"


def _write_text(line: dict[str, Any]) -> str:
    """Format a line for people."""
    time = line["timestamp"].astimezone().strftime("%H:%M:%S")
    words = _describe_turn(line) if line["event"] == "turn" else _describe_event(line)
    return f"{_paint(time, '2')} {' · '.join(words)}"


def _describe_turn(line: dict[str, Any]) -> Iterator[str]:
    backend = f" → {line['backend']}" if line.get("backend") else ""
    yield f"{line['dialect']}{backend} {line.get('model', '')}".rstrip()
    if line.get("key"):
        yield f"key {line['key']}"
    yield _paint(str(line["status"]), _COLOURS[line["level"]])
    yield f"{line['ms']:.0f} ms" if line["ms"] < 1000 else f"{line['ms'] / 1000:.1f} s"
    if line["tool_call_names"]:
        yield f"calls {_join(line['tool_call_names'])}"
    if line["notes"]:
        yield f"notes {_join(list(line['notes']))}"
    if line.get("failure"):
        yield _describe_failure(line)
    if "worker" in line:
        yield f"worker {line['worker']}"


def _describe_event(line: dict[str, Any]) -> Iterator[str]:
    yield _paint(line["event"], _COLOURS[line["level"]])
    shown = ("timestamp", "level", "event", "failure", "hint", "url")
    yield " ".join(f"{name}={value}" for name, value in line.items() if name not in shown and value not in ("", None))
    if line.get("failure"):
        yield _describe_failure(line)


def _describe_failure(line: dict[str, Any]) -> str:
    where = f"({line['url']})" if line.get("url") and line["url"] not in line["failure"] else ""
    return " ".join(filter(None, (line["failure"], where, line.get("hint", ""))))


def _join(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + more


def _paint(text: str, colour: str) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[{colour}m{text}\x1b[0m"
