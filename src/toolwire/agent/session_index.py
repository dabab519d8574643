"""Lists the sessions on disk, newest first, without reading all of them."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from toolwire.agent.history import MessageItem, read_items
from toolwire.agent.session import SESSION_SUFFIX, SessionHead, SessionLine
from toolwire.core.display import clean

MAX_SUMMARY_BYTES = 1024 * 1024
"""Bytes of a session that are read to find its first prompt."""
MAX_PROMPT_CHARS = 60
"""Characters of a prompt in a list."""


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a list."""

    id: str
    model: str
    cwd: str
    used: float
    """When it was last written, in seconds since 1970."""
    prompt: str
    """The first prompt; empty if it could not be read."""


def list_sessions(directory: Path, cwd: Path | None = None) -> Iterator[SessionSummary]:
    """The sessions that are not empty, newest first; with `cwd` only those of that working directory."""
    files: list[tuple[float, Path]] = []
    with suppress(OSError):
        for path in directory.glob(f"*{SESSION_SUFFIX}"):
            with suppress(OSError):
                files.append((path.stat().st_mtime, path))
    for used, path in sorted(files, reverse=True):
        try:
            with path.open("rb") as file:
                first, *rest = file.read(MAX_SUMMARY_BYTES).splitlines()
            head = msgspec.json.decode(first, type=SessionHead)
        except (OSError, ValueError):
            continue
        if rest and (cwd is None or head.cwd == str(cwd)):
            yield SessionSummary(path.stem, head.model, head.cwd, used, _first_prompt(rest))


def _first_prompt(lines: list[bytes]) -> str:
    for line in lines:
        with suppress(msgspec.DecodeError):
            for item in read_items(msgspec.json.decode(line, type=SessionLine).items or ()):
                if isinstance(item, MessageItem) and item.role == "user":
                    return item.text
    return ""


def session_rows(found: Iterable[SessionSummary], now: float) -> list[tuple[str, ...]]:
    """Sessions as the cells of a table: the id, when it was used, the model, the directory and the first prompt."""
    rows: list[tuple[str, ...]] = []
    for each in found:
        prompt = " ".join(each.prompt[: 10 * MAX_PROMPT_CHARS].split())
        prompt = prompt if len(prompt) <= MAX_PROMPT_CHARS else f"{prompt[: MAX_PROMPT_CHARS - 1]}…"
        rows.append(tuple(map(clean, (each.id, _age(each.used, now), each.model, each.cwd, prompt))))
    return rows


def _age(then: float, now: float) -> str:
    """How long ago something was, such as `5 min ago`."""
    seconds = max(0.0, now - then)
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {name} ago"
    return "just now"
