"""The rules about the form of the Gemini API. A chunk of a stream has the form of a plain answer.

data: {"candidates":[{"content":{"parts":[{"text":"Hi"}],"role":"model"},"finishReason":"STOP"}],"usageMetadata":{…}}
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from toolwire.check.turns.frames import ReceivedFrame
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, quote
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.turn import Finish, ObservedCall, ObservedTurn, ObservedUsage, TurnForm

_FILTERED = "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII"
_FILTERED_IMAGES = "IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION IMAGE_OTHER"
_BROKEN = "MALFORMED_FUNCTION_CALL MALFORMED_RESPONSE UNEXPECTED_TOOL_CALL MISSING_THOUGHT_SIGNATURE"
_ENDED = "STOP OTHER NO_IMAGE TOO_MANY_TOOL_CALLS CONTINUATION FINISH_REASON_UNSPECIFIED"
FINISHES: dict[str, Finish] = {
    **dict.fromkeys(_ENDED.split(), "stop"),
    **dict.fromkeys((*_FILTERED.split(), *_FILTERED_IMAGES.split()), "filter"),
    **dict.fromkeys(_BROKEN.split(), "failed"),
    "MAX_TOKENS": "length",
}
DATA = (
    "text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult",
    "toolCall", "toolResponse",
)  # fmt: skip
"""What a part may be; it is one of them."""
_is_base64 = re.compile(r"(?:[\w+/-]{4})*(?:[\w+/-]{2}(?:==)?|[\w+/-]{3}=?)?", re.ASCII).fullmatch
"""Both alphabets, with or without padding."""


class GeminiStream:
    """Reads a finished stream, or the only chunk of a plain answer, and reports its faults."""

    def __init__(self, facts: RequestFacts) -> None:
        calling = as_object(as_object(facts.fields.get("toolConfig")).get("functionCallingConfig"))
        self._may_cut_calls = bool(calling.get("streamFunctionCallArguments"))
        self._text: list[tuple[int | None, str]] = []
        self._calls: list[ObservedCall] = []
        self._usage: Json = {}
        self._finish: Finish = ""
        self._id = ""
        self._last: tuple[int, ...] = ()
        self._lacked: set[str] = set()

    def read(self, received: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        """The findings about the frames."""
        for each in received:
            if each.is_done:
                yield _report("done-marker", "`[DONE]` is no chunk.", each)
        events = [each for each in received if each.is_event]
        has_failed = False
        for each in events:
            if not each.fields.get("error"):
                yield from self.read_chunk(each.fields, each)
                continue
            has_failed = True
            error = each.inner("error")
            is_whole = as_text(error.get("message")) and as_text(error.get("status"))
            if not is_whole or as_number(error.get("code")) not in range(400, 600) or each is not events[-1]:
                where = "" if each is events[-1] else ", and it is not the last event"
                yield _report("error-frame", f"The error is {quote(each.fields['error'])}{where}.", each, events[-1])
        if has_failed:
            self._finish = "failed"
        elif not self._finish:
            yield _report("finish", "The turn has no finish reason.", *received[-1:])

    def read_chunk(self, chunk: Json, *received: ReceivedFrame) -> Iterator[Finding]:
        """Read a chunk; a missing field is reported only once."""
        blocked = as_object(chunk.get("promptFeedback")).get("blockReason")
        candidates = as_objects(chunk.get("candidates"))
        candidate = candidates[0] if candidates else {}
        given, reason = candidate.get("content", {}), candidate.get("finishReason")
        content = as_object(given)
        listed = content.get("parts", [])
        parts = as_objects(listed)
        wrong = [name for name in _list_names(chunk, candidate, content, parts) if "_" in name]
        if wrong:
            yield _report("camel-case", f"There are fields named {', '.join(sorted({*wrong}))}.", *received)
        if not (candidates or blocked or chunk.get("usageMetadata")):
            yield _report("chunk", f"A chunk is {quote(chunk)}.", *received)
        if not isinstance(given, dict) or content.get("role", "model") != "model" or not isinstance(listed, list):
            yield _report("chunk", f"A candidate has the content {quote(given)}.", *received)
        lacking = {name for name in ("modelVersion", "responseId") if not as_text(chunk.get(name))} - self._lacked
        if lacking:
            self._lacked |= lacking
            yield _report("fields", f"There is no {', '.join(sorted(lacking))}.", *received)
        for part in parts:
            yield from self._read_part(part, *received)
        if reason is not None and as_text(reason) not in FINISHES:
            yield _report("finish", f"The finish reason is {quote(reason)}.", *received)
        self._id = self._id or as_text(chunk.get("responseId"))
        self._usage |= as_object(chunk.get("usageMetadata"))
        self._finish = "filter" if blocked else FINISHES.get(as_text(reason), self._finish)
        if reason is not None or chunk.get("usageMetadata"):
            self._last = tuple(each.position for each in received)

    @property
    def turn(self) -> ObservedTurn:
        """The turn, after its chunks were read. The same finish reason is that of calls and of text."""
        finish = "calls" if self._finish == "stop" and self._calls else self._finish
        return ObservedTurn(tuple(self._text), tuple(self._calls), finish, self._read_usage(), self._id, self._last)

    def _read_part(self, part: Json, *received: ReceivedFrame) -> Iterator[Finding]:
        text, call, signature = part.get("text", ""), part.get("functionCall"), part.get("thoughtSignature")
        if len([name for name in DATA if name in part]) > 1 or not isinstance(text, str):
            yield _report("chunk", f"A part is {quote(part)}.", *received)
        if signature is not None and not _is_base64(as_text(signature) or "="):
            yield _report("signature", f"A part has the signature {quote(signature)}.", *received)
        position = received[0].position if received else None
        if not part.get("thought"):
            self._text.append((position, as_text(text)))
        if call is None:
            return
        fields, name, id = as_object(call), as_text(as_object(call).get("name")), as_text(as_object(call).get("id"))
        if not self._may_cut_calls and not {"partialArgs", "willContinue"}.isdisjoint(fields):
            yield _report("whole-call", f"A call is {quote(call)}.", *received)
        elif self._may_cut_calls and not name:
            return
        if id.startswith(f"{name}__"):
            yield _report("call-id", f"A call of {name} has the id {id!r}.", *received)
        given = fields.get("args")
        arguments = "{}" if given is None else msgspec.json.encode(given).decode()
        frames = tuple(each.position for each in received)
        self._calls.append(ObservedCall(id, name, arguments, "function", frames, True, as_text(signature)))

    def _read_usage(self) -> ObservedUsage | None:
        """The tokens. The answer's are counted without its thoughts, and those of hosted tools belong to the prompt."""
        words = ("prompt", "toolUsePrompt", "candidates", "thoughts", "cachedContent", "total")
        counts = {word: as_number(self._usage.get(f"{word}TokenCount")) for word in words}
        input, tools, output, thoughts, cached = (counts[word] or 0 for word in words[:-1])
        if counts["prompt"] is None:
            return None
        return ObservedUsage(input + tools, output + thoughts, counts["total"], cached, thoughts)


def _list_names(chunk: Json, candidate: Json, content: Json, parts: Sequence[Json]) -> Iterator[str]:
    """The names of all fields that the API defines; those of arguments are the tool's."""
    for each in (chunk, candidate, content, as_object(chunk.get("usageMetadata"))):
        yield from each
    for part in parts:
        yield from part
        yield from as_object(part.get("functionCall"))


def _report(rule: str, detail: str, *received: ReceivedFrame) -> Finding:
    return Finding(f"gemini.{rule}", detail, tuple(each.position for each in received))


def check_plain(body: Json, facts: RequestFacts) -> Iterator[Finding]:
    """The findings about a plain answer."""
    reader = GeminiStream(facts)
    yield from reader.read_chunk(body)
    if not reader.turn.finish:
        yield _report("finish", "The turn has no finish reason.")


def plain_turn(body: Json) -> ObservedTurn:
    """The turn in a plain answer."""
    reader = GeminiStream(RequestFacts("gemini"))
    for _ in reader.read_chunk(body):
        pass
    return reader.turn


FORM = TurnForm(
    GeminiStream,
    check_plain,
    plain_turn,
    ids_are_optional=True,
    streams_arrays=True,
    ignored=("sse.newline", "sse.empty-event"),
)
