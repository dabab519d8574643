"""A protocol that exists in these tests only: a dialect, a backend and their row.

    POST /toy/MODEL:whole     {"say": "Hi"}   →  {"toy": "…", "calls": 0}
    POST /toy/MODEL:stream    {"say": "Hi"}   →  data: {"toy": "…"} … data: {"calls": 0}

The model and the way of answering stand in the path, the key in `x-toy-key` or `?toy_key=`, as others do it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from toolwire.adapt.names import Limits
from toolwire.assembly import ServerFacts
from toolwire.backends.decoder import TurnDecoder
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Post
from toolwire.core.bounds import Bounds, Steps
from toolwire.core.collect import Turn
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import Event, TextDelta, TurnEnded, TurnFailed, TurnStarted
from toolwire.core.notes import TurnStats
from toolwire.core.request import Message, Request, RequestHead, TextPart
from toolwire.core.sse import Frame
from toolwire.protocols import BackendSide, DialectSide, HttpBackend, ProtocolRow

NAME = "toy"


def _frame(fields: object) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


class ToyEncoder:
    content_type = b"text/event-stream"

    def __init__(
        self, request: Request, id: str, created: int, stats: TurnStats, clock: Callable[[], float] | None = None
    ) -> None:
        self._calls = 0

    def feed(self, event: Event) -> Sequence[bytes]:
        match event:
            case TextDelta():
                return (_frame({"toy": event.text}),)
            case TurnEnded():
                return (_frame({"calls": self._calls}),)
            case TurnFailed():
                return (_frame({"toy_error": event.failure.message}),)
            case _:
                return ()

    def keepalive(self, silent: float) -> Sequence[bytes]:
        return (b": toy\n\n",)

    def break_off(self) -> Sequence[bytes]:
        return (_frame({"toy_error": "broken off"}),)


class ToyDialect:
    """What a package under `dialects/` exports."""

    PATH = "/toy/"
    StreamEncoder = ToyEncoder

    def decode_request(self, body: bytes) -> Request:
        said = msgspec.json.decode(body, type=dict[str, str]).get("say", "")
        if not said:
            raise BadRequest("say: This field is required.", "say")
        return Request("", (Message("user", (TextPart(said),)),), dialect=NAME)

    def decode_steps(self, body: bytes, bounds: Bounds, head: RequestHead) -> Steps[Request]:
        yield
        model, way = head.parameters["model"], head.parameters["way"]
        return msgspec.structs.replace(self.decode_request(body), model=model, stream=way == "stream")

    def encode_turn(self, turn: Turn, request: Request, id: str, created: int) -> bytes:
        return msgspec.json.encode({"toy": turn.text, "calls": len(turn.calls)})

    def encode_error(self, failure: Failure) -> bytes:
        return msgspec.json.encode({"toy_error": failure.message})

    def new_id(self, seed: str) -> str:
        return f"toy-{seed}"

    def recognises(self, fields: Mapping[str, Any]) -> bool:
        return "toy" in fields


class ToyProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a toy server."""

    shouts: bool = False


class ToyDecoder(TurnDecoder):
    def feed(self, frame: Frame) -> Sequence[Event]:
        fields = msgspec.json.decode(frame.data)
        out: list[Event] = [] if self._started else [*self._take_opening(), TurnStarted("toy", "toy")]
        self._started = True
        if "toy" in fields:
            out.append(TextDelta(fields["toy"]))
        if "calls" in fields:
            self.ended = True
            out.append(TurnEnded("stop"))
        return out

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        return self.feed(Frame(b"", body))

    def end(self) -> Sequence[Event]:
        return () if self.ended else self._fail_cut()


class ToyConversation(LoweredConversation):
    def __init__(self, request: Request, seed: str, profile: ToyProfile | None = None) -> None:
        super().__init__(request, Limits())
        self.decoder = ToyDecoder(seed)
        self._shouts = profile is not None and profile.shouts

    def start(self) -> Post:
        [*_, last] = (entry for entry in self.lowered.entries if isinstance(entry, Message))
        said = "".join(part.text for part in last.parts if isinstance(part, TextPart))
        way = "stream" if self.lowered.stream else "whole"
        body = msgspec.json.encode({"say": said.upper() if self._shouts else said})
        return Post(f"/toy/{self.lowered.model}:{way}", body)


_DIALECT = ToyDialect()

TOY = ProtocolRow(
    name=NAME,
    title="the toy protocol",
    vendor="toys",
    dialect=DialectSide(
        module=_DIALECT,
        decode_steps=_DIALECT.decode_steps,
        decode_whole=_DIALECT.decode_request,
        pattern=re.compile(r"/toy/(?P<model>[^:]+):(?P<way>whole|stream)"),
        history_field="say",
        key_header=b"x-toy-key",
        key_parameter="toy_key",
        overload_status=599,
    ),
    backend=BackendSide(
        profile=ToyProfile,
        reads=ToyConversation,
        http=HttpBackend(
            path="/toy",
            converse=ToyConversation,
            profile_from=lambda settings, _: msgspec.convert(dict(settings), ToyProfile),
            facts=lambda _: ServerFacts(headers={"x-toy-version": "1"}),
            key_header="x-toy-key",
        ),
    ),
)
