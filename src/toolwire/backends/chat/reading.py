"""A decoder whose text is read: thoughts and calls that the model writes into it become events."""

from collections.abc import Sequence

from toolwire.backends.chat.profile import Profile
from toolwire.backends.lowered import Decoder
from toolwire.core.backend import ContextWindow
from toolwire.core.events import Event
from toolwire.core.request import Request
from toolwire.core.sse import Frame
from toolwire.core.stage import Pipeline, Stage
from toolwire.notations.known import CALLS, HERMES, THOUGHTS
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.table import Opener
from toolwire.notations.thoughts import ReadThoughts
from toolwire.notations.values import Schemas


def reading(decoder: Decoder, profile: Profile, request: Request, seed: str) -> Decoder:
    """The decoder, behind it the stages that the profile asks for; the decoder itself if it asks for none."""
    stages: list[Stage[Event, Event]] = [ReadThoughts(THOUGHTS[name]) for name in profile.notations if name in THOUGHTS]
    openers = _openers(profile, request)
    if openers:
        names = request.tool_names if request.wants_calls else ()
        telling = "live" if profile.tools == "prompt" else "whole"
        own = f"{seed}n"  # ids of its own: the reader behind all backends makes some too
        stages.append(ReadTextCalls(openers, own, Schemas(request.tools), names, telling=telling))
    return ReadDecoder(decoder, stages) if stages else decoder


def _openers(profile: Profile, request: Request) -> tuple[Opener, ...]:
    """The notations to read. Without tools no call is looked for, but text still has channels."""
    every = [opener for name in profile.notations for opener in CALLS.get(name, ())]
    if profile.tools == "prompt" and profile.taught is HERMES:
        every += HERMES.reads
    return tuple(every) if request.wants_calls else tuple(opener for opener in every if opener.ends)


class ReadDecoder:
    """A decoder and the stages its events pass through."""

    flowing: Sequence[bytes] = ()
    """Text that is read must come piece by piece."""

    def __init__(self, decoder: Decoder, stages: Sequence[Stage[Event, Event]]) -> None:
        self._decoder = decoder
        self._line = Pipeline(*stages)
        self.ended = False

    @property
    def finishing(self) -> int:
        return self._decoder.finishing

    @property
    def context_window(self) -> ContextWindow:
        return self._decoder.context_window

    def begin(self, notes: Sequence[Event]) -> None:
        self._decoder.begin(notes)

    def feed(self, frame: Frame) -> Sequence[Event]:
        return self._read(self._decoder.feed(frame))

    def end(self) -> Sequence[Event]:
        return self._read(self._decoder.end())

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        return self._read(self._decoder.feed_plain(body))

    def reasoning(self) -> str:
        return self._decoder.reasoning()

    def _read(self, events: Sequence[Event]) -> Sequence[Event]:
        self.ended = self._decoder.ended
        return self._line.feed_all(events)
