"""Responses: the rules of its form, streamed and plain.

They are those of Open Responses, and the habits of the original service on which clients rely. A reader trusts nothing:
a missing or misshapen field is a finding, never an exception.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from toolwire.check.turns.frames import Heard
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, shown
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
)
from toolwire.check.turns.rule import Asked, Finding, Rule
from toolwire.check.turns.turn import Call, Finish, Turn, as_usage

_SPEC = "Open Responses"
_SDK = "the openai SDK, which builds the response from its events"
_CODEX = "Codex"


def _must(name: str, says: str, source: str, harm: str, **about: Any) -> Rule:
    return Rule(f"responses.{name}", "MUST", says, source, harm, **about)


def _should(name: str, says: str, source: str, harm: str, **about: Any) -> Rule:
    return Rule(f"responses.{name}", "SHOULD", says, source, harm, **about)


RULES = (
    _should(
        "event-name",
        "Every event is sent under its type as its name.",
        _SPEC,
        "Clients that listen for names hear nothing.",
    ),
    _should(
        "sequence",
        "Every event has a sequence number, which grows.",
        _SPEC,
        "A client that goes on after a broken connection repeats or loses events.",
    ),
    _should(
        "sequence-gap",
        "Sequence numbers count from 0 without a gap.",
        "OpenAI Responses",
        "Clients that look for gaps take events for lost.",
    ),
    _should(
        "unknown-event",
        "Every event is one of the protocol.",
        _SPEC,
        "Typed clients refuse it.",
    ),
    _must(
        "opening",
        "A stream begins with `response.created`, once.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises at the first event.",
    ),
    _should(
        "in-progress",
        "`response.in_progress` follows `response.created`; `response.queued` may stand before it.",
        _SPEC,
        "Clients show a response as waiting that is under way.",
    ),
    _must(
        "closing",
        "A stream ends with exactly one of `response.completed`, `response.failed` and `response.incomplete`.",
        f"{_SPEC}; {_CODEX} asks again for a stream that ends without it",
        "The turn is asked for again, and its calls run twice.",
    ),
    _should(
        "done-marker",
        "The last thing in a stream is `[DONE]`, once.",
        f"{_SPEC}; OpenAI itself leaves it out",
        "Clients that read every dialect alike wait for it.",
    ),
    _should(
        "error-event",
        "An `error` event is followed by `response.failed`.",
        _SPEC,
        "The response stays in progress for ever.",
        needs="error",
    ),
    _must(
        "response-id",
        "All events that hold the response give it one and the same id.",
        _SPEC,
        "The turn cannot be continued by `previous_response_id`.",
    ),
    _must(
        "response-status",
        "The status of the response is the one that its event is named after.",
        _SPEC,
        "Clients take a turn that is done for one that failed, or the other way round.",
    ),
    _must(
        "output-index",
        "Every item is announced with the next free output index.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises, or writes the arguments of one call into another.",
    ),
    _must(
        "item-added",
        "Everything that is said of an item comes after `response.output_item.added`.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises on the first delta.",
    ),
    _must(
        "item-keys",
        "Every item has an id and a type, a call its call_id and name, a message its role.",
        _SPEC,
        "Clients cannot tell what it is, or answer to it.",
        on="turn",
    ),
    _must(
        "item-id",
        "An item has one id in all of its events, and no other item has it.",
        _SPEC,
        "Arguments are added to another call.",
    ),
    _should(
        "call-id",
        "The call_id of a call is not the id of its item.",
        "OpenAI Responses, which refuses an item id in a history that is not of its own form",
        "The call cannot be sent back.",
        on="turn",
        needs="call",
    ),
    _should(
        "item-status",
        "An item is `in_progress` when it is added, and `completed` or `incomplete` when it is done; "
        "reasoning may have no status.",
        _SPEC,
        "Clients run a call too early, or never.",
    ),
    _must(
        "item-begins-empty",
        "An item that grows by deltas is empty when it is added.",
        _SDK,
        "The SDK adds the deltas to what is there: the arguments are doubled.",
    ),
    _must(
        "item-identity",
        "Type, id, call_id, name and role of an item never change.",
        _SPEC,
        "The call that is done is another than the one that began.",
    ),
    _must(
        "item-closed",
        "Every item is closed by `response.output_item.done`.",
        f"{_SPEC}; {_CODEX} runs a call when its item is done",
        "The call is never run.",
    ),
    _must(
        "closed-item",
        "Nothing is said of an item after it is done.",
        _SPEC,
        "The call has been run without it.",
    ),
    _should(
        "incomplete-item",
        "Only the last item of an incomplete response is incomplete.",
        _SPEC,
        "Clients run a call whose arguments were cut.",
    ),
    _must(
        "arguments-string",
        "The arguments of a call are text in every event.",
        "OpenAI Responses",
        "Typed clients raise.",
        on="turn",
        needs="call",
    ),
    _must(
        "call-order",
        "The arguments of a call come in deltas, then whole, then in the item.",
        _SPEC,
        "Clients that follow the deltas have other arguments than clients that wait.",
        needs="call",
    ),
    _must(
        "part-order",
        "Text comes in parts: each is added, grows, is said whole and closed before the next.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises on text for which there is no part, and thoughts are lost.",
        needs="text",
    ),
    _must(
        "part-begins-empty",
        "A part is empty when it is added.",
        _SDK,
        "The text is doubled.",
        needs="text",
    ),
    _must(
        "text-agrees",
        "Deltas, whole text and closed item say the same.",
        _SPEC,
        "Clients that stream see another call than clients that do not.",
    ),
    _must(
        "final-output",
        "The closing event of a response that did not fail holds all items, as they were when they were done.",
        f"{_SPEC}; clients that read only the closing event",
        "They see no calls, or others.",
    ),
    _should(
        "failed-output",
        "A failed response holds the items that it told of, the open one as incomplete.",
        _SPEC,
        "What the user has seen is gone from the history.",
        needs="error",
    ),
    _must(
        "object",
        "A plain answer is an object `response` with an id, a status, and a list of items as output.",
        "OpenAI Responses",
        "The SDK raises.",
        on="plain",
    ),
)


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


def _has_calls(event: Event) -> bool:
    return any(as_text(item.get("type")) in CALLS for item in as_objects(event.inner("response").get("output")))


# A plain answer


def check_plain(body: Json) -> Iterator[Finding]:
    items = body.get("output")
    about = {key: body.get(key) for key in ("object", "id", "status")}
    if about["object"] != "response" or not all(map(as_text, about.values())) or not isinstance(items, list):
        yield broken("object", f"the answer is {shown(about)} with the output {shown(items)}.")
    for item in as_objects(items):
        for rule, says in item_faults(item):
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
