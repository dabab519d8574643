"""Everything that happens while an agent works, for whoever watches: a terminal, a page, a log.

Each event is a frozen value with a `type`, so that one line of JSON says all of it. A *task* is one prompt, worked off
in as many turns as it takes.
"""

from typing import TypeAlias

import msgspec

from toolwire.core.events import ReasoningKind, Usage
from toolwire.core.terminal import escaped


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


Tokens: TypeAlias = Usage
"""Token counts, as the backends tell them."""


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """One window of a rate limit."""

    used_percent: float
    window_minutes: float | None = None
    resets_at: float | None = None


class RateLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A family of limits by name, such as `codex`."""

    name: str
    primary: Window | None = None
    secondary: Window | None = None


class Happening(msgspec.Struct, frozen=True, tag_field="type", tag=_snake):
    """The base of all events."""


class TaskStarted(Happening, frozen=True):
    session: str
    model: str
    prompt: str


class TurnStarted(Happening, frozen=True):
    """A request to the model begins; `number` counts from 1 within the task."""

    number: int


class ResponseCreated(Happening, frozen=True):
    """The model's server has begun to answer; `response_id` and `model` are its own names."""

    response_id: str
    model: str


class ItemStarted(Happening, frozen=True):
    """An item of the answer begins that is no call: `kind` is its type, such as `message` or `web_search_call`."""

    item_id: str
    kind: str


class ItemCompleted(Happening, frozen=True):
    """It is whole, as the Responses API writes it. An item that breaks off with its stream is never completed."""

    item_id: str
    kind: str
    item: msgspec.Raw


class TextDelta(Happening, frozen=True):
    """A piece of the answer, in the part `content_index` of its item."""

    text: str
    item_id: str = ""
    content_index: int = 0


class ReasoningDelta(Happening, frozen=True):
    """A piece of reasoning: of a summary or of the reasoning itself. `index` is that of the summary or content part."""

    text: str
    item_id: str = ""
    kind: ReasoningKind = "summary"
    index: int = 0


class CallStarted(Happening, frozen=True):
    """The model has asked for a tool; it runs as soon as the others let it."""

    call_id: str
    name: str
    arguments: str


class ToolStarted(Happening, frozen=True):
    """The tool runs."""

    call_id: str
    name: str


class ToolOutput(Happening, frozen=True):
    """A piece of what a running tool puts out."""

    call_id: str
    text: str


class CallEnded(Happening, frozen=True):
    call_id: str
    name: str
    result: str
    failed: bool
    seconds: float | None
    """How long the tool ran; null if it never did."""


class ApprovalAsked(Happening, frozen=True):
    """Somebody is asked whether a call may run."""

    call_id: str
    name: str
    arguments: str


class UsageUpdated(Happening, frozen=True):
    """The tokens of the last turn and of the session."""

    last: Tokens
    total: Tokens


class LimitsUpdated(Happening, frozen=True):
    limits: tuple[RateLimit, ...]


class Retrying(Happening, frozen=True):
    """The stream failed and the model is asked again, for the `attempt`-th time of at most `most`."""

    attempt: int
    most: int
    seconds: float
    reason: str


class Compacted(Happening, frozen=True):
    """The history was summarised; the numbers are its items before and after."""

    before: int
    after: int


class Noted(Happening, frozen=True):
    """A deviation that the backend's side noted."""

    code: str
    subject: str = ""


class TurnEnded(Happening, frozen=True):
    number: int
    calls: int
    response_id: str = ""


class TaskEnded(Happening, frozen=True):
    """The task is over. `reason`: `done`, `cancelled`, `failed`, `length` or `filter` (the model was cut short),
    `repeated_calls` (the same call failed again and again), or the limit that was reached: `rounds`, `tokens`,
    `seconds`, `cost`."""

    reason: str
    text: str
    usage: Tokens
    error: str = ""


AgentEvent: TypeAlias = (
    TaskStarted
    | TurnStarted
    | ResponseCreated
    | ItemStarted
    | ItemCompleted
    | TextDelta
    | ReasoningDelta
    | CallStarted
    | ToolStarted
    | ToolOutput
    | CallEnded
    | ApprovalAsked
    | UsageUpdated
    | LimitsUpdated
    | Retrying
    | Compacted
    | Noted
    | TurnEnded
    | TaskEnded
)


def as_line(event: AgentEvent) -> bytes:
    """The event as one line of JSON, in which nothing steers a terminal."""
    return escaped(msgspec.json.encode(event).decode()).encode() + b"\n"
