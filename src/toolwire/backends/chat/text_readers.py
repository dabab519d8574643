"""Reads reasoning and calls that the model writes into its text, behind the decoder of the reply."""

from collections.abc import Sequence

from toolwire.backends.chat.profile import Profile
from toolwire.backends.lowered import ReplyDecoder
from toolwire.core.backend import ContextWindow
from toolwire.core.events import Event
from toolwire.core.request import Request
from toolwire.core.sse import Frame
from toolwire.core.stage import Pipeline, Stage
from toolwire.notations.emit import EmitMode
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.reasoning import ReadReasoning
from toolwire.notations.registry import CALLS, HERMES, REASONING
from toolwire.notations.table import Opener
from toolwire.notations.values import Schemas


def with_text_readers(decoder: ReplyDecoder, profile: Profile, request: Request, seed: str) -> ReplyDecoder:
    """The decoder followed by the text readers of the profile; the decoder itself if there are none."""
    found = (REASONING[name] for name in profile.notations if name in REASONING)
    stages: list[Stage[Event, Event]] = [ReadReasoning(markers) for markers in found]
    openers = _openers(profile, request)
    if openers:
        names = request.tool_names if request.wants_calls else ()
        mode: EmitMode = "live" if profile.tools == "prompt" else "whole"
        seed = f"{seed}n"  # its ids must differ from those of the reader behind all backends
        stages.append(ReadTextCalls(openers, seed, Schemas(request.tools), names, mode=mode))
    return TextReadingDecoder(decoder, stages) if stages else decoder


def _openers(profile: Profile, request: Request) -> tuple[Opener, ...]:
    """The notations to read. Without tools only those are read that divide text into channels."""
    every = [opener for name in profile.notations for opener in CALLS.get(name, ())]
    if profile.tools == "prompt" and profile.prompt_notation is HERMES:
        every += HERMES.reads
    return tuple(every) if request.wants_calls else tuple(opener for opener in every if opener.ends)


class TextReadingDecoder:
    """A decoder and the stages its events pass through."""

    delta_fields: Sequence[bytes] = ()
    """Empty, because text that is read must come delta by delta."""

    def __init__(self, decoder: ReplyDecoder, stages: Sequence[Stage[Event, Event]]) -> None:
        self._decoder = decoder
        self._pipeline = Pipeline(*stages)
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
        return self._pipeline.feed_all(events)
