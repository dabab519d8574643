"""Chat Completions chunks (or one plain completion) to turn events.

Servers differ in everything a chunk may leave out or repeat. Which call a fragment belongs to is decided by the table;
the end of a turn is believed when the stream is over, because some say it in every chunk.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolwire.backends.chat.odd import is_sound, read_odd
from toolwire.backends.chat.reasoning import Written
from toolwire.backends.chat.wire import Choice, Chunk, Function, Message, OddMessage, TokenUsage, ToolCall
from toolwire.backends.decoder import UNREADABLE, TurnDecoder, counted
from toolwire.backends.failures import FAILED_REASONS, Error, failed, failed_reason
from toolwire.core.backend import ContextWindow
from toolwire.core.errors import Failure
from toolwire.core.events import (
    CallArgs,
    Event,
    Note,
    Reason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Told,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.identity import SILENT, Fragment
from toolwire.core.pieces import flowing
from toolwire.core.sse import Frame
from toolwire.core.text import arguments_text

_decode = msgspec.json.Decoder(Chunk).decode

_REASONS: dict[str, Reason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "filter",
    "safety": "filter",
    "sensitive": "filter",
}


_UNSET = msgspec.UNSET
_TEXT = flowing("content", "reasoning_content", "reasoning")
_TEXT_AND_ARGUMENTS = (*_TEXT, *flowing("arguments"))
_CLAIMS = frozenset(("tool_calls", "function_call"))


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn. `keeps_frames`: the client speaks this dialect too.

    `snapshots`: arguments are all that there is so far, in every chunk.
    """

    flowing = _TEXT_AND_ARGUMENTS

    def __init__(
        self,
        seed: str,
        names: Sequence[str] = (),
        *,
        snapshots: bool = False,
        keeps_frames: bool = False,
        choices: int = 1,
    ) -> None:
        super().__init__(seed, names)
        self._keeps = keeps_frames
        self._snapshots = snapshots
        if snapshots:
            self.flowing = _TEXT  # totals must not be joined
        self._choices = choices
        self._finished: set[int] = set()  # choices that have their finish reason
        self._ends_every_chunk = False
        self._reason: Reason | None = None
        self._claims = False  # it said that it ended with calls
        self._speaking = False  # text was told, which later thoughts must not part
        self._late: list[str] = []
        self._usage: Usage | None = None
        self._written = Written()

    def reasoning(self) -> str:
        return self._written.json()

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        data = frame.data
        if data.strip() == b"[DONE]":
            return self._finish()
        if frame.pieces is not None and b'"reasoning_details"' in data:  # which have a text in pieces too
            return self._one_by_one(frame)
        try:
            chunk = _decode(data)
        except UNREADABLE:
            return self._feed_odd(frame)
        if self._halves.half:
            return self._feed_odd(frame)
        return self._read(chunk) if not self._keeps else self._kept(chunk, frame)

    def _feed_odd(self, frame: Frame) -> Sequence[Event]:
        """A frame that is not as it should be, or that may hold the second half of a letter."""
        data = self._made_whole(frame.data)
        chunk = _read_any(data)
        if chunk is None:
            self._skip_frame(frame)
            return ()
        if not self._keeps or not is_sound(data):
            return self._read(chunk)
        return self._kept(chunk, Frame(frame.event, data))

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        try:
            chunk = _decode(body)
        except UNREADABLE:
            body = self._made_whole(body)
            chunk = _read_any(body)
        if chunk is None:
            return self._fail(Failure(502, "bad_reply", "The backend's reply is not a completion."))
        events = self._read(chunk)
        if self.ended:
            return events
        if not chunk.choices:
            return self._fail(Failure(502, "bad_reply", "The backend's reply holds no choices."))
        told = [Told("completion", "", body)] if self._keeps and is_sound(body) else []
        return [*told, *events, *self._finish()]

    def end(self) -> Sequence[Event]:
        if self.ended:
            return ()
        return self._finish() if self._reason is not None else self._cut()

    def _read(self, chunk: Chunk) -> Sequence[Event]:
        if chunk.error is not None or chunk.object == "error":
            # Older vLLM has the error in the chunk itself.
            return self._fail(failed(Error(chunk.message) if chunk.error is None else _error(chunk.error)))
        out: list[Event] = [] if self._started else self._start(chunk)
        if self._opening:
            out += self._opening
            self._opening = []
        for choice in chunk.choices or ():
            if choice.finish_reason is not None and choice.finish_reason not in SILENT:
                self._has_finished(choice)
            if choice.index:
                continue  # one choice was asked for
            told = choice.delta or choice.message
            if told is not None:
                self._tell(told, out, whole=choice.delta is None)
                if choice.message is not None and told is choice.delta:
                    self._tell_calls(choice.message, out, whole=True)
            if choice.finish_reason is not None or choice.error is not None or choice.usage is not None:
                failure = self._end_choice(choice, out)
                if failure is not None:
                    return [*out, *self._fail(failure)]
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        if self._finished:
            self._count_frame(chunk)
        return out

    def _end_choice(self, choice: Choice, out: list[Event]) -> Failure | None:
        """Take the reason for which it ended; a failure if it ended with one."""
        if choice.error is not None:
            return failed(_error(choice.error))
        reason = choice.finish_reason or ""
        if reason.lower() in FAILED_REASONS:
            return failed_reason(reason)
        if reason not in SILENT:
            self._reason = self._reason_of(reason, out)
        if choice.usage is not None:  # Kimi
            self._usage = _usage(choice.usage)
        return None

    def _has_finished(self, choice: Choice) -> None:
        index = choice.index or 0
        if index in self._finished and _says_something(choice):
            self._ends_every_chunk = True  # its finish reasons say nothing about the end
        self._finished.add(index)

    def _count_frame(self, chunk: Chunk) -> None:
        if self._ends_every_chunk:
            self.finishing = 0
        elif len(self._finished) >= self._choices:
            says = (choice.finish_reason or choice.usage or _says_something(choice) for choice in chunk.choices or ())
            self.finishing += chunk.usage is not None or any(says)

    def _kept(self, chunk: Chunk, frame: Frame) -> Sequence[Event]:
        """A chunk's events with the chunk itself: in its delta, if it is nothing else, or told beside them."""
        text = _only_text(chunk)
        if text is not None:
            return [_framed(event, text, frame) for event in self._read(chunk)]
        if frame.pieces is not None:
            return self._one_by_one(frame)
        events = self._read(chunk)
        return events if self.ended else [Told("chunk", "", frame.data), *events]

    def _one_by_one(self, run: Frame) -> Sequence[Event]:
        """The events of a run of frames, each frame read by itself."""
        singles = (Frame(run.event, data) for data in run.pieces.single()) if run.pieces is not None else ()
        return [event for single in singles for event in self.feed(single)]

    def _start(self, chunk: Chunk) -> list[Event]:
        self._started = True
        return [TurnStarted(chunk.id or "", chunk.model or "")]

    def _tell(self, told: Message, out: list[Event], *, whole: bool) -> None:
        feed = self._row.feed
        thought = told.reasoning_content or told.reasoning
        if type(told) is OddMessage:
            thought = thought or told.thinking
        if told.reasoning_content is not None or told.reasoning is not None or told.reasoning_details is not _UNSET:
            self._written.add(told)
        if thought and self._speaking:
            self._late.append(thought)
        elif thought:
            out += feed(ReasoningDelta(thought, "content"))
        if told.content:
            self._speaking = not self._keeps
            out += feed(TextDelta(told.content))
        if told.refusal:
            out += feed(RefusalDelta(told.refusal))
        if told.tool_calls or told.function_call is not None or type(told) is OddMessage:
            more = self._more_arguments(told.tool_calls) if told.tool_calls and not whole else None
            if more is not None:
                out += self._late_thoughts()
                out += feed(more)
            else:
                self._tell_calls(told, out, whole=whole)

    def _more_arguments(self, calls: list[ToolCall]) -> CallArgs | None:
        """What comes most: more text of one call that is under way."""
        call = calls[0]
        function, index = call.function, call.index
        if function is None or index is None or len(calls) > 1 or self._snapshots:
            return None
        if call.id or function.name or call.extra_content is not _UNSET:
            return None
        return self._table.extend_at(index, arguments_text(function.arguments))

    def _tell_calls(self, told: Message, out: list[Event], *, whole: bool) -> None:
        fragments = _fragments(told, whole=whole)
        if fragments:
            out += self._late_thoughts()
        for fragment in fragments:
            said = fragment if not self._snapshots else msgspec.structs.replace(fragment, total=True)
            for event in self._table.feed(said):
                out += self._row.feed(event)

    def _late_thoughts(self) -> list[Event]:
        """What was thought while the answer was being said: it comes behind the text, which it must not part."""
        late, self._late = self._late, []
        self._speaking = False
        return self._row.feed(ReasoningDelta("".join(late), "content")) if late else []

    def _reason_of(self, given: str, out: list[Event]) -> Reason:
        reason = _REASONS.get(given.lower())
        self._claims = self._claims or given.lower() in _CLAIMS
        if reason is None:
            out.append(Note("reason_unknown", given))
            return self._reason or "stop"
        if given.lower() == "model_length":
            self.context_window = ContextWindow(is_full=True)
        # Some servers end every chunk; the most telling word stands.
        return reason if self._reason in (None, "stop") else self._reason

    def _finish(self) -> Sequence[Event]:
        """The stream is over. A server that never said why has simply stopped."""
        if not self._started:
            return self._fail(
                Failure(502, "stream_cut", "The backend ended its stream without a turn.", retryable=True)
            )
        self.ended = True
        out: list[Event] = [*self._opening]
        if self._halves.half:
            out.append(Note("letter_replaced"))
        if self._reason is None:
            out.append(Note("reason_missing"))
        elif self._claims and not self._table.calls:
            out.append(Note("reason_unfounded", "tool_calls"))
        reason: Reason = self._reason or "stop"
        out += self._late_thoughts()
        for event in self._table.finish(cut=reason != "stop"):
            out += self._row.feed(event)
        if self._usage is not None:
            out.append(self._usage)
        return [*out, TurnEnded(reason)]


def _read_any(data: bytes) -> Chunk | None:
    try:
        return _decode(data)
    except UNREADABLE:
        return read_odd(data)


def _says_something(choice: Choice) -> bool:
    told = choice.delta or choice.message
    if told is None:
        return False
    texts = (told.content, told.reasoning_content, told.reasoning, told.refusal)
    return any(texts) or bool(_fragments(told, whole=False))


def _only_text(chunk: Chunk) -> str | None:
    """The text of a chunk that holds nothing but one delta, in the form in which it is to leave."""
    if chunk.usage is not None or chunk.choices is None or len(chunk.choices) != 1:
        return None
    [choice] = chunk.choices
    said = choice.delta
    if type(said) is not Message or choice.index or choice.usage is not None or choice.finish_reason is not None:
        return None
    thought = said.reasoning_content or said.reasoning
    if said.role is not msgspec.UNSET and not thought:
        return None
    calls = said.tool_calls or []
    texts = [text for text in (said.content, thought, said.refusal) if text]
    if len(texts) + len(calls) != 1 or said.function_call is not None or said.refusal:
        return None
    return texts[0] if texts else _only_arguments(calls[0])


def _only_arguments(call: ToolCall) -> str | None:
    """The arguments of a fragment that is nothing else."""
    function = call.function
    if function is None or function.arguments is msgspec.UNSET:
        return None
    is_bare = call.id is call.type is function.name is call.extra_content is msgspec.UNSET
    return arguments_text(function.arguments) if is_bare and bytes(function.arguments).startswith(b'"') else None


def _framed(event: Event, text: str, frame: Frame) -> Event:
    if isinstance(event, CallArgs | TextDelta | ReasoningDelta) and event.text == text:
        return msgspec.structs.replace(event, frame=frame)
    return event


def _fragments(told: Message, *, whole: bool) -> Sequence[Fragment]:
    """The calls of a message. An id that stands there twice was not an id."""
    if isinstance(told, OddMessage):
        return told.fragments
    calls, legacy = told.tool_calls, told.function_call
    if calls:
        if len(calls) == 1:
            return [_fragment(calls[0], 0 if whole else None, whole=whole)]
        first = {call.id: place for place, call in reversed([*enumerate(calls)])}
        return [
            _fragment(call, place, whole=whole, reused=whole and first[call.id] < place)
            for place, call in enumerate(calls)
        ]
    if legacy is None:
        return ()
    name = legacy.name or ""
    return [Fragment(arguments_text(legacy.arguments), "function_call", name=name, total=whole and bool(name))]


def _fragment(call: ToolCall, position: int | None, *, whole: bool, reused: bool = False) -> Fragment:
    function, sealed = call.function or _NO_FUNCTION, call.extra_content
    return Fragment(
        arguments_text(function.arguments),
        id=call.id or "",
        index=position if whole and call.index is None else call.index,
        position=position,
        name=function.name or "",
        total=whole,
        named=whole,
        reused=reused,
        seal="" if sealed is msgspec.UNSET else bytes(sealed).decode(),
    )


_NO_FUNCTION = Function()


def _error(given: Any) -> Error:
    try:
        return msgspec.convert(given, Error)
    except msgspec.ValidationError:
        return Error(message=given if isinstance(given, str) else None)


def _usage(usage: TokenUsage) -> Usage:
    given, made = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = (given.cached_tokens if given else None) or usage.prompt_cache_hit_tokens
    return Usage(
        input=counted(usage.prompt_tokens),
        output=counted(usage.completion_tokens),
        cached=counted(cached),
        cache_write=counted(given.cache_write_tokens if given else 0),
        reasoning=counted(made.reasoning_tokens if made else 0),
    )
