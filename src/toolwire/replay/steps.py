"""Reads a recorded turn as steps: the client's request, the request to the backend, and the reply."""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.assembly import ToolRules, policies_for
from toolwire.backends.lowered import LoweredConversation, answer_with
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
from toolwire.core.notes import CODES
from toolwire.core.order import TurnOrder
from toolwire.core.recording import Line, Recording
from toolwire.core.request import CallEntry, Entry, Message, Part, ReasoningEntry, Request, ResultEntry, TextPart
from toolwire.protocols import converse_as, dialects
from toolwire.reader import TurnReader

Direction: TypeAlias = Literal["client", "sent", "received"]
"""The client's request, the request to the backend, the reply of the backend."""
StepType: TypeAlias = Literal[
    "request", "text", "refusal", "reasoning", "call", "result", "note", "usage", "end", "failure", "other"
]


class Step(msgspec.Struct, omit_defaults=True):
    """One message, call, result or other part of a turn. Its text grows while fragments are read."""

    direction: Direction
    type: StepType
    t: float | None = None
    """Seconds since the reply began; None in a request."""
    who: str = ""
    """The role, in a request."""
    text: str = ""
    """The text, the arguments of a call, or a description of anything else."""
    name: str = ""
    """The name of a call, or the code of a note."""
    id: str = ""
    """The id of a call or of the call of a result."""

    @property
    def content(self) -> tuple[str, ...]:
        """Everything but the direction and the time, to compare steps of different directions."""
        return self.type, self.who, self.text, self.name, self.id


def find_request(recording: Recording) -> Request:
    """The client's request; an empty one if it was not recorded or cannot be decoded."""
    body = next((line.request for line in recording.lines if line.request), "")
    found = _decode(body, recording.head.dialect)
    if found is None:
        return Request(recording.head.model, (), stream=True, include_usage=True)
    return msgspec.structs.replace(found, stream=True, include_usage=True)


def read_steps(recording: Recording) -> list[Step]:
    """The steps of the whole turn. Raises `ValueError` if no backend can read the reply."""
    steps: list[Step] = []
    for line in recording.lines:
        if line.request:
            steps += _read_request("client", line.request, recording.head.dialect, line)
        elif line.sent:
            steps += _read_request("sent", line.sent, recording.head.kind, line)
    head, request = recording.head, find_request(recording)
    conversation = make_conversation(recording, request)
    if not head.status:
        steps.append(Step("received", "failure", text="the backend gave no answer"))
    elif not 200 <= head.status < 300:
        body = "".join(line.body for line in recording.reply)
        steps.append(_make_failure(None, conversation.read_error(head.status, {}, body.encode())))
    else:
        assembly = policies_for(request, ToolRules(), "replay", conversation.stand_in)
        log = _ReplyLog()
        for t, event in read_events(recording, conversation):
            for passed in assembly.policies.feed(event):
                log.feed(t, passed)
        steps += log.steps
    if any(line.left_out and not (line.request or line.sent) for line in recording.lines):
        text = "the rest of the reply was left out: the recording is too long"
        steps.append(Step("received", "other", text=text))
    return steps


# Requests


def _read_request(direction: Direction, body: str, dialect: str, line: Line) -> Iterator[Step]:
    request = _decode(body, dialect)
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
    choice = request.tool_choice
    if choice is not None:
        about.append(f"tool choice {choice.name or ' or '.join(choice.allowed) or choice.mode}")
    yield Step(direction, "request", t, text=where + ", ".join(about))
    if request.instructions:
        yield Step(direction, "text", who="system", text=request.instructions)
    names = {entry.id: entry.name for entry in request.entries if isinstance(entry, CallEntry)}
    for entry in request.entries:
        yield _read_entry(direction, entry, names)


def _decode(body: str, dialect: str) -> Request | None:
    """The request in a body; None if it cannot be decoded, for example because it was cut."""
    known = dialects().get(dialect)
    try:
        return known.module.decode_request(body.encode()) if known is not None and body else None
    except BadRequest:
        return None


def _read_entry(direction: Direction, entry: Entry, names: dict[str, str]) -> Step:
    match entry:
        case Message():
            return Step(direction, "text", who=entry.role, text=_join(entry.parts))
        case CallEntry():
            return Step(direction, "call", who="assistant", text=entry.arguments, name=entry.name, id=entry.id)
        case ResultEntry():
            name = names.get(entry.call_id, "")
            return Step(
                direction, "result", who="tool", text=_join(entry.parts_with_error), name=name, id=entry.call_id
            )
        case ReasoningEntry():
            return Step(direction, "reasoning", who="assistant", text=entry.text or "(sealed)")
        case _:
            return Step(direction, "other", who="other", text=bytes(entry.raw).decode(errors="replace"))


def _join(parts: Sequence[Part]) -> str:
    """The text of a message, with a placeholder such as `[image]` for every other part."""
    return "".join(
        part.text if isinstance(part, TextPart) else f"[{type(part).__name__.removesuffix('Part').lower()}]"
        for part in parts
    )


# The reply


def make_conversation(recording: Recording, request: Request) -> LoweredConversation:
    """The conversation that reads the reply. Raises `ValueError` if no backend can."""
    return answer_with(converse_as(recording.head.kind, request, "replay"), recording)


def read_events(recording: Recording, conversation: LoweredConversation) -> Iterator[tuple[float, Event]]:
    """The events of the reply as the backend's decoder makes them, each with its time."""
    reader, order, t = TurnReader(conversation, recording.head.content_type), TurnOrder(), 0.0
    for line in recording.reply:
        t = line.t
        for event in reader.feed(line.body.encode() if line.body else recording.frame(line)):
            order.see((event,))
            yield t, event
    for event in reader.end():
        order.see((event,))
        yield t, event
    order.end()


_FRAGMENTS: dict[type[Event], StepType] = {
    TextDelta: "text",
    RefusalDelta: "refusal",
    ReasoningDelta: "reasoning",
}


class _ReplyLog:
    """Assembles the steps of a reply from its events."""

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
                parts = (("cached", event.cached), ("reasoning", event.reasoning))
                details = ", ".join(f"{number} {word}" for word, number in parts if number)
                counts = f"{event.input} tokens in, {event.output} out{f' ({details})' if details else ''}"
                self.steps.append(Step("received", "usage", t, text=counts))
            case TurnEnded():
                self.steps.append(Step("received", "end", t, text=event.reason))
            case TurnFailed():
                self.steps.append(_make_failure(t, event.failure))
            case _:
                pass


def _make_failure(t: float | None, failure: Failure) -> Step:
    return Step("received", "failure", t, name=failure.code, text=f"status {failure.status}: {failure.message}")
