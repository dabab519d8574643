"""One structured line per turn, on stderr. Never a body, a prompt or a key."""

import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from toolwire.core.notes import Tally
from toolwire.core.request import Request

LEVELS = ("debug", "info", "warning", "error")

_encode = msgspec.json.Encoder().encode


class Log:
    """The gateway's log."""

    def __init__(self, level: str = "info") -> None:
        self._level = LEVELS.index(level)
        self._write = structlog.BytesLogger(sys.stderr.buffer).msg

    def turn(self, facts: dict[str, Any], tally: Tally, seconds: float) -> None:
        """The line of one turn."""
        usage = tally.usage
        self._line(
            "info",
            "turn",
            **facts,
            ms=round(seconds * 1000, 1),
            reason=getattr(tally.ending, "reason", None),
            has_tool_calls=tally.call_count > 0,
            tool_call_count=tally.call_count,
            tool_call_names=tally.call_names,
            tool_call_ids=tally.call_ids,
            tool_call_truncated=tally.truncated,
            notes=tally.counts,
            input_tokens=usage.input if usage else None,
            output_tokens=usage.output if usage else None,
        )

    def crashed(self, turn: str, error: Exception) -> None:
        """A fault of ours: where it happened, without the values it happened to."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else ""
        self._line("error", "crash", turn=turn, error=type(error).__name__, where=where)

    def asked(self, facts: dict[str, Any], request: Request) -> None:
        """What a client asked for, in numbers; only at the level debug."""
        if self._level > 0:
            return
        self._line(
            "debug",
            "asked",
            **facts,
            stream=request.stream,
            entries=len(request.entries),
            tools=len(request.tools),
            hosted_tools=len(request.hosted_tools),
            extra=sorted(request.extra),
        )

    def _line(self, level: str, event: str, **facts: Any) -> None:
        """Written without a chain of processors, because every turn pays for it."""
        if LEVELS.index(level) >= self._level:
            self._write(_encode({"timestamp": datetime.now(UTC), "level": level, "event": event, **facts}))
