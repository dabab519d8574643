"""A turn as a client holds it at the end, in no dialect's words, and the rules that hold in every dialect."""

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.check.turns.loose import as_number, as_object, parsed, shown
from toolwire.check.turns.rule import Asked, Finding, Rule
from toolwire.core.events import CallKind

Finish: TypeAlias = Literal["", "stop", "calls", "length", "filter", "failed"]

RULES = (
    Rule(
        "calls.id",
        "MUST",
        "Every call has an id that no other call of the turn has.",
        "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages",
        "Results cannot be told apart, and the next request is refused or answers the wrong call.",
        on="turn",
        needs="call",
    ),
    Rule(
        "calls.name",
        "MUST",
        "Every call has the name of a tool that was declared.",
        "every client: the name chooses what is run",
        "The client runs nothing, or raises.",
        on="turn",
        needs="call",
    ),
    Rule(
        "calls.json",
        "MUST",
        "The arguments of a function are one JSON object, `{}` if there are none, unless the call is told as cut.",
        "every client: arguments are parsed before they are used; Codex runs a call when its item is completed",
        "The client raises on a call that the model made correctly, or runs half of one.",
        on="turn",
        needs="call",
        explains=("parallel.calls",),
    ),
    Rule(
        "calls.finish",
        "MUST",
        "A turn that ends in calls says so in its finish reason, and a turn without calls does not; "
        "in a chat whose request named the tool, `stop` will do.",
        "agents that loop on the finish reason",
        "The agent stops although calls wait, or waits for calls that never come.",
        on="turn",
    ),
    Rule(
        "calls.leak",
        "MUST",
        "With tools declared, no call is left in the text in the model's own notation.",
        "users of vLLM, Ollama and other servers with tool parsers",
        "The call is shown to the user and never run.",
        on="turn",
        needs="text",
        explains=("calls.finish", "choice.required", "choice.named", "parallel.calls", "stream.same"),
    ),
    Rule(
        "plain.json",
        "MUST",
        "A plain answer is one JSON object.",
        "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages",
        "The SDK raises.",
        on="plain",
    ),
    Rule(
        "stream.whole",
        "MUST",
        "An answer that has begun arrives whole.",
        "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages",
        "Calls are lost, and nobody says so.",
        on="turn",
        explains=("stream.disconnect",),
    ),
    Rule(
        "stream.live",
        "SHOULD",
        "A stream comes while the model speaks, not at the end.",
        "clients that show text as it comes",
        "The user looks at nothing, and proxies close the connection.",
        needs="time",
    ),
    Rule(
        "usage.told",
        "SHOULD",
        "A turn tells the tokens that it used, in a chat stream if it was asked for them.",
        "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages",
        "Budgets and bills count nothing, and clients that compact histories never do.",
        on="turn",
    ),
    Rule(
        "usage.sum",
        "SHOULD",
        "The total is the sum of input and output.",
        "OpenAI Chat Completions, OpenAI Responses",
        "Budgets are off.",
        on="turn",
    ),
    Rule(
        "usage.parts",
        "SHOULD",
        "Cached tokens are at most those of the input, reasoning tokens at most those of the output.",
        "OpenAI Chat Completions, OpenAI Responses",
        "Costs become negative: clients subtract the parts from the whole.",
        on="turn",
    ),
)

LEAKS = re.compile(
    r"<tool_call>|</tool_call>|<use_tool>|<function=|<\|tool_call|<\|python_tag\|>|\[TOOL_CALLS\]|<\|channel\|>commentary"
    r"|<invoke name=|<.tool▁call|<function_calls>"
)
"""How models write calls when nobody has told them apart from the text."""


class Call(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    frames: tuple[int, ...] = ()
    is_closed: bool = False
    """The server says that it is whole, however the turn ended."""

    @property
    def value(self) -> Any:
        """The arguments as JSON; None if they are none."""
        return parsed(self.arguments)


class Usage(msgspec.Struct, frozen=True):
    input: int
    output: int
    total: int | None = None
    cached: int | None = None
    """Of the input, where it is told."""
    reasoning: int | None = None
    """Of the output, where it is told."""

    @property
    def has_parts(self) -> bool:
        return self.cached is not None or self.reasoning is not None


class Turn(msgspec.Struct, frozen=True):
    """What came of a request."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = ""
    usage: Usage | None = None
    id: str = ""
    last: tuple[int, ...] = ()
    """The frames that say how it ended, and what it took."""
    said: tuple[tuple[int, str], ...] = ()
    """The text in pieces, each with the place of the frame that brought it."""

    @property
    def is_over(self) -> bool:
        return self.finish not in ("", "failed")

    def saying(self, start: int, end: int) -> tuple[int, ...]:
        """The frames that brought this piece of the text."""
        places: list[int] = []
        for place, text in self.said:
            if start < len(text) and end > 0:
                places.append(place)
            start, end = start - len(text), end - len(text)
        return tuple(dict.fromkeys(places))


def check_turn(turn: Turn, asked: Asked) -> Iterator[Finding]:
    """Everything that is wrong with what a turn says, in whichever form."""
    ids: set[str] = set()
    for call in turn.calls:
        if not call.id or call.id in ids:
            yield Finding("calls.id", f"A call of {call.name} has the id {call.id!r}.", call.frames)
        ids.add(call.id)
        yield from _check_call(call, turn, asked)
    if _misleads(turn, asked):
        says = f"A turn with {len(turn.calls)} calls ends as if there were {'none' if turn.calls else 'some'}."
        yield Finding("calls.finish", says, turn.last)
    leak = LEAKS.search(turn.text) if asked.tools else None
    if leak is not None:
        says = f"The text holds {turn.text[leak.start() : leak.start() + 80]!r}."
        yield Finding("calls.leak", says, turn.saying(*leak.span()))
    if turn.is_over and turn.usage is None and _wants_usage(asked):
        yield Finding("usage.told", "The turn tells no tokens.", turn.last)
    if turn.usage is not None:
        yield from _check_usage(turn.usage, turn.last)


def _check_usage(usage: Usage, frames: tuple[int, ...]) -> Iterator[Finding]:
    if usage.total not in (None, usage.input + usage.output):
        says = f"The total is {usage.total}, the input {usage.input} and the output {usage.output}."
        yield Finding("usage.sum", says, frames)
    for word, part, of, whole in (
        ("cached", usage.cached, "input", usage.input),
        ("reasoning", usage.reasoning, "output", usage.output),
    ):
        if part is not None and not 0 <= part <= whole:
            yield Finding("usage.parts", f"{part} {word} tokens are part of {whole} tokens of {of}.", frames)


def _misleads(turn: Turn, asked: Asked) -> bool:
    """Whether the finish reason speaks of calls that are not there, or not of those that are."""
    if turn.finish == "stop" and asked.forced and asked.api == "chat":
        return False  # OpenAI's own: the call was no choice of the model
    return turn.finish == ("stop" if turn.calls else "calls")


def _wants_usage(asked: Asked) -> bool:
    """Only in a chat stream nobody tells the tokens without being asked."""
    return asked.usage or (asked.usage is None and asked.api != "chat")


def _check_call(call: Call, turn: Turn, asked: Asked) -> Iterator[Finding]:
    if not call.name or (asked.tools is not None and call.name not in asked.tools):
        yield Finding("calls.name", f"A call has the name {call.name!r}.", call.frames)
    cut = turn.finish not in ("stop", "calls") and call is turn.calls[-1] and not call.is_closed
    if call.kind == "function" and not cut and not isinstance(call.value, dict):
        yield Finding("calls.json", f"A call of {call.name} has the arguments {shown(call.arguments)}.", call.frames)


def as_usage(value: Any, given: str, made: str) -> Usage | None:
    """Token counts under these names, if they are there, with their details."""
    counts = as_object(value)
    input, output = as_number(counts.get(given)), as_number(counts.get(made))
    if input is None or output is None:
        return None
    cached = as_number(as_object(counts.get(f"{given}_details")).get("cached_tokens"))
    reasoning = as_number(as_object(counts.get(f"{made}_details")).get("reasoning_tokens"))
    return Usage(input, output, as_number(counts.get("total_tokens")), cached, reasoning)
