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
    """Reads a finished stream as the openai SDK does, and reports what is wrong."""

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts
        self._choices: dict[int, _Choice] = {}
        self._usage: list[ReceivedFrame] = []
        self._last: ReceivedFrame | None = None
        self._id = ""
        self._failed = False
        self._lacked: set[str] = set()

    def read(self, received: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        """What is wrong with the frames."""
        events = [each for each in received if each.is_event]
        errors = [each for each in events if each.fields.get("error")]
        chunks = [each for each in events if not each.fields.get("error")]
        self._failed = bool(errors)
        for each in chunks:
            yield from self._read_chunk(each)
        yield from self._check_usage(chunks)
        for each in errors:
            if not isinstance(as_object(each.fields["error"]).get("message"), str):
                yield _broken("error-frame", f"The error is {quote(each.fields['error'])}.", each)
        if errors:
            following = received[received.index(errors[0]) + 1 :]
            if len(following) != 1 or not following[0].is_done:
                detail = "Something else than one `[DONE]` follows an error."
                yield _broken("error-frame", detail, errors[0], *following)
            finished = [position for choice in self._choices.values() for position in choice.finished]
            if finished:
                detail = "A choice that failed has a finish reason."
                yield Finding("chat.error-frame", detail, (*finished, errors[0].position))
            return
        yield from check_done_marker("chat.done-marker", received)
        for index, choice in (self._choices or {0: _Choice()}).items():
            if not choice.finished:
                yield _broken("finish", f"Choice {index} has no finish reason.", *received[-1:])

    @property
    def turn(self) -> ObservedTurn:
        """The turn, after the frames were read."""
        choice = self._choices.get(0) or _Choice()
        finish: Finish = "failed" if self._failed else FINISHES.get(as_text(choice.finish), "")
        tokens = self._usage[-1].fields["usage"] if self._usage else None
        usage = as_usage(tokens, "prompt_tokens", "completion_tokens")
        last = (*choice.finished, *(each.position for each in self._usage))
        return ObservedTurn(tuple(choice.text_pieces), choice.make_calls(), finish, usage, self._id, last)

    def _read_chunk(self, each: ReceivedFrame) -> Iterator[Finding]:
        """Read a chunk; a field that chunks lack is reported once."""
        chunk, choices = each.fields, each.fields.get("choices")
        self._id = self._id or as_text(chunk.get("id"))
        if chunk.get("object") != "chat.completion.chunk" or not isinstance(choices, list):
            detail = f"A chunk is a {quote(chunk.get('object'))} with the choices {quote(choices)}."
            yield _broken("chunk", detail, each)
        else:
            lacking = {*_find_missing(chunk)}
            lacking |= {"finish_reason" for choice in as_objects(choices) if "finish_reason" not in choice}
            if lacking - self._lacked:
                yield _broken("fields", f"A chunk lacks its {', '.join(sorted(lacking))}.", each)
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
                detail = f"A choice has the index {quote(index)} and the delta {quote(delta)}."
                yield _broken("chunk", detail, each)
                continue
            yield from self._choices.setdefault(number, _Choice()).read(each, as_object(delta), choice)

    def _check_usage(self, chunks: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        usage = self._usage
        is_last = usage == [*chunks[-1:]] and all(each.fields.get("choices") == [] for each in usage)
        if usage and self._facts.usage is False:
            yield _broken("usage", "Tokens are reported that were not requested.", *usage)
        elif usage and not is_last:
            yield _broken("usage", "Tokens are reported elsewhere than in a last chunk without choices.", *usage)
        empty = [each for each in chunks if each.fields.get("choices") == [] and not each.fields.get("usage")]
        if empty:
            yield _broken("usage", "A chunk has neither choices nor tokens.", *empty)


def _broken(rule: str, detail: str, *received: ReceivedFrame) -> Finding:
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
        self.finished: list[int] = []
        self._calls: dict[int, _Fragments] = {}
        self._latest = 0
        self._legacy = _Fragments()
        self._chunks = 0

    def make_calls(self) -> tuple[ObservedCall, ...]:
        legacy = [self._legacy] if self._legacy.frames else []
        return tuple(each.make_call() for each in [*self._calls.values(), *legacy])

    def read(self, each: ReceivedFrame, delta: Json, choice: Json) -> Iterator[Finding]:
        here = (each.position,)
        fields = {name for name, value in delta.items() if value not in (None, "", []) and name != "role"}
        if (delta.get("role") or None) != ("assistant" if self._chunks == 0 else None):
            yield Finding("chat.role", f"Chunk {self._chunks + 1} of a choice has the delta {quote(delta)}.", here)
        self._chunks += 1
        if self.finished and fields:
            yield Finding("chat.after-finish", f"{', '.join(sorted(fields))} comes after the finish reason.", here)
        content = delta.get("content")
        if content is not None and not isinstance(content, str):
            yield Finding("chat.chunk", f"The content is {quote(content)}.", here)
        self.text_pieces.append((each.position, as_text(content)))
        if isinstance(delta.get("function_call"), dict):
            self._legacy.add({"id": "-", "type": "function", "function": delta["function_call"]}, here)
        for part in as_list(delta.get("tool_calls")):
            yield from self._read_part(as_object(part), here)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finished.append(each.position)
            self.finish = reason
            if as_text(reason) not in FINISHES:
                yield Finding("chat.finish", f"The finish reason is {quote(reason)}.", here)
            if len(self.finished) == 2:
                yield Finding("chat.finish", "A choice has two finish reasons.", tuple(self.finished))

    def _read_part(self, part: Json, here: tuple[int, ...]) -> Iterator[Finding]:
        index = as_number(part.get("index"))
        if index is None:
            yield Finding("chat.call-index", f"A fragment has the index {quote(part.get('index'))}.", here)
            index = len(self._calls) if _inner(part).get("name") else self._latest
        call = self._calls.get(index)
        if call is None:
            if index != len(self._calls):
                yield Finding("chat.call-order", f"Index {index} comes where {len(self._calls)} is next.", here)
            call = self._calls[index] = _Fragments()
            self._latest = max(self._latest, index)
            kind = as_text(part.get("type"))
            missing = [key for key in ("id", "type") if not as_text(part.get(key))]
            missing += [] if as_text((as_object(part.get(kind)) if kind else _inner(part)).get("name")) else ["name"]
            if missing:
                yield Finding("chat.call-opening", f"A call begins without its {' and '.join(missing)}.", here)
        else:
            if index != self._latest:
                yield Finding("chat.call-order", f"A fragment of call {index} comes after one of a later call.", here)
            yield from call.check(part, here)
        text = _inner(part).get("input" if part.get("custom") else "arguments")
        if text is not None and not isinstance(text, str):
            yield Finding("chat.call-fragment", f"A fragment has the arguments {quote(text)}.", here)
        call.add(part, here)


def _inner(part: Json) -> Json:
    return as_object(part.get("custom") or part.get("function"))


class _Fragments:
    """A call assembled as the openai SDK does it: strings are concatenated."""

    def __init__(self) -> None:
        self._id = self._type = self._name = ""
        self._text: list[str] = []
        self._is_custom = False
        self.frames: list[int] = []

    def check(self, part: Json, here: tuple[int, ...]) -> Iterator[Finding]:
        """What is wrong with a further fragment."""
        if (self._id and part.get("id")) or (self._name and _inner(part).get("name")):
            yield Finding("chat.call-once", f"A call is begun again by {quote(part)}.", here)
        if self._type and part.get("type"):
            yield Finding("chat.call-type", f"The type of a call is said again in {quote(part)}.", here)

    def add(self, part: Json, frames: tuple[int, ...]) -> None:
        inner = _inner(part)
        self._id += as_text(part.get("id"))
        self._type = self._type or as_text(part.get("type"))
        self._name += as_text(inner.get("name"))
        self._is_custom = self._is_custom or bool(part.get("custom"))
        self._text.append(as_text(inner.get("input")) + as_text(inner.get("arguments")))
        self.frames += frames

    def make_call(self) -> ObservedCall:
        kind = "custom" if self._is_custom else "function"
        return ObservedCall(self._id, self._name, "".join(self._text), kind, tuple(self.frames))


# A plain answer


def check_plain(body: Json, facts: RequestFacts) -> Iterator[Finding]:
    """What is wrong with a plain answer."""
    choices = as_objects(body.get("choices"))
    if body.get("object") != "chat.completion" or not choices:
        yield Finding("chat.completion", f"The answer is a {quote(body.get('object'))} with {len(choices)} choices.")
    lacking = [*_find_missing(body), *("index" for choice in choices if as_number(choice.get("index")) is None)]
    if lacking:
        yield Finding("chat.fields", f"The answer lacks its {', '.join(lacking)}.")
    for choice in choices:
        message, reason = as_object(choice.get("message")), choice.get("finish_reason")
        if message.get("role") != "assistant":
            yield Finding("chat.completion", f"The message has the role {quote(message.get('role'))}.")
        if as_text(reason) not in FINISHES:
            yield Finding("chat.finish", f"The finish reason is {quote(reason)}.")
        null = [name for name in ("content", "refusal") if name not in message]
        null += [] if "logprobs" in choice else ["logprobs"]
        if null:
            yield Finding("chat.null-fields", f"A choice lacks its {', '.join(null)}.")
        yield from _check_message(message)


def _check_message(message: Json) -> Iterator[Finding]:
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, str):
        yield Finding("chat.message", f"The content is {quote(content)}.")
    if calls is not None and not isinstance(calls, list):
        yield Finding("chat.message", f"The calls are {quote(calls)}.")
    if calls == []:
        yield Finding("chat.no-calls", "The calls are an empty list.")
    for call in as_objects(calls):
        inner = _inner(call)
        text = inner.get("input" if call.get("custom") else "arguments")
        if not all(isinstance(each, str) and each for each in (call.get("id"), call.get("type"), inner.get("name"))):
            yield Finding("chat.message", f"A call lacks its id, type or name: {quote(call)}.")
        if not isinstance(text, str):
            yield Finding("chat.message", f"A call has the arguments {quote(text)}.")
        if "index" in call:
            yield Finding("chat.index", f"A call of a message has the index {quote(call['index'])}.")


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
        fragments.add(part, ())
        calls.append(fragments.make_call())
    usage = as_usage(body.get("usage"), "prompt_tokens", "completion_tokens")
    finish = FINISHES.get(as_text(choice.get("finish_reason")), "")
    text = (None, as_text(message.get("content")))
    return ObservedTurn((text,), tuple(calls), finish, usage, as_text(body.get("id")))


FORM = TurnForm(ChatStream, check_plain, plain_turn, usage_on_request=True, forced_call_stops=True)
