"""Whatever happens in a turn, what our own encoders make of it breaks no rule, MUST or SHOULD."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.check.streams import read
from tests.unit.walks import Walk, frames
from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import parse_json
from toolwire.check.turns.rule import RequestFacts
from toolwire.check.turns.streams import check_answer, check_frames, check_plain
from toolwire.core.bounds import UNBOUNDED, run_steps
from toolwire.core.collect import collect
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request, RequestHead
from toolwire.dialects import chat, gemini, messages, responses

words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
values = st.dictionaries(words, st.none() | st.integers() | words | st.lists(words, max_size=2), max_size=3)


class SoundWalk(Walk):
    """A walk that also keeps what the policies see to before a turn is written.

    Arguments are objects, text is not empty, tokens are counted, and the reason of the end is the true one.
    """

    def __init__(self, draw: st.DrawFn, *, same_dialect: bool, calls: int) -> None:
        super().__init__(draw, same_dialect=same_dialect)
        self._most = calls
        self._pieces: list[str] = []

    def _may_come(self, kind: type[Event]) -> bool:
        return super()._may_come(kind) and not (kind is CallStarted and self._calls >= self._most)

    def _add(self, kind: type[Event]) -> None:
        if kind is CallArgs and not self._pieces:
            return
        super()._add(kind)
        event = self.events.pop()
        match event:
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                event = type(event)(self._draw(words), *event_index(event))
            case CallStarted(kind="function"):
                self._pieces = self._cut_up(json.dumps(self._draw(values), ensure_ascii=self._draw(st.booleans())))
            case CallStarted():
                self._pieces = self._cut_up(self._draw(words))
            case CallArgs(id):
                event = CallArgs(id, self._pieces.pop(0))
            case Usage():
                event = self._used()
            case CallEnded(id, complete):
                self.events += [CallArgs(id, piece) for piece in self._pieces] if complete else []
            case _:
                pass
        self.events.append(event)

    def _cut_up(self, text: str) -> list[str]:
        cuts = sorted(self._draw(st.lists(st.integers(0, len(text)), max_size=3)))
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _told(self) -> Event:
        """What a server of the same dialect says beside; events that no protocol has are its own fault."""
        return self._draw(frames.filter(lambda told: "brand_new" not in told.type))

    def _finish(self) -> None:
        super()._finish()
        match self.events[-1]:
            case TurnEnded(reason):
                true = reason if reason in ("length", "filter") else "calls" if self._calls else "stop"
                self.events[-1:] = [self._used(), TurnEnded(true)]
            case _:
                pass

    def _used(self) -> Usage:
        """Tokens whose parts are no more than the whole."""
        input, output = self._draw(st.integers(0, 9)), self._draw(st.integers(0, 9))
        cached, reasoning = self._draw(st.integers(0, input)), self._draw(st.integers(0, output))
        return Usage(input, output, cached, self._draw(st.integers(0, input - cached)), reasoning)


def event_index(event: TextDelta | RefusalDelta | ReasoningDelta) -> tuple[Any, ...]:
    if isinstance(event, ReasoningDelta):
        return event.kind, event.part, event.item
    return event.item, event.part


@st.composite
def sound_turns(draw: st.DrawFn, *, same_dialect: bool = False, calls: int = 9) -> list[Event]:
    return SoundWalk(draw, same_dialect=same_dialect, calls=calls).run()


def encoded(encoder: Any, events: list[Event]) -> bytes:
    order = TurnOrder()
    data = b"".join(piece for event in events for each in order.feed(event) for piece in encoder.feed(each))
    order.end()
    return data


def keeps_the_rules(stream: bytes, plain: bytes, facts: RequestFacts) -> None:
    assert read(stream, facts)[0] == []
    if plain:
        assert check_plain(plain, facts)[0] == []


def collected(dialect: Any, events: list[Event], request: Request, id: str) -> bytes:
    """The same turn as a plain answer; one that failed is none."""
    return b"" if isinstance(events[-1], TurnFailed) else dialect.encode_turn(collect(events), request, id, 7)


def chat_request(**fields: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, **fields}
    return chat.decode_request(json.dumps(body).encode())


TOOL = {"name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize("usage", [True, False])
@given(events=sound_turns())
def test_any_turn_keeps_the_rules_of_chat(usage: bool, events: list[Event]):
    request = chat_request(tools=[{"type": "function", "function": TOOL}], stream_options={"include_usage": usage})
    stream = encoded(chat.StreamEncoder(request, "chatcmpl-7", 7, TurnStats()), events)
    keeps_the_rules(stream, collected(chat, events, request, "chatcmpl-7"), RequestFacts("chat", ("f",), usage))


@given(events=sound_turns(calls=1))
def test_any_turn_keeps_the_rules_of_chat_from_before_tools(events: list[Event]):
    request = chat_request(functions=[TOOL])
    stream = encoded(chat.StreamEncoder(request, "chatcmpl-7", 7, TurnStats()), events)
    functions = all(event.kind == "function" for event in events if isinstance(event, CallStarted))
    if functions:  # there was nothing else then
        keeps_the_rules(stream, collected(chat, events, request, "chatcmpl-7"), RequestFacts("chat", ("f",), False))


@given(events=sound_turns())
def test_any_turn_keeps_the_rules_of_messages(events: list[Event]):
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    request = messages.decode_request(json.dumps(body).encode())
    stream = encoded(messages.StreamEncoder(request, "msg_7", 7, TurnStats()), events)
    keeps_the_rules(stream, collected(messages, events, request, "msg_7"), RequestFacts("messages", ("f",)))


def gemini_request(alt: str, *, thoughts: bool) -> Request:
    config = {"thinkingConfig": {"includeThoughts": thoughts}}
    body = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": config}
    where = {"resource": "/v1beta/models/m", "method": "streamGenerateContent"}
    head = RequestHead({}, where, f"alt={alt}".encode())
    return run_steps(gemini.decode_steps(json.dumps(body).encode(), UNBOUNDED, head))


@pytest.mark.parametrize("alt", ["sse", "json"])
@pytest.mark.parametrize("thoughts", [True, False])
@given(events=sound_turns())
def test_any_turn_keeps_the_rules_of_gemini(alt: str, thoughts: bool, events: list[Event]):
    request = gemini_request(alt, thoughts=thoughts)
    stream = encoded(gemini.StreamEncoder(request, "7", 7, TurnStats()), events)
    plain, facts = collected(gemini, events, request, "7"), RequestFacts("gemini", ("f",))
    if alt == "sse":
        keeps_the_rules(stream, plain, facts)
    else:
        assert json.loads(stream)
        assert check_answer(stream, facts, is_stream=True)[0] == []


RESPONSES = responses.decode_request(json.dumps({"model": "m", "input": "Hi", "stream": True}).encode())


@pytest.mark.parametrize("extended", [True, False])
@given(events=sound_turns())
def test_any_turn_keeps_the_rules_of_responses(extended: bool, events: list[Event]):
    encoder = responses.StreamEncoder(RESPONSES, "resp_7", 7, TurnStats(), lambda: 9, extended=extended)
    plain = collected(responses, events, RESPONSES, "resp_7")
    keeps_the_rules(encoded(encoder, events), plain, RequestFacts("responses", ("f",), extended=extended))


@given(events=sound_turns(same_dialect=True))
def test_any_turn_of_a_responses_server_keeps_the_rules_of_responses(events: list[Event]):
    encoder = responses.StreamEncoder(RESPONSES, "resp_7", 7, TurnStats(), lambda: 9)
    keeps_the_rules(
        encoded(encoder, events), collected(responses, events, RESPONSES, "resp_7"), RequestFacts("responses", ("f",))
    )


@given(events=sound_turns(same_dialect=True))
def test_any_turn_keeps_the_rules_of_responses_on_a_socket(events: list[Event]):
    encoder = responses.StreamEncoder(RESPONSES, "resp_7", 7, TurnStats(), lambda: 9, socket=True)
    sent = [piece.decode() for event in events for piece in encoder.feed(event)]
    received = [ReceivedFrame(index, 0.0, None, data, parse_json(data)) for index, data in enumerate(sent)]
    assert check_frames(received, RequestFacts("responses", ("f",), socket=True))[0] == []
