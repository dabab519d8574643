"""Notes and figures: what a turn delivered, and what was changed in it.

`TurnStats` is the one source of these figures; the telemetry comment, the response headers, the log line and the
metrics all read it.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import msgspec

from toolwire.core.events import CallStarted, Event, Note, TurnEnded, TurnFailed, Usage

StopMode: TypeAlias = Literal["burst", "first"]

_TRUNCATING = frozenset(("call_capped", "call_cut"))
MAX_STORED_NOTES = 32
"""Maximum notes that a turn stores; more are only counted."""
MAX_HEADER_NOTES = 16


class Figures(msgspec.Struct, frozen=True):
    """The figures about a turn that clients get in addition to its content."""

    tool_call_count: int = 0
    tool_call_truncated: bool = False
    stop_after_tools_mode: StopMode = "burst"
    notes: tuple[dict[str, str], ...] = ()
    """Each with its `code` and, if it has one, its `subject`."""

    def comment(self) -> bytes:
        """As JSON, for the comment that closes a stream."""
        return msgspec.json.encode(self)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """As headers, for an answer that is not streamed."""
        headers = [
            (b"x-codex-tool-call-count", b"%d" % self.tool_call_count),
            (b"x-codex-tool-call-truncated", b"true" if self.tool_call_truncated else b"false"),
            (b"x-codex-stop-after-tools-mode", self.stop_after_tools_mode.encode()),
        ]
        if self.notes:
            headers.append((b"x-toolwire-notes", msgspec.json.encode(self.notes[:MAX_HEADER_NOTES])))
        return headers


class TurnStats:
    """A policy that counts calls, notes and usage. Notes end here: no dialect has an event for them."""

    handles: ClassVar[tuple[type[Event], ...]] = (CallStarted, Note, Usage, TurnEnded, TurnFailed)

    def __init__(self, mode: StopMode = "burst") -> None:
        self.mode: StopMode = mode
        self.call_ids: list[str] = []
        self.call_names: list[str] = []
        self.truncated = False
        self.notes: list[Note] = []
        self.counts: dict[str, int] = {}
        self.usage: Usage | None = None
        self.ending: TurnEnded | TurnFailed | None = None

    def feed(self, event: Event) -> Sequence[Event] | None:
        if isinstance(event, CallStarted):
            self.call_ids.append(event.id)
            self.call_names.append(event.name)
        elif isinstance(event, Note):
            self.add_note(event)
            return ()
        elif isinstance(event, Usage):
            self.usage = event
        elif isinstance(event, TurnEnded | TurnFailed):
            self.ending = event
        return None

    def add_note(self, note: Note) -> None:
        """Count a note, and store it unless the limit is reached."""
        self.counts[note.code] = self.counts.get(note.code, 0) + 1
        self.truncated = self.truncated or note.code in _TRUNCATING
        if len(self.notes) < MAX_STORED_NOTES:
            self.notes.append(note)

    @property
    def call_count(self) -> int:
        """How many calls were delivered."""
        return len(self.call_ids)

    @property
    def figures(self) -> Figures:
        """The figures that clients get. A note's subject becomes one short line of ASCII."""
        notes: list[dict[str, str]] = []
        for note in self.notes:
            subject = note.subject[:80].encode("ascii", "replace").decode()
            subject = "".join(char if char.isprintable() else "?" for char in subject)
            notes.append({"code": note.code, "subject": subject} if subject else {"code": note.code})
        return Figures(self.call_count, self.truncated, self.mode, tuple(notes))

    def comment(self) -> bytes:
        """The figures as JSON, for the comment that closes a stream."""
        return self.figures.comment()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The same figures as headers, for an answer that is not streamed."""
        return self.figures.headers()


class PassingStats(TurnStats):
    """The same, but lets notes pass, for clients that read events instead of a dialect."""

    def feed(self, event: Event) -> None:
        super().feed(event)
