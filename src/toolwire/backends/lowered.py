"""A conversation with a backend about one request, without IO.

Servers do not support everything that a `Request` can hold, so it is lowered, and the calls of the answer are restored.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from toolwire.adapt.history import drop_empty_messages
from toolwire.adapt.lowering import Restore, lower_request
from toolwire.adapt.names import Limits
from toolwire.backends.decoder import TurnDecoder
from toolwire.backends.failures import make_http_failure
from toolwire.backends.originals import restore_original_fields
from toolwire.core.backend import Opening
from toolwire.core.errors import Failure
from toolwire.core.events import Event, Note
from toolwire.core.raw import fields_of, to_json
from toolwire.core.recording import Recording
from toolwire.core.request import Request
from toolwire.core.sse import Frame, on_one_line
from toolwire.core.stage import Pipeline


def fit_request(request: Request, limits: Limits) -> tuple[Request, Restore]:
    """The request as the server accepts it, in the client's JSON where possible, and the stage that restores calls."""
    entries, notes = drop_empty_messages(request.entries)
    if entries is not request.entries:
        request = msgspec.structs.replace(request, entries=entries, notes=(*request.notes, *notes))
    lower, restore = lower_request(request, limits)
    return restore_original_fields(request, lower, restore.declared, limits.schema_field), restore


def select_fields(body: bytes, names: frozenset[str]) -> bytes:
    """The body, with only these fields."""
    return to_json({name: value for name, value in fields_of(body).items() if name in names})


class LoweredConversation:
    """One request to one backend, and its answer. A backend sets `decoder` and adds `start`."""

    decoder: TurnDecoder
    lowered: Request
    """The request as it is written for the server."""
    restore: Restore
    """Restores the calls of the answer."""

    def __init__(self, request: Request, limits: Limits) -> None:
        self.lowered, self.restore = fit_request(request, limits)
        dropped = self.lowered.notes[len(request.notes) :]
        self._notes: Sequence[Note] = (*dropped, *self.restore.notes)  # delivered with the turn
        self._stages = Pipeline(self.restore) if self.restore.table else None

    @property
    def delta_fields(self) -> Sequence[bytes]:
        """The opening bytes of the fields whose text may be read in batches of frames.

        Empty if there are stages behind the decoder, because they read delta by delta.
        """
        return self.decoder.delta_fields if self._stages is None else ()

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes about fields that the encoded request lacks; complete after `start`."""
        written = (event for event in self.decoder.opening if isinstance(event, Note))
        return (*self._notes, *written)

    def set_notes(self, notes: Sequence[Note]) -> None:
        """Deliver these notes with the turn, for a request that another conversation encoded."""
        self._notes = notes

    def start(self) -> Opening:
        """The opening message to the backend."""
        raise NotImplementedError

    def feed(self, frame: Frame) -> Sequence[Event]:
        """The events of one frame of a streamed reply."""
        return self._restore_calls(self.decoder.feed(frame))

    def end(self) -> Sequence[Event]:
        """The events caused by the end of the stream."""
        return self._restore_calls(self.decoder.end())

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        """The events of a reply that is not streamed."""
        # Parts of the body may be written to a stream, where a frame is one line.
        return self._restore_calls(self.decoder.feed_plain(on_one_line(body)))

    def stand_in(self, call: str, delivered: str) -> None:
        """Answer an undelivered call with the result of the call that was delivered in its place.

        Does nothing by default: the next request has the whole history with the client's ids.
        """

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """The failure of an HTTP error of the backend."""
        return make_http_failure(status, headers, body)

    def _restore_calls(self, events: Sequence[Event]) -> Sequence[Event]:
        """The decoder's events after the stages, preceded by the notes about the request."""
        if self._notes and events:
            events = [*self._notes, *events]
            self._notes = ()
        return events if self._stages is None else self._stages.feed_all(events)


Timing: TypeAlias = Literal["none", "original"]


class ReplayProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a recording is played: at once, or with its original timing."""

    timing: Timing = "none"


def answer_with(
    conversation: LoweredConversation, recording: Recording, timing: Timing = "none"
) -> LoweredConversation:
    """The same conversation, in which the recording answers any request."""
    conversation.start = partial(recording.make_script, timed=timing == "original")
    return conversation
