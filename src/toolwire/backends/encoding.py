"""What the encoders of several backends need."""

from collections.abc import Sequence
from typing import Any

from toolwire.core.request import Entry, Message, Role


def given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value, which None is not."""
    return {name: value for name, value in fields.items() if value is not None}


def split_opening(entries: Sequence[Entry], *roles: Role) -> tuple[list[Message], Sequence[Entry]]:
    """The messages of these roles that open a history, and what follows them."""
    opening: list[Message] = []
    for entry in entries:
        if not isinstance(entry, Message) or entry.role not in roles:
            break
        opening.append(entry)
    return opening, entries[len(opening) :]
