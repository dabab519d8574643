"""Test cases: recorded turns that say what their client must get. They are run offline.

The recorded reply goes through the decoder, the policies and the encoder of this version, under the recorded settings.
The answer is then read from its bytes, as the client's own bytes were read when the case was made.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import cast

import msgspec
from msgspec import UNSET

from toolwire.assembly import ReaderFacts, ToolRules, adapt_request, assemble_policies
from toolwire.core.collect import Call, collect
from toolwire.core.errors import BackendFault, BadRequest, OutOfOrder
from toolwire.core.events import Event, TurnEnded, TurnFailed
from toolwire.core.jsonrpc import JSON_LINES
from toolwire.core.notes import TurnStats
from toolwire.core.order import TurnOrder
from toolwire.core.recording import Case, Expectation, ExpectedCall, Recording
from toolwire.core.request import Request
from toolwire.protocols import Json, backend_kinds, converse_as, dialects
from toolwire.reader import TurnReader
from toolwire.turns.run import find_early_failure
from toolwire.turns.validate import validate

OTHER_NOTES = frozenset(
    (
        *("end_missing", "failed_over", "gateway_tools_left_out", "max_turns_reached", "not_stored"),
        *("reasoning_dropped", "repeated_calls", "retried", "retry_withheld", "tokens_estimated"),
    )
)
"""Notes that depend on more than the request and one reply: time, other attempts, the store, gateway tools."""
MAX_DIFFERENCES = 20
"""Maximum differences of one case that are listed."""
MAX_VALUE_LENGTH = 200
"""Maximum characters of a value or a key in a difference."""
MAX_DEPTH = 40
"""Maximum depth at which arguments are compared key by key."""


def read_outcome(
    dialect: str, status: int, content_type: str, answer: Sequence[bytes], notes: Sequence[str]
) -> Expectation:
    """What the client of this dialect got, from the bytes of its answer."""
    conversation = converse_as(dialect, Request("", (), stream=True, include_usage=True), "case")
    reader, events = TurnReader(conversation, content_type), list[Event]()
    try:
        if not 200 <= status < 300 and content_type != JSON_LINES:
            raise BackendFault(conversation.read_error(status, {}, b"".join(answer)))  # noqa: TRY301
        for data in answer:
            events += reader.feed(data)
        events += reader.end()
    except BackendFault as fault:
        events.append(TurnFailed(fault.failure))
    turn = collect(events)
    finish = conversation.decoder.given_reason if turn.failure is None else f"failed: {turn.failure.code}"
    calls = [_expect_call(call) for call in turn.calls]
    return Expectation(calls, turn.text + turn.refusal, finish, sorted({*notes} - OTHER_NOTES))


def _expect_call(call: Call) -> ExpectedCall:
    is_object = isinstance(_decode(call.arguments.encode()), dict)
    arguments = call.arguments.encode() if is_object else msgspec.json.encode(call.arguments)
    return ExpectedCall(call.name, msgspec.Raw(arguments), call.id, call.namespace, call.complete)


def run_case(recording: Recording) -> list[str]:
    """Run a test case; returns its differences from what is expected. Raises `ValueError` if it cannot be run."""
    head, case = recording.head, recording.case
    if case is None:
        raise ValueError("it is a recording that does not say what is expected")
    if head.dialect not in dialects() or head.kind not in backend_kinds():
        raise ValueError(f"a {head.dialect or 'nameless'} client of a {head.kind} backend is not known here")
    if not head.status:
        raise ValueError("the backend gave no answer")
    try:
        got = _answer(recording, case)
    except OutOfOrder as error:
        return [f"the events of the turn are not in order: {error}"]
    return [*islice(_list_differences(case.expected, got), MAX_DIFFERENCES)]


def _answer(recording: Recording, case: Case) -> Expectation:
    """What the client gets from this version."""
    head, module = recording.head, dialects()[recording.head.dialect].module
    try:
        request = module.decode_request(recording.request.encode())
        if request.continues:  # what it continues is not recorded
            request = msgspec.structs.replace(request, entries=())
        events, stats = _read_reply(recording, case, msgspec.structs.replace(request, stream=not case.is_plain))
    except BadRequest as refused:
        return Expectation([], "", f"failed: {refused.code}", [])
    failure = find_early_failure(events)
    turn = collect(events)
    if case.is_plain:
        failure = turn.failure
    status, id, notes = 200, module.new_id(case.seed), tuple(stats.counts)
    if failure is not None:
        status, answer = failure.status, [module.encode_error(failure)]
    elif case.is_plain:
        answer = [module.encode_turn(turn, request, id, 0)]
    else:
        encoder = module.StreamEncoder(request, id, 0, stats)
        answer = [piece for event in events for piece in encoder.feed(event)]
    return read_outcome(head.dialect, status, "", answer, notes)


def _read_reply(recording: Recording, case: Case, request: Request) -> tuple[list[Event], TurnStats]:
    """The events of the recorded reply after the policies. Raises `BadRequest` if the backend cannot be asked."""
    head, side = recording.head, backend_kinds()[recording.head.kind]
    rules, facts, profile = msgspec.convert(case.rules, ToolRules), side.facts, None
    if side.http is not None:
        profile = side.http.profile_from(case.profile, case.login)
        facts = side.http.facts(profile)
    request = adapt_request(request, rules, head.kind, facts)
    asked = msgspec.structs.replace(request, model=head.model)
    if side.http is not None:
        conversation = side.http.converse(asked, case.seed, profile)
    else:
        conversation = converse_as(head.kind, asked, case.seed)
    if side.built_in is None:
        conversation.start()  # it notes what the request to the backend lacks
    assembly = assemble_policies(
        request, rules, case.seed, conversation.stand_in, (), validate, ReaderFacts(head.kind == head.dialect)
    )
    policies, order, out = assembly.policies, TurnOrder(), list[Event]()

    def read() -> Iterator[Sequence[Event]]:
        if not 200 <= head.status < 300:
            body = "".join(line.body for line in recording.reply).encode()
            yield (TurnFailed(conversation.read_error(head.status, {}, body)),)
            return
        reader = TurnReader(conversation, head.content_type)
        for line in recording.reply:
            yield reader.feed(line.body.encode() if line.body else recording.encode_frame(line))
        # After a burst of calls the gateway ends the turn itself.
        yield (TurnEnded(),) if assembly.burst is not None and assembly.burst.waiting else reader.end()

    try:
        for events in read():
            out += policies.feed_all(events)
            if policies.closed:
                break
    except BackendFault as fault:
        out += policies.feed_all((TurnFailed(fault.failure),))
    order.check(out)
    order.end()
    return out, assembly.stats


# Differences


def _list_differences(expected: Expectation, got: Expectation) -> Iterator[str]:
    """In words, what differs in the fields that are compared."""
    left_out = {name: None for name, value in msgspec.structs.asdict(expected).items() if value is None}
    was, now = dict(_flatten(expected)), dict(_flatten(msgspec.structs.replace(got, **left_out)))
    for place in {**was, **now}:
        one, other = was.get(place, UNSET), now.get(place, UNSET)
        if (type(one), one) == (type(other), other) or (one is UNSET and place.endswith(": id differs")):
            continue  # the type tells 1 and 1.0 apart
        where = ""
        if isinstance(one, str) and isinstance(other, str) and len(one) > MAX_VALUE_LENGTH:
            at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))
            where, one, other = f" from character {at + 1} on", one[at:], other[at:]
        yield f"{place}{where}: expected {_show(one)}, got {_show(other)}"


def _flatten(expectation: Expectation) -> Iterator[tuple[str, object]]:
    """Every value of an expectation, and where it is, in the words of a difference."""
    for number, call in enumerate(expectation.calls or (), 1):
        for name in ("name", "id", "namespace", "complete"):
            if value := getattr(call, name):
                yield f"call {number}: {name} differs", value
        for path, value in _list_leaves(_decode(bytes(call.arguments)), ""):
            where = f" at key `{path[:MAX_VALUE_LENGTH]}`" if path else ""
            yield f"call {number}: arguments differ{where}", value
    for name, value in (("text", expectation.text), ("finish", expectation.finish)):
        if value is not None:
            yield f"{name} differs", value
    if expectation.notes is not None:
        yield "notes differ", sorted({*expectation.notes} - OTHER_NOTES)


def _list_leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """The values in a JSON value that hold no others, each with its path; also those that are nested very deeply."""
    if not value or not isinstance(value, dict | list) or path.count(".") + path.count("[") > MAX_DEPTH:
        yield path, value
    elif isinstance(value, dict):
        for key, each in cast("Json", value).items():
            yield from _list_leaves(each, f"{path}.{key}" if path else key)
    else:
        for index, each in enumerate(cast("list[object]", value)):
            yield from _list_leaves(each, f"{path}[{index}]")


def _decode(arguments: bytes) -> object:
    """The value of this JSON; its text if it is not valid, or cannot be read."""
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return arguments.decode(errors="replace")


def _show(value: object) -> str:
    """A value as JSON, shortened."""
    text = msgspec.json.encode(value).decode() if value is not UNSET else "nothing"
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"
