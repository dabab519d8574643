"""Checks one turn: bytes of a stream or a plain answer in, findings out."""

from collections.abc import Sequence

import msgspec

from toolwire.check.apis import APIS
from toolwire.check.turns.frames import FrameCheck, ReceivedFrame
from toolwire.check.turns.loose import as_list, as_object, parse_json, quote
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.turn import ObservedTurn, check_turn


class StreamCheck:
    """A stage that checks the bytes of one stream, in any chunking, and returns findings at the end."""

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts
        self._frames = FrameCheck()
        self.received: list[ReceivedFrame] = []
        self.turn = ObservedTurn()

    def feed(self, data: bytes, at: float = 0.0) -> Sequence[Finding]:
        """Take bytes that arrived `at` seconds after the request."""
        self.received += self._frames.feed(data, at)
        return ()

    def end(self) -> Sequence[Finding]:
        """All findings, now that the stream has ended."""
        self.received += self._frames.end()
        found, self.turn = check_frames(self.received, self._facts)
        ignored = APIS[self._facts.api].form.ignored
        return [*(each for each in self._frames.findings if each.rule not in ignored), *found]


def check_frames(received: Sequence[ReceivedFrame], facts: RequestFacts) -> tuple[list[Finding], ObservedTurn]:
    """The findings about the frames of a stream, and the turn in them."""
    form = APIS[facts.api].form
    reader = form.reader(facts)
    found = [*reader.read(received)]
    return [*found, *check_turn(reader.turn, facts, form)], reader.turn


def check_answer(
    body: bytes, facts: RequestFacts, *, is_stream: bool
) -> tuple[Sequence[Finding], ObservedTurn, tuple[ReceivedFrame, ...]]:
    """The findings about a whole answer, its turn, and the frames of a stream."""
    may_be_array = APIS[facts.api].form.streams_arrays and facts.fields.get("stream", True)
    elements = as_list(parse_json(body)) if may_be_array and body.startswith(b"[") else []
    if elements:
        received = [
            ReceivedFrame(at, 0.0, None, "", value, msgspec.json.encode(value)) for at, value in enumerate(elements)
        ]
        return *check_frames(received, facts), tuple(received)
    if not is_stream:
        return *check_plain(body, facts), ()
    stream = StreamCheck(facts)
    stream.feed(body)
    return stream.end(), stream.turn, tuple(stream.received)


def check_plain(body: bytes, facts: RequestFacts) -> tuple[list[Finding], ObservedTurn]:
    """The findings about a plain answer, and the turn in it."""
    form, value = APIS[facts.api].form, parse_json(body)
    if not isinstance(value, dict):
        return [Finding("plain.json", f"The answer is {quote(body[:80])}.")], ObservedTurn()
    fields = as_object(value)
    turn = form.plain_turn(fields)
    found = check_turn(turn, msgspec.structs.replace(facts, usage=True), form)
    return [*form.check_plain(fields, facts), *found], turn
