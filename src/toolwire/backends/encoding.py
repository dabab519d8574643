"""Helpers for the backends' encoders."""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolwire.core.events import Note
from toolwire.core.raw import Json, as_object, wrap_arguments
from toolwire.core.request import CallEntry, Entry, Message, OtherPart, Part, Role


def without_none(**fields: Any) -> Json:
    """The fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}


def split_opening(entries: Sequence[Entry], *roles: Role) -> tuple[list[Message], Sequence[Entry]]:
    """The messages of these roles that open a history, and what follows them."""
    opening: list[Message] = []
    for entry in entries:
        if not isinstance(entry, Message) or entry.role not in roles:
            break
        opening.append(entry)
    return opening, entries[len(opening) :]


def wrap_system(text: str) -> str:
    """A later instruction as user text, for servers that accept system messages only at the beginning."""
    return f"<system>\n{text}\n</system>"


def note_dropped_part(part: Part) -> Note:
    """The note about a part that the protocol does not support."""
    kind = part.type if isinstance(part, OtherPart) else type(part).__name__.removesuffix("Part").lower()
    return Note("part_dropped", kind)


def encode_arguments(call: CallEntry, notes: list[Note]) -> msgspec.Raw:
    """The arguments of a call as a JSON object, for servers that accept nothing else."""
    arguments = as_object(call.arguments)
    if arguments is None:
        notes.append(Note("arguments_wrapped", call.id))
        arguments = wrap_arguments(call.arguments)
    return arguments
