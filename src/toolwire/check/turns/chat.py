"""The rules about the form of Chat Completions, streamed and plain."""

from collections.abc import Iterator, Sequence
from typing import Any

from toolwire.check.turns.frames import ReceivedFrame, check_done_marker
from toolwire.check.turns.loose import Json, as_list, as_number, as_object, as_objects, as_text, quote
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.turn import Finish, ObservedCall, ObservedTurn, TurnForm, as_usage

FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "calls",
    "function_call": "calls",
    "content_filter": "filter",
}

# A stream


class ChatStream:
    """Reads a finished stream as the openai SDK does, and reports its faults."""

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts
        self._choices: dict[int, _Choice] = {}
        self._usage: list[ReceivedFrame] = []
        self._last: ReceivedFrame | None = None
        self._id = ""
        self._failed = False
        self._lacked: set[str] = set()

    def read(self, received: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        """The findings about the frames."""
        events = [each for each in received if each.is_event]
        errors = [each for each in events if each.fields.get("error")]
        chunks = [each for each in events if not each.fields.get("error")]
        self._failed = bool(errors)
        for each in chunks:
            yield from self._read_chunk(each)
        yield from self._check_usage(chunks)
        for each in errors:
            if not isinstance(as_object(each.fields["error"]).get("message"), str):
                yield _report("error-frame", f"The error is {quote(each.fields['error'])}.", each)
        if errors:
            following = received[received.index(errors[0]) + 1 :]
            if len(following) != 1 or not following[0].is_done:
                yield _report("error-frame", "An error is not followed by one `[DONE]` only.", errors[0], *following)
            finished = [each for choice in self._choices.values() for each in choice.finished]
            if finished:
                yield _report("error-frame", "A choice that failed has a finish reason.", *finished, errors[0])
            return
        yield from check_done_marker("chat.done-marker", received)
        for index, choice in (self._choices or {0: _Choice()}).items():
            if not choice.finished:
                yield _report("finish", f"Choice {index} has no finish reason.", *received[-1:])

    @property
    def turn(self) -> ObservedTurn:
        """The turn, after the frames were read."""
        choice = self._choices.get(0) or _Choice()
        finish: Finish = "failed" if self._failed else FINISHES.get(as_text(choice.finish), "")
        tokens = self._usage[-1].fields["usage"] if self._usage else None
        usage = as_usage(tokens, "prompt_tokens", "completion_tokens")
        last = tuple(each.position for each in (*choice.finished, *self._usage))
        calls = tuple(each.make_call() for each in (*choice.calls.values(), *choice.legacy))
        return ObservedTurn(tuple(choice.text_pieces), calls, finish, usage, self._id, last)

    def _read_chunk(self, each: ReceivedFrame) -> Iterator[Finding]:
        """Read a chunk; each missing field is reported only once."""
        chunk, choices = each.fields, each.fields.get("choices")
        self._id = self._id or as_text(chunk.get("id"))
        if chunk.get("object") != "chat.completion.chunk" or not isinstance(choices, list):
            yield _report("chunk", f"A chunk is a {quote(chunk.get('object'))} with choices {quote(choices)}.", each)
        else:
            lacking = {*_find_missing(chunk)}
            lacking |= {"finish_reason" for choice in as_objects(choices) if "finish_reason" not in choice}
            if lacking - self._lacked:
                yield _report("fields", f"A chunk lacks its {', '.join(sorted(lacking))}.", each)
                self._lacked |= lacking
        last, self._last = self._last or each, each
        for name in ("id", "created", "model"):
            before, now = last.fields.get(name), chunk.get(name)
            if now != before:
                detail = f"A chunk has the {name} {quote(now)} after {quote(before)}."
                yield Finding("chat.identity", detail, (last.position, each.position), (name,))
        if chunk.get("usage"):
            self._usage.append(each)
        for choice in as_list(choices):
            index, delta = as_object(choice).get("index"), as_object(choice).get("delta")
            number = as_number(index)
            if number is None or not isinstance(delta, dict):
                yield _report("chunk", f"A choice has the index {quote(index)} and the delta {quote(delta)}.", each)
            else:
                yield from self._choices.setdefault(number, _Choice()).read(each, as_object(delta), choice)

    def _check_usage(self, chunks: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        usage = self._usage
        is_last = usage == [*chunks[-1:]] and all(each.fields.get("choices") == [] for each in usage)
        if usage and self._facts.usage is False:
            yield _report("usage", "Tokens are reported that were not requested.", *usage)
        elif usage and not is_last:
            yield _report("usage", "Tokens are reported elsewhere than in a last chunk without choices.", *usage)
        empty = [each for each in chunks if each.fields.get("choices") == [] and not each.fields.get("usage")]
        if empty:
            yield _report("usage", "A chunk has neither choices nor tokens.", *empty)


def _report(rule: str, detail: str, *received: ReceivedFrame) -> Finding:
    return Finding(f"chat.{rule}", detail, tuple(each.position for each in received))


def _find_missing(body: Json) -> Iterator[str]:
    """The missing or invalid fields among `id`, `model` and `created`."""
    for name in ("id", "model"):
        if not as_text(body.get(name)):
            yield name
    if as_number(body.get("created")) is None:
        yield "created"


class _Choice:
    """One choice, assembled from its deltas."""

    def __init__(self) -> None:
        self.text_pieces: list[tuple[int | None, str]] = []
        self.finish: Any = None
        self.finished: list[ReceivedFrame] = []
        """The chunks with a finish reason."""
        self.calls: dict[int, _Fragments] = {}
        self.legacy: list[_Fragments] = []
        """The `function_call`, if there is one."""
        self._latest = 0
        self._chunks = 0

    def read(self, each: ReceivedFrame, delta: Json, choice: Json) -> Iterator[Finding]:
        fields = {name for name, value in delta.items() if value not in (None, "", []) and name != "role"}
        if (delta.get("role") or None) != ("assistant" if self._chunks == 0 else None):
            yield _report("role", f"Chunk {self._chunks + 1} of a choice has the delta {quote(delta)}.", each)
        self._chunks += 1
        if self.finished and fields:
            yield _report("after-finish", f"{', '.join(sorted(fields))} comes after the finish reason.", each)
        content = delta.get("content")
        if content is not None and not isinstance(content, str):
            yield _report("chunk", f"The content is {quote(content)}.", each)
        self.text_pieces.append((each.position, as_text(content)))
        if isinstance(delta.get("function_call"), dict):
            self.legacy = self.legacy or [_Fragments()]
            self.legacy[0].add({"id": "-", "type": "function", "function": delta["function_call"]}, each)
        for part in as_list(delta.get("tool_calls")):
            yield from self._read_part(as_object(part), each)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finished.append(each)
            self.finish = reason
            if as_text(reason) not in FINISHES:
                yield _report("finish", f"The finish reason is {quote(reason)}.", each)
            if len(self.finished) == 2:
                yield _report("finish", "A choice has two finish reasons.", *self.finished)

    def _read_part(self, part: Json, each: ReceivedFrame) -> Iterator[Finding]:
        index, inner = as_number(part.get("index")), _inner(part)
        if index is None:
            yield _report("call-index", f"A fragment has the index {quote(part.get('index'))}.", each)
            index = len(self.calls) if inner.get("name") else self._latest
        call = self.calls.get(index)
        if call is None:
            if index != len(self.calls):
                yield _report("call-order", f"Index {index} comes where {len(self.calls)} is next.", each)
            call = self.calls[index] = _Fragments()
            self._latest = max(self._latest, index)
            kind = as_text(part.get("type"))
            missing = [key for key in ("id", "type") if not as_text(part.get(key))]
            missing += [] if as_text((as_object(part.get(kind)) if kind else inner).get("name")) else ["name"]
            if missing:
                yield _report("call-opening", f"A call begins without its {' and '.join(missing)}.", each)
        else:
            if index != self._latest:
                yield _report("call-order", f"A fragment of call {index} comes after one of a later call.", each)
            if (call.id and part.get("id")) or (call.name and inner.get("name")):
                yield _report("call-once", f"A call is begun again by {quote(part)}.", each)
            if call.type and part.get("type"):
                yield _report("call-type", f"The type of a call is repeated in {quote(part)}.", each)
        text = inner.get("input" if part.get("custom") else "arguments")
        if text is not None and not isinstance(text, str):
            yield _report("call-fragment", f"A fragment has the arguments {quote(text)}.", each)
        call.add(part, each)


def _inner(part: Json) -> Json:
    return as_object(part.get("custom") or part.get("function"))


class _Fragments:
    """A call assembled as the openai SDK does it: strings are concatenated."""

    def __init__(self) -> None:
        self.id = self.type = self.name = ""
        self._text: list[str] = []
        self._is_custom = False
        self._frames: list[int] = []

    def add(self, part: Json, *received: ReceivedFrame) -> None:
        inner = _inner(part)
        self.id += as_text(part.get("id"))
        self.type = self.type or as_text(part.get("type"))
        self.name += as_text(inner.get("name"))
        self._is_custom = self._is_custom or bool(part.get("custom"))
        self._text.append(as_text(inner.get("input")) + as_text(inner.get("arguments")))
        self._frames += [each.position for each in received]

    def make_call(self) -> ObservedCall:
        kind = "custom" if self._is_custom else "function"
        return ObservedCall(self.id, self.name, "".join(self._text), kind, tuple(self._frames))


# A plain answer


def check_plain(body: Json, facts: RequestFacts) -> Iterator[Finding]:
    """The findings about a plain answer."""
    choices = as_objects(body.get("choices"))
    if body.get("object") != "chat.completion" or not choices:
        yield _report("completion", f"The answer is a {quote(body.get('object'))} with {len(choices)} choices.")
    lacking = [*_find_missing(body), *("index" for choice in choices if as_number(choice.get("index")) is None)]
    if lacking:
        yield _report("fields", f"The answer lacks its {', '.join(lacking)}.")
    for choice in choices:
        message, reason = as_object(choice.get("message")), choice.get("finish_reason")
        if message.get("role") != "assistant":
            yield _report("completion", f"The message has the role {quote(message.get('role'))}.")
        if as_text(reason) not in FINISHES:
            yield _report("finish", f"The finish reason is {quote(reason)}.")
        null = [name for name in ("content", "refusal") if name not in message]
        null += [] if "logprobs" in choice else ["logprobs"]
        if null:
            yield _report("null-fields", f"A choice lacks its {', '.join(null)}.")
        yield from _check_message(message)


def _check_message(message: Json) -> Iterator[Finding]:
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, str):
        yield _report("message", f"The content is {quote(content)}.")
    if calls is not None and not isinstance(calls, list):
        yield _report("message", f"The calls are {quote(calls)}.")
    if calls == []:
        yield _report("no-calls", "The calls are an empty list.")
    for call in as_objects(calls):
        inner = _inner(call)
        text = inner.get("input" if call.get("custom") else "arguments")
        if not all(isinstance(each, str) and each for each in (call.get("id"), call.get("type"), inner.get("name"))):
            yield _report("message", f"A call lacks its id, type or name: {quote(call)}.")
        if not isinstance(text, str):
            yield _report("message", f"A call has the arguments {quote(text)}.")
        if "index" in call:
            yield _report("index", f"A call of a message has the index {quote(call['index'])}.")


def plain_turn(body: Json) -> ObservedTurn:
    """The turn in a plain answer."""
    choice = as_object((as_list(body.get("choices")) or [{}])[0])
    message = as_object(choice.get("message"))
    parts = as_objects(message.get("tool_calls"))
    legacy = message.get("function_call")
    if isinstance(legacy, dict):
        parts.append({"id": "-", "function": legacy})
    calls: list[ObservedCall] = []
    for part in parts:
        fragments = _Fragments()
        fragments.add(part)
        calls.append(fragments.make_call())
    usage = as_usage(body.get("usage"), "prompt_tokens", "completion_tokens")
    finish = FINISHES.get(as_text(choice.get("finish_reason")), "")
    text = (None, as_text(message.get("content")))
    return ObservedTurn((text,), tuple(calls), finish, usage, as_text(body.get("id")))


FORM = TurnForm(ChatStream, check_plain, plain_turn, usage_on_request=True, forced_call_stops=True)
