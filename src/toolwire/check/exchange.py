"""One request and its answer, as it was received."""

import re

import msgspec

from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import Json, as_object, parse_json
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.turn import ObservedTurn
from toolwire.core.events import Dialect


class SentRequest(msgspec.Struct, frozen=True):
    """A request, without its keys."""

    method: str
    url: str
    body: bytes = b""


SOCKET = "WS"
"""The method of a message that was sent over a WebSocket."""


class Exchange(msgspec.Struct):
    """A request, its answer, and the findings about it; filled in while the answer arrives."""

    number: int
    probe: str
    api: Dialect
    sent: SentRequest
    status: int = 0
    """0 if there was no answer."""
    content_type: str = ""
    """Empty if it is not known."""
    body: bytes = b""
    received: tuple[ReceivedFrame, ...] = ()
    seconds: float = 0.0
    """0 if the answer was captured elsewhere."""
    failure: str = ""
    """Why the answer is missing or incomplete; empty if it is complete."""
    turn: ObservedTurn = ObservedTurn()
    findings: tuple[Finding, ...] = ()
    facts: RequestFacts | None = None
    """The facts that the rules depend on; None if the request does not ask for a turn."""
    left: bool = False
    """Whether the client disconnected during the stream, on purpose."""

    @property
    def streamed(self) -> bool:
        """Whether the answer is a stream."""
        return is_event_stream(self.content_type) or bool(self.received)

    @property
    def is_socket(self) -> bool:
        """Whether it took place over a WebSocket."""
        return self.sent.method == SOCKET

    @property
    def ok(self) -> bool:
        """Whether a complete turn was received."""
        return self.status == 200 and not self.failure and self.turn.is_over

    def find_frames(self, finding: Finding) -> list[ReceivedFrame]:
        """The frames that show a finding."""
        return [self.received[position] for position in sorted({*finding.frames}) if 0 <= position < len(self.received)]

    @property
    def fields(self) -> Json:
        """The answer as an object; empty if it is not one."""
        return as_object(parse_json(self.body))


def is_event_stream(content_type: str) -> bool:
    """Whether a content type is that of server-sent events."""
    return "event-stream" in content_type.lower()


_FRAMES = re.compile(rb"\s*(?:data|event|id|retry|):")


def is_framed(body: bytes) -> bool:
    """Whether bytes look like a stream, whatever their content type says."""
    return _FRAMES.match(body) is not None
