"""Decodes Chat Completions chunks (or one plain completion) to turn events.

Servers omit and repeat fields in every possible way. The table of calls decides which call a fragment belongs to.
The turn ends with the stream, not with a finish reason, because some servers send one in every chunk.
"""

from collections.abc import Sequence

import msgspec

from toolwire.backends.chat.loose import is_well_formed, read_loose
from toolwire.backends.chat.reasoning import ReasoningFields
from toolwire.backends.chat.wire import (
    CalledFunction,
    Chunk,
    LooseMessage,
    ReplyChoice,
    ReplyMessage,
    TokenUsage,
    ToolCall,
)
from toolwire.backends.decoder import UNREADABLE, TokenDetails, TurnDecoder, check_count, usage_of
from toolwire.backends.failures import FAILED_REASONS, make_finish_failure, make_stream_failure
from toolwire.core.backend import ContextWindow
from toolwire.core.batch import find_delta_openings
from toolwire.core.call_index import NULL_LIKE, Fragment
from toolwire.core.errors import Failure
from toolwire.core.events import (
    FILTER_REASONS,
    CallArgs,
    Delta,
    Event,
    Note,
    RawFrame,
    Reason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.lane import Check
from toolwire.core.raw import arguments_text
from toolwire.core.sse import Frame

_decode = msgspec.json.Decoder(Chunk).decode

_REASONS: dict[str, Reason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    **dict.fromkeys(FILTER_REASONS, "filter"),
}

_UNSET = msgspec.UNSET
_TEXT = find_delta_openings("content", "reasoning_content", "reasoning")
_ARGUMENTS = find_delta_openings("arguments")
_CLAIMS = frozenset(("tool_calls", "function_call"))


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn."""

    delta_fields = (*_TEXT, *_ARGUMENTS)
    snapshot_fields = _TEXT

    def __init__(
        self,
        seed: str,
        names: Sequence[str] = (),
        *,
        snapshots: bool = False,
        keeps_frames: bool = False,
        choices: int = 1,
    ) -> None:
        super().__init__(seed, names, snapshots=snapshots, keeps_frames=keeps_frames)
        self._choices = choices
        self._finished: set[int] = set()  # choices that have their finish reason
        self._dropped: set[int] = set()  # choices that are not delivered, with a note
        self._ends_every_chunk = False  # every chunk has a finish reason, so none of them means the end
        self._reason: Reason | None = None
        self._claims_calls = False  # the finish reason was tool calls
        self._in_text = False  # delivered text must not be split by later reasoning
        self._late_reasoning: list[str] = []
        self._usage: Usage | None = None
        self._reasoning_fields = ReasoningFields()

    def encode_reasoning(self) -> str:
        return self._reasoning_fields.encode()

    def find_check(self, delta: Delta) -> Check | None:
        return self._check_text(delta) if not self._finished else None

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended:
            return ()
        data = frame.data
        if data.strip() == b"[DONE]":
            return self._finish()
        if frame.batch is not None and b'"reasoning_details"' in data:  # these are read frame by frame
            return self._feed_each(frame)
        try:
            chunk = _decode(data)
        except UNREADABLE:
            return self._feed_loose(frame)
        if self._surrogates.half:
            return self._feed_loose(frame)
        return self._read(chunk) if not self._keeps_frames else self._read_with_frame(chunk, frame)

    def _feed_loose(self, frame: Frame) -> Sequence[Event]:
        """Read a frame of undocumented shape, or one that may hold the second half of a split character."""
        data, chunk = self._read_mended(frame.data, _decode)
        chunk = chunk or read_loose(data)
        if chunk is None:
            self._skip_frame(frame)
            return ()
        if not self._keeps_frames or not is_well_formed(data):
            return self._read(chunk)
        return self._read_with_frame(chunk, Frame(frame.event, data))

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        body, chunk = self._read_plain(body, _decode)
        chunk = chunk or read_loose(body)
        if chunk is None:
            return self.fail(Failure(502, "bad_reply", "The backend's reply is not a completion."))
        events = self._read(chunk)
        if self.ended:
            return events
        if self._failure is not None:
            return [*events, *self._fail_cut()]
        if not chunk.choices:
            return self.fail(Failure(502, "bad_reply", "The backend's reply holds no choices."))
        raw = [RawFrame("completion", "", body)] if self._keeps_frames and is_well_formed(body) else []
        return [*raw, *events, *self._finish()]

    def end(self) -> Sequence[Event]:
        if self.ended:
            return ()
        return self._finish() if self._reason is not None else self._fail_cut()

    def _read(self, chunk: Chunk) -> Sequence[Event]:
        if chunk.error is not None or chunk.object == "error":
            # In older versions of vLLM the chunk itself is the error.
            return self.fail(make_stream_failure(chunk.message if chunk.error is None else chunk.error))
        out: list[Event] = [] if self._started else [TurnStarted(chunk.id or "", chunk.model or "")]
        self._started = True
        if self.opening:
            out += self._take_opening()
        for choice in check_count(chunk.choices or ()) if self._failure is None else ():
            if choice.finish_reason is not None and choice.finish_reason not in NULL_LIKE:
                index = choice.index or 0
                self._ends_every_chunk |= index in self._finished and _has_content(choice)
                self._finished.add(index)
            if choice.index:
                self._note_dropped(choice.index, out)  # events represent the first choice only
                continue
            message = choice.delta or choice.message
            if message is not None:
                self._read_message(message, out, whole=choice.delta is None)
                if choice.message is not None and message is choice.delta:
                    self._read_calls(choice.message, out, whole=True)
            if choice.finish_reason is not None or choice.error is not None or choice.usage is not None:
                failure = self._end_choice(choice, out)
                if failure is not None:
                    return [*out, *self.fail(failure)]
        if chunk.usage is not None:
            self._usage = _read_usage(chunk.usage)
        if self._finished and self._failure is None:
            self._count_frame(chunk)
        return out

    def _note_dropped(self, index: int, out: list[Event]) -> None:
        """Note once that a choice is lost, unless its frames are forwarded."""
        if not self._keeps_frames and index not in self._dropped:
            self._dropped.add(index)
            out.append(Note("item_dropped", f"choices[{index}]"))

    def _count_frame(self, chunk: Chunk) -> None:
        """Count a frame after the last finish reason, unless it is a heartbeat."""
        if self._ends_every_chunk:
            self.finishing = 0
        elif len(self._finished) >= self._choices:
            has_news = (choice.finish_reason or choice.usage or _has_content(choice) for choice in chunk.choices or ())
            self.finishing += chunk.usage is not None or any(has_news)

    def _end_choice(self, choice: ReplyChoice, out: list[Event]) -> Failure | None:
        """Read the end of a choice, and return its error as a failure."""
        if choice.error is not None:
            return make_stream_failure(choice.error)
        given = choice.finish_reason or ""
        known = given.lower()
        if known in FAILED_REASONS:
            self._failure = make_finish_failure(given)
            self.finishing += 1
            return None
        if given not in NULL_LIKE:
            self._claims_calls = self._claims_calls or known in _CLAIMS
            if known == "model_length":
                self.context_window = ContextWindow(is_full=True)
            if known not in _REASONS:
                out.append(Note("reason_unknown", given))
            self.given_reason = given
            if self._reason in (None, "stop"):  # some servers send a reason in every chunk; the most specific one wins
                self._reason = _REASONS.get(known, "stop")
        if choice.usage is not None:  # Kimi
            self._usage = _read_usage(choice.usage)
        return None

    def _read_with_frame(self, chunk: Chunk, frame: Frame) -> Sequence[Event]:
        """The events of a chunk. Its frame is kept in its only delta, or as a `RawFrame` if it holds anything else."""
        text = _find_only_text(chunk)
        if text is not None:
            return [
                msgspec.structs.replace(event, frame=frame)
                if isinstance(event, CallArgs | TextDelta | ReasoningDelta) and event.text == text
                else event
                for event in self._read(chunk)
            ]
        if frame.batch is not None:
            return self._feed_each(frame)
        events = self._read(chunk)
        return events if self.ended else [RawFrame("chunk", "", frame.data), *events]

    def _feed_each(self, batched: Frame) -> Sequence[Event]:
        """The events of a batch, each frame read separately."""
        datas = batched.batch.render_frames() if batched.batch is not None else ()
        return [event for data in datas for event in self.feed(Frame(batched.event, data))]

    def _read_message(self, message: ReplyMessage, out: list[Event], *, whole: bool) -> None:
        feed = self._sequencer.feed
        reasoning = message.reasoning_content or message.reasoning
        if type(message) is LooseMessage:
            reasoning = reasoning or message.thinking
        if (
            message.reasoning_content is not None
            or message.reasoning is not None
            or message.reasoning_details is not _UNSET
        ):
            self._reasoning_fields.add(message)
        if reasoning and self._in_text:
            self._late_reasoning.append(reasoning)
        elif reasoning:
            out += feed(ReasoningDelta(reasoning, "content"))
        if message.content:
            self._in_text = not self._keeps_frames
            out += feed(TextDelta(message.content))
        if message.refusal:
            out += feed(RefusalDelta(message.refusal))
        if message.tool_calls or message.function_call is not None or type(message) is LooseMessage:
            more = self._extend_call(message.tool_calls) if message.tool_calls and not whole else None
            if more is not None:
                out += self._flush_late_reasoning()
                out += feed(more)
            else:
                self._read_calls(message, out, whole=whole)

    def _extend_call(self, calls: list[ToolCall]) -> CallArgs | None:
        """The usual case: more arguments of one open call; None in any other case."""
        call = calls[0]
        function, index = call.function, call.index
        if function is None or index is None or len(calls) > 1 or self._snapshots:
            return None
        if call.id or function.name or call.extra_content is not _UNSET:
            return None
        return self._table.extend_at(index, arguments_text(function.arguments))

    def _read_calls(self, message: ReplyMessage, out: list[Event], *, whole: bool) -> None:
        fragments = check_count(_read_fragments(message, whole=whole))
        if fragments:
            out += self._flush_late_reasoning()
        for fragment in fragments:
            fed = fragment if not self._snapshots else msgspec.structs.replace(fragment, total=True)
            out += self._put_in_sequence(self._table.feed(fed))

    def _flush_late_reasoning(self) -> list[Event]:
        """Deliver the reasoning that arrived in the middle of the text, which has now ended."""
        late, self._late_reasoning = self._late_reasoning, []
        self._in_text = False
        return self._sequencer.feed(ReasoningDelta("".join(late), "content")) if late else []

    def _finish(self) -> Sequence[Event]:
        """End the turn with the stream. Without a finish reason, the reason is `stop`."""
        if self._failure is not None:
            return self._fail_cut()
        if not self._started:
            return self.fail(Failure(502, "stream_cut", "The backend ended its stream without a turn.", retryable=True))
        self.ended = True
        out: list[Event] = [*self.opening]
        if self._surrogates.half:
            out.append(Note("letter_replaced"))
        if self._reason is None:
            out.append(Note("reason_missing"))
        elif self._claims_calls and not self._table.calls:
            out.append(Note("reason_unfounded", "tool_calls"))
        reason: Reason = self._reason or "stop"
        out += self._flush_late_reasoning()
        out += self._put_in_sequence(self._table.finish(cut=reason != "stop"))
        if self._usage is not None:
            out.append(self._usage)
        return [*out, TurnEnded(reason)]


def _has_content(choice: ReplyChoice) -> bool:
    message = choice.delta or choice.message
    if message is None:
        return False
    texts = (message.content, message.reasoning_content, message.reasoning, message.refusal)
    return any(texts) or bool(_read_fragments(message, whole=False))


def _find_only_text(chunk: Chunk) -> str | None:
    """The text of a chunk that holds nothing but one delta and can be forwarded as it is."""
    if chunk.usage is not None or chunk.choices is None or len(chunk.choices) != 1:
        return None
    [choice] = chunk.choices
    delta = choice.delta
    if type(delta) is not ReplyMessage or choice.index or choice.usage is not None or choice.finish_reason is not None:
        return None
    reasoning = delta.reasoning_content or delta.reasoning
    if delta.role is not _UNSET and not reasoning:
        return None
    calls = delta.tool_calls or []
    texts = [text for text in (delta.content, reasoning, delta.refusal) if text]
    if len(texts) + len(calls) != 1 or delta.function_call is not None or delta.refusal:
        return None
    if texts:
        return texts[0]
    call, function = calls[0], calls[0].function
    if function is None or function.arguments is _UNSET:
        return None
    is_bare = call.id is call.type is function.name is call.extra_content is _UNSET
    return arguments_text(function.arguments) if is_bare and bytes(function.arguments).startswith(b'"') else None


def _read_fragments(message: ReplyMessage, *, whole: bool) -> Sequence[Fragment]:
    """The calls of a message."""
    if isinstance(message, LooseMessage):
        return message.fragments
    calls, legacy = message.tool_calls, message.function_call
    if calls:
        if len(calls) == 1:
            return [_read_fragment(calls[0], 0 if whole else None, whole=whole)]
        return [_read_fragment(call, index, whole=whole) for index, call in enumerate(calls)]
    if legacy is None:
        return ()
    name = legacy.name or ""
    return [Fragment(arguments_text(legacy.arguments), "function_call", name=name, total=whole and bool(name))]


def _read_fragment(call: ToolCall, position: int | None, *, whole: bool) -> Fragment:
    function, signed = call.function or _NO_FUNCTION, call.extra_content
    return Fragment(
        arguments_text(function.arguments),
        id=call.id or "",
        index=position if whole and call.index is None else call.index,
        position=position,
        name=function.name or "",
        total=whole,
        named=whole,
        list_position=(position or 0) + 1 if whole else 0,
        signature="" if signed is msgspec.UNSET else bytes(signed).decode(),
    )


_NO_FUNCTION = CalledFunction()


def _read_usage(usage: TokenUsage) -> Usage:
    input, output = usage.prompt_tokens_details, usage.completion_tokens_details
    if input is None or not input.cached_tokens:
        input = TokenDetails(usage.prompt_cache_hit_tokens, input.cache_write_tokens if input else None)
    return usage_of(usage.prompt_tokens, usage.completion_tokens, input, output)
