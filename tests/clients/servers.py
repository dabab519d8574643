"""One turn in the words of each kind of server, streamed or plain, whichever was asked for.

    told(asked, [Thought("Hm.", "signed"), Words("Let me look."), Use("c1", "look", '{"path":"a"}')])

The kind of server is read from the path that was asked.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tests.support.frames import call, created, rs, sse, stream
from tests.support.upstream import Asked, Pause, Reply

KINDS = ("responses", "chat", "messages")
Json = dict[str, Any]


class Thought(msgspec.Struct, frozen=True):
    """What the model thinks, a paragraph a part, with the signature of a server that has signatures."""

    text: str
    signature: str = ""


class Words(msgspec.Struct, frozen=True):
    text: str


class Use(msgspec.Struct, frozen=True):
    """A call of a tool; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


class Block(msgspec.Struct, frozen=True):
    """A block that only a Messages server has."""

    fields: Json


class Stop(msgspec.Struct, frozen=True):
    """The model came to a word at which it was told to stop; only a Messages server says at which."""

    word: str


class Breakdown(msgspec.Struct, frozen=True):
    """A stream fails here, when what came before is long on its way; a plain answer is an error at once."""

    message: str


class Refusal(msgspec.Struct, frozen=True):
    """No turn at all."""

    status: int
    type: str
    message: str
    headers: dict[str, str] = {}


class Count(msgspec.Struct, frozen=True):
    """The answer to the question how many tokens a request has."""

    tokens: int


Item = Thought | Words | Use | Block | Stop | Breakdown
Turn = Sequence[Item] | Refusal | Count


def told(asked: Asked, turn: Turn) -> Reply:
    kind = kind_of(asked)
    match turn:
        case Count(tokens):
            return plain({"input_tokens": tokens})
        case Refusal():
            error = {"type": turn.type, "message": turn.message}
            body: Json = {"type": "error", "error": error} if kind == "messages" else {"error": error}
            return plain(body, turn.status, turn.headers)
        case _ if asked.body.get("stream"):
            return Reply(list(STREAMED[kind](turn)))
        case [*_, Breakdown(message)]:
            return told(asked, Refusal(500, "api_error", message))
        case _:
            return plain(PLAIN[kind](turn))


def kind_of(asked: Asked) -> str:
    """The kind of server whose path this is."""
    return asked.path.split("/")[2]


def plain(body: Json, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    return Reply([json.dumps(body).encode()], status, "application/json", headers or {})


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def calls(items: Sequence[Item]) -> list[Use]:
    return [item for item in items if isinstance(item, Use)]


def paragraphs(thought: Thought) -> list[str]:
    return [part for part in thought.text.split("\n\n") if part]


# Responses

RESPONSES_USAGE: Json = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 25,
}


def responses_item(item: Item, place: int) -> Json:
    match item:
        case Thought():
            summary = [{"type": "summary_text", "text": part} for part in paragraphs(item)]
            return {"type": "reasoning", "id": f"rs_{place}", "summary": summary, "encrypted_content": item.signature}
        case Words(text):
            content = [{"type": "output_text", "text": text}]
            return {"type": "message", "id": f"msg_{place}", "role": "assistant", "content": content}
        case Use(id, name, arguments):
            return {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments}
        case _:
            raise ValueError(f"a Responses server has no {item}")


def responses_plain(items: Sequence[Item]) -> Json:
    output = [responses_item(item, place) for place, item in enumerate(items)]
    return {"id": "resp_1", "model": "m", "status": "completed", "output": output, "usage": RESPONSES_USAGE}


def responses_streamed(items: Sequence[Item]) -> Iterator[Any]:
    yield created()
    for place, item in enumerate(items):
        match item:
            case Breakdown(message):
                error = {"code": "server_error", "message": message}
                yield from (Pause(0.25), rs("failed", response={"status": "failed", "error": error}))
                return
            case Use(id, name, arguments):
                yield call(id, name, *halves(arguments), index=place)
            case _:
                yield responses_growing(item, place)
    yield rs("completed", response=responses_plain(items))


def responses_growing(item: Item, place: int) -> bytes:
    whole = responses_item(item, place)
    at: Json = {"item_id": whole["id"], "output_index": place}
    if isinstance(item, Thought):
        begun: Json = {**whole, "summary": [], "encrypted_content": ""}
        deltas = [
            rs("reasoning_summary_text.delta", **at, summary_index=index, delta=piece)
            for index, part in enumerate(paragraphs(item))
            for piece in halves(part)
        ]
    else:
        begun = {**whole, "content": []}
        pieces = halves(whole["content"][0]["text"])
        deltas = [rs("output_text.delta", **at, content_index=0, delta=piece) for piece in pieces]
    return stream(
        rs("output_item.added", output_index=place, item=begun),
        *deltas,
        rs("output_item.done", output_index=place, item=whole),
    )


# Chat

CHAT_USAGE: Json = {
    "prompt_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens": 5,
    "completion_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 25,
}


def chat_call(use: Use, arguments: str) -> Json:
    return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": arguments}}


def chat_plain(items: Sequence[Item]) -> Json:
    message: Json = {"role": "assistant", "content": None}
    for item in items:
        if isinstance(item, Thought):
            message["reasoning_content"] = item.text
        elif isinstance(item, Words):
            message["content"] = item.text
    if calls(items):
        message["tool_calls"] = [chat_call(use, use.arguments) for use in calls(items)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls(items) else "stop"}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": CHAT_USAGE}


def chat_streamed(items: Sequence[Item]) -> Iterator[Any]:
    yield chat_delta({"role": "assistant", "content": ""})
    for item in items:
        match item:
            case Thought(text):
                yield from (chat_delta({"reasoning_content": piece}) for piece in halves(text))
            case Words(text):
                yield from (chat_delta({"content": piece}) for piece in halves(text))
            case Use():
                yield from chat_calling(item, calls(items).index(item))
            case Breakdown(message):
                yield from (Pause(0.25), chat_chunk({"error": {"message": message, "type": "server_error"}}))
                return
            case _:
                raise ValueError(f"a chat server has no {item}")
    yield chat_delta({}, "tool_calls" if calls(items) else "stop")
    yield from (chat_chunk({"choices": [], "usage": CHAT_USAGE}), b"data: [DONE]\n\n")


def chat_calling(use: Use, index: int) -> Iterator[bytes]:
    yield chat_delta({"tool_calls": [{"index": index, **chat_call(use, "")}]})
    for piece in halves(use.arguments):
        yield chat_delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})


def chat_delta(delta: Json, finish: str | None = None) -> bytes:
    return chat_chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def chat_chunk(fields: Json) -> bytes:
    return f"data: {json.dumps({'id': 'c', 'model': 'm', **fields})}\n\n".encode()


# Messages

MESSAGES_USAGE: Json = {
    "input_tokens": 12,
    "cache_read_input_tokens": 8,
    "cache_creation_input_tokens": 0,
    "output_tokens": 5,
    "output_tokens_details": {"thinking_tokens": 2},
}


def messages_block(item: Item) -> Json:
    match item:
        case Thought("", signature):
            return {"type": "redacted_thinking", "data": signature}
        case Thought(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case Words(text):
            return {"type": "text", "text": text}
        case Use(id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
        case Block(fields):
            return fields
        case _:
            raise ValueError(f"a Messages server has no {item}")


def messages_ending(items: Sequence[Item]) -> Json:
    if items and isinstance(items[-1], Stop):
        return {"stop_reason": "stop_sequence", "stop_sequence": items[-1].word}
    return {"stop_reason": "tool_use" if calls(items) else "end_turn", "stop_sequence": None}


def messages_plain(items: Sequence[Item]) -> Json:
    content = [messages_block(item) for item in items if not isinstance(item, Stop)]
    message = {"id": "msg_up", "type": "message", "role": "assistant", "model": "m", "content": content}
    return {**message, **messages_ending(items), "usage": MESSAGES_USAGE}


def messages_streamed(items: Sequence[Item]) -> Iterator[Any]:
    yield sse({"type": "message_start", "message": {**messages_plain([]), "stop_reason": None}})
    for index, item in enumerate(items):
        if isinstance(item, Stop):
            break
        if isinstance(item, Breakdown):
            yield from (Pause(0.25), sse({"type": "error", "error": {"type": "api_error", "message": item.message}}))
            return
        begun, deltas = messages_growing(item)
        yield sse({"type": "content_block_start", "index": index, "content_block": begun})
        yield from (sse({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas)
        yield sse({"type": "content_block_stop", "index": index})
    yield sse({"type": "message_delta", "delta": messages_ending(items), "usage": MESSAGES_USAGE})
    yield sse({"type": "message_stop"})


def messages_growing(item: Item) -> tuple[Json, list[Json]]:
    """A block as it begins, and how it grows."""
    whole = messages_block(item)
    match item:
        case Thought(text, signature) if text:
            deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in halves(text)]
            return {**whole, "thinking": "", "signature": ""}, [
                *deltas,
                {"type": "signature_delta", "signature": signature},
            ]
        case Words(text):
            return {**whole, "text": ""}, [{"type": "text_delta", "text": piece} for piece in halves(text)]
        case Use(_, _, arguments):
            pieces = ("", *halves(arguments))
            return {**whole, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        case _:
            return whole, []


PLAIN: dict[str, Callable[[Sequence[Item]], Json]] = {
    "responses": responses_plain,
    "chat": chat_plain,
    "messages": messages_plain,
}
STREAMED: dict[str, Callable[[Sequence[Item]], Iterator[Any]]] = {
    "responses": responses_streamed,
    "chat": chat_streamed,
    "messages": messages_streamed,
}
