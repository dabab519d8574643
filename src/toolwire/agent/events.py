"""The events of an agent's task, for a terminal, a page or a log.

Each event is a frozen struct with a `type`, and is written as one line of JSON. A *task* is the work on one prompt, in
any number of turns.

These are not the turn events of `core/events.py`, some of which have the same names: a turn event is one step of a
model's response, on the way from a backend to an encoder. An agent event describes the same step to a user of the
agent, with the ids of its item or call; tools, approval, retries and limits have events too.
"""

import re
from typing import TypeAlias

import msgspec

from toolwire.core.display import escape_invisible
from toolwire.core.events import ReasoningKind, Usage

Tokens: TypeAlias = Usage
"""Token counts, as the backend reports them."""


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """One time window of a rate limit."""

    used_percent: float
    window_minutes: float | None = None
    resets_at: float | None = None


class RateLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named family of limits, such as `codex`."""

    name: str
    primary: Window | None = None
    secondary: Window | None = None


class _Base(
    msgspec.Struct, frozen=True, tag_field="type", tag=lambda name: re.sub(r"\B[A-Z]", r"_\g<0>", name).lower()
):
    """The base class of all events; its `type` is the name of the class in snake case."""


class TaskStarted(_Base, frozen=True):
    """Work on a prompt begins."""

    session: str
    model: str
    prompt: str


class TurnStarted(_Base, frozen=True):
    """A request to the model begins; `number` counts from 1 within the task."""

    number: int


class ResponseCreated(_Base, frozen=True):
    """The model's server has begun to answer; `response_id` and `model` are the server's own."""

    response_id: str
    model: str


class ItemStarted(_Base, frozen=True):
    """An item other than a call begins; `kind` is its type, such as `message` or `web_search_call`."""

    item_id: str
    kind: str


class ItemCompleted(_Base, frozen=True):
    """An item is complete, in the form of the Responses API. An item whose stream breaks off is never completed."""

    item_id: str
    kind: str
    item: msgspec.Raw


class TextDelta(_Base, frozen=True):
    """A fragment of the answer, in the part `content_index` of its item."""

    text: str
    item_id: str = ""
    content_index: int = 0


class ReasoningDelta(_Base, frozen=True):
    """A fragment of reasoning or of its summary, as `kind` says; `index` is the number of its part."""

    text: str
    item_id: str = ""
    kind: ReasoningKind = "summary"
    index: int = 0


class CallStarted(_Base, frozen=True):
    """The model's call is complete. Its tool has not started yet."""

    call_id: str
    name: str
    arguments: str


class ToolStarted(_Base, frozen=True):
    """The tool of a call has started."""

    call_id: str
    name: str


class ToolOutput(_Base, frozen=True):
    """A fragment of output of a running tool."""

    call_id: str
    text: str


class CallEnded(_Base, frozen=True):
    """A call has its result."""

    call_id: str
    name: str
    result: str
    failed: bool
    seconds: float | None
    """How long the tool ran; None if it never did."""


class ApprovalAsked(_Base, frozen=True):
    """The user is asked whether a call may run."""

    call_id: str
    name: str
    arguments: str


class UsageUpdated(_Base, frozen=True):
    """The tokens of the last turn and of the session."""

    last: Tokens
    total: Tokens


class LimitsUpdated(_Base, frozen=True):
    """The rate limits of the account have changed."""

    limits: tuple[RateLimit, ...]


class Retrying(_Base, frozen=True):
    """The stream failed; retry number `attempt` of at most `most` follows in `seconds`."""

    attempt: int
    most: int
    seconds: float
    reason: str


class Compacted(_Base, frozen=True):
    """The history was summarised; `before` and `after` count its items."""

    before: int
    after: int


class Noted(_Base, frozen=True):
    """A note: something was changed or lost between the model and the agent."""

    code: str
    subject: str = ""


class TurnEnded(_Base, frozen=True):
    """A turn of the model is complete, including the results of its calls."""

    number: int
    calls: int
    response_id: str = ""


class TaskEnded(_Base, frozen=True):
    """The task is over. `reason`: `done`, `cancelled`, `failed`, `length` or `filter` (the answer was cut off),
    `repeated_calls` (the same call kept failing), or the limit that was reached: `max_turns`, `tokens`, `seconds`,
    `cost`."""

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
    """The event as one line of JSON without control characters."""
    return escape_invisible(msgspec.json.encode(event).decode()).encode() + b"\n"
