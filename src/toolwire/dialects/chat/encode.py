r"""Encodes turn events as Chat Completions chunks, a finished turn as one completion, a failure as an error object.

    data: {"id":…,"object":"chat.completion.chunk","created":…,"model":…,"choices":[{"index":0,"delta":{…},…}]}

The head and tail of a chunk are the same bytes throughout a turn, so they are encoded once.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from toolwire.core import sse
from toolwire.core.collect import Call, Reasoning, Text, Turn
from toolwire.core.errors import Failure, InternalError
from toolwire.core.events import (
    CallArgs,
    CallStarted,
    Delta,
    Event,
    MessageEnded,
    RawFrame,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    Usage,
)
from toolwire.core.notes import TurnStats
from toolwire.core.raw import Fields, to_json
from toolwire.core.request import Request
from toolwire.dialects.chat.forward import REASONING, Chunk, DeltaForwarder, Opening, merge_usage
from toolwire.dialects.openai import error_object

_DELTA = b'"choices":[{"index":0,"delta":{'
_TEXT = _DELTA + b'"content":'
_REASONING = tuple(_DELTA + b'"%b":' % name.encode() for name in REASONING)

_NOTHING = Chunk(b"{}")
_ANSWER = ("answer", 0)

MESSAGE_SEPARATOR = "\n\n"
"""Separates the messages of one turn, which a chat client reads as one text."""

_FINISH: dict[Reason, str] = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}


class StreamEncoder:
    """Encodes turn events as the bytes of one chat stream."""

    def __init__(
        self, request: Request, id: str, created: int, stats: TurnStats, clock: Callable[[], float] | None = None
    ) -> None:
        self._legacy = request.legacy_functions
        self._include_usage = request.include_usage
        self._stats = stats
        self._usage: Usage | None = None
        self._calls = 0
        self._part: tuple[str, int] | None = None  # the part of a reasoning item that is open, or the answer
        self._has_text = False
        self._needs_separator = False  # the next text begins another message
        self._started = False
        self._early: tuple[bytes, ...] = ()  # chunks to pass on once the turn has started
        self._has_reasoning = False
        self._reasoning_field = REASONING[0]
        self._chunk_fields = {"id": id, "object": "chat.completion.chunk", "created": created, "model": request.model}
        self._forwarder = DeltaForwarder(self._chunk_fields, usage=self._include_usage)
        self._usage_extra: Fields = {}  # unknown fields of the server's usage and finish
        self._finish_extra: Fields = {}
        self._args_head = self._args_tail = self._args_opening = b""
        self._prepare({})

    def _prepare(self, extra: Fields) -> None:
        """Encode the bytes around every delta, with the unknown fields of the server's chunks (`extra`)."""
        self._extra = extra
        chunk = b"data: " + to_json({**self._chunk_fields, **extra})[:-1] + b","
        self._choices = chunk + b'"choices":'
        self._head = self._choices + b'[{"index":0,"delta":{'
        self._close = b',"usage":null}\n\n' if self._include_usage else b"}\n\n"
        self._tail = b'},"finish_reason":null}]' + self._close
        self._text_head = self._head + b'"content":'
        self._reasoning_head = self._head + b'"%b":' % self._reasoning_field.encode()

    def feed(self, event: Event) -> tuple[bytes, ...]:
        # Nearly all events of a stream are of these two types, so they bypass the match.
        kind = type(event)
        if kind is CallArgs:
            return (self._delta(cast("CallArgs", event), self._args_head, self._args_tail, self._args_opening),)
        if kind is TextDelta:
            delta = self._delta(cast("TextDelta", event), self._text_head, self._tail, _TEXT)
            return (delta,) if self._part is _ANSWER else (*self._begin_answer(), delta)
        match event:
            case ReasoningDelta():
                return self._reasoning(event)
            case ReasoningEnded() | MessageEnded():
                self._part = None
                self._needs_separator = self._needs_separator or (self._has_text and isinstance(event, MessageEnded))
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
            case RawFrame():
                return self._take_raw_frame(event)
            case TurnEnded(reason):
                return tuple(self._end_turn(reason))
            case TurnFailed(failure):
                return sse.write(encode_error(failure)), sse.write_comment(self._stats.comment()), sse.DONE
            case _:
                pass
        return ()

    def keepalive(self, silent: float) -> tuple[bytes, ...]:
        """A comment that keeps the connection open after this many seconds of silence."""
        return (sse.write_comment(b"keepalive"),)

    def break_off(self) -> tuple[bytes, ...]:
        """The end of a stream whose encoding failed."""
        return sse.write(encode_error(InternalError().failure)), sse.DONE

    def _begin_answer(self) -> tuple[bytes, ...]:
        """Begin or resume the answer, with a blank line if the text belongs to another message than the last."""
        needs_separator, self._part = self._needs_separator, _ANSWER
        self._needs_separator, self._has_text = False, True
        return (self._text_head + to_json(MESSAGE_SEPARATOR) + self._tail,) if needs_separator else ()

    def _reasoning(self, event: ReasoningDelta) -> tuple[bytes, ...]:
        text = event.text
        if (event.kind, event.part) != self._part:
            if self._has_reasoning and event.frame is None:
                text = "\n\n" + text
            self._part = (event.kind, event.part)
            self._has_reasoning = True
        if text is event.text:
            return (self._delta(event, self._reasoning_head, self._tail, _REASONING),)
        return (self._reasoning_head + to_json(text) + self._tail,)

    def _delta(self, event: Delta, head: bytes, tail: bytes, opening: Opening) -> bytes:
        """A delta, in its original chunks if the backend speaks this dialect."""
        frame, batch = event.frame, event.batch
        if frame is not None and opening:
            return self._forwarder.write(frame, opening, self._calls - 1 if isinstance(event, CallArgs) else None)
        return head + to_json(event.text) + tail if batch is None else batch.write_each(head, tail)

    def _take_raw_frame(self, event: RawFrame) -> tuple[bytes, ...]:
        """Keep the unknown fields of a chunk for later chunks, and pass on those that fit into none of them."""
        chunk = Chunk(event.data)
        field = next(iter(chunk.reasoning), self._reasoning_field)  # the same field as the server uses
        if (chunk.extra and chunk.extra != self._extra) or field != self._reasoning_field:
            self._reasoning_field = field
            self._prepare(chunk.extra or self._extra)
        self._usage_extra |= chunk.usage
        out: list[bytes] = []
        if chunk.finishes:
            self._finish_extra = chunk.choice_extra
            chunk.choice_extra = {}
        if chunk.delta_extra or chunk.choice_extra:
            choice = {"index": 0, "delta": chunk.delta_extra, "finish_reason": None, **chunk.choice_extra}
            out.append(self._choices + to_json([choice]) + self._close)
        if chunk.other_choices:
            out.append(self._choices + to_json(chunk.other_choices) + self._close)
        if not self._started:
            self._early = (*self._early, *out)
            return ()
        return tuple(out)

    def _call(self, call: CallStarted) -> bytes:
        index, self._calls = self._calls, self._calls + 1
        if self._legacy:
            self._args_head = self._head + b'"function_call":{"arguments":'
            self._args_tail = b"}" + self._tail
            return self._head + b'"function_call":{"name":%b,"arguments":""}' % to_json(call.name) + self._tail
        kind, text = (b"custom", b"input") if call.kind == "custom" else (b"function", b"arguments")
        growing = b'"tool_calls":[{"index":%d,"%b":{"%b":' % (index, kind, text)
        self._args_head = self._head + growing
        self._args_tail = b"}}]" + self._tail
        self._args_opening = _DELTA + growing
        opening = b'"tool_calls":[{"index":%d,"id":%b,"type":"%b","%b":{"name":%b,"%b":""}%b}]'
        signed = b',"extra_content":' + call.signature.encode() if call.signature else b""
        values = (index, to_json(call.id), kind, kind, to_json(call.name), text, signed)
        return self._head + opening % values + self._tail

    def _end_turn(self, reason: Reason) -> list[bytes]:
        finish = "function_call" if self._legacy and reason == "calls" else _FINISH[reason]
        choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": finish, **self._finish_extra}
        out = [self._choices + to_json([choice]) + self._close]
        if self._include_usage and self._usage is not None:
            usage = merge_usage(_encode_usage(self._usage), self._usage_extra)
            out.append(self._choices + b'[],"usage":' + to_json(usage) + b"}\n\n")
        return [*out, sse.write_comment(self._stats.comment()), sse.DONE]


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """Encode a finished turn as one completion."""
    finish, calls = _FINISH[turn.reason], turn.calls
    original = next((Chunk(item.data) for item in turn.items if isinstance(item, RawFrame)), _NOTHING)
    texts: list[list[str]] = [[]]  # of each message
    reasoning: list[str] = []
    for item in turn.items:
        if isinstance(item, Text):
            texts[-1].append(item.text)
        elif isinstance(item, MessageEnded):
            texts.append([])
        elif isinstance(item, Reasoning):
            reasoning += item.parts
    content = MESSAGE_SEPARATOR.join("".join(message) for message in texts if message) or None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": turn.refusal or None}
    # Reasoning of a chat server is not separated: its parts are fragments of one text.
    thoughts = ("\n\n" if original is _NOTHING else "").join(reasoning)
    if not thoughts or to_json(thoughts) in map(bytes, original.reasoning.values()):
        message |= original.reasoning
    else:
        message[next(iter(original.reasoning), REASONING[0])] = thoughts
    if calls and request.legacy_functions:
        finish = "function_call" if turn.reason == "calls" else finish
        message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        message["tool_calls"] = [_encode_call(call) for call in calls]
    elif message["content"] is None and message["refusal"] is None:
        message["content"] = ""
    choice = {
        "index": 0,
        "message": {**message, **original.delta_extra},
        "logprobs": None,
        "finish_reason": finish,
        **original.choice_extra,
    }
    completion: dict[str, Any] = {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": [choice, *original.other_choices],
        **original.extra,
    }
    if turn.usage is not None:
        completion["usage"] = merge_usage(_encode_usage(turn.usage), original.usage)
    return to_json(completion)


def encode_error(failure: Failure) -> bytes:
    """Encode a failure as an error object."""
    return to_json({"error": error_object(failure)})


def _encode_call(call: Call) -> dict[str, Any]:
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    written = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return {**written, "extra_content": msgspec.Raw(call.signature.encode())} if call.signature else written


def _encode_usage(usage: Usage) -> dict[str, Any]:
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
