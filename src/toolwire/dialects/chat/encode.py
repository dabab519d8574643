r"""Turn events as Chat Completions chunks, a finished turn as one completion, a failure as an error object.

    data: {"id":…,"object":"chat.completion.chunk","created":…,"model":…,"choices":[{"index":0,"delta":{…},…}]}

The head and tail of a chunk are the same bytes throughout a turn, so they are made once and the delta is set between.
"""

from typing import Any

import msgspec

from toolwire.core import sse
from toolwire.core.collect import Call, Reasoning, Refusal, Text, Turn
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    CallStarted,
    Event,
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
from toolwire.core.notes import Tally
from toolwire.core.request import Request
from toolwire.dialects.openai import error_object

_json = msgspec.json.Encoder().encode

_FINISH: dict[Reason, str] = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}


class StreamEncoder:
    """A stage from turn events to bytes of one chat stream."""

    def __init__(self, request: Request, id: str, created: int, tally: Tally) -> None:
        self._legacy = request.legacy_functions
        self._include_usage = request.include_usage
        self._tally = tally
        self._usage: Usage | None = None
        self._calls = 0
        self._part: int | None = None  # the part of a reasoning item that is being told
        self._reasoned = False
        model = _json(request.model)
        chunk = b'data: {"id":"%b","object":"chat.completion.chunk","created":%d,"model":%b,' % (
            id.encode(),
            created,
            model,
        )
        self._head = chunk + b'"choices":[{"index":0,"delta":{'
        self._close = b'"usage":null}\n\n' if self._include_usage else b"}\n\n"
        comma = b"," if self._include_usage else b""
        self._tail = b'},"finish_reason":null}]' + comma + self._close
        self._finish_tail = b'"}]' + comma + self._close
        self._usage_head = chunk + b'"choices":[],"usage":'
        self._text_head = self._head + b'"content":'
        self._reasoning_head = self._head + b'"reasoning_content":'
        self._args_head = self._args_tail = b""

    def feed(self, event: Event) -> tuple[bytes, ...]:
        # The two that make up nearly all of a stream come first, without the price of a match.
        kind = type(event)
        if kind is CallArgs:
            return (self._args_head + _json(event.text) + self._args_tail,)  # pyright: ignore
        if kind is TextDelta:
            self._part = None
            return (self._text_head + _json(event.text) + self._tail,)  # pyright: ignore
        match event:
            case ReasoningDelta():
                return self._reasoning(event)
            case ReasoningEnded():
                self._part = None
            case CallStarted():
                self._part = None
                return (self._call(event),)
            case RefusalDelta(text):
                self._part = None
                return (self._head + b'"refusal":' + _json(text) + self._tail,)
            case TurnStarted():
                return (self._head + b'"role":"assistant","content":null' + self._tail,)
            case Usage():
                self._usage = event
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

    def _reasoning(self, event: ReasoningDelta) -> tuple[bytes, ...]:
        text = event.text
        if event.part != self._part:
            if self._reasoned:
                text = "\n\n" + text
            self._part = event.part
            self._reasoned = True
        return (self._reasoning_head + _json(text) + self._tail,)

    def _call(self, call: CallStarted) -> bytes:
        index, self._calls = self._calls, self._calls + 1
        if self._legacy:
            self._args_head = self._head + b'"function_call":{"arguments":'
            self._args_tail = b"}" + self._tail
            return self._head + b'"function_call":{"name":%b,"arguments":""}' % _json(call.name) + self._tail
        kind, text = (b"custom", b"input") if call.kind == "custom" else (b"function", b"arguments")
        self._args_head = self._head + b'"tool_calls":[{"index":%d,"%b":{"%b":' % (index, kind, text)
        self._args_tail = b"}}]" + self._tail
        opening = b'"tool_calls":[{"index":%d,"id":%b,"type":"%b","%b":{"name":%b,"%b":""}}]'
        return self._head + opening % (index, _json(call.id), kind, kind, _json(call.name), text) + self._tail

    def _ending(self, reason: Reason) -> list[bytes]:
        finish = "function_call" if self._legacy and reason == "calls" else _FINISH[reason]
        out = [self._head + b'},"finish_reason":"' + finish.encode() + self._finish_tail]
        if self._include_usage and self._usage is not None:
            out.append(self._usage_head + _json(_usage(self._usage)) + b"}\n\n")
        return [*out, sse.write_comment(self._tally.comment()), sse.DONE]


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """The whole turn as one completion."""
    finish = _FINISH[turn.reason]
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[Call] = []
    thoughts: list[str] = []
    for item in turn.items:
        if isinstance(item, Call):
            calls.append(item)
        elif isinstance(item, Text):
            texts.append(item.text)
        elif isinstance(item, Refusal):
            refusals.append(item.text)
        elif isinstance(item, Reasoning):
            thoughts += item.parts
    reasoning = "\n\n".join(thoughts)
    content, refusal = "".join(texts) or None, "".join(refusals) or None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls and request.legacy_functions:
        finish = "function_call" if turn.reason == "calls" else finish
        message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        message["tool_calls"] = [_call(call) for call in calls]
    elif message["content"] is None and message["refusal"] is None:
        message["content"] = ""
    completion: dict[str, Any] = {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
    }
    if turn.usage is not None:
        completion["usage"] = _usage(turn.usage)
    return _json(completion)


def encode_error(failure: Failure) -> bytes:
    """The dialect's error object."""
    return _json({"error": error_object(failure)})


def _call(call: Call) -> dict[str, Any]:
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
