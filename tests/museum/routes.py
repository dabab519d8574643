"""All routes: clients of four dialects on servers of three kinds, through the stages as the gateway puts them.

What a server says goes to a client in any chunking, streamed and plain, with the order of events checked. `hear` does
that for one client; `told` does it for all of them, and demands that they are told the same.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from tests.museum.clients import Json, Received, Said, read_frames, received, said_by_message, said_in_chat, strict_json
from tests.museum.lines import (
    CHAT_ONLY,
    DIALECTS,
    RULES,
    SEED,
    Carried,
    ask,
    ask_responses,
    encode,
    folded_responses,
    read_all_frames,
)
from tests.museum.messages_client import Blocks, received_blocks, said_by_blocks, sound_message
from tests.support.agreement import agreed_calls, agreed_plain_calls
from tests.support.checked import gemini_faults
from tests.support.chunks import in_any_chunking
from tests.support.fold import fold_chat
from tests.support.frames import sse, stream
from toolwire.assembly import ToolRules, apply_rules, assemble_policies, drop_hosted_tools
from toolwire.backends import chat as chat_server
from toolwire.backends import messages as messages_server
from toolwire.backends import responses as responses_server
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Post
from toolwire.core.collect import Call, Turn, collect
from toolwire.core.events import Event
from toolwire.core.request import Request
from toolwire.dialects import messages

Kind: TypeAlias = Literal["responses", "chat", "messages"]
Asked: TypeAlias = tuple[Request, Request, Request]
"""The same request of a chat, a Responses and a Messages client."""

KINDS: tuple[Kind, ...] = ("responses", "chat", "messages")

MARKER = "__arguments"
"""Where arguments stand that are no JSON object, in a place where only an object may stand."""


# What clients ask


def ask_messages(*, tools: Sequence[str | Json] = (), **fields: Any) -> Request:
    """A Messages client's request. Tools are given by name, or whole."""
    body: Json = {"model": "m", "max_tokens": 99, "stream": True, "messages": [{"role": "user", "content": "Go."}]}
    if tools:
        body["tools"] = [
            {"name": each, "input_schema": {"type": "object"}} if isinstance(each, str) else each for each in tools
        ]
    return messages.decode_request(json.dumps({**body, **fields}).encode())


ASK: dict[str, Callable[..., Request]] = {"chat": ask, "responses": ask_responses, "messages": ask_messages}


def ask_all(*tools: str) -> Asked:
    """The same question of all three clients, with these tools."""
    counted = {"include_usage": True}
    return ask(tools=tools, stream_options=counted), ask_responses(tools=tools), ask_messages(tools=tools)


def declared(dialect: str, name: str, schema: Json, **fields: Any) -> Json:
    """A tool in the words of a dialect."""
    if dialect == "messages":
        return {"name": name, "input_schema": schema, **fields}
    flat = {"name": name, "parameters": schema, **fields}
    return {"type": "function", "function": flat} if dialect == "chat" else {"type": "function", **flat}


# What servers send


def chunks(*made: Json, done: bool = True) -> bytes:
    """A chat stream of these chunks."""
    frames = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in made]
    return stream(*frames, b"data: [DONE]\n\n" if done else b"")


def completion(message: Json, finish: str = "stop", **fields: Any) -> Json:
    """A plain reply of a chat server."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **fields}


def am(type: str, **fields: Any) -> bytes:
    """One event of a Messages server."""
    return sse({"type": type, **fields})


def began(usage: Json | None = None) -> bytes:
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    return am("message_start", message={**message, "usage": usage} if usage is not None else message)


def block(index: int, content: Json, *deltas: Json) -> bytes:
    """A whole block: its start, its deltas, its stop."""
    start = am("content_block_start", index=index, content_block=content)
    grown = [am("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join((start, *grown, am("content_block_stop", index=index)))


def text_block(index: int, words: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": words})


def thought(index: int, text: str, signature: str = "SIG") -> bytes:
    """A block of signed thinking."""
    deltas = {"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def use(index: int, id: str, name: str, *pieces: str) -> bytes:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas)


def over(reason: str = "end_turn", **fields: Any) -> bytes:
    return am("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, **fields) + am("message_stop")


def message(*content: Json, reason: str = "end_turn", counted: Json | None = None) -> Json:
    """A plain reply of a Messages server."""
    usage = counted or {"input_tokens": 3, "output_tokens": 1}
    head = {"id": "msg_up", "type": "message", "role": "assistant", "model": "m"}
    return {**head, "content": [*content], "stop_reason": reason, "stop_sequence": None, "usage": usage}


# What servers are sent


class Sent(msgspec.Struct, frozen=True):
    """The body a server is sent, and the notes about it: code and subject."""

    body: Json
    notes: list[tuple[str, str]]

    @property
    def messages(self) -> list[Json]:
        return self.body["messages"]

    @property
    def codes(self) -> list[str]:
        return [code for code, _ in self.notes]

    @property
    def text(self) -> str:
        return json.dumps(self.body)


_SERVERS: dict[str, Any] = {"responses": responses_server, "chat": chat_server, "messages": messages_server}
_NOTHING: dict[str, Json] = {
    "chat": completion({"content": "a"}),
    "messages": message(),
    "responses": {"status": "completed", "output": []},
}
"""A plain answer of each server, with which the notes about its request come."""
_HOSTS: dict[str, tuple[str, ...]] = {"responses": ("chat", "responses"), "messages": ("messages",), "chat": ()}
"""The dialects whose tools a server runs itself."""


def sent(kind: str, request: Request, rules: ToolRules = RULES, **profile: Any) -> Sent:
    """What a server of this kind is sent, after all the rules; some facts about it may be known."""
    ruled = apply_rules(request, rules, results_anywhere=kind == "responses")
    if request.dialect not in _HOSTS[kind]:
        ruled = drop_hosted_tools(ruled, rules, profile.get("hosts", ()) if kind == request.dialect else ())
    conversation = _converse(kind, ruled, profile)
    post = conversation.start()
    assert isinstance(post, Post)
    turn = collect([*conversation.feed_plain(json.dumps(_NOTHING[kind]).encode())])
    return Sent(json.loads(post.body), [(note.code, note.subject) for note in (*ruled.notes, *turn.notes)])


def tools_sent(kind: str, request: Request, **profile: Any) -> list[Json]:
    """The functions a server is shown: name, schema (as `parameters`) and what else it is told about each."""
    tools = sent(kind, request, **profile).body["tools"]
    if kind == "chat":
        assert [each["type"] for each in tools] == ["function"] * len(tools)
        return [each["function"] for each in tools]
    if kind == "responses":
        return tools
    return [{**each, "parameters": each["input_schema"]} for each in tools]


def _converse(kind: str, request: Request, profile: Json) -> LoweredConversation:
    server = _SERVERS[kind]
    return server.Conversation(request, SEED, server.profile_from(profile))


# What one client has in hand


class Heard(msgspec.Struct, frozen=True):
    """What one client received, and the plain answer, which says the same."""

    said: Said
    notes: tuple[str, ...]
    data: bytes
    turn: Turn
    plain: Json

    @property
    def chunks(self) -> tuple[Any, ...]:
        """Of a chat client."""
        return tuple(value for name, value in read_frames(self.data) if name == "data" and value != "[DONE]")

    @property
    def received(self) -> Received:
        """Of a Responses client."""
        return received(self.data)

    @property
    def blocks(self) -> Blocks:
        """Of a Messages client."""
        return received_blocks(self.data)


def hear(kind: str, data: bytes, request: Request, rules: ToolRules = RULES, **profile: Any) -> Heard:
    """A server's stream, in any chunking, as this client hears it."""

    def carry(pieces: Iterable[bytes]) -> Carried:
        conversation = _converse(kind, request, profile)
        conversation.start()
        events = [event for frame in read_all_frames(pieces) for event in conversation.feed(frame)]
        return _encoded([*events, *conversation.end()], conversation, request, rules)

    agreed_calls(kind, data, [tool.name for tool in request.tools], snapshots=profile.get("arguments") == "snapshot")
    return _read(in_any_chunking(data, carry), request)


def hear_plain(kind: str, body: Json, request: Request, rules: ToolRules = RULES, **profile: Any) -> Heard:
    """A server's plain answer, as this client hears it."""
    agreed_plain_calls(kind, json.dumps(body).encode(), [tool.name for tool in request.tools])
    conversation = _converse(kind, request, profile)
    conversation.start()
    events = conversation.feed_plain(json.dumps(body).encode())
    return _read(_encoded(events, conversation, request, rules), request)


def _encoded(events: Iterable[Event], conversation: LoweredConversation, request: Request, rules: ToolRules) -> Carried:
    return encode(events, request, assemble_policies(request, rules, SEED, conversation.stand_in))


def _read(carried: Carried, request: Request) -> Heard:
    """What the stream says, once the plain answer says the same."""
    turn, dialect = collect([*carried.events]), DIALECTS[request.dialect]
    said = _SAID[request.dialect](request, carried)
    if turn.failure is not None:
        return Heard(said, carried.notes, carried.data, turn, json.loads(dialect.encode_error(turn.failure)))
    plain = json.loads(dialect.encode_turn(turn, request, dialect.new_id("1"), 0))
    if request.dialect == "chat":
        [choice] = plain["choices"]
        assert said_by_message(choice["message"], choice["finish_reason"]) == said
    if request.dialect == "messages":
        _check_message(sound_message(plain), received_blocks(carried.data))
    return Heard(said, carried.notes, carried.data, turn, plain)


_SAID: dict[str, Callable[[Request, Carried], Said]] = {
    "chat": lambda _, carried: said_in_chat(carried.data),
    "responses": lambda request, carried: folded_responses(request, carried).said,
    "messages": lambda _, carried: received_blocks(carried.data).said,
    "gemini": lambda _, carried: _said_to_gemini(carried.data),
}
_FINISH = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}


def _said_to_gemini(data: bytes) -> Said:
    """What a Gemini client receives, in the words of a chat."""
    chunks: list[Json] = [json.loads(frame.removeprefix(b"data: ")) for frame in data.split(b"\r\n\r\n") if frame]
    assert gemini_faults(chunks) == []
    candidates = [chunk["candidates"][0] for chunk in chunks if "candidates" in chunk]
    parts: list[Json] = [part for candidate in candidates for part in candidate["content"]["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    finish = _FINISH[candidates[-1]["finishReason"]] if "error" not in chunks[-1] else None
    return Said(
        text="".join(part.get("text", "") for part in parts if "thought" not in part),
        refusal="",
        reasoning="".join(part["text"] for part in parts if "thought" in part),
        calls=tuple((call["id"], call["name"], json.dumps(call["args"])) for call in calls),
        finish="tool_calls" if finish == "stop" and calls else finish,
        error=chunks[-1].get("error"),
    )


def _check_message(plain: Json, streamed: Blocks) -> None:
    """Streamed and plain say the same, down to the blocks; the input of a call is text there and an object here."""
    assert _without_calls(said_by_blocks(plain)) == _without_calls(streamed.said)
    assert types_of(plain["content"]) == types_of(streamed.message["content"])
    assert [each["input"] for each in _used(plain)] == [as_input(each["input"]) for each in _used(streamed.message)]
    assert plain["usage"] == streamed.message["usage"]


def _without_calls(said: Said) -> Said:
    return msgspec.structs.replace(said, calls=tuple((id, name, "") for id, name, _ in said.calls))


def _used(message: Json) -> list[Json]:
    return [each for each in message["content"] if each["type"] == "tool_use"]


def types_of(blocks: list[Json]) -> list[str]:
    return [each["type"] for each in blocks]


def as_input(arguments: str) -> Json:
    """The object that a plain message has for arguments, or the marked one for what is no object."""
    try:
        read = strict_json(arguments or "{}")
    except (ValueError, AssertionError):
        return {MARKER: arguments}
    return cast("Json", read) if isinstance(read, dict) else {MARKER: arguments}


# What all clients have in hand


class RawFrame(msgspec.Struct, frozen=True):
    """What each client has in hand, once all of them agree."""

    chat: Heard
    responses: Heard
    messages: Heard

    @property
    def said(self) -> Said:
        return self.chat.said

    @property
    def notes(self) -> tuple[str, ...]:
        return self.chat.notes

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        return [*self.said.calls]

    @property
    def data(self) -> tuple[bytes, bytes, bytes]:
        """The bytes of the three streams."""
        return self.chat.data, self.responses.data, self.messages.data

    @property
    def chunks(self) -> tuple[Any, ...]:
        """What the chat client saw on the way."""
        return self.chat.chunks

    @property
    def usage(self) -> Json | None:
        """What the chat client was told of tokens."""
        return fold_chat(read_frames(self.chat.data))["usage"]

    @property
    def received(self) -> Received:
        """What the Responses client received."""
        return self.responses.received

    @property
    def item_types(self) -> list[str]:
        return types_of(self.received.output)

    @property
    def blocks(self) -> Blocks:
        """What the Messages client received."""
        return self.messages.blocks

    @property
    def plain(self) -> Json:
        """The message that a Messages client gets which does not stream."""
        return self.messages.plain

    @property
    def block_types(self) -> list[str]:
        return types_of(self.blocks.message["content"])

    @property
    def steps(self) -> list[tuple[str, int]]:
        """The Messages events of blocks, each with the block's index."""
        events = [event for event in self.blocks.events if "index" in event]
        return [(event["type"].removeprefix("content_block_"), event["index"]) for event in events]


def told(kind: str, data: bytes, asked: Asked | None = None, rules: ToolRules = RULES) -> RawFrame:
    """This stream of a server, carried to all clients in any chunking."""
    return _agreed(*(hear(kind, data, each, rules) for each in _with_gemini(asked or ask_all())))


def told_plainly(kind: str, body: Json, asked: Asked | None = None, rules: ToolRules = RULES) -> RawFrame:
    """This plain reply of a server, carried to all clients."""
    return _agreed(*(hear_plain(kind, body, each, rules) for each in _with_gemini(asked or ask_all())))


def _with_gemini(asked: Asked) -> list[Request]:
    """The same request of a Gemini client too."""
    return [*asked, msgspec.structs.replace(asked[0], dialect="gemini")]


def _agreed(*heard: Heard) -> RawFrame:
    one, *others, gemini = heard
    assert _whole_calls(gemini) == _whole_calls(one)
    assert _without_ids(gemini.said) == _without_ids(one.said)
    assert _noted(gemini) == _noted(one)
    for other in others:
        assert in_common(other.said) == in_common(one.said)
        assert _noted(other) == _noted(one)
    return RawFrame(one, *others)


def _whole_calls(heard: Heard) -> list[tuple[str, Json]]:
    """A Gemini client gets no call that was cut: it would run it."""
    whole = {item.id for item in heard.turn.items if isinstance(item, Call) and item.complete}
    gets_all = heard.turn.failure is None and "functionCall" in str(heard.plain)
    return [(name, as_input(arguments)) for id, name, arguments in heard.said.calls if id in whole or gets_all]


def _without_ids(said: Said) -> Said:
    """What is compared with a Gemini client besides calls."""
    finish = "stop" if said.finish in ("tool_calls", "function_call") else said.finish
    return msgspec.structs.replace(in_common(said), calls=(), finish=finish)


_OF_SOME = (*CHAT_ONLY, "reason_unknown", "turn_paused")
"""Notes about what some dialects have no word for; clients of the others are told the thing itself."""


def _noted(heard: Heard) -> list[str]:
    return [code for code in heard.notes if code not in _OF_SOME]


def in_common(said: Said) -> Said:
    """What all dialects can say: Messages has refusals in the text and in the reason, and few words for errors.

    Parts of reasoning that a chat server wrote apart are one text to a client of its own dialect, as it wrote them.
    """
    error = {"message": said.error["message"]} if said.error else None
    finish = "content_filter" if said.refusal and said.finish == "stop" else said.finish
    text, reasoning = said.text + said.refusal, said.reasoning.replace("\n\n", "")
    return msgspec.structs.replace(said, text=text, refusal="", reasoning=reasoning, finish=finish, error=error)
