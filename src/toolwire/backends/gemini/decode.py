"""Decodes chunks of the Gemini API (or one plain reply) to turn events.

    {"candidates": [{"content": {"parts": [{"text": "Hel"}]}}], "usageMetadata": {…}, "modelVersion": …}
    {"candidates": [{"content": {"parts": [{"functionCall": {"name", "args"}, "thoughtSignature": "…"}]}}]}
    {"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP"}], "usageMetadata": {…}}

A call is one part, and its signature is on that part. A signature on text belongs to the text before it: it is
delivered when that text has ended, as reasoning of which nothing is shown. The turn ends with the stream.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolwire.backends.decoder import UNREADABLE, TurnDecoder, as_count, check_count
from toolwire.backends.failures import FAILED_REASONS
from toolwire.backends.gemini.failures import make_stream_failure
from toolwire.backends.gemini.partial import PartialArguments
from toolwire.backends.gemini.wire import Candidate, Chunk, FunctionCall, Part, TokenUsage
from toolwire.core.batch import find_delta_openings
from toolwire.core.call_index import Fragment
from toolwire.core.errors import Failure
from toolwire.core.events import (
    FILTER_REASONS,
    Event,
    Note,
    RawFrame,
    Reason,
    ReasoningDelta,
    ReasoningEnded,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
)
from toolwire.core.raw import arguments_text, fields_of, list_of
from toolwire.core.signatures import normalise_base64, wrap_thought_signature
from toolwire.core.sse import Frame

DIALECT = "gemini"
"""The dialect of this backend's protocol, and the origin of its signatures."""

_decode = msgspec.json.Decoder(Chunk, strict=False).decode  # numbers may be strings

_REASONS: dict[str, Reason] = {
    "stop": "stop",
    "max_tokens": "length",
    **dict.fromkeys(FILTER_REASONS, "filter"),
    **dict.fromkeys(("language", "image_prohibited_content", "image_recitation", "image_other"), "filter"),
}
_UNEXPECTED = "unexpected_tool_call"
_PAUSED = "continuation"


class Decoder(TurnDecoder):
    """A stage from frames to turn events, for one turn."""

    delta_fields = find_delta_openings("text")

    def __init__(self, seed: str, names: Sequence[str] = (), *, keeps_frames: bool = False) -> None:
        super().__init__(seed, names, keeps_frames=keeps_frames)
        self._reason = self._explanation = ""
        self._blocked = False  # the prompt was refused
        self._usage: dict[str, float] = {}
        self._calls = 0
        self._partial: PartialArguments | None = None  # the arguments that are being streamed
        self._in_thought = False
        self._has_output = False
        self._text_signature = ""  # the signature of the text so far
        self._dropped: set[str] = set()  # what was dropped, noted once

    def feed(self, frame: Frame) -> Sequence[Event]:
        if self.ended or frame.data.strip() == b"[DONE]":  # some other servers of this protocol send it
            return ()
        data, chunk = self._read_plain(frame.data, _decode)
        if chunk is None:
            self._skip_frame(frame)
            return ()
        if chunk.error is not None:
            return self.fail(make_stream_failure(chunk.error))
        if not self._keeps_frames:
            return self._read(chunk, data)
        return self._read_with_frame(chunk, Frame(frame.event, data, frame.batch))

    def feed_plain(self, body: bytes) -> Sequence[Event]:
        is_list = body.startswith(b"[")  # the chunks of a stream that is not an event stream
        out: list[Event] = []
        is_answer = False
        for each in _split_list(body) if is_list else (body,):
            data, chunk = self._read_plain(each, _decode)
            if chunk is None:
                break
            if chunk.error is not None:
                return [*out, *self.fail(make_stream_failure(chunk.error))]
            is_answer = is_answer or bool(chunk.candidates)
            out += self._read(chunk, data)
            if self._keeps_frames and not is_list:
                out.insert(0, RawFrame("chunk", "", data))
        if not (is_answer or self._reason):
            return self.fail(Failure(502, "bad_reply", "The backend's reply holds no candidates."))
        if is_list and not self._reason:
            return [*out, *self._fail_cut()]
        return [*out, *self._finish()]

    def end(self) -> Sequence[Event]:
        if self.ended:
            return ()
        return self._finish() if self._reason else self._fail_cut()

    def _read_with_frame(self, chunk: Chunk, frame: Frame) -> Sequence[Event]:
        """The events of a chunk. Its frame is kept in its only delta, or as a `RawFrame` if it holds anything else."""
        if not _holds_only_text(chunk):
            if frame.batch is not None:
                frames = [Frame(frame.event, data) for data in frame.batch.render_frames()]
                return [event for each in frames for event in self.feed(each)]
            return [RawFrame("chunk", "", frame.data), *self._read(chunk, frame.data)]
        return [
            msgspec.structs.replace(event, frame=frame) if isinstance(event, TextDelta | ReasoningDelta) else event
            for event in self._read(chunk, frame.data)
        ]

    def _read(self, chunk: Chunk, data: bytes) -> list[Event]:
        out: list[Event] = []
        if not self._started:
            self._started = True
            out.append(TurnStarted(chunk.response_id or "", chunk.model_version or ""))
        self._count_tokens(chunk.usage_metadata)
        for place, candidate in enumerate(check_count(chunk.candidates or ())):
            if candidate.index:
                self._note_dropped(f"candidates[{candidate.index}]")
                continue
            raws: list[msgspec.Raw] = []  # the parts as they came, where they are needed
            for index, part in enumerate(check_count((candidate.content.parts if candidate.content else None) or ())):
                name = ""
                if part.text is None and part.function_call is None:
                    raws = raws or _list_parts(data, place)
                    name = _name_other_part(raws[index])
                out += self._read_other_part(name, bytes(raws[index])) if name else self._read_part(part)
            self._read_end(candidate)
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason and not self._has_output:
            self._blocked = True
            self._reason, self._explanation = feedback.block_reason, feedback.block_reason_message or ""
        self.finishing += bool(self._reason)
        return self._put_in_sequence([*out, *self._take_opening()]) if out or self.opening else []

    def _read_end(self, candidate: Candidate) -> None:
        if candidate.grounding_metadata is not msgspec.UNSET or candidate.citation_metadata is not msgspec.UNSET:
            self._note_dropped("", "annotations_dropped")
        if candidate.finish_reason:
            self._reason, self._explanation = candidate.finish_reason, candidate.finish_message or ""

    def _read_part(self, part: Part) -> list[Event]:
        text, signature, call = part.text or "", part.thought_signature or "", part.function_call
        if call is not None:
            self._has_output = True
            signature = wrap_thought_signature(signature) if signature else ""
            return [*self._end_reasoning(), *self._read_call(call, signature)]
        if part.thought:
            out = self._end_text()
            self._in_thought = self._in_thought or bool(text)
            out += [ReasoningDelta(text)] if text else ()
            return [*out, *self._end_thought(signature)] if signature else out
        self._text_signature = signature or self._text_signature
        if not text:
            return []
        self._has_output = True
        return [*self._end_thought(), *self._end_call(), TextDelta(text)]

    def _read_other_part(self, name: str, data: bytes) -> list[Event]:
        """A part that turn events do not represent."""
        self._has_output = True
        self._note_dropped(name)
        kept = [RawFrame("part", name, data, is_unknown=True)] if self._keeps_frames else []
        return [*self._end_reasoning(), *self._end_call(), *kept]

    def _end_reasoning(self) -> list[Event]:
        return [*self._end_thought(), *self._end_text()]

    def _end_thought(self, signature: str = "") -> list[Event]:
        """End the open thought, if there is one."""
        if not (self._in_thought or signature):
            return []
        self._in_thought = False
        return [ReasoningEnded("", normalise_base64(signature), DIALECT)]

    def _end_text(self) -> list[Event]:
        """Deliver the signature of the text, which has ended."""
        signature, self._text_signature = self._text_signature, ""
        return [ReasoningEnded("", normalise_base64(signature), DIALECT, redacted=True)] if signature else []

    def _read_call(self, call: FunctionCall, signature: str) -> list[Event]:
        """A whole call, or a fragment of one. A name begins a call."""
        out: list[Event] = []
        is_streamed = call.partial_args is not None or call.will_continue
        if call.name is not None or call.args is not msgspec.UNSET:
            out += self._end_call()
            self._calls += 1
            item, index = f"{self._calls}", self._calls
            start = Fragment("", item, call.id or "", index, name=call.name or "", named=True, signature=signature)
            if not is_streamed:
                whole = arguments_text(call.args) or "{}"
                return [*out, *self._table.feed(msgspec.structs.replace(start, text=whole, total=True, ended=True))]
            self._partial = PartialArguments()
            out += self._table.feed(start)
        if self._partial is not None:
            text = "".join(map(self._partial.feed, call.partial_args or ()))
            out += self._table.feed(Fragment(text, f"{self._calls}")) if text else ()
            out += () if call.will_continue else self._end_call()
        return out

    def _end_call(self) -> list[Event]:
        """End the call whose arguments are being streamed."""
        partial, self._partial = self._partial, None
        if partial is None:
            return []
        return self._table.feed(Fragment(partial.end(), f"{self._calls}", ended=True))

    def _finish(self) -> Sequence[Event]:
        given, out = self._reason, self._end_thought()
        lower = given.lower()
        self.given_reason = given
        if lower in FAILED_REASONS or (lower == _UNEXPECTED and not self._calls):
            message = self._explanation or f"The backend ended the turn with the reason {lower!r}."
            failure = Failure(502, lower, message, retryable=True, quoted=bool(self._explanation))
            return self.fail(failure)
        reason: Reason = "filter" if self._blocked else _REASONS.get(lower, "stop")
        if lower == _PAUSED:
            out.append(Note("turn_paused"))
        elif not given:
            out.append(Note("reason_missing"))
        elif lower not in _REASONS and lower != _UNEXPECTED and not self._blocked:
            out.append(Note("reason_unknown", given))
        out += self._end_text()
        if reason == "stop":
            out += self._end_call()
        if reason == "filter" and not self._has_output and not self._keeps_frames:
            words = "refused the prompt" if self._blocked else "withheld the answer"
            out.append(RefusalDelta(self._explanation or f"The model's server {words}: {given}."))
        out += self._table.finish(cut=reason != "stop")
        self.ended = True
        counted = [self._make_usage()] if self._usage else []
        return [*self._put_in_sequence([*self._take_opening(), *out]), *counted, TurnEnded(reason)]

    def _note_dropped(self, subject: str, code: str = "item_dropped") -> None:
        """Note once that something is lost, unless its frames are forwarded."""
        if not self._keeps_frames and (code + subject) not in self._dropped:
            self._dropped.add(code + subject)
            self.opening.append(Note(code, subject))

    def _count_tokens(self, usage: TokenUsage | None) -> None:
        """Store token counts. They are running totals: the last number wins, and a missing one changes nothing."""
        if usage is not None:
            counts: dict[str, Any] = msgspec.structs.asdict(usage)
            self._usage |= {name: count for name, count in counts.items() if count is not None}

    def _make_usage(self) -> Usage:
        prompt, tools, cached, said, thought = (
            as_count(self._usage.get(name)) for name in TokenUsage.__struct_fields__
        )
        return Usage(prompt + tools, said + thought, cached, 0, thought)


def _holds_only_text(chunk: Chunk) -> bool:
    """Whether a chunk holds nothing but one delta of text, so that it can be forwarded as it is."""
    if chunk.candidates is None or len(chunk.candidates) != 1:
        return False
    [candidate] = chunk.candidates
    parts = (candidate.content.parts if candidate.content else None) or []
    if candidate.index or candidate.finish_reason or len(parts) != 1:
        return False
    [part] = parts
    return bool(part.text) and part.function_call is None and not part.thought_signature


def _list_parts(data: bytes, candidate: int) -> list[msgspec.Raw]:
    """The parts of a candidate as JSON."""
    content = fields_of(list_of(fields_of(data)["candidates"])[candidate])["content"]
    return list_of(fields_of(content)["parts"])


def _name_other_part(part: msgspec.Raw) -> str:
    """The name of a part with other content than text; empty if it has no content of its own."""
    return next((name for name in fields_of(part) if name not in ("thought", "thoughtSignature")), "")


def _split_list(body: bytes) -> list[bytes]:
    """The objects in a list."""
    try:
        return [bytes(each) for each in list_of(body)]
    except UNREADABLE:
        return []
