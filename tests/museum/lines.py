"""The stages in a row, as the gateway puts them, and what a client makes of what comes out.

Everything here runs streamed and plain, in any chunking, with the order of events checked, and demands one result.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tests.support.chunks import in_any_chunking
from tests.support.fold import fold_chat
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import tool
from toolwire import Call, CallDelta, ToolCallAggregator
from toolwire.assembly import Assembly, ToolRules, policies_for
from toolwire.backends import responses
from toolwire.backends.responses import OPENAI, Profile
from toolwire.backends.responses.encode import encode_request
from toolwire.core.collect import Turn, collect
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    Note,
    Reason,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from toolwire.core.identity import CallTable
from toolwire.core.loose import read_fragments
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.core.sequence import OneCallAtATime
from toolwire.core.sse import FrameReader
from toolwire.dialects import chat
from toolwire.notations.read import Made, ReadTextCalls, Telling
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL
from toolwire.notations.values import Schemas

RULES = ToolRules()
SEED = "seed"


class Answer(msgspec.Struct, frozen=True):
    """What a chat client has in hand at the end, and what it saw on the way."""

    message: dict[str, Any]
    finish: str | None
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    notes: tuple[str, ...]
    chunks: tuple[Any, ...]
    turn: Turn

    @property
    def content(self) -> str | None:
        return self.message["content"]

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call."""
        return [(each["id"], *_named(each)) for each in self.message.get("tool_calls", ())]

    @property
    def named(self) -> list[tuple[str, str]]:
        return [(name, arguments) for _, name, arguments in self.calls]


def _named(part: dict[str, Any]) -> tuple[str, str]:
    inner = part[part["type"]]
    return inner["name"], inner["arguments" if part["type"] == "function" else "input"]


# What the client asks


def chat_json(*, tools: Sequence[str | dict[str, Any]] = (), **fields: Any) -> bytes:
    """A chat request's body. Tools are given by name, or whole."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True, **fields}
    if tools:
        body["tools"] = [tool(each) if isinstance(each, str) else each for each in tools]
    return json.dumps(body).encode()


def ask(*, tools: Sequence[str | dict[str, Any]] = (), **fields: Any) -> Request:
    return chat.decode_request(chat_json(tools=tools, **fields))


def ask_in_xml() -> Request:
    """A client that knows no tools but `<use_tool>`, taught in its prompt."""
    return ask(messages=[{"role": "system", "content": "Write <use_tool> blocks."}, {"role": "user", "content": "Go."}])


def sent_upstream(**fields: Any) -> dict[str, Any]:
    """What a Responses server is sent for this chat request."""
    body, _ = encode_request(ask(**fields), OPENAI, stream=True)
    return json.loads(body)


# What a Responses server answers


class Carried(msgspec.Struct, frozen=True):
    """The bytes for the client, and the events and notes behind them."""

    data: bytes
    events: tuple[Event, ...]
    notes: tuple[str, ...]


def answer(data: bytes, request: Request | None = None, rules: ToolRules = RULES, profile: Profile = OPENAI) -> Answer:
    """This stream, carried to a chat client: in any chunking, streamed and plain."""
    asked = request or ask()
    return _answer(asked, in_any_chunking(data, lambda pieces: carry(pieces, asked, rules, profile)))


def carry(pieces: Iterable[bytes], request: Request, rules: ToolRules = RULES, profile: Profile = OPENAI) -> Carried:
    """These bytes of a Responses server through all stages."""
    conversation = responses.Conversation(request, SEED, profile)
    conversation.start()
    reader = FrameReader()
    frames = [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()
    events = [event for frame in frames for event in conversation.feed(frame)]
    return encode([*events, *conversation.end()], request, policies_for(request, rules, SEED, conversation.calls))


def answer_once(data: bytes, request: Request, rules: ToolRules = RULES) -> Answer:
    """The same in one piece, for tests that have cut it themselves or need not."""
    return _answer(request, carry([data], request, rules))


def carry_plain(body: dict[str, Any], request: Request, rules: ToolRules = RULES) -> Carried:
    """A reply that is one plain response object, through all stages."""
    conversation = responses.Conversation(request, SEED)
    events = conversation.feed_plain(json.dumps(body).encode())
    return encode(events, request, policies_for(request, rules, SEED, conversation.calls))


def plain_answer(body: dict[str, Any], request: Request | None = None, rules: ToolRules = RULES) -> Answer:
    """The same, carried to a chat client, streamed and plain."""
    asked = request or ask()
    return _answer(asked, carry_plain(body, asked, rules))


def say(words: str, request: Request | None = None, rules: ToolRules = RULES, step: int = 5) -> Answer:
    """A turn of nothing but this text, a few characters at a time."""
    deltas = [text(words[place : place + step]) for place in range(0, len(words), step)]
    return answer(stream(created(), *deltas, completed()), request, rules)


def encode(events: Iterable[Event], request: Request, assembly: Assembly) -> Carried:
    """Events through policies and encoder, with their order checked."""
    encoder = chat.StreamEncoder(request, "chatcmpl-1", 0, assembly.tally)
    order = TurnOrder()
    passed = tuple(out for event in events for out in assembly.policies.feed(event))
    data = b"".join(piece for event in passed for each in order.feed(event) for piece in encoder.feed(each))
    order.end()
    return Carried(data, passed, tuple(note.code for note in assembly.tally.notes))


def folded(request: Request, carried: Carried) -> Answer:
    """What a streaming client has in hand at the end."""
    frames = read_frames(carried.data)
    made = fold_chat(frames)
    chunks = tuple(value for kind, value in frames if kind == "data" and value != "[DONE]")
    turn = collect(list(carried.events))
    return Answer(made["message"], made["finish"], made["usage"], made["error"], carried.notes, chunks, turn)


def _answer(request: Request, carried: Carried) -> Answer:
    """The same, after a look at what a client that asked for a plain answer would have."""
    made = folded(request, carried)
    if made.turn.failure is not None:
        assert made.error == json.loads(chat.encode_error(made.turn.failure))["error"]
    else:
        _check_same(made, json.loads(chat.encode_turn(made.turn, request, "chatcmpl-1", 0)), request)
    return made


def _check_same(made: Answer, plain: dict[str, Any], request: Request) -> None:
    """Streamed and plain say the same; a field left out, null and empty are one."""
    [choice] = plain["choices"]
    assert _said(made.message) == _said(choice["message"])
    assert made.finish == choice["finish_reason"]
    if request.include_usage:
        assert made.usage == plain.get("usage")


def _said(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value not in (None, "", [])}


def read_frames(data: bytes) -> list[tuple[str, Any]]:
    """Our own stream, read strictly: LF, one line an event, one blank line behind it, strict JSON."""
    frames: list[tuple[str, Any]] = []
    lines = data.decode().split("\n")
    for place, line in enumerate(lines):
        if line.startswith("data: "):
            assert lines[place + 1] == ""
            frames.append(("data", line[6:] if line == "data: [DONE]" else strict_json(line[6:])))
        elif line.startswith(": "):
            assert lines[place + 1] != "", "some readers take that for an empty event"
            frames.append(("comment", line[2:]))
        else:
            assert line == "", line
    return frames


def strict_json(words: str) -> Any:
    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(words, parse_constant=refuse)


# What a chat server answers: until there is such a backend, its calls alone


def cc(*calls: dict[str, Any], finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One chat chunk."""
    if calls:
        delta["tool_calls"] = list(calls)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def part(arguments: Any = msgspec.UNSET, *, name: Any = msgspec.UNSET, **fields: Any) -> dict[str, Any]:
    """One entry of `tool_calls`, with the fields that are given and no others."""
    function = {"name": name, "arguments": arguments}
    return {**fields, "function": {key: value for key, value in function.items() if value is not msgspec.UNSET}}


def relay(*chunks: Any, names: Sequence[str] = (), reason: Reason = "stop", total: bool = False) -> Answer:
    """The calls of these chunks, carried to a chat client. `reason` is what the upstream says at the end."""
    return encoded(call_events(*chunks, names=names, reason=reason, total=total))


def call_events(*chunks: Any, names: Sequence[str] = (), reason: Reason = "stop", total: bool = False) -> list[Event]:
    table, row = CallTable(SEED, names), OneCallAtATime()
    events: list[Event] = [TurnStarted()]
    for chunk in chunks:
        for fragment in read_fragments(chunk, total=total):
            events += [out for event in table.feed(fragment) for out in row.feed(event)]
    closing = [*table.finish(cut=reason == "length"), TurnEnded(reason)]
    return events + [out for event in closing for out in row.feed(event)]


def encoded(events: Iterable[Event], request: Request | None = None, rules: ToolRules = RULES) -> Answer:
    """Events of any origin, carried to a chat client."""
    asked = request or ask()
    return _answer(asked, encode(events, asked, policies_for(asked, rules, SEED, tuple)))


class Aggregated(msgspec.Struct, frozen=True):
    snapshot: tuple[Call, ...]
    deltas: tuple[CallDelta, ...]

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        return [(each.id, each.name, each.arguments) for each in self.snapshot]

    @property
    def named(self) -> list[tuple[str, str]]:
        return [(each.name, each.arguments) for each in self.snapshot]


def aggregate(*payloads: Any, names: Iterable[str] = ()) -> Aggregated:
    """Payloads through the public aggregator. What its deltas add up to is what its snapshot says."""
    aggregator = ToolCallAggregator(names, seed=SEED)
    deltas = [delta for payload in payloads for delta in aggregator.ingest_delta(payload).deltas]
    snapshot = aggregator.snapshot()
    for place, call in enumerate(snapshot):
        own = [delta for delta in deltas if delta.index == place]
        assert [(delta.id, delta.name) for delta in own if delta.id or delta.name] == [(call.id, call.name)]
        assert "".join(delta.arguments for delta in own) == call.arguments
    return Aggregated(snapshot, tuple(deltas))


# What a model writes as text


class Reading(msgspec.Struct, frozen=True):
    """What the textual reader made of a text: pieces in order, text as it is, a call as name and arguments."""

    pieces: tuple[str | tuple[str, str], ...]
    cut: tuple[tuple[str, str], ...]
    """Calls that ended incomplete, with what of their arguments went out."""
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [piece for piece in self.pieces if isinstance(piece, tuple)]


def live(words: str, names: Iterable[str] | None = None, schemas: Schemas | None = None) -> Reading:
    """Read in any chunking, calls told while they are read."""
    return in_any_chunking(words, lambda pieces: _read(pieces, reader("live", names, schemas)))


def whole(words: str, names: Iterable[str] | None = None, schemas: Schemas | None = None) -> Reading:
    """Read in any chunking, calls told when they are closed."""
    return in_any_chunking(words, lambda pieces: _read(pieces, reader("whole", names, schemas)))


def held(
    words: str, names: Iterable[str] | None = None, schemas: Schemas | None = None, made: Sequence[Made] = ()
) -> Reading:
    """Read in any chunking, calls held to the end of the turn, for which others were made in structure."""
    return in_any_chunking(words, lambda pieces: _read(pieces, reader("end", names, schemas, made)))


def read_all(words: str, names: Iterable[str] | None = None, schemas: Schemas | None = None) -> Reading:
    """All ways find the same text and calls; returns the live reading, which keeps their order."""
    first = live(words, names, schemas)
    assert first == whole(words, names, schemas)
    last = held(words, names, schemas)
    assert (first.text, first.calls, first.cut, first.notes) == (last.text, last.calls, last.cut, last.notes)
    return first


def reader(
    telling: Telling, names: Iterable[str] | None = None, schemas: Schemas | None = None, made: Sequence[Made] = ()
) -> ReadTextCalls:
    return ReadTextCalls((USE_TOOL, TOOL_CALL), SEED, schemas or Schemas(()), names, lambda: made, telling=telling)


def _read(pieces: Iterable[str], policy: ReadTextCalls) -> Reading:
    events = [out for piece in pieces for out in policy.feed(TextDelta(piece))]
    events += policy.feed(TurnEnded())
    assert events[-1] == TurnEnded()
    assert not any(isinstance(event, TurnEnded) for event in events[:-1])
    found: list[str | tuple[str, str]] = []
    cut: list[tuple[str, str]] = []
    name, arguments = "", ""
    for event in events:
        match event:
            case TextDelta(words):
                before = found.pop() if found and isinstance(found[-1], str) else ""
                found.append(f"{before}{words}")
            case CallStarted(_, name):
                arguments = ""
            case CallArgs(_, words):
                words.encode()  # a piece of text, not half of a character
                arguments += words
            case CallEnded(_, complete):
                (found if complete else cut).append((name, arguments))
            case _:
                pass
    notes = tuple(event.code for event in events if isinstance(event, Note))
    return Reading(tuple(found), tuple(cut), notes)
