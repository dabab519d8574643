r"""Turn events as Chat Completions chunks, a finished turn as one completion, a failure as an error object.

    data: {"id":…,"object":"chat.completion.chunk","created":…,"model":…,"choices":[{"index":0,"delta":{…},…}]}

The head and tail of a chunk are the same bytes throughout a turn, so they are made once and the delta is set between.
"""

from typing import Any, cast

import msgspec

from toolwire.core import sse
from toolwire.core.collect import Call, Reasoning, Refusal, Text, Turn
from toolwire.core.errors import Failure, InternalError
from toolwire.core.events import (
    CallArgs,
    CallStarted,
    Event,
    MessageEnded,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    Told,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.flow import Delta
from toolwire.core.notes import Tally
from toolwire.core.request import Request
from toolwire.dialects.chat.forward import REASONING, Chunk, Forward, Opening, merged_usage
from toolwire.dialects.openai import error_object

_json = msgspec.json.Encoder().encode

_DELTA = b'"choices":[{"index":0,"delta":{'
_TEXT = _DELTA + b'"content":'
_REASONING = tuple(_DELTA + b'"%b":' % name.encode() for name in REASONING)

_NOTHING = Chunk(b"{}")
_ANSWER = ("answer", 0)

APART = "\n\n"
"""What stands between two messages of one turn: to a chat client they are one text."""

_FINISH: dict[Reason, str] = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}


class StreamEncoder:
    """A stage from turn events to bytes of one chat stream."""

    def __init__(self, request: Request, id: str, created: int, tally: Tally) -> None:
        self._legacy = request.legacy_functions
        self._include_usage = request.include_usage
        self._tally = tally
        self._usage: Usage | None = None
        self._calls = 0
        self._part: tuple[str, int] | None = None  # what is being told: a part of a reasoning item, or the answer
        self._talked = False
        self._is_apart = False  # the next words are of another message than the latest
        self._started = False
        self._early: tuple[bytes, ...] = ()  # what the server said before its first word
        self._reasoned = False
        self._reasoning_field = REASONING[0]
        self._ours = {"id": id, "object": "chat.completion.chunk", "created": created, "model": request.model}
        self._forward = Forward(self._ours, usage=self._include_usage)
        self._counted: dict[str, msgspec.Raw] = {}  # what the server counts, and says of its finish, beyond our words
        self._finishing: dict[str, msgspec.Raw] = {}
        self._args_head = self._args_tail = self._args_opening = b""
        self._prepare({})

    def _prepare(self, beyond: dict[str, msgspec.Raw]) -> None:
        """The bytes around every delta. `beyond` are fields of a chunk that are not ours."""
        self._beyond = beyond
        chunk = b"data: " + _json({**self._ours, **beyond})[:-1] + b","
        self._choices = chunk + b'"choices":'
        self._head = self._choices + b'[{"index":0,"delta":{'
        self._close = b',"usage":null}\n\n' if self._include_usage else b"}\n\n"
        self._tail = b'},"finish_reason":null}]' + self._close
        self._text_head = self._head + b'"content":'
        self._reasoning_head = self._head + b'"%b":' % self._reasoning_field.encode()

    def feed(self, event: Event) -> tuple[bytes, ...]:
        # The two that make up nearly all of a stream come first, without the price of a match.
        kind = type(event)
        if kind is CallArgs:
            return (self._delta(cast("CallArgs", event), self._args_head, self._args_tail, self._args_opening),)
        if kind is TextDelta:
            delta = self._delta(cast("TextDelta", event), self._text_head, self._tail, _TEXT)
            return (delta,) if self._part is _ANSWER else (*self._answer(), delta)
        match event:
            case ReasoningDelta():
                return self._reasoning(event)
            case ReasoningEnded() | MessageEnded():
                self._part = None
                self._is_apart = self._is_apart or (self._talked and isinstance(event, MessageEnded))
            case CallStarted():
                self._part = None
                return (self._call(event),)
            case RefusalDelta():
                self._part = None
                return (self._delta(event, self._head + b'"refusal":', self._tail, b""),)
            case TurnStarted():
                self._started = True
                return self._head + b'"role":"assistant","content":null' + self._tail, *self._early
            case Usage():
                self._usage = event
            case Told():
                return self._hear(event)
            case TurnEnded(reason):
                return tuple(self._ending(reason))
            case TurnFailed(failure):
                return sse.write(encode_error(failure)), sse.write_comment(self._tally.comment()), sse.DONE
            case _:
                pass
        return ()

    def end(self) -> tuple[bytes, ...]:
        return ()

    def keepalive(self, silent: float) -> tuple[bytes, ...]:
        """A sign of life after this many seconds of silence."""
        return (sse.write_comment(b"keepalive"),)

    def break_off(self) -> tuple[bytes, ...]:
        """The end of the stream when nothing else can be encoded."""
        return sse.write(encode_error(InternalError().failure)), sse.DONE

    def _answer(self) -> tuple[bytes, ...]:
        """The answer begins or goes on: a blank line between the words of two messages."""
        apart, self._part = self._is_apart, _ANSWER
        self._is_apart, self._talked = False, True
        return (self._text_head + _json(APART) + self._tail,) if apart else ()

    def _reasoning(self, event: ReasoningDelta) -> tuple[bytes, ...]:
        text = event.text
        if (event.kind, event.part) != self._part:
            if self._reasoned and event.frame is None:
                text = "\n\n" + text
            self._part = (event.kind, event.part)
            self._reasoned = True
        if text is event.text:
            return (self._delta(event, self._reasoning_head, self._tail, _REASONING),)
        return (self._reasoning_head + _json(text) + self._tail,)

    def _delta(self, event: Delta, head: bytes, tail: bytes, opening: Opening) -> bytes:
        """A delta in as many chunks as it came in, and in those themselves where they are of this dialect."""
        frame, pieces = event.frame, event.pieces
        if frame is not None and opening:
            return self._forward.written(frame, opening, self._calls - 1 if isinstance(event, CallArgs) else None)
        return head + _json(event.text) + tail if pieces is None else pieces.spread(head, tail)

    def _hear(self, event: Told) -> tuple[bytes, ...]:
        """Keep what a chunk says beyond our words, and pass on what has no better place."""
        chunk = Chunk(event.data)
        field = next(iter(chunk.reasoning), self._reasoning_field)  # the server's own, for a client that knows it
        if (chunk.top and chunk.top != self._beyond) or field != self._reasoning_field:
            self._reasoning_field = field
            self._prepare(chunk.top or self._beyond)
        self._counted |= chunk.usage
        out: list[bytes] = []
        if chunk.finishes:
            self._finishing = chunk.choice
            chunk.choice = {}
        if chunk.said or chunk.choice:
            choice = {"index": 0, "delta": chunk.said, "finish_reason": None, **chunk.choice}
            out.append(self._choices + _json([choice]) + self._close)
        if chunk.others:
            out.append(self._choices + _json(chunk.others) + self._close)
        if not self._started:
            self._early = (*self._early, *out)
            return ()
        return tuple(out)

    def _call(self, call: CallStarted) -> bytes:
        index, self._calls = self._calls, self._calls + 1
        if self._legacy:
            self._args_head = self._head + b'"function_call":{"arguments":'
            self._args_tail = b"}" + self._tail
            return self._head + b'"function_call":{"name":%b,"arguments":""}' % _json(call.name) + self._tail
        kind, text = (b"custom", b"input") if call.kind == "custom" else (b"function", b"arguments")
        growing = b'"tool_calls":[{"index":%d,"%b":{"%b":' % (index, kind, text)
        self._args_head = self._head + growing
        self._args_tail = b"}}]" + self._tail
        self._args_opening = _DELTA + growing
        opening = b'"tool_calls":[{"index":%d,"id":%b,"type":"%b","%b":{"name":%b,"%b":""}%b}]'
        sealed = b',"extra_content":' + call.seal.encode() if call.seal else b""
        return self._head + opening % (index, _json(call.id), kind, kind, _json(call.name), text, sealed) + self._tail

    def _ending(self, reason: Reason) -> list[bytes]:
        finish = "function_call" if self._legacy and reason == "calls" else _FINISH[reason]
        choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": finish, **self._finishing}
        out = [self._choices + _json([choice]) + self._close]
        if self._include_usage and self._usage is not None:
            usage = merged_usage(_usage(self._usage), self._counted)
            out.append(self._choices + b'[],"usage":' + _json(usage) + b"}\n\n")
        return [*out, sse.write_comment(self._tally.comment()), sse.DONE]


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """The whole turn as one completion."""
    finish = _FINISH[turn.reason]
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[Call] = []
    thoughts: list[str] = []
    apart = False  # the next words are of another message than the latest
    for item in turn.items:
        if isinstance(item, Call):
            calls.append(item)
        elif isinstance(item, Text):
            texts += (APART, item.text) if apart else (item.text,)
            apart = False
        elif isinstance(item, MessageEnded):
            apart = bool(texts)
        elif isinstance(item, Refusal):
            refusals.append(item.text)
        elif isinstance(item, Reasoning):
            thoughts += item.parts
    told = next((Chunk(item.data) for item in turn.items if isinstance(item, Told)), _NOTHING)
    # A chat server's own reasoning stays as it wrote it.
    reasoning = ("\n\n" if told is _NOTHING else "").join(thoughts)
    content, refusal = "".join(texts) or None, "".join(refusals) or None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    message |= _reasoning(reasoning, told)
    if calls and request.legacy_functions:
        finish = "function_call" if turn.reason == "calls" else finish
        message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        message["tool_calls"] = [_call(call) for call in calls]
    elif message["content"] is None and message["refusal"] is None:
        message["content"] = ""
    choice = {"index": 0, "message": {**message, **told.said}, "logprobs": None, "finish_reason": finish, **told.choice}
    completion: dict[str, Any] = {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": [choice, *told.others],
        **told.top,
    }
    if turn.usage is not None:
        completion["usage"] = merged_usage(_usage(turn.usage), told.usage)
    return _json(completion)


def encode_error(failure: Failure) -> bytes:
    """The dialect's error object."""
    return _json({"error": error_object(failure)})


def _reasoning(text: str, told: Chunk) -> dict[str, Any]:
    """The reasoning in the fields in which the server wrote it; where it has none of its own, in the usual one."""
    if not text or _json(text) in map(bytes, told.reasoning.values()):
        return {**told.reasoning}
    return {next(iter(told.reasoning), REASONING[0]): text}


def _call(call: Call) -> dict[str, Any]:
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    written = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return {**written, "extra_content": msgspec.Raw(call.seal.encode())} if call.seal else written


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            **({"cache_write_tokens": usage.cache_write} if usage.cache_write else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
