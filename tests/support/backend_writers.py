"""A script as each kind of backend tells it, streamed or plain: bytes as the real services write them."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import msgspec

from tests.support.scripts import WITHHELD, Calls, Declines, Item, Name, Says, Script, Thinks, Tokens, pieces, wrapped
from tests.support.upstream import Pause, Reply

Json = dict[str, Any]

BROKEN = "Something broke."
"""What a backend says when it fails in the middle of a turn."""


def reply(script: Script, kind: Name, *, stream: bool, recording: bytes = b"") -> Reply:
    """The turn as an HTTP reply of a backend of this kind."""
    if stream:
        return Reply(_cut_up(recording) if recording else [*STREAMED[kind](script)])
    body = PLAIN[kind](script)
    return Reply([body[: len(body) // 2] if script.end == "cut" else body], content_type="application/json")


def _cut_up(data: bytes) -> list[bytes]:
    """A stream in chunks that respect nothing."""
    return [data[place : place + 37] for place in range(0, len(data), 37)]


def frame(name: str, data: Any) -> bytes:
    """An SSE block; its JSON is ASCII or not, as servers differ."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else _json(data).decode()}\n\n".encode()


def _json(data: Any) -> bytes:
    return msgspec.json.encode(data)


def arguments_told(call: Calls, kind: Name) -> str:
    """The arguments as the backend sends them: inputs of custom tools are wrapped where there are only functions."""
    if call.kind == "custom" and kind != "responses":
        return wrapped(call.arguments)
    return call.arguments


def name_told(call: Calls) -> str:
    """The name as a backend without namespaces knows it."""
    return f"{call.namespace}__{call.name}" if call.namespace else call.name


# Chat


def chat_stream(script: Script) -> Iterator[Any]:
    yield _chunk({"role": "assistant", "content": ""})
    for item in script.items:
        yield from (_chunk(delta) for delta in _chat_deltas(item, script))
    if script.end == "cut":
        return
    if script.end == "error":
        yield from (Pause(0.02), frame("", {"error": {"message": BROKEN, "type": "server_error", "code": None}}))
        return
    yield _chunk({}, _chat_finish(script))
    if script.tokens is not None:
        yield frame("", {**_CHUNK, "choices": [], "usage": _chat_usage(script.tokens)})
    yield frame("", "[DONE]")


_TOLD: Json = {"id": "chatcmpl-up", "object": "chat.completion", "created": 1, "model": "m"}
_CHUNK: Json = {**_TOLD, "object": "chat.completion.chunk", "usage": None}


def _chunk(delta: Json, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return frame("", {**_CHUNK, "choices": [choice]})


def _chat_deltas(item: Item, script: Script) -> Iterator[Json]:
    match item:
        case Says(text):
            yield from ({"content": piece} for piece in pieces(text, script.chars))
        case Declines(text):
            yield from ({"refusal": piece} for piece in pieces(text, script.chars))
        case Thinks(text):
            yield from ({"reasoning_content": piece} for piece in pieces(text, script.chars))
        case Calls():
            index = script.calls.index(item)
            opening = {"index": index, "id": item.id, "type": "function"}
            yield {"tool_calls": [{**opening, "function": {"name": name_told(item), "arguments": ""}}]}
            for piece in pieces(arguments_told(item, "chat"), script.chars):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _chat_finish(script: Script) -> str:
    known = {"length": "length", "filter": "content_filter"}
    return known.get(script.end, "tool_calls" if script.calls else "stop")


def _chat_usage(tokens: Tokens) -> Json:
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.written},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def chat_plain(script: Script) -> bytes:
    if script.end == "error":
        return _json({"error": {"message": BROKEN, "type": "server_error", "code": None}})
    message: Json = {
        "role": "assistant",
        "content": "".join(item.text for item in script.items if isinstance(item, Says)) or None,
        "refusal": "".join(item.text for item in script.items if isinstance(item, Declines)) or None,
    }
    thoughts = "\n\n".join(item.text for item in script.items if isinstance(item, Thinks) and item.text)
    if thoughts:
        message["reasoning_content"] = thoughts
    if script.calls:
        message["tool_calls"] = [_chat_call(call) for call in script.calls]
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(script), "logprobs": None}
    completion = {**_TOLD, "choices": [choice]}
    return _json(completion if script.tokens is None else {**completion, "usage": _chat_usage(script.tokens)})


def _chat_call(call: Calls) -> Json:
    function = {"name": name_told(call), "arguments": arguments_told(call, "chat")}
    return {"id": call.id, "type": "function", "function": function}


# Responses


def responses_stream(script: Script) -> Iterator[Any]:
    number = 0
    for step in _responses_steps(script):
        if isinstance(step, Pause):
            yield step
            continue
        yield frame(step["type"], {**step, "sequence_number": number})
        number += 1


def _responses_steps(script: Script) -> Iterator[Any]:
    begun: Json = {**_response(script, "in_progress"), "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for place, item in enumerate(script.items):
        yield from _responses_item(item, place, script)
    if script.end == "cut":
        return
    if script.end == "error":
        error = {"code": "server_error", "message": BROKEN}
        yield from (Pause(0.02), {"type": "error", **error, "param": None})
        yield {"type": "response.failed", "response": {**begun, "status": "failed", "error": error}}
        return
    status = _responses_status(script)
    yield {"type": f"response.{status}", "response": _response(script, status)}


def _responses_status(script: Script) -> str:
    return "incomplete" if script.end in ("length", "filter") else "completed"


def _response(script: Script, status: str) -> Json:
    reasons = {"length": "max_output_tokens", "filter": "content_filter"}
    return {
        "id": "resp_up",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reasons[script.end]} if status == "incomplete" else None,
        "output": [_output(item, _item_id(script, place)) for place, item in enumerate(script.items)],
        "usage": _responses_usage(script.tokens) if script.tokens is not None else None,
    }


def _responses_usage(tokens: Tokens) -> Json:
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.written},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.input + tokens.output,
    }


def _item_id(script: Script, place: int) -> str:
    """What tells an item from those of other turns, behind the prefix that its type has."""
    return f"{crc32(repr(script.items).encode()):08x}{place}"


def _output(item: Item, id: str) -> Json:
    """An item as it is when it is done."""
    match item:
        case Says(text):
            return _message(id, [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}])
        case Declines(text):
            return _message(id, [{"type": "refusal", "refusal": text}])
        case Thinks(text, signature):
            summary = [{"type": "summary_text", "text": text}] if text else []
            thought: Json = {"type": "reasoning", "id": f"rs_{id}", "summary": summary}
            return {**thought, "encrypted_content": signature} if signature else thought
        case Calls():
            return _call_item(item, id, item.arguments, "completed" if item.whole else "incomplete")


def _message(id: str, content: list[Json]) -> Json:
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": "completed", "content": content}


def _call_item(call: Calls, id: str, arguments: str, status: str) -> Json:
    space = {"namespace": call.namespace} if call.namespace else {}
    if call.kind == "custom":
        head = {"type": "custom_tool_call", "id": f"ctc_{id}", "input": arguments}
    else:
        head = {"type": "function_call", "id": f"fc_{id}", "arguments": arguments}
    return {**head, "call_id": call.id, "name": call.name, "status": status, **space}


def _responses_item(item: Item, place: int, script: Script) -> Iterator[Json]:
    id, here = _item_id(script, place), {"output_index": place}
    done = _output(item, id)
    begun: Json
    match item:
        case Says(text):
            inner = _told_part(done, place, "output_text", "text", text, script, {"logprobs": []})
            begun = {**done, "content": [], "status": "in_progress"}
        case Declines(text):
            inner = _told_part(done, place, "refusal", "refusal", text, script, {})
            begun = {**done, "content": [], "status": "in_progress"}
        case Thinks(text):
            inner = _told_thought(done, place, text, script)
            begun = {"type": "reasoning", "id": done["id"], "summary": []}
        case Calls():
            inner = _told_call(item, done, place, script)
            begun = _call_item(item, id, "", "in_progress")
    yield {"type": "response.output_item.added", **here, "item": begun}
    yield from inner
    if not (isinstance(item, Calls) and not item.whole and script.end in ("cut", "error")):
        yield {"type": "response.output_item.done", **here, "item": done}


def _told_part(done: Json, place: int, stem: str, field: str, text: str, script: Script, extra: Json) -> Iterator[Json]:
    here = {"item_id": done["id"], "output_index": place, "content_index": 0}
    [part] = done["content"]
    yield {"type": "response.content_part.added", **here, "part": {**part, field: ""}}
    for piece in pieces(text, script.chars):
        yield {"type": f"response.{stem}.delta", **here, "delta": piece, **extra}
    yield {"type": f"response.{stem}.done", **here, field: text, **extra}
    yield {"type": "response.content_part.done", **here, "part": part}


def _told_thought(done: Json, place: int, text: str, script: Script) -> Iterator[Json]:
    if not text:
        return
    here = {"item_id": done["id"], "output_index": place, "summary_index": 0}
    stem = "response.reasoning_summary"
    yield {"type": f"{stem}_part.added", **here, "part": {"type": "summary_text", "text": ""}}
    for piece in pieces(text, script.chars):
        yield {"type": f"{stem}_text.delta", **here, "delta": piece}
    yield {"type": f"{stem}_text.done", **here, "text": text}
    yield {"type": f"{stem}_part.done", **here, "part": {"type": "summary_text", "text": text}}


def _told_call(call: Calls, done: Json, place: int, script: Script) -> Iterator[Json]:
    custom = call.kind == "custom"
    stem, field = ("custom_tool_call_input", "input") if custom else ("function_call_arguments", "arguments")
    here = {"item_id": done["id"], "output_index": place}
    for piece in pieces(call.arguments, script.chars):
        yield {"type": f"response.{stem}.delta", **here, "delta": piece}
    if call.whole:
        yield {"type": f"response.{stem}.done", **here, field: call.arguments}


def responses_plain(script: Script) -> bytes:
    if script.end == "error":
        error = {"code": "server_error", "message": BROKEN}
        return _json({**_response(script, "failed"), "error": error})
    return _json(_response(script, _responses_status(script)))


# Messages


def messages_stream(script: Script) -> Iterator[Any]:
    usage = _messages_usage(script.tokens or Tokens())
    begun: Json = {**_MESSAGE, "content": [], "stop_reason": None, "stop_sequence": None}
    yield _event("message_start", message={**begun, "usage": {**usage, "output_tokens": 1}})
    yield _event("ping")
    for index, item in enumerate(script.items):
        yield from _messages_block(item, index, script)
    if script.end == "cut":
        return
    if script.end == "error":
        yield from (Pause(0.02), _event("error", error={"type": "api_error", "message": BROKEN}))
        return
    yield _event("message_delta", delta=_messages_stop(script), usage=usage)
    yield _event("message_stop")


_MESSAGE: Json = {"id": "msg_up", "type": "message", "role": "assistant", "model": "m"}


def _event(type: str, **fields: Any) -> bytes:
    return frame(type, {"type": type, **fields})


def _messages_usage(tokens: Tokens) -> Json:
    return {
        "input_tokens": tokens.input - tokens.cached - tokens.written,
        "cache_read_input_tokens": tokens.cached,
        "cache_creation_input_tokens": tokens.written,
        "output_tokens": tokens.output,
        "output_tokens_details": {"thinking_tokens": tokens.reasoning},
    }


def _messages_stop(script: Script) -> Json:
    known = {"length": "max_tokens", "filter": "refusal", "sequence": "stop_sequence"}
    declined = any(isinstance(item, Declines) for item in script.items)
    usual = "refusal" if declined else "tool_use" if script.calls else "end_turn"
    return {
        "stop_reason": known.get(script.end, usual),
        "stop_sequence": "END" if script.end == "sequence" else None,
    }


def _messages_block(item: Item, index: int, script: Script) -> Iterator[bytes]:
    """A block, which is empty when it starts."""
    match item:
        case Says(text) | Declines(text):
            begun: Json = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(text, script.chars)]
        case Thinks(redacted=True):
            begun, deltas = {"type": "redacted_thinking", "data": item.signature}, []
        case Thinks(text):
            begun = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(text, script.chars)]
            deltas.append({"type": "signature_delta", "signature": item.signature})
        case Calls():
            begun = {"type": "tool_use", "id": item.id, "name": name_told(item), "input": {}}
            grown = ["", *pieces(arguments_told(item, "messages"), script.chars)]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in grown]
    yield _event("content_block_start", index=index, content_block=begun)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    if not (isinstance(item, Calls) and not item.whole and script.end in ("cut", "error")):
        yield _event("content_block_stop", index=index)


def messages_plain(script: Script) -> bytes:
    if script.end == "error":
        return _json({"type": "error", "error": {"type": "api_error", "message": BROKEN}})
    content = [_block(item) for item in script.items]
    usage = _messages_usage(script.tokens) if script.tokens is not None else None
    return _json({**_MESSAGE, "content": content, **_messages_stop(script), "usage": usage})


def _block(item: Item) -> Json:
    match item:
        case Says(text) | Declines(text):
            return {"type": "text", "text": text}
        case Thinks(redacted=True):
            return {"type": "redacted_thinking", "data": item.signature}
        case Thinks(text):
            return {"type": "thinking", "thinking": text, "signature": item.signature}
        case Calls():
            # A plain message has no way to show half an object: the service gives an empty one.
            input = arguments_told(item, "messages") if item.whole else "{}"
            return {"type": "tool_use", "id": item.id, "name": name_told(item), "input": msgspec.Raw(input.encode() or b"{}")}  # fmt: skip


# Gemini


def gemini_stream(script: Script) -> Iterator[Any]:
    """As AI Studio writes it; half a call as Vertex AI does, whose arguments can be streamed."""
    for parts in _gemini_parts(script):
        yield _gemini_frame({"candidates": [_candidate(parts)]})
    if script.end == "cut":
        return
    if script.end == "error":
        yield from (Pause(0.02), _gemini_frame(_gemini_error(500, BROKEN)))
        return
    end = {**_candidate([{"text": ""}]), "finishReason": _gemini_reason(script)}
    if script.end == "filter":
        end["finishMessage"] = WITHHELD
    signature = _text_signature(script)
    if signature:
        end["content"]["parts"][0]["thoughtSignature"] = in_base64(signature)
    yield _gemini_frame({"candidates": [end], **_gemini_usage(script.tokens)})


_GEMINI: Json = {"modelVersion": "m", "responseId": "r1"}


def _gemini_frame(data: Json) -> bytes:
    return b"data: " + _json({**data, **_GEMINI}) + b"\r\n\r\n"


def _candidate(parts: list[Json]) -> Json:
    return {"content": {"parts": parts, "role": "model"}, "index": 0}


def _gemini_reason(script: Script) -> str:
    declined = any(isinstance(item, Declines) for item in script.items)
    return {"length": "MAX_TOKENS", "filter": "SAFETY"}.get(script.end, "SAFETY" if declined else "STOP")


def _gemini_usage(tokens: Tokens | None) -> Json:
    if tokens is None:
        return {}
    counts = {
        "promptTokenCount": tokens.input,
        "cachedContentTokenCount": tokens.cached,
        "candidatesTokenCount": tokens.output - tokens.reasoning,
        "thoughtsTokenCount": tokens.reasoning,
        "totalTokenCount": tokens.input + tokens.output,
    }
    return {"usageMetadata": {name: count for name, count in counts.items() if count}}


def in_base64(signature: str) -> str:
    """The signature of a script as Google has it."""
    return b64encode(signature.encode()).decode()


def _text_signature(script: Script) -> str:
    """The signature of a turn without calls, which is on its last text."""
    signed = [item.signature for item in script.items if isinstance(item, Thinks) and item.signature]
    return signed[-1] if signed and not script.calls else ""


def _gemini_parts(script: Script) -> Iterator[list[Json]]:
    """The parts of each chunk. The signature of a thought is on the next call."""
    signature = ""
    for item in script.items:
        match item:
            case Says(text) | Declines(text):
                yield from ([{"text": piece}] for piece in pieces(text, script.chars))
            case Thinks(text):
                yield from ([{"text": piece, "thought": True}] for piece in pieces(text, script.chars))
                signature = item.signature
            case Calls():
                signed = {"thoughtSignature": in_base64(signature)} if signature else {}
                signature = ""
                if item.whole:
                    yield [{**_gemini_call(item), **signed}]
                else:
                    yield [{"functionCall": {"name": name_told(item), "id": item.id, "willContinue": True}, **signed}]
                    yield from ([part] for part in _half_call(item.arguments))


def _gemini_call(call: Calls) -> Json:
    args = msgspec.Raw((arguments_told(call, "gemini") or "{}").encode())
    return {"functionCall": {"name": name_told(call), "args": args, "id": call.id}}


def _half_call(arguments: str) -> Iterator[Json]:
    """Arguments that were cut off in their first text."""
    if found := re.fullmatch(r'\{"(\w+)":"(.*)', arguments):
        piece = {"jsonPath": f"$.{found[1]}", "stringValue": found[2], "willContinue": True}
        yield {"functionCall": {"partialArgs": [piece], "willContinue": True}}


def gemini_plain(script: Script) -> bytes:
    if script.end == "error":
        return _json(_gemini_error(500, BROKEN))
    whole = msgspec.structs.replace(script, items=tuple(item for item in script.items if getattr(item, "whole", True)))
    parts = [part for chunk in _gemini_parts(msgspec.structs.replace(whole, chars=9**9)) for part in chunk]
    if _text_signature(script):
        parts.append({"text": "", "thoughtSignature": in_base64(_text_signature(script))})
    candidate = {**_candidate(parts), "finishReason": _gemini_reason(script)}
    if script.end == "filter":
        candidate["finishMessage"] = WITHHELD
    return _json({"candidates": [candidate], **_gemini_usage(script.tokens), **_GEMINI})


def _gemini_error(status: int, message: str) -> Json:
    words = {
        400: "INVALID_ARGUMENT",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED",
        500: "INTERNAL",
        503: "UNAVAILABLE",
    }
    return {"error": {"code": status, "message": message, "status": words.get(status, "")}}


STREAMED: dict[Name, Callable[[Script], Iterator[Any]]] = {
    "chat": chat_stream,
    "responses": responses_stream,
    "messages": messages_stream,
    "gemini": gemini_stream,
}
PLAIN: dict[Name, Callable[[Script], bytes]] = {
    "chat": chat_plain,
    "responses": responses_plain,
    "messages": messages_plain,
    "gemini": gemini_plain,
}


def refusal(kind: Name, status: int, message: str) -> bytes:
    """The body with which a service of this kind refuses a request."""
    if kind == "messages":
        return json.dumps({"type": "error", "error": {"type": _MESSAGES_ERRORS[status], "message": message}}).encode()
    if kind == "gemini":
        return json.dumps(_gemini_error(status, message)).encode()
    error = {"message": message, "type": _OPENAI_ERRORS.get(status, "invalid_request_error"), "param": None, "code": None}  # fmt: skip
    return json.dumps({"error": error}).encode()


_MESSAGES_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_OPENAI_ERRORS = {429: "requests", 500: "server_error", 503: "server_error", 529: "server_error"}
