r"""Encodes turn events as Chat Completions chunks, a finished turn as one completion, a failure as an error object.

    data: {"id":…,"object":"chat.completion.chunk","created":…,"model":…,"choices":[{"index":0,"delta":{…},…}]}

The head and tail of a chunk are the same bytes throughout a turn, so they are encoded once.

If the backend speaks Chat Completions too, a delta that no policy touched is written as its original chunk, with our
id, time and model. Unknown fields of other chunks are repeated in every later chunk. Those of a choice are written
in a separate chunk or with the finish reason, and unknown counts in the usage. Choices after the first are forwarded
unchanged.
"""

from collections.abc import Callable
from typing import cast

import msgspec

from toolwire.core import sse
from toolwire.core.batch import BatchWriter
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
    list_texts,
)
from toolwire.core.notes import TurnStats
from toolwire.core.raw import NULL, Fields, Json, fields_of, object_in, objects_of, to_json
from toolwire.core.request import Request
from toolwire.core.sse import Frame
from toolwire.dialects.openai import encode_error_object

_CHUNK_FIELDS = frozenset(("id", "object", "created", "model", "choices", "usage"))
_CHOICE_FIELDS = frozenset(("index", "delta", "message", "finish_reason"))
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The fields in which servers write reasoning as text."""
_CALL_FIELDS = ("tool_calls", "toolCalls", "function_call", "functionCall")
_DELTA_FIELDS = frozenset(("role", "content", "refusal", *_CALL_FIELDS, *REASONING_FIELDS))
_NO_USAGE = b',"usage":null}'

_DELTA = b'"choices":[{"index":0,"delta":{'
_TEXT = _DELTA + b'"content":'
_REASONING = tuple(_DELTA + b'"%b":' % name.encode() for name in REASONING_FIELDS)

_ANSWER = ("answer", 0)

MESSAGE_SEPARATOR = "\n\n"
"""Separates the messages of one turn, which a chat client reads as one text."""

_FINISH: dict[Reason, str] = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}


class StreamEncoder:
    """Encodes turn events as the bytes of one chat stream."""

    content_type = sse.CONTENT_TYPE

    def __init__(
        self, request: Request, id: str, created: int, stats: TurnStats, clock: Callable[[], float] | None = None
    ) -> None:
        self._legacy = request.legacy_functions
        self._include_usage = request.include_usage
        self._stats = stats
        self._usage: Usage | None = None
        self._calls = 0
        self._part: tuple[str, int] | None = None  # the open part of a reasoning item, or the answer
        self._has_text = False
        self._needs_separator = False  # the next text begins another message
        self._started = False
        self._early: tuple[bytes, ...] = ()  # chunks to write when the turn has started
        self._has_reasoning = False
        self._reasoning_field = REASONING_FIELDS[0]
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
            return (self._encode_delta(cast("CallArgs", event), self._args_head, self._args_tail, self._args_opening),)
        if kind is TextDelta:
            delta = self._encode_delta(cast("TextDelta", event), self._text_head, self._tail, _TEXT)
            return (delta,) if self._part is _ANSWER else (*self._begin_answer(), delta)
        match event:
            case ReasoningDelta():
                return self._encode_reasoning(event)
            case ReasoningEnded() | MessageEnded():
                self._part = None
                self._needs_separator = self._needs_separator or (self._has_text and isinstance(event, MessageEnded))
            case CallStarted():
                self._part = None
                return (self._start_call(event),)
            case RefusalDelta():
                self._part = None
                return (self._encode_delta(event, self._head + b'"refusal":', self._tail, b""),)
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

    def sample(self, event: Delta) -> tuple[bytes, int] | None:
        """What `feed` writes for a delta like the last one, without taking it in; it has no number of its own."""
        if isinstance(event, CallArgs):
            return self._encode_delta(event, self._args_head, self._args_tail, self._args_opening), -1
        if isinstance(event, TextDelta) and self._part is _ANSWER:
            return self._encode_delta(event, self._text_head, self._tail, _TEXT), -1
        if isinstance(event, ReasoningDelta) and (event.kind, event.part) == self._part:
            return self._encode_delta(event, self._reasoning_head, self._tail, _REASONING), -1
        return None

    def keepalive(self, silent: float) -> tuple[bytes, ...]:
        """A comment that keeps the connection open after this many seconds of silence."""
        return (sse.write_comment(b"keepalive"),)

    def break_off(self) -> tuple[bytes, ...]:
        """The end of a stream whose encoding failed."""
        return sse.write(encode_error(InternalError().failure)), sse.DONE

    def _begin_answer(self) -> tuple[bytes, ...]:
        """Begin or resume the answer, with a blank line before the text of a new message."""
        needs_separator, self._part = self._needs_separator, _ANSWER
        self._needs_separator, self._has_text = False, True
        return (self._text_head + to_json(MESSAGE_SEPARATOR) + self._tail,) if needs_separator else ()

    def _encode_reasoning(self, event: ReasoningDelta) -> tuple[bytes, ...]:
        if (event.kind, event.part) != self._part:
            is_next, self._has_reasoning = self._has_reasoning and event.frame is None, True
            self._part = (event.kind, event.part)
            if is_next:
                first, *others = list_texts(event)
                return tuple(self._reasoning_head + to_json(text) + self._tail for text in ("\n\n" + first, *others))
        return (self._encode_delta(event, self._reasoning_head, self._tail, _REASONING),)

    def _encode_delta(self, event: Delta, head: bytes, tail: bytes, opening: bytes | tuple[bytes, ...]) -> bytes:
        """Encode a delta: as its original chunks, if the backend speaks this dialect."""
        frame, batch = event.frame, event.batch
        if frame is not None and opening:
            return self._forwarder.write(frame, opening, self._calls - 1 if isinstance(event, CallArgs) else None)
        return head + to_json(event.text) + tail if batch is None else batch.write_each(head, tail)

    def _take_raw_frame(self, event: RawFrame) -> tuple[bytes, ...]:
        """Keep the unknown fields of a chunk for later chunks; those that fit into none get a chunk of their own."""
        chunk = OriginalChunk(event.data)
        field = next(iter(chunk.reasoning), self._reasoning_field)  # the field that the server uses
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

    def _start_call(self, call: CallStarted) -> bytes:
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
        choice: Json = {"index": 0, "delta": {}, "finish_reason": finish, **self._finish_extra}
        out = [self._choices + to_json([choice]) + self._close]
        if self._include_usage and self._usage is not None:
            usage = merge_usage(_encode_usage(self._usage), self._usage_extra)
            out.append(self._choices + b'[],"usage":' + to_json(usage) + b"}\n\n")
        return [*out, sse.write_comment(self._stats.comment()), sse.DONE]


def encode_turn(turn: Turn, request: Request, id: str, created: int) -> bytes:
    """Encode a finished turn as one completion."""
    finish, calls = _FINISH[turn.reason], turn.calls
    original = next((OriginalChunk(item.data) for item in turn.items if isinstance(item, RawFrame)), _NOTHING)
    texts: list[list[str]] = [[]]  # the texts of each message
    reasoning: list[str] = []
    for item in turn.items:
        if isinstance(item, Text):
            texts[-1].append(item.text)
        elif isinstance(item, MessageEnded):
            texts.append([])
        elif isinstance(item, Reasoning):
            reasoning += item.parts
    content = MESSAGE_SEPARATOR.join("".join(message) for message in texts if message) or None
    message: Json = {"role": "assistant", "content": content, "refusal": turn.refusal or None}
    # Reasoning of a chat server is not separated: its parts are fragments of one text.
    thoughts = ("\n\n" if original is _NOTHING else "").join(reasoning)
    if not thoughts or to_json(thoughts) in map(bytes, original.reasoning.values()):
        message |= original.reasoning
    else:
        message[next(iter(original.reasoning), REASONING_FIELDS[0])] = thoughts
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
    completion: Json = {
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
    return to_json({"error": encode_error_object(failure)})


def _encode_call(call: Call) -> Json:
    if call.kind == "custom":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    written = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return {**written, "extra_content": msgspec.Raw(call.signature.encode())} if call.signature else written


def _encode_usage(usage: Usage) -> Json:
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


class OriginalChunk:
    """The parts of a server's chunk, or of its whole completion, that are passed on."""

    def __init__(self, data: bytes) -> None:
        fields = fields_of(data)
        choices = objects_of(fields.get("choices", b"[]")) if fields.get("choices") != NULL else []
        first = next((choice for choice in choices if _index_of(choice) == 0), Fields())
        self.extra = {name: value for name, value in fields.items() if name not in _CHUNK_FIELDS}
        self.usage = object_in(fields, "usage")
        self.choice_extra = _drop_fields(first, _CHOICE_FIELDS)
        message = object_in(first, "delta" if "delta" in first else "message")
        self.delta_extra = _drop_fields(message, _DELTA_FIELDS)
        self.reasoning = {name: message[name] for name in REASONING_FIELDS if message.get(name, NULL) != NULL}
        self.other_choices = [choice for choice in choices if _index_of(choice) != 0]
        self.finishes = first.get("finish_reason", NULL) not in (NULL, msgspec.Raw(b'""'))


class DeltaForwarder:
    """Writes deltas as the chunks that they arrived in. `chunk_fields` are the id, time and model of our answer."""

    def __init__(self, chunk_fields: Json, *, usage: bool) -> None:
        self._chunk_fields = chunk_fields
        self._usage = usage
        self._lead = b"\n"  # the bytes before the choices in the server's chunks; `_our_lead` replaces them
        self._our_lead = b""
        self._batch_writer = BatchWriter()

    def write(self, frame: Frame, opening: bytes | tuple[bytes, ...], call: int | None = None) -> bytes:
        """Write a frame or a batch. `opening`: the first bytes of choices that need no change."""
        if frame.batch is None:
            return self._forward_chunk(frame.data, opening, call)
        return self._batch_writer.write(frame.batch, lambda data: self._forward_chunk(data, opening, call), call)

    def _forward_chunk(self, data: bytes, opening: bytes | tuple[bytes, ...], call: int | None) -> bytes:
        if not data.startswith(self._lead):
            self._learn_lead(data)
        lead = self._lead
        if not data.startswith(lead) or not data.startswith(opening, len(lead)):
            return self._rewrite(data, call)
        rest = data[len(lead) :]
        counts = b'"usage":' in rest
        if counts and not self._usage:
            if not rest.endswith(_NO_USAGE):
                return self._rewrite(data, call)
            rest = rest[: -len(_NO_USAGE)] + b"}"
        elif self._usage and not counts:
            rest = rest.rstrip()[:-1] + _NO_USAGE
        return b"data: " + self._our_lead + rest + b"\n\n"

    def _learn_lead(self, data: bytes) -> None:
        """Remember the bytes before the choices, if they contain all fields that we replace."""
        lead, found, _ = data.partition(b'"choices":')
        names = list(fields_of(data))
        before = names[: names.index("choices")]
        try:
            leading = fields_of(lead.rstrip(b", ") + b"}")
        except msgspec.DecodeError:  # the first `choices` is nested in another field
            return
        if found and list(leading) == before and set(before) >= set(self._chunk_fields):
            self._lead = lead
            fields: Json = {**leading, **self._chunk_fields}
            if not self._usage:
                fields.pop("usage", None)
            self._our_lead = to_json(fields)[:-1] + b","

    def _rewrite(self, data: bytes, call: int | None) -> bytes:
        """Decode a chunk of another layout, and encode it with our fields."""
        fields: Json = {**fields_of(data), **self._chunk_fields}
        if self._usage:
            fields.setdefault("usage", None)
        else:
            fields.pop("usage", None)
        choice: Json = {**objects_of(fields["choices"])[0], "index": 0}
        if call is not None:
            delta = fields_of(choice["delta"])
            choice["delta"] = {**delta, "tool_calls": [{**objects_of(delta["tool_calls"])[0], "index": call}]}
        elif b'"role"' in bytes(choice["delta"]):  # the role was already sent
            choice["delta"] = {name: value for name, value in fields_of(choice["delta"]).items() if name != "role"}
        fields["choices"] = [choice]
        return b"data: " + to_json(fields) + b"\n\n"


def merge_usage(ours: Json, theirs: Fields) -> Json:
    """Merge the server's usage object with our counts, which win."""
    merged: Json = {**theirs, **ours}
    for name, value in ours.items():
        if isinstance(value, dict) and theirs.get(name, NULL) != NULL:
            merged[name] = {**fields_of(theirs[name]), **value}
    return merged


def _drop_fields(fields: Fields, names: frozenset[str]) -> Fields:
    return {name: value for name, value in fields.items() if name not in names and value != NULL}


def _index_of(choice: Fields) -> int:
    number = bytes(choice.get("index", b"0"))
    return int(number) if number.isdigit() else 0


_NOTHING = OriginalChunk(b"{}")
