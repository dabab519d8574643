"""One request and all that came back, as it came."""

import msgspec

from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import Json, as_object
from toolwire.check.turns.rule import Finding
from toolwire.check.turns.turn import Turn
from toolwire.core.events import Dialect


class Sent(msgspec.Struct, frozen=True):
    """A request, without its keys."""

    method: str
    url: str
    body: bytes = b""


class Exchange(msgspec.Struct, frozen=True):
    """A request, its answer, and what both together break."""

    number: int
    probe: str
    api: Dialect
    sent: Sent
    status: int = 0
    """0 if there was no answer."""
    content_type: str = ""
    body: bytes = b""
    heard: tuple[Heard, ...] = ()
    seconds: float = 0.0
    trouble: str = ""
    """Why there is no whole answer."""
    turn: Turn = Turn()
    findings: tuple[Finding, ...] = ()

    @property
    def streamed(self) -> bool:
        return "event-stream" in self.content_type

    @property
    def ok(self) -> bool:
        """A turn came, whole."""
        return self.status == 200 and not self.trouble and self.turn.is_over

    @property
    def fields(self) -> Json:
        """The answer as an object, if it is one."""
        try:
            return as_object(msgspec.json.decode(self.body))
        except msgspec.DecodeError:
            return {}
