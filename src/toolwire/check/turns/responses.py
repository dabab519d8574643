"""Responses, streamed and plain, held against the rules of its form.

A reader trusts nothing: a missing or misshapen field is a finding, never an exception.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, shown
from toolwire.check.turns.responses_fields import EVENT_FIELDS, echo_faults, field_faults, head_faults, usage_faults
from toolwire.check.turns.responses_items import (
    CALLS,
    CORE,
    EXTRA,
    HOSTED,
    KEEPALIVE,
    STATUSES,
    Event,
    Output,
    broken,
    item_faults,
    part_faults,
)
from toolwire.check.turns.rule import Asked, Finding
from toolwire.check.turns.turn import Call, Finish, Turn, as_usage


class ResponsesStream:
    """Reads a finished stream, and complains on the way."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._events: list[Event] = []

    def read(self, heard: Sequence[Heard]) -> Iterator[Finding]:
        extended = self._asked.extended
        self._events = events = [Event(each.place, each.event, each.fields) for each in heard if each.is_event]
        yield from _names(events, nameless=self._asked.socket)
        yield from _numbers(events)
        yield from _kinds(events, extended)
        yield from _opening(events)
        yield from _in_progress(events)
        yield from _closing(events)
        if not self._asked.socket:
            yield from _ending(heard)
        yield from _errors(events)
        yield from _response_ids(events)
        yield from _statuses(events, extended)
        yield from _fields(events, self._asked.fields)
        yield from _event_fields(events)
        yield from _closed(events)
        yield from _ids(heard)
        yield from Output().read(events)

    @property
    def turn(self) -> Turn:
        """The turn as the items that were done tell it, and the closing event its end."""
        done = [event for event in self._events if event.type == "response.output_item.done"]
        closing = next((event for event in reversed(self._events) if event.is_closing), None)
        response = closing.inner("response") if closing is not None else {}
        items = [(event.inner("item"), (event.place,)) for event in done]
        return _turn(response, items, (closing.place,) if closing is not None else ())


def _ending(heard: Sequence[Heard]) -> Iterator[Finding]:
    markers = [each.place for each in heard if each.is_done]
    if len(markers) != 1 or not heard[-1].is_done:
        places = (*markers, *(each.place for each in heard[-1:]))
        yield Finding("responses.done-marker", f"`[DONE]` comes {len(markers)} times, or not last.", places)


def _names(events: Sequence[Event], *, nameless: bool) -> Iterator[Finding]:
    for event in events:
        if not (nameless and event.name is None) and event.name != event.data.get("type"):
            yield event.breaks("event-name", f"is sent under the name {event.name!r}.")


def _numbers(events: Sequence[Event]) -> Iterator[Finding]:
    last = -1
    for event in events:
        number = as_number(event.data.get("sequence_number"))
        if number is None or number <= last:
            yield event.breaks("sequence", f"has the number {shown(event.data.get('sequence_number'))} after {last}.")
        elif number != last + 1:
            yield event.breaks("sequence-gap", f"has the number {number} where {last + 1} is next.")
        last = last + 1 if number is None else number


def _kinds(events: Sequence[Event], extended: bool) -> Iterator[Finding]:
    for event in events:
        known = event.type in CORE or event.type.startswith(HOSTED)
        if not known and not (extended and EXTRA.fullmatch(event.type)):
            yield event.breaks("unknown-event", "is no event of the protocol.")


def _opening(events: Sequence[Event]) -> Iterator[Finding]:
    told = [event for event in events if event.type not in ("response.queued", KEEPALIVE)]
    created = [event for event in told if event.type == "response.created"]
    if len(created) != 1 or created[0] is not told[0]:
        yield broken("opening", f"response.created comes {len(created)} times, or not first.", *told[:1], *created)


def _in_progress(events: Sequence[Event]) -> Iterator[Finding]:
    before = ("response.created", "response.queued", KEEPALIVE)
    told = [event for event in events if event.type not in before and not EXTRA.fullmatch(event.type)]
    begun = [event for event in told if event.type == "response.in_progress"]
    if not begun or begun[0] is not told[0]:
        says = "response.in_progress does not follow response.created."
        yield broken("in-progress", says, *told[:1], *begun[:1])
    late = [event for event in events if event.type == "response.queued" and begun and event.place > begun[0].place]
    if late:
        yield broken("in-progress", "response.queued comes after response.in_progress.", *late)


def _closing(events: Sequence[Event]) -> Iterator[Finding]:
    closings = [event for event in events if event.is_closing]
    if len(closings) != 1:
        shown = closings or events[-1:]
        yield broken("closing", f"the stream has {len(closings)} closing events instead of one.", *shown)
    if closings and not events[-1].is_closing:
        yield events[-1].breaks("closing", "comes after the closing event.")


def _errors(events: Sequence[Event]) -> Iterator[Finding]:
    for event, next in zip_longest(events, events[1:]):
        if event.type == "error" and (next is None or next.type != "response.failed"):
            says = f"{event} is followed by {next or 'nothing'}, not by response.failed."
            yield broken("error-event", says, event, *([next] if next is not None else []))


def _response_ids(events: Sequence[Event]) -> Iterator[Finding]:
    first: Any = None
    for event in events:
        if event.type not in STATUSES and "response" not in event.data:
            continue
        id = event.inner("response").get("id")
        if not isinstance(id, str) or not id:
            yield event.breaks("response-id", f"has the response id {shown(id)}.")
            continue
        first = first or id
        if id != first:
            yield event.breaks("response-id", f"has the response id {id!r} after {first!r}.")


def _statuses(events: Sequence[Event], extended: bool) -> Iterator[Finding]:
    queued = any(event.type == "response.queued" for event in events)
    for event in events:
        if event.type not in STATUSES:
            continue
        allowed = [STATUSES[event.type]]
        if event.type == "response.created" and queued:
            allowed.append("queued")
        if event.type == "response.completed" and extended and _has_calls(event):
            allowed.append("incomplete")
        status = event.inner("response").get("status")
        if status not in allowed:
            yield event.breaks("response-status", f"says {shown(status)}.")


def _fields(events: Sequence[Event], request: Json) -> Iterator[Finding]:
    """Each fault once: what one event lacks, all of them lack."""
    seen: set[tuple[str, str]] = set()
    for event in events:
        response = event.inner("response")
        if event.type not in STATUSES or not response:
            continue
        head = [("fields", f"lacks {', '.join(lacking)}.")] if (lacking := [*head_faults(response)]) else []
        for fault in (*head, *field_faults(response), *echo_faults(request, response)):
            if fault not in seen:
                yield event.breaks(fault[0], f"holds a response that {fault[1]}")
            seen.add(fault)


def _event_fields(events: Sequence[Event]) -> Iterator[Finding]:
    seen: set[str] = set()
    for event in events:
        lacking = [name for name in EVENT_FIELDS.get(event.type, ()) if name not in event.data]
        if lacking and event.type not in seen:
            yield event.breaks("event-fields", f"lacks its {', '.join(lacking)}.")
            seen.add(event.type)
        if event.type == "error":
            inner = event.inner("error")
            lacking = [name for name in ("type", "code", "message", "param") if name not in inner]
            if lacking:
                yield event.breaks("error-object", f"lacks {', '.join(lacking)} in its object `error`.")


def _closed(events: Sequence[Event]) -> Iterator[Finding]:
    """What the closing event says of its reason."""
    closing = next((event for event in reversed(events) if event.is_closing), None)
    if closing is None:
        return
    for rule, says in _reason_faults(closing.inner("response"), closing.verb):
        yield closing.breaks(rule, says)
    lacking = [*usage_faults(closing.inner("response"))]
    if lacking:
        yield closing.breaks("usage-details", f"tells the tokens without {', '.join(lacking)}.")
    if closing.type == "response.failed" and not any(event.type == "error" for event in events):
        yield closing.breaks("failure-event", "comes without an error event before it.")


def _reason_faults(response: Json, status: str) -> Iterator[tuple[str, str]]:
    """What a response that did not end well does not say of the reason."""
    if status == "incomplete" and not as_text(as_object(response.get("incomplete_details")).get("reason")):
        yield "incomplete-details", f"has the incomplete_details {shown(response.get('incomplete_details'))}."
    error = as_object(response.get("error"))
    if status == "failed" and not (as_text(error.get("code")) and as_text(error.get("message"))):
        yield "failed-error", f"has the error {shown(response.get('error'))}."


def _ids(heard: Sequence[Heard]) -> Iterator[Finding]:
    named = [each for each in heard if each.id is not None]
    if named:
        says = f"{len(named)} events have an SSE id, such as {shown(named[0].id)}."
        yield Finding("responses.sse-id", says, (named[0].place,))


def _has_calls(event: Event) -> bool:
    return any(as_text(item.get("type")) in CALLS for item in as_objects(event.inner("response").get("output")))


# A plain answer


def check_plain(body: Json, asked: Asked) -> Iterator[Finding]:
    items = body.get("output")
    lacking = [*head_faults(body), *(key for key in ("id", "status") if not as_text(body.get(key)))]
    if lacking or not isinstance(items, list):
        about = {key: body.get(key) for key in ("object", "id", "created_at", "model", "status")}
        yield broken("object", f"the answer is {shown(about)} with the output {shown(items)}.")
    status = "" if body.get("required_action") is not None else as_text(body.get("status"))
    for rule, says in (*field_faults(body), *echo_faults(asked.fields, body), *_reason_faults(body, status)):
        yield broken(rule, f"the answer {says}")
    lacking = [*usage_faults(body)]
    if lacking:
        yield broken("usage-details", f"the answer tells the tokens without {', '.join(lacking)}.")
    for item in as_objects(items):
        for rule, says in (*item_faults(item), *part_faults(item)):
            yield broken(rule, f"an item {shown(item.get('type'))} {says}")


def plain_turn(body: Json) -> Turn:
    """The turn in a plain answer."""
    return _turn(body, [(item, ()) for item in as_objects(body.get("output"))], ())


def _turn(response: Json, items: Sequence[tuple[Json, tuple[int, ...]]], last: tuple[int, ...]) -> Turn:
    texts: list[str] = []
    said: list[tuple[int, str]] = []
    calls: list[Call] = []
    for item, frames in items:
        kind = as_text(item.get("type"))
        if kind == "message":
            texts.append("".join(as_text(part.get("text")) for part in as_objects(item.get("content"))))
            said += [(place, texts[-1]) for place in frames]
        elif kind in CALLS:
            told = "custom" if kind == "custom_tool_call" else "function"
            calls.append(
                Call(
                    as_text(item.get("call_id")),
                    as_text(item.get("name")),
                    as_text(item.get(CALLS[kind])),
                    told,
                    frames,
                    item.get("status") == "completed",
                )
            )
    usage = as_usage(response.get("usage"), "input_tokens", "output_tokens")
    id = as_text(response.get("id"))
    return Turn("".join(texts), tuple(calls), _finish(response, calls), usage, id, last, tuple(said))


def _finish(response: Json, calls: Sequence[Call]) -> Finish:
    match response.get("status"):
        case "completed":
            return "calls" if calls else "stop"
        case "incomplete":
            reason = as_object(response.get("incomplete_details")).get("reason")
            waiting = response.get("required_action") is not None
            return "calls" if waiting else "filter" if reason == "content_filter" else "length"
        case "failed" | "cancelled":
            return "failed"
        case _:
            return ""
