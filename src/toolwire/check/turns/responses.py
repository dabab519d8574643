"""Checks Responses, streamed and plain, against the rules about its form.

A reader trusts nothing: a missing or malformed field is a finding, never an exception.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from toolwire.check.turns.frames import ReceivedFrame, check_done_marker
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, quote
from toolwire.check.turns.responses_fields import (
    EVENT_FIELDS,
    find_echo_faults,
    find_field_faults,
    find_invalid_head,
    find_usage_faults,
)
from toolwire.check.turns.responses_items import (
    CALLS,
    CLOSINGS,
    CORE,
    EXTRA,
    HOSTED,
    KEEPALIVE,
    STATUSES,
    Faults,
    OutputReader,
    find_item_faults,
    find_part_faults,
    report,
    report_all,
    report_event,
)
from toolwire.check.turns.rule import Finding, RequestFacts
from toolwire.check.turns.turn import Finish, ObservedCall, ObservedTurn, TurnForm, as_usage


class ResponsesStream:
    """Reads a finished stream, and reports its faults."""

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts
        self._events: list[ReceivedFrame] = []
        self._number = -1
        self._incomplete_types: set[str] = set()
        """Types of events whose missing fields were reported."""

    def read(self, received: Sequence[ReceivedFrame]) -> Iterator[Finding]:
        """The findings about the frames."""
        self._events = events = [each for each in received if each.is_event]
        yield from _check_order(events)
        for position, event in enumerate(events):
            yield from self._check_event(event, *events[max(position - 1, 0) : position])
        yield from self._check_responses()
        closing = next((event for event in reversed(events) if event.type in CLOSINGS), None)
        if closing is not None:
            response = closing.inner("response")
            yield from report_all(closing, _find_reason_faults(response, closing.verb))
            yield from report_all(closing, find_usage_faults(response))
            if closing.type == "response.failed" and not any(event.type == "error" for event in events):
                yield report_event(closing, "failure-event", "comes without an error event before it.")
        if not self._facts.socket:
            yield from check_done_marker("responses.done-marker", received)
        named = [each for each in received if each.id is not None]
        if named:
            detail = f"{len(named)} events have an SSE id, such as {quote(named[0].id)}."
            yield Finding("responses.sse-id", detail, (named[0].position,))
        yield from OutputReader().read(events)

    @property
    def turn(self) -> ObservedTurn:
        """The turn: its items from `output_item.done`, its end from the closing event."""
        done = [event for event in self._events if event.type == "response.output_item.done"]
        closing = next((event for event in reversed(self._events) if event.type in CLOSINGS), None)
        response = closing.inner("response") if closing is not None else {}
        items = [(event.inner("item"), (event.position,)) for event in done]
        return _make_turn(response, items, (closing.position,) if closing is not None else ())

    def _check_event(self, event: ReceivedFrame, *before: ReceivedFrame) -> Iterator[Finding]:
        """Check the name, the number, the type and the fields of an event."""
        if event.event != event.fields.get("type") and not (self._facts.socket and event.event is None):
            yield report_event(event, "event-name", f"is sent under the name {event.event!r}.")
        number, last = as_number(event.fields.get("sequence_number")), self._number
        if number is None or number <= last:
            written = quote(event.fields.get("sequence_number"))
            yield report("sequence", f"{event} has the number {written} after {last}.", *before, event)
        elif number != last + 1:
            yield report("sequence-gap", f"{event} has the number {number} where {last + 1} is next.", *before, event)
        self._number = last + 1 if number is None else number
        is_known = event.type in CORE or event.type.startswith(HOSTED)
        if not is_known and not (self._facts.extended and EXTRA.fullmatch(event.type)):
            yield report_event(event, "unknown-event", "is no event of the protocol.")
        lacking = [name for name in EVENT_FIELDS.get(event.type, ()) if name not in event.fields]
        if lacking and event.type not in self._incomplete_types:
            self._incomplete_types.add(event.type)
            yield report_event(event, "event-fields", f"lacks its {', '.join(lacking)}.")
        inner = event.inner("error")
        lacking = [name for name in ("type", "code", "message", "param") if name not in inner]
        if event.type == "error" and lacking:
            yield report_event(event, "error-object", f"lacks {', '.join(lacking)} in its object `error`.")

    def _check_responses(self) -> Iterator[Finding]:
        """Check the ids, the statuses and the fields of all response objects; each missing field is reported once."""
        first: ReceivedFrame | None = None
        may_wait = any(event.type == "response.queued" for event in self._events)
        seen: set[tuple[str, str]] = set()
        for event in self._events:
            response = event.inner("response")
            if event.type not in STATUSES and "response" not in event.fields:
                continue
            id = response.get("id")
            if not isinstance(id, str) or not id:
                yield report_event(event, "response-id", f"has the response id {quote(id)}.")
            else:
                first = first or event
                if id != (before := first.inner("response").get("id")):
                    yield report("response-id", f"{event} has the response id {id!r} after {before!r}.", first, event)
            if event.type not in STATUSES:
                continue
            allowed = [STATUSES[event.type]]
            if event.type == "response.created" and may_wait:
                allowed.append("queued")
            if event.type == "response.completed" and self._facts.extended:
                has_calls = any(as_text(item.get("type")) in CALLS for item in as_objects(response.get("output")))
                allowed += ["incomplete"] if has_calls else []
            if response.get("status") not in allowed:
                yield report_event(event, "response-status", f"has the status {quote(response.get('status'))}.")
            if not response:
                continue
            head = [("fields", f"lacks {', '.join(lacking)}.")] if (lacking := find_invalid_head(response)) else []
            for fault in (*head, *find_field_faults(response), *find_echo_faults(self._facts.fields, response)):
                if fault not in seen:
                    yield report_event(event, fault[0], f"holds a response that {fault[1]}")
                seen.add(fault)


def _check_order(events: Sequence[ReceivedFrame]) -> Iterator[Finding]:
    """Check which events come first, last and after an error."""
    others = [event for event in events if event.type not in ("response.queued", KEEPALIVE)]
    created = [event for event in others if event.type == "response.created"]
    if len(created) != 1 or created[0] is not others[0]:
        yield report("opening", f"response.created comes {len(created)} times, or not first.", *others[:1], *created)
    others = [event for event in others if event.type != "response.created" and not EXTRA.fullmatch(event.type)]
    begun = [event for event in others if event.type == "response.in_progress"]
    if not begun or begun[0] is not others[0]:
        detail = "response.in_progress does not follow response.created."
        yield report("in-progress", detail, *others[:1], *begun[:1])
    late = [event for event in events[events.index(begun[0]) :] if event.type == "response.queued"] if begun else []
    if late:
        yield report("in-progress", "response.queued comes after response.in_progress.", *late)
    closings = [event for event in events if event.type in CLOSINGS]
    if len(closings) != 1:
        detail = f"the stream has {len(closings)} closing events instead of one."
        yield report("closing", detail, *(closings or events[-1:]))
    if closings and events[-1].type not in CLOSINGS:
        yield report_event(events[-1], "closing", "comes after the closing event.")
    for event, next in zip_longest(events, events[1:]):
        if event.type == "error" and (next is None or next.type != "response.failed"):
            detail = f"{event} is followed by {next or 'nothing'}, not by response.failed."
            yield report("error-event", detail, event, *([next] if next is not None else []))


def _find_reason_faults(response: Json, status: str) -> Faults:
    """The faults of the reason that an incomplete or failed response gives."""
    if status == "incomplete" and not as_text(as_object(response.get("incomplete_details")).get("reason")):
        yield "incomplete-details", f"has the incomplete_details {quote(response.get('incomplete_details'))}."
    error = as_object(response.get("error"))
    if status == "failed" and not (as_text(error.get("code")) and as_text(error.get("message"))):
        yield "failed-error", f"has the error {quote(response.get('error'))}."


# A plain answer


def check_plain(body: Json, facts: RequestFacts) -> Iterator[Finding]:
    """The findings about a plain answer."""
    items = body.get("output")
    is_sound = not find_invalid_head(body) and as_text(body.get("id")) and as_text(body.get("status"))
    if not is_sound or not isinstance(items, list):
        head = {key: body.get(key) for key in ("object", "id", "created_at", "model", "status")}
        yield report("object", f"the answer is {quote(head)} with the output {quote(items)}.")
    status = "" if body.get("required_action") is not None else as_text(body.get("status"))
    reasons = _find_reason_faults(body, status)
    for rule, detail in (
        *find_field_faults(body),
        *find_echo_faults(facts.fields, body),
        *reasons,
        *find_usage_faults(body),
    ):
        yield report(rule, f"the answer {detail}")
    for item in as_objects(items):
        for rule, detail in (*find_item_faults(item), *find_part_faults(item)):
            yield report(rule, f"an item {quote(item.get('type'))} {detail}")


def plain_turn(body: Json) -> ObservedTurn:
    """The turn in a plain answer."""
    return _make_turn(body, [(item, ()) for item in as_objects(body.get("output"))], ())


def _make_turn(response: Json, items: Sequence[tuple[Json, tuple[int, ...]]], last: tuple[int, ...]) -> ObservedTurn:
    text: list[tuple[int | None, str]] = []
    calls: list[ObservedCall] = []
    for item, frames in items:
        kind = as_text(item.get("type"))
        if kind == "message":
            whole = "".join(as_text(part.get("text")) for part in as_objects(item.get("content")))
            text.append((frames[0] if frames else None, whole))
        elif kind in CALLS:
            id, name, arguments = (as_text(item.get(field)) for field in ("call_id", "name", CALLS[kind]))
            is_closed = item.get("status") == "completed"
            call_kind = "custom" if kind == "custom_tool_call" else "function"
            calls.append(ObservedCall(id, name, arguments, call_kind, frames, is_closed))
    usage = as_usage(response.get("usage"), "input_tokens", "output_tokens")
    finish: Finish = ""
    match response.get("status"):
        case "completed":
            finish = "calls" if calls else "stop"
        case "incomplete":
            reason = as_object(response.get("incomplete_details")).get("reason")
            is_waiting = response.get("required_action") is not None
            finish = "calls" if is_waiting else "filter" if reason == "content_filter" else "length"
        case "failed" | "cancelled":
            finish = "failed"
        case _:
            pass
    return ObservedTurn(tuple(text), tuple(calls), finish, usage, as_text(response.get("id")), last)


FORM = TurnForm(ResponsesStream, check_plain, plain_turn)
