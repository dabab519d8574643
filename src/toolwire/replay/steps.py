"""A recorded turn as steps: what the client asked, what was sent to the backend, and what came back."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.assembly import ToolRules, policies_for
from toolwire.backends import replay
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import (
    CallArgs,
    CallEnded,
    CallStarted,
    Event,
    Note,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    TurnFailed,
    Usage,
)
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.notes import CODES
from toolwire.core.order import TurnOrder
from toolwire.core.recording import Line, Recording
from toolwire.core.request import CallEntry, Entry, Message, Part, ReasoningEntry, Request, ResultEntry, TextPart
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.protocols import converse_as, dialects

Direction: TypeAlias = Literal["client", "sent", "received"]
"""From the client, to the backend, from the backend."""
StepType: TypeAlias = Literal[
    "request", "text", "refusal", "reasoning", "call", "result", "note", "usage", "end", "failure", "other"
]


class Step(msgspec.Struct, omit_defaults=True):
    """One thing that was said. It grows while its fragments are read."""

    direction: Direction
    type: StepType
    t: float | None = None
    """Seconds since the reply began; None in a request."""
    who: str = ""
    """The role, in a request."""
    text: str = ""
    """The text, the arguments of a call, or what is to be said of anything else."""
    name: str = ""
    """The name of a call, or the code of a note."""
    id: str = ""
    """The id of a call, also at its result."""

    @property
    def said(self) -> tuple[str, ...]:
        """What it says, wherever it was said."""
        return self.type, self.who, self.text, self.name, self.id


def request_of(recording: Recording) -> Request:
    """The client's request, as far as it was recorded and can be read."""
    body = next((line.request for line in recording.lines if line.request), "")
    found = _decoded(body, recording.head.dialect)
    if found is None:
        return Request(recording.head.model, (), stream=True, include_usage=True)
    return msgspec.structs.replace(found, stream=True, include_usage=True)


def steps_of(recording: Recording) -> list[Step]:
    """The whole turn."""
    return [*_requests(recording), *_reply(recording)]


# Requests


def _requests(recording: Recording) -> Iterator[Step]:
    head = recording.head
    for line in recording.lines:
        if line.request:
            yield from _request("client", line.request, head.dialect, line)
        elif line.sent:
            yield from _request("sent", line.sent, head.kind, line)


def _request(direction: Direction, body: str, dialect: str, line: Line) -> Iterator[Step]:
    request = _decoded(body, dialect)
    where = f"POST {line.path}, " if direction == "sent" and line.path.startswith("/") else ""
    size = f"{len(body.encode()):,} bytes{' and more, which were left out' if line.left_out else ''}"
    t = line.t or None
    if request is None:
        yield Step(direction, "request", t, text=f"{where or line.path}{' ' if line.path else ''}{size}")
        yield Step(direction, "other", t, text=body)
        return
    tools = ", ".join(tool.name for tool in request.tools)
    about = [f"model {request.model}", "streamed" if request.stream else "not streamed", size]
    about += [f"{'tool' if len(request.tools) == 1 else f'{len(request.tools)} tools'}: {tools}"] if tools else []
    about += [f"tool choice {_choice(request)}"] if request.tool_choice is not None else []
    yield Step(direction, "request", t, text=where + ", ".join(about))
    if request.instructions:
        yield Step(direction, "text", who="system", text=request.instructions)
    names = {entry.id: entry.name for entry in request.entries if isinstance(entry, CallEntry)}
    for entry in request.entries:
        yield _entry(direction, entry, names)


def _decoded(body: str, dialect: str) -> Request | None:
    """The request in a body; None if it cannot be read, as one that was cut."""
    known = dialects().get(dialect)
    try:
        return known.module.decode_request(body.encode()) if known is not None and body else None
    except BadRequest:
        return None


def _choice(request: Request) -> str:
    choice = request.tool_choice
    return (choice.name or " or ".join(choice.allowed) or choice.mode) if choice is not None else ""


def _entry(direction: Direction, entry: Entry, names: dict[str, str]) -> Step:
    match entry:
        case Message():
            return Step(direction, "text", who=entry.role, text=_text(entry.parts))
        case CallEntry():
            return Step(direction, "call", who="assistant", text=entry.arguments, name=entry.name, id=entry.id)
        case ResultEntry():
            name = names.get(entry.call_id, "")
            return Step(
                direction, "result", who="tool", text=_text(entry.parts_with_error), name=name, id=entry.call_id
            )
        case ReasoningEntry():
            return Step(direction, "reasoning", who="assistant", text=entry.text or "(sealed)")
        case _:
            return Step(direction, "other", who="other", text=bytes(entry.raw).decode(errors="replace"))


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text if isinstance(part, TextPart) else f"[{_kind(part)}]" for part in parts)


def _kind(part: Any) -> str:
    return type(part).__name__.removesuffix("Part").lower()


# The reply


def conversation_of(recording: Recording, request: Request) -> LoweredConversation:
    """The conversation that reads the reply. Raises `ValueError` if no backend can."""
    return replay.answer_with(converse_as(recording.head.kind, request, "replay"), recording)


def events_of(recording: Recording, conversation: LoweredConversation) -> Iterator[tuple[float, Event]]:
    """The events of the reply as the backend's decoder makes them, each with its time."""
    lines = recording.reply
    is_jsonl = recording.head.content_type == JSON_LINES
    if lines and lines[0].body.lstrip().startswith("{") and not is_jsonl:
        for line in lines:
            yield from ((line.t, event) for event in conversation.feed_plain(line.body.encode()))
        return
    pipeline = Pipeline(LineReader() if is_jsonl else FrameReader(), conversation, TurnOrder())
    for line in lines:
        data = line.body.encode() if line.body else recording.frame(line)
        yield from ((line.t, event) for event in pipeline.feed(data))
    yield from ((lines[-1].t if lines else 0.0, event) for event in pipeline.end())


def _reply(recording: Recording) -> Iterator[Step]:
    head, request = recording.head, request_of(recording)
    conversation = conversation_of(recording, request)
    if not head.status:
        yield Step("received", "failure", text="the backend gave no answer")
    elif not 200 <= head.status < 300:
        body = "".join(line.body for line in recording.reply)
        yield _failure(None, conversation.read_error(head.status, {}, body.encode()))
    else:
        assembly = policies_for(request, ToolRules(), "replay", conversation.stand_in)
        log = _ReplyLog()
        for t, event in events_of(recording, conversation):
            for passed in assembly.policies.feed(event):
                log.feed(t, passed)
        yield from log.steps
    if any(line.left_out and not (line.request or line.sent) for line in recording.lines):
        yield Step("received", "other", text="the rest of the reply was left out: the recording is too long")


_FRAGMENTS: dict[type[Event], StepType] = {
    TextDelta: "text",
    RefusalDelta: "refusal",
    ReasoningDelta: "reasoning",
}


class _ReplyLog:
    """Puts the fragments of a reply together."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._calls: dict[str, Step] = {}

    def feed(self, t: float, event: Event) -> None:
        match event:
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                kind = _FRAGMENTS[type(event)]
                if not (self.steps and self.steps[-1].type == kind):
                    self.steps.append(Step("received", kind, t))
                self.steps[-1].text += event.text
            case CallStarted():
                self._calls[event.id] = Step("received", "call", t, name=event.name, id=event.id)
                self.steps.append(self._calls[event.id])
            case CallArgs():
                self._calls[event.id].text += event.text
            case CallEnded(complete=False):
                self.steps.append(Step("received", "note", t, name="call_incomplete", text=CODES["call_incomplete"]))
            case Note():
                about = f"{event.subject}: " if event.subject else ""
                self.steps.append(Step("received", "note", t, name=event.code, text=about + CODES.get(event.code, "")))
            case Usage():
                self.steps.append(Step("received", "usage", t, text=_counted(event)))
            case TurnEnded():
                self.steps.append(Step("received", "end", t, text=event.reason))
            case TurnFailed():
                self.steps.append(_failure(t, event.failure))
            case _:
                pass


def _failure(t: float | None, failure: Failure) -> Step:
    return Step("received", "failure", t, name=failure.code, text=f"status {failure.status}: {failure.message}")


def _counted(usage: Usage) -> str:
    details = [
        f"{number} {word}" for word, number in (("cached", usage.cached), ("reasoning", usage.reasoning)) if number
    ]
    return f"{usage.input} tokens in, {usage.output} out" + (f" ({', '.join(details)})" if details else "")
