"""Reads a recorded turn as steps: the client's request, the request to the backend, and the reply."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from toolwire.assembly import ToolRules, assemble_policies
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
from toolwire.core.order import TurnOrder
from toolwire.core.recording import Line, Recording
from toolwire.core.request import CallEntry, Message, Part, ReasoningEntry, Request, ResultEntry, TextPart
from toolwire.note_texts import meaning_of
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
    """The id of a call, or of the call that a result belongs to."""

    @property
    def content(self) -> tuple[str, ...]:
        """Everything but the direction and the time, to compare steps of different directions."""
        return self.type, self.who, self.text, self.name, self.id


def read_steps(recording: Recording) -> list[Step]:
    """The steps of the whole turn. Raises `ValueError` if its kind of backend cannot be replayed."""
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
        policies = assemble_policies(request, ToolRules(), "replay", conversation.stand_in).policies
        events = read_events(recording, conversation)
        steps += _collect_steps((t, passed) for t, event in events for passed in policies.feed(event))
    if any(line.left_out and not (line.request or line.sent) for line in recording.lines):
        text = "the rest of the reply was left out: the recording is too long"
        steps.append(Step("received", "other", text=text))
    return steps


# Requests


def find_request(recording: Recording) -> Request:
    """The client's request; an empty one if it was not recorded or cannot be decoded."""
    found = _decode(recording.request, recording.head.dialect) or Request(recording.head.model, ())
    return msgspec.structs.replace(found, stream=True, include_usage=True)


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
    yield from _read_history(direction, request)


def _decode(body: str, dialect: str) -> Request | None:
    """The request in a body; None if it cannot be decoded, for example because it was cut."""
    known = dialects().get(dialect)
    try:
        return known.module.decode_request(body.encode()) if known is not None and body else None
    except BadRequest:
        return None


def _read_history(direction: Direction, request: Request) -> Iterator[Step]:
    if request.instructions:
        yield Step(direction, "text", who="system", text=request.instructions)
    names = {entry.id: entry.name for entry in request.entries if isinstance(entry, CallEntry)}
    for entry in request.entries:
        match entry:
            case Message(role, parts):
                yield Step(direction, "text", who=role, text=_join_parts(parts))
            case CallEntry(id, name, arguments):
                yield Step(direction, "call", who="assistant", text=arguments, name=name, id=id)
            case ResultEntry(id):
                text = _join_parts(entry.parts_with_error)
                yield Step(direction, "result", who="tool", text=text, name=names.get(id, ""), id=id)
            case ReasoningEntry():
                yield Step(direction, "reasoning", who="assistant", text=entry.text or "(sealed)")
            case _:
                yield Step(direction, "other", who="other", text=bytes(entry.raw).decode(errors="replace"))


def _join_parts(parts: Sequence[Part]) -> str:
    """The text of a message, with a placeholder such as `[image]` for every other part."""
    return "".join(
        part.text if isinstance(part, TextPart) else f"[{type(part).__name__.removesuffix('Part').lower()}]"
        for part in parts
    )


# The reply


def make_conversation(recording: Recording, request: Request) -> LoweredConversation:
    """The conversation that reads the reply. Raises `ValueError` if its kind of backend cannot be replayed."""
    return answer_with(converse_as(recording.head.kind, request, "replay"), recording)


def read_events(recording: Recording, conversation: LoweredConversation) -> Iterator[tuple[float, Event]]:
    """The events of the reply as the backend's decoder produces them, each with its time."""
    reader, order, t = TurnReader(conversation, recording.head.content_type), TurnOrder(), 0.0
    for line in recording.reply:
        t = line.t
        for event in reader.feed(line.body.encode() if line.body else recording.encode_frame(line)):
            order.check((event,))
            yield t, event
    for event in reader.end():
        order.check((event,))
        yield t, event
    order.end()


_FRAGMENTS: dict[type[Event], StepType] = {
    TextDelta: "text",
    RefusalDelta: "refusal",
    ReasoningDelta: "reasoning",
}


def _collect_steps(events: Iterable[tuple[float, Event]]) -> list[Step]:
    """Assemble the steps of a reply from its events."""
    steps: list[Step] = []
    calls: dict[str, Step] = {}
    for t, event in events:
        match event:
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                kind = _FRAGMENTS[type(event)]
                if not (steps and steps[-1].type == kind):
                    steps.append(Step("received", kind, t))
                steps[-1].text += event.text
            case CallStarted(id, name):
                calls[id] = Step("received", "call", t, name=name, id=id)
                steps.append(calls[id])
            case CallArgs(id, text):
                calls[id].text += text
            case CallEnded(complete=False):
                steps.append(Step("received", "note", t, name="call_incomplete", text=meaning_of("call_incomplete")))
            case Note(code, subject):
                about = f"{subject}: " if subject else ""
                steps.append(Step("received", "note", t, name=code, text=about + meaning_of(code)))
            case Usage():
                parts = (("cached", event.cached), ("reasoning", event.reasoning))
                details = ", ".join(f"{number} {word}" for word, number in parts if number)
                counts = f"{event.input} tokens in, {event.output} out{f' ({details})' if details else ''}"
                steps.append(Step("received", "usage", t, text=counts))
            case TurnEnded(reason):
                steps.append(Step("received", "end", t, text=reason))
            case TurnFailed(failure):
                steps.append(_make_failure(t, failure))
            case _:
                pass
    return steps


def _make_failure(t: float | None, failure: Failure) -> Step:
    return Step("received", "failure", t, name=failure.code, text=f"status {failure.status}: {failure.message}")
