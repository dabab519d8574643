"""A turn as a client holds it at the end, in no dialect's words, and the rules that hold in every dialect."""

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.check.turns.loose import as_object, shown
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
        "The arguments of a function are one JSON object, `{}` if there are none, unless the turn ran out of tokens.",
        "every client: arguments are parsed before they are used",
        "The client raises on a call that the model made correctly.",
        on="turn",
        needs="call",
    ),
    Rule(
        "calls.finish",
        "MUST",
        "A turn that ends in calls says so in its finish reason, and a turn without calls does not.",
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
        "A turn tells the tokens that it used.",
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

    @property
    def value(self) -> Any:
        """The arguments as JSON; None if they are none."""
        try:
            return msgspec.json.decode(self.arguments)
        except msgspec.DecodeError:
            return None


class Usage(msgspec.Struct, frozen=True):
    input: int
    output: int
    total: int | None = None


class Turn(msgspec.Struct, frozen=True):
    """What came of a request."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = ""
    usage: Usage | None = None
    id: str = ""
    last: tuple[int, ...] = ()
    """The frames that say how it ended."""

    @property
    def is_over(self) -> bool:
        return self.finish not in ("", "failed")


def check_turn(turn: Turn, asked: Asked) -> Iterator[Finding]:
    """Everything that is wrong with what a turn says, in whichever form."""
    ids: set[str] = set()
    for call in turn.calls:
        if not call.id or call.id in ids:
            yield Finding("calls.id", f"A call of {call.name} has the id {call.id!r}.", call.frames)
        ids.add(call.id)
        yield from _check_call(call, turn, asked)
    if turn.is_over and turn.finish in ("stop", "calls") and (turn.finish == "calls") != bool(turn.calls):
        says = f"A turn with {len(turn.calls)} calls ends as if there were {'none' if turn.calls else 'some'}."
        yield Finding("calls.finish", says, turn.last)
    leak = LEAKS.search(turn.text) if asked.tools else None
    if leak is not None:
        yield Finding("calls.leak", f"The text holds {turn.text[leak.start() : leak.start() + 80]!r}.")
    if turn.is_over and turn.usage is None and asked.usage is not False:
        yield Finding("usage.told", "The turn tells no tokens.", turn.last)
    if turn.usage is not None and turn.usage.total not in (None, turn.usage.input + turn.usage.output):
        yield Finding("usage.sum", f"The turn tells {turn.usage}.", turn.last)


def _check_call(call: Call, turn: Turn, asked: Asked) -> Iterator[Finding]:
    if not call.name or (asked.tools is not None and call.name not in asked.tools):
        yield Finding("calls.name", f"A call has the name {call.name!r}.", call.frames)
    cut = turn.finish not in ("stop", "calls") and call is turn.calls[-1]
    if call.kind == "function" and not cut and not isinstance(call.value, dict):
        yield Finding("calls.json", f"A call of {call.name} has the arguments {shown(call.arguments)}.", call.frames)


def as_usage(value: Any, given: str, made: str) -> Usage | None:
    """Token counts under these names, if they are there."""
    counts = as_object(value)
    if type(counts.get(given)) is not int or type(counts.get(made)) is not int:
        return None
    total = counts.get("total_tokens")
    return Usage(counts[given], counts[made], total if type(total) is int else None)
