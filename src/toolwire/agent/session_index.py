"""The sessions on disk, newest first, without reading all of them."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from toolwire.agent.history import MessageItem, read_items
from toolwire.agent.session import SESSION_SUFFIX, SessionHead, SessionLine
from toolwire.core.terminal import clean

MAX_READ = 1024 * 1024
"""Bytes of a session that are read in order to find its first prompt."""
MAX_CHARS = 60
"""Characters of a prompt in a list."""


class Summary(msgspec.Struct, frozen=True):
    """What a list of sessions shows of one."""

    id: str
    model: str
    cwd: str
    used: float
    """When it was last written to, in seconds since 1970."""
    prompt: str
    """The first prompt; empty if it could not be read."""


def recent(directory: Path, cwd: Path | None = None) -> Iterator[Summary]:
    """The sessions in which something was said, newest first; only those of a working directory if one is given."""
    files: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in directory.glob(f"*{SESSION_SUFFIX}"):
            with suppress(OSError):
                files.append((path.stat().st_mtime, path))
    for used, path in sorted(files, reverse=True):
        summary = _summary(path, used)
        if summary is not None and (cwd is None or summary.cwd == str(cwd)):
            yield summary


def _summary(path: Path, used: float) -> Summary | None:
    try:
        with path.open("rb") as file:
            first, *rest = file.read(MAX_READ).splitlines()
        head = msgspec.json.decode(first, type=SessionHead)
    except (OSError, ValueError):
        return None
    return Summary(path.stem, head.model, head.cwd, used, _first_prompt(rest)) if rest else None


def _first_prompt(lines: list[bytes]) -> str:
    for line in lines:
        with suppress(msgspec.DecodeError):
            for item in read_items(msgspec.json.decode(line, type=SessionLine).items or ()):
                if isinstance(item, MessageItem) and item.role == "user":
                    return item.text
    return ""


def session_rows(found: Iterable[Summary], now: float) -> list[tuple[str, ...]]:
    """Sessions as the cells of a table: the id, when it was used, the model, the directory and the first prompt."""
    rows = ((each.id, ago(each.used, now), each.model, each.cwd, _line(each.prompt)) for each in found)
    return [tuple(map(clean, row)) for row in rows]


def _line(text: str) -> str:
    line = " ".join(text[: 10 * MAX_CHARS].split())
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def ago(then: float, now: float) -> str:
    """How long something is ago, for people."""
    seconds = max(0.0, now - then)
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return "just now"
