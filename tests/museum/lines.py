"""The stages in a row, as the gateway puts them, and what clients make of what comes out.

Everything here runs for a chat client and for a Responses client, streamed and plain, in any chunking, with the order
of events checked, and demands one result.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tests.museum.clients import (
    Json,
    Received,
    Said,
    read_frames,
    received,
    said_by_message,
    sound_response,
)
from tests.support.agreement import agreed_calls, agreed_plain_calls
from tests.support.chunks import in_any_chunking
from tests.support.fold import fold_chat
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import tool
from toolwire import Call, CallDelta, ToolCallAggregator
from toolwire.assembly import Assembly, ToolRules, assemble_policies
from toolwire.backends.responses import OPENAI, Conversation, Profile
from toolwire.backends.responses.encode import encode_request
from toolwire.core.calls import CallTable
from toolwire.core.collect import Turn, collect
from toolwire.core.events import Event, Reason, TurnEnded, TurnStarted
from toolwire.core.order import TurnOrder
from toolwire.core.request import Request
from toolwire.core.sequence import OneCallAtATime
from toolwire.core.shapes import read_fragments
from toolwire.core.sse import Frame, FrameReader
from toolwire.dialects import chat, gemini, messages, responses

RULES = ToolRules()
SEED = "seed"
DIALECTS: dict[str, Any] = {"chat": chat, "responses": responses, "messages": messages, "gemini": gemini}

CHAT_ONLY = ("annotations_dropped", "item_dropped")
"""Notes about what chat has no place for; a Responses client gets the thing itself."""


class Answer(msgspec.Struct, frozen=True):
    """What a chat client has in hand at the end, what it saw on the way, and what a Responses client received."""

    message: Json
    finish: str | None
    usage: Json | None
    error: Json | None
    notes: tuple[str, ...]
    chunks: tuple[Any, ...]
    turn: Turn
    received: Received

    @property
    def content(self) -> str | None:
        return self.message["content"]

    @property
    def said(self) -> Said:
        return said_by_message(self.message, self.finish, self.error)

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call."""
        return [*self.said.calls] if "tool_calls" in self.message else []

    @property
    def named(self) -> list[tuple[str, str]]:
        return [(name, arguments) for _, name, arguments in self.calls]

    @property
    def response(self) -> Json:
        """The last word of a Responses stream."""
        return self.received.response


# What the client asks


def chat_json(*, tools: Sequence[str | Json] = (), **fields: Any) -> bytes:
    """A chat request's body. Tools are given by name, or whole."""
    body: Json = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "stream": True, **fields}
    if tools:
        body["tools"] = [tool(each) if isinstance(each, str) else each for each in tools]
    return json.dumps(body).encode()


def ask(*, tools: Sequence[str | Json] = (), **fields: Any) -> Request:
    return chat.decode_request(chat_json(tools=tools, **fields))


def ask_in_xml() -> Request:
    """A client that knows no tools but `<use_tool>`, taught in its prompt."""
    return ask(messages=[{"role": "system", "content": "Write <use_tool> blocks."}, {"role": "user", "content": "Go."}])


def responses_json(*, tools: Sequence[str | Json] = (), **fields: Any) -> bytes:
    """A Responses request's body. Tools are given by name, or whole."""
    body: Json = {"model": "m", "input": "Go.", "stream": True, **fields}
    if tools:
        body["tools"] = [{"type": "function", "name": each} if isinstance(each, str) else each for each in tools]
    return json.dumps(body).encode()


def ask_responses(*, tools: Sequence[str | Json] = (), **fields: Any) -> Request:
    return responses.decode_request(responses_json(tools=tools, **fields))


def in_responses(request: Request) -> Request:
    """The same as a Responses client asks it: what a Responses server is sent is a Responses request."""
    body, _ = encode_request(request, OPENAI, stream=request.stream)
    return responses.decode_request(body)


def sent_upstream(**fields: Any) -> Json:
    """What a Responses server is sent for this chat request."""
    return sent_for(ask(**fields))


def sent_for(request: Request) -> Json:
    body, _ = encode_request(request, OPENAI, stream=True)
    return json.loads(body)


# What a Responses server answers


class Carried(msgspec.Struct, frozen=True):
    """The bytes for the client, and the events and notes behind them."""

    data: bytes
    events: tuple[Event, ...]
    notes: tuple[str, ...]


def answer(data: bytes, request: Request | None = None, rules: ToolRules = RULES, profile: Profile = OPENAI) -> Answer:
    """This stream, carried to clients of both dialects: in any chunking, streamed and plain."""
    asked = request or ask()
    agreed_calls("responses", data, [tool.name for tool in asked.tools], snapshots=profile.arguments == "snapshot")
    return _alike(
        asked,
        *(
            in_any_chunking(data, lambda pieces, each=each: carry(pieces, each, rules, profile))
            for each in (asked, in_responses(asked))
        ),
    )


def carry(pieces: Iterable[bytes], request: Request, rules: ToolRules = RULES, profile: Profile = OPENAI) -> Carried:
    """These bytes of a Responses server through all stages, to a client of the request's dialect."""
    conversation = Conversation(request, SEED, profile)
    conversation.start()
    events = [event for frame in read_all_frames(pieces) for event in conversation.feed(frame)]
    return encode(
        [*events, *conversation.end()], request, assemble_policies(request, rules, SEED, conversation.stand_in)
    )


def read_all_frames(pieces: Iterable[bytes]) -> list[Frame]:
    reader = FrameReader()
    return [frame for piece in pieces for frame in reader.feed(piece)] + reader.end()


def answer_once(data: bytes, request: Request, rules: ToolRules = RULES) -> Answer:
    """The same in one piece, for tests that have cut it themselves or need not."""
    return _alike(request, *(carry([data], each, rules) for each in (request, in_responses(request))))


def carry_plain(body: Json, request: Request, rules: ToolRules = RULES) -> Carried:
    """A reply that is one plain response object, through all stages."""
    agreed_plain_calls("responses", json.dumps(body).encode(), [tool.name for tool in request.tools])
    conversation = Conversation(request, SEED)
    events = conversation.feed_plain(json.dumps(body).encode())
    return encode(events, request, assemble_policies(request, rules, SEED, conversation.stand_in))


def plain_answer(body: Json, request: Request | None = None, rules: ToolRules = RULES) -> Answer:
    """The same, carried to clients of both dialects, streamed and plain."""
    asked = request or ask()
    return _alike(asked, *(carry_plain(body, each, rules) for each in (asked, in_responses(asked))))


def say(words: str, request: Request | None = None, rules: ToolRules = RULES, step: int = 5) -> Answer:
    """A turn of nothing but this text, a few characters at a time."""
    deltas = [text(words[place : place + step]) for place in range(0, len(words), step)]
    return answer(stream(created(), *deltas, completed()), request, rules)


def answer_responses(
    data: bytes, request: Request | None = None, rules: ToolRules = RULES, profile: Profile = OPENAI
) -> Received:
    """This stream, carried to a Responses client that asks in its own words."""
    asked = request or ask_responses()
    agreed_calls("responses", data, [tool.name for tool in asked.tools], snapshots=profile.arguments == "snapshot")
    return folded_responses(asked, in_any_chunking(data, lambda pieces: carry(pieces, asked, rules, profile)))


def encode(events: Iterable[Event], request: Request, assembly: Assembly) -> Carried:
    """Events through policies and encoder, with their order checked."""
    dialect = DIALECTS[request.dialect]
    encoder = dialect.StreamEncoder(request, dialect.new_id("1"), 0, assembly.stats)
    order = TurnOrder()
    passed = tuple(out for event in events for out in assembly.policies.feed(event))
    data = b"".join(piece for event in passed for each in order.feed(event) for piece in encoder.feed(each))
    order.end()
    return Carried(data, passed, tuple(note.code for note in assembly.stats.notes))


def _alike(request: Request, chatted: Carried, responded: Carried) -> Answer:
    """What a chat client has in hand, after a look at the other three: plain, and both as a Responses client."""
    asked = in_responses(request)
    told = folded_responses(asked, responded)
    frames = read_frames(chatted.data)
    made = fold_chat(frames)
    chunks = tuple(value for kind, value in frames if kind == "data" and value != "[DONE]")
    turn = collect(list(chatted.events))
    answered = Answer(made["message"], made["finish"], made["usage"], made["error"], chatted.notes, chunks, turn, told)
    _check_plain(answered, request)
    _check_dialects(answered, responded)
    return answered


def _check_plain(made: Answer, request: Request) -> None:
    """Streamed and plain say the same; a field left out, null and empty are one."""
    if made.turn.failure is not None:
        assert made.error == json.loads(chat.encode_error(made.turn.failure))["error"]
        return
    plain = json.loads(chat.encode_turn(made.turn, request, chat.new_id("1"), 0))
    [choice] = plain["choices"]
    assert _left(made.message) == _left(choice["message"])
    assert made.finish == choice["finish_reason"]
    if request.include_usage:
        assert made.usage == plain.get("usage")


def _left(message: Json) -> Json:
    return {key: value for key, value in message.items() if value not in (None, "", [])}


def _run_together(said: Said) -> Said:
    """Messages are items on Responses; on chat they have a blank line between them."""
    return msgspec.structs.replace(said, text=said.text.replace("\n\n", ""))


def _check_dialects(made: Answer, responded: Carried) -> None:
    """Clients of both dialects are told the same."""
    one, other = made.said, made.received.said
    if "function_call" in made.message:  # the old form has no place for an id
        other = msgspec.structs.replace(other, calls=tuple(("", *named) for _, *named in other.calls))
    assert _run_together(one) == _run_together(other)
    assert tuple(code for code in made.notes if code not in CHAT_ONLY) == responded.notes
    usage = made.received.response["usage"]
    if made.usage is not None and usage is not None:  # a turn that is stopped early may not know it
        assert (made.usage["prompt_tokens"], made.usage["total_tokens"]) == (
            usage["input_tokens"],
            usage["total_tokens"],
        )


def folded_responses(request: Request, carried: Carried) -> Received:
    """What a Responses client received: a lawful stream, whose last word is the plain answer."""
    told = received(carried.data)
    turn = collect(list(carried.events))
    if turn.failure is not None:
        assert told.said.error == json.loads(responses.encode_error(turn.failure))["error"]
    else:
        plain = json.loads(responses.encode_turn(turn, request, "resp_1", 0))
        assert sound_response(plain) == told.response
    return told


# What a chat server answers, of which only the calls are looked at


def cc(*calls: Json, finish: str | None = None, **delta: Any) -> Json:
    """One chat chunk."""
    if calls:
        delta["tool_calls"] = list(calls)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def part(arguments: Any = msgspec.UNSET, *, name: Any = msgspec.UNSET, **fields: Any) -> Json:
    """One entry of `tool_calls`, with the fields that are given and no others."""
    function = {"name": name, "arguments": arguments}
    return {**fields, "function": {key: value for key, value in function.items() if value is not msgspec.UNSET}}


def relay(*chunks: Any, names: Sequence[str] = (), reason: Reason = "stop", total: bool = False) -> Answer:
    """The calls of these chunks, carried to clients. `reason` is what the upstream says at the end."""
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
    """Events of any origin, carried to clients of both dialects."""
    asked, told = request or ask(), tuple(events)
    both = (asked, in_responses(asked))
    return _alike(asked, *(encode(told, each, assemble_policies(each, rules, SEED, tuple)) for each in both))


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


TALK = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
]
"""The events of a Responses stream that says one thing."""
