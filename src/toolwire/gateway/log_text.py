"""A line of the log for people.

12:04:31 chat → openai gpt-5-mini · 200 · 1.2 s · calls get_weather, read_file · notes retried
12:04:33 messages → local qwen3-coder · 502 · 3 ms · Backend `local` cannot be reached: connection refused. …
12:04:35 chat → openai gpt-5-mini · 200 · 0.8 s · worker 2
"""

import os
from collections.abc import Iterator
from typing import Any

_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31"}
_NAMES_SHOWN = 5


def text_line(line: dict[str, Any]) -> str:
    """The line in words. Its values have no control characters."""
    time = line["timestamp"].astimezone().strftime("%H:%M:%S")
    words = _turn(line) if line["event"] == "turn" else _other(line)
    return f"{_painted(time, '2')} {' · '.join(words)}"


def _turn(line: dict[str, Any]) -> Iterator[str]:
    backend = f" → {line['backend']}" if line.get("backend") else ""
    yield f"{line['dialect']}{backend} {line.get('model', '')}".rstrip()
    if line.get("key"):
        yield f"key {line['key']}"
    yield _painted(str(line["status"]), _COLOURS[line["level"]])
    yield _duration(line["ms"])
    if line["tool_call_names"]:
        yield f"calls {_listed(line['tool_call_names'])}"
    if line["notes"]:
        yield f"notes {_listed(list(line['notes']))}"
    if line.get("failure"):
        yield _failure(line)
    if "worker" in line:
        yield f"worker {line['worker']}"


def _other(line: dict[str, Any]) -> Iterator[str]:
    yield _painted(line["event"], _COLOURS[line["level"]])
    shown = ("timestamp", "level", "event", "failure", "hint", "url")
    yield " ".join(f"{name}={value}" for name, value in line.items() if name not in shown and value not in ("", None))
    if line.get("failure"):
        yield _failure(line)


def _failure(line: dict[str, Any]) -> str:
    where = f"({line['url']})" if line.get("url") and line["url"] not in line["failure"] else ""
    return " ".join(filter(None, (line["failure"], where, line.get("hint", ""))))


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _painted(text: str, colour: str) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[{colour}m{text}\x1b[0m"
