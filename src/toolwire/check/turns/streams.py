"""All rules that a turn by itself can break, whoever sent it: bytes of a stream or a plain answer in, findings out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from toolwire.check.turns import chat, messages, responses
from toolwire.check.turns.frames import FrameCheck, Heard
from toolwire.check.turns.loose import Json, as_object, as_text, parsed, shown
from toolwire.check.turns.rule import Asked, Finding
from toolwire.check.turns.turn import Turn, check_turn
from toolwire.core.events import Dialect


class StreamReader(Protocol):
    """A dialect's strict reader of a finished stream."""

    def read(self, heard: Sequence[Heard]) -> Iterator[Finding]: ...

    @property
    def turn(self) -> Turn: ...


STREAMS: dict[Dialect, Callable[[Asked], StreamReader]] = {
    "chat": chat.ChatStream,
    "responses": responses.ResponsesStream,
    "messages": messages.MessagesStream,
}
PLAIN: dict[Dialect, tuple[Callable[[Json, Asked], Iterator[Finding]], Callable[[Json], Turn]]] = {
    "chat": (chat.check_plain, chat.plain_turn),
    "responses": (responses.check_plain, responses.plain_turn),
    "messages": (messages.check_plain, messages.plain_turn),
}


class StreamCheck:
    """A stage from the bytes of one stream, in any chunking, to what is wrong with it. Findings come at the end."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._frames = FrameCheck()
        self.heard: list[Heard] = []
        self.turn = Turn()

    def feed(self, data: bytes, at: float = 0.0) -> Sequence[Finding]:
        self.heard += self._frames.feed(data, at)
        return ()

    def end(self) -> Sequence[Finding]:
        self.heard += self._frames.end()
        found, self.turn = check_heard(self.heard, self._asked)
        return [*self._frames.findings, *found]


def check_heard(heard: Sequence[Heard], asked: Asked) -> tuple[list[Finding], Turn]:
    """What is wrong with the events of a stream, and the turn that they tell."""
    reader = STREAMS[asked.api](asked)
    found = [*reader.read(heard)]
    return [*found, *check_turn(reader.turn, asked)], reader.turn


def check_plain(body: bytes, asked: Asked) -> tuple[list[Finding], Turn]:
    """What is wrong with a plain answer, and the turn in it."""
    check, read = PLAIN[asked.api]
    value = parsed(body)
    if not isinstance(value, dict):
        return [Finding("plain.json", f"The answer is {shown(body[:80])}.")], Turn()
    fields = as_object(value)
    turn = read(fields)
    return [*check(fields, asked), *check_turn(turn, msgspec.structs.replace(asked, usage=True))], turn


def api_of(value: Json) -> Dialect:
    """Whose words these are, of a first event or a plain answer; empty if nobody's."""
    kind = as_text(value.get("type"))
    if as_text(value.get("object")).startswith("chat.completion"):
        return "chat"
    if kind.startswith("response.") or value.get("object") == "response":
        return "responses"
    return "messages" if kind in messages.KNOWN or kind == "message" else ""
