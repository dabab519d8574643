"""The results of tool calls that came with a request."""

from collections.abc import Sequence

from toolwire.core.request import Entry, Message, ResultEntry, TextPart
from toolwire.gateway.console.rows import FAILED, LONGEST, NAMES

_LOOKED_AT = 4 * NAMES
"""Entries at the end of a request among which results are looked for."""


def results_of(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The calls whose results stand at the end of a request, the last first. Every turn pays for it."""
    found: list[str] = []
    for entry in entries[: -_LOOKED_AT - 1 : -1]:
        if isinstance(entry, ResultEntry):
            found.append(entry.call_id[:LONGEST] + (FAILED if entry.failed or _says_error(entry) else ""))
        elif not isinstance(entry, Message) or entry.role == "assistant":
            break
    return tuple(found[:NAMES])


def _says_error(entry: ResultEntry) -> bool:
    """Whether a result says of itself that it failed, where its dialect has no field for that."""
    return any(isinstance(part, TextPart) and part.text[:6].lower() == "error:" for part in entry.parts)
