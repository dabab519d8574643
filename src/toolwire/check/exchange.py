"""One request and all that came back, as it came."""

import re

import msgspec

from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import Json, as_object, parsed
from toolwire.check.turns.rule import Asked, Finding
from toolwire.check.turns.turn import Turn
from toolwire.core.events import Dialect


class Sent(msgspec.Struct, frozen=True):
    """A request, without its keys."""

    method: str
    url: str
    body: bytes = b""


SOCKET = "WS"
"""The method of a message that was sent over a WebSocket."""


class Exchange(msgspec.Struct, frozen=True):
    """A request, its answer, and what both together break."""

    number: int
    probe: str
    api: Dialect
    sent: Sent
    status: int = 0
    """0 if there was no answer."""
    content_type: str = ""
    """Empty if it is not known."""
    body: bytes = b""
    heard: tuple[Heard, ...] = ()
    seconds: float = 0.0
    """0 if the answer was captured elsewhere."""
    trouble: str = ""
    """Why there is no whole answer."""
    turn: Turn = Turn()
    findings: tuple[Finding, ...] = ()
    asked: Asked | None = None
    """What the rules about turns know of the request; None if it asks for no turn."""
    left: bool = False
    """The stream was left in its middle, on purpose."""

    @property
    def streamed(self) -> bool:
        return is_event_stream(self.content_type) or bool(self.heard)

    @property
    def is_socket(self) -> bool:
        return self.sent.method == SOCKET

    @property
    def ok(self) -> bool:
        """A turn came, whole."""
        return self.status == 200 and not self.trouble and self.turn.is_over

    def shown_by(self, finding: Finding) -> list[Heard]:
        """The frames that show a finding. The place of a frame is where it stands in the stream."""
        return [self.heard[place] for place in sorted({*finding.frames}) if 0 <= place < len(self.heard)]

    @property
    def fields(self) -> Json:
        """The answer as an object, if it is one."""
        return as_object(parsed(self.body))


def is_event_stream(content_type: str) -> bool:
    return "event-stream" in content_type.lower()


_FRAMES = re.compile(rb"\s*(?:data|event|id|retry|):")


def is_framed(body: bytes) -> bool:
    """Whether bytes look like a stream, whatever their content type says."""
    return _FRAMES.match(body) is not None
