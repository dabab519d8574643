"""The meaning of each note, and advice for users. The texts are data in note_texts.toml."""

from pathlib import Path

import msgspec


class NoteText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The meaning of a note, and advice if something can be done."""

    meaning: str
    advice: str = "Nothing."


NOTE_TEXTS = msgspec.toml.decode(Path(__file__).with_name("note_texts.toml").read_bytes(), type=dict[str, NoteText])
"""The text of every note by its code."""


def meaning_of(code: str) -> str:
    """The meaning of a note; empty for a code that this version does not have."""
    return NOTE_TEXTS[code].meaning if code in NOTE_TEXTS else ""
