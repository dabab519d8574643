"""Probes of Responses alone: continued and background responses, repeated settings, compaction, WebSockets."""

from collections.abc import Sequence

from toolwire.check.apis import ProbeRequest, ToolResult
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import BOTH, FAR, HELLO, ONE, REMEMBER, SUNNY, TURNS, WORD, probe
from toolwire.check.probes.protocol import judge_failure
from toolwire.check.sessions import BUSY, ProbeSession, describe_failure, read_turn
from toolwire.check.socket import NoSocket, SocketConnection, connect
from toolwire.check.turns.frames import FrameCheck
from toolwire.check.turns.loose import Json, as_number, as_object, as_objects, as_text, quote
from toolwire.check.turns.turn import ObservedCall

SETTINGS: Json = {
    "instructions": "Be brief.",
    "metadata": {"asked-by": "toolwire check"},
    "text": {"format": {"type": "text"}},
    "truncation": "disabled",
}
SAMPLING: Json = {"temperature": 0.5, "top_p": 0.9}
"""Reasoning models refuse these."""
COMPACT_RULES = ("compact.form", "compact.fields", "compact.used", "compact.errors")
COMPACT_PATH = "/responses/compact"
SOCKET_RULES = (
    "socket.turn",
    "socket.continued",
    "socket.separate",
    "socket.evicted",
    "socket.unknown",
    "socket.fields",
    "socket.error",
    "socket.queue",
)


@probe("continued", "state.previous", "state.submit")
async def continued(session: ProbeSession) -> None:
    """A response that is continued by its id."""
    first = await session.ask(ProbeRequest((REMEMBER,), BOTH, named="get_weather", stream=False, more={"store": True}))
    if not session.require_call("state.previous", first):
        session.skip("state.submit", "there is no call to answer")
        return
    results = tuple(ToolResult(call, SUNNY) for call in first.turn.calls)
    more = {"previous_response_id": first.turn.id}
    for stream in (True, False):
        next = await session.ask(ProbeRequest(results, BOTH, stream=stream, more=more))
        if 400 <= next.status < 500:
            session.skip("state.previous", describe_failure(next))
        elif not next.ok:
            session.expect_answer("state.previous", next)
        else:
            _judge_memory(session, "state.previous", first, next)
    if not first.fields.get("required_action"):
        session.skip("state.submit", "the response has no `required_action`")
        return
    outputs = [{"tool_call_id": result.call.id, "output": result.text} for result in results]
    answer = await session.post({"tool_outputs": outputs}, f"/responses/{first.turn.id}/submit_tool_outputs")
    detail = f"The answer is {describe_failure(answer)}."
    session.judge_unless_busy("state.submit", read_turn(answer).is_over, detail, answer)


def _judge_memory(session: ProbeSession, rule: str, first: Exchange, next: Exchange) -> None:
    """Judge whether a response knows the one that it continues: by its text, or by its token counts.

    The name of the tool is a proof only if the response repeats no tools.
    """
    before, after = first.turn.usage, next.turn.usage
    proofs = ("paris", WORD) if _response(next).get("tools") else ("paris", WORD, "get_weather")
    if any(word in next.turn.text.lower() for word in proofs):
        session.judge(rule, True, "", next)
    elif before is not None and after is not None and before.input > 0:
        detail = f"It read {after.input} tokens, and the response that it continues read {before.input}."
        session.judge(rule, after.input > before.input, detail, next)
    elif _response(next).get("previous_response_id"):
        session.skip(rule, "the answer does not show that it knows of the first response")
    else:
        session.judge(rule, False, "The response knows nothing of the one that it continues.", next)


def _response(answer: Exchange) -> Json:
    """The response object of an answer, from its last event that has one."""
    responses = [as_object(each.fields.get("response")) for each in answer.received if "response" in each.fields]
    return (responses or [answer.fields])[-1]


@probe("resumed", "state.resume")
async def resumed(session: ProbeSession) -> None:
    """A background response whose stream is resumed from the middle."""
    first = await session.ask(ProbeRequest((ONE,), BOTH, named="get_weather", more={"store": True, "background": True}))
    wanted = [each.fields for each in first.received if each.is_event]
    numbers = [as_number(each.get("sequence_number")) for each in wanted]
    if not first.ok or None in numbers or len(numbers) < 4:
        session.skip("state.resume", describe_failure(first) if not first.ok else "its events have no numbers")
        return
    middle = len(numbers) // 2
    again = await session.get(f"/responses/{first.turn.id}?stream=true&starting_after={numbers[middle]}")
    if again.status != 200 or not again.streamed:
        reason = describe_failure(again) if again.status != 200 else f"the answer is {again.content_type!r}"
        session.skip("state.resume", reason)
        return
    rest = wanted[middle + 1 :]
    came = [each.fields for each in FrameCheck().feed(again.body) if each.is_event]
    detail = f"After {numbers[middle]} came {_numbers(came)} instead of {_numbers(rest)}."
    session.judge("state.resume", came == rest, detail, again)


def _numbers(events: Sequence[Json]) -> str:
    return quote([each.get("sequence_number") for each in events])


@probe("unknown-response", "state.unknown", "errors.form", "errors.fields")
async def unknown_response(session: ProbeSession) -> None:
    """A response that continues an unknown one."""
    request = ProbeRequest((ONE,), BOTH, stream=False, more={"previous_response_id": "resp_no_such_response"})
    session.expect_refusal("state.unknown", await session.ask(request), "The request")


@probe("settings", "responses.echo", "responses.echo-sampling", TURNS)
async def echoed_settings(session: ProbeSession) -> None:
    """Settings that differ from the defaults."""
    for rule, settings in (("responses.echo", SETTINGS), ("responses.echo-sampling", SAMPLING)):
        for stream in (True, False):
            answer = await session.ask(ProbeRequest((HELLO,), BOTH, "none", stream=stream, more=settings))
            if not answer.ok:
                session.skip(rule, describe_failure(answer))


@probe("compaction", *COMPACT_RULES, "errors.form", "errors.fields")
async def compacted(session: ProbeSession) -> None:
    """A conversation that is compacted and continued."""
    whole = session.make_body(ProbeRequest((REMEMBER,), stream=False))
    body: Json = {name: whole[name] for name in ("model", "input")}
    answer = await session.post(body, COMPACT_PATH)
    if answer.status in BUSY or answer.status == 501 or 400 <= answer.status < 500:
        for rule in COMPACT_RULES:
            session.skip(rule, f"nothing was compacted: {describe_failure(answer)}")
        return
    output = answer.fields.get("output")
    items = as_objects(output)
    has_compaction = any(item.get("type") == "compaction" and as_text(item.get("encrypted_content")) for item in items)
    detail = f"The output is {quote(output)}." if answer.status == 200 else f"The answer is {describe_failure(answer)}."
    session.judge("compact.form", answer.status == 200 and has_compaction, detail, answer)
    if has_compaction:
        fields = answer.fields
        is_there = {
            "object": fields.get("object") == "response.compaction",
            "id": as_text(fields.get("id")),
            "created_at": as_number(fields.get("created_at")) is not None,
            "usage": as_number(as_object(fields.get("usage")).get("total_tokens")) is not None,
        }
        lacking = [name for name, there in is_there.items() if not there]
        session.judge("compact.fields", not lacking, f"The compaction lacks its {', '.join(lacking)}.", answer)
        more = {"input": [*items, {"role": "user", "content": HELLO.text}]}
        next = await session.ask(ProbeRequest((HELLO,), stream=False, more=more))
        session.expect_answer("compact.used", next)
    else:
        for rule in ("compact.fields", "compact.used"):
            session.skip(rule, "there is no compaction in the answer")
    no_model = await session.post({"input": body["input"]}, COMPACT_PATH)
    session.expect_refusal("compact.errors", no_model, "A compaction without a model")


@probe("socket", *SOCKET_RULES, "stream.failure", TURNS)
async def over_socket(session: ProbeSession) -> None:
    """Turns over a WebSocket: continued there, elsewhere and after a failure; refused; two at once; failed."""
    try:
        async with connect(session) as connection:
            latest = await _converse(session, connection)
            if latest is not None:
                await _continue_elsewhere(session, latest)
                await _continue_after_failure(session, connection, latest)
                await _be_refused(session, connection)
                await _queue(session, connection)
                if session.is_demo:
                    failed = await connection.ask(ProbeRequest((HELLO,)), session.choose_model("error-middle"))
                    judge_failure(session, failed)
            else:
                for rule in SOCKET_RULES[1:]:
                    session.skip(rule, "there was no turn over the WebSocket")
    except NoSocket as error:
        for rule in SOCKET_RULES:
            session.skip(rule, str(error))


async def _converse(session: ProbeSession, connection: SocketConnection) -> Exchange | None:
    """Hold a conversation of two turns; returns the latest complete turn, if there is one."""
    first = await connection.ask(ProbeRequest((REMEMBER,), BOTH, named="get_weather"))
    if first.status >= 400:
        session.skip("socket.turn", describe_failure(first))
    else:
        not_json = [each.data for each in first.received if not each.is_event]
        detail = f"A message is {quote(not_json[0])}." if not_json else f"The answer is {describe_failure(first)}."
        session.judge("socket.turn", first.ok and not not_json, detail, first)
    if not first.ok or not first.turn.calls:
        session.skip("socket.continued", "there is no call to answer")
        return first if first.ok else None
    results = tuple(ToolResult(call, SUNNY) for call in first.turn.calls)
    next = await connection.ask(ProbeRequest(results, BOTH, more={"previous_response_id": first.turn.id}))
    if next.ok:
        _judge_memory(session, "socket.continued", first, next)
    else:
        session.judge_unless_busy("socket.continued", False, f"The answer is {describe_failure(next)}.", next)
    return next if next.ok else first


async def _continue_elsewhere(session: ProbeSession, latest: Exchange) -> None:
    """Continue a response on another connection, which does not have it because it is not stored."""
    try:
        async with connect(session) as other:
            answer = await other.ask(ProbeRequest((HELLO,), BOTH, more={"previous_response_id": latest.turn.id}))
    except NoSocket as error:
        session.skip("socket.separate", str(error))
    else:
        _judge(session, "socket.separate", answer, _is_refused(answer))


async def _continue_after_failure(session: ProbeSession, connection: SocketConnection, latest: Exchange) -> None:
    """Continue a response again after one continuation was refused because of a result without a call."""
    more = {"previous_response_id": latest.turn.id}
    lone = ToolResult(ObservedCall("callchec4", "get_weather", "{}"), SUNNY)
    failed = await connection.ask(ProbeRequest((lone,), BOTH, more=more))
    if failed.ok or failed.status in BUSY:
        reason = "a result without its call was answered" if failed.ok else describe_failure(failed)
        session.skip("socket.evicted", reason)
        return
    again = await connection.ask(ProbeRequest((HELLO,), BOTH, more=more))
    _judge(session, "socket.evicted", again, _is_refused(again))


async def _be_refused(session: ProbeSession, connection: SocketConnection) -> None:
    unknown = await connection.ask(ProbeRequest((ONE,), BOTH, more={"previous_response_id": "resp_no_such_response"}))
    _judge(session, "socket.unknown", unknown, _error(unknown).get("code") == "previous_response_not_found")
    background = await connection.ask(ProbeRequest((HELLO,), more={"background": True, "store": True}))
    _judge(session, "socket.fields", background, _is_refused(background))
    refused = [answer for answer in (unknown, background) if _is_refused(answer)]
    if not refused:
        session.skip("socket.error", "nothing was refused")
        return
    for answer in refused:
        status, message = answer.received[0].fields.get("status"), _error(answer).get("message")
        is_sound = as_number(status) is not None and bool(as_text(message) and as_text(_error(answer).get("code")))
        _judge(session, "socket.error", answer, is_sound)
    after = await connection.ask(ProbeRequest((HELLO,)))
    _judge(session, "socket.error", after, after.ok)


def _judge(session: ProbeSession, rule: str, answer: Exchange, holds: bool) -> None:
    detail = f"The answer is {quote(answer.received[0].fields) if _is_refused(answer) else _outcome(answer)}."
    session.judge_unless_busy(rule, holds, detail, answer)


def _is_refused(answer: Exchange) -> bool:
    return bool(answer.received) and answer.received[0].fields.get("type") == "error"


def _error(answer: Exchange) -> Json:
    return as_object(answer.received[0].fields.get("error")) if _is_refused(answer) else {}


def _outcome(answer: Exchange) -> str:
    return "a turn" if answer.ok else describe_failure(answer)


async def _queue(session: ProbeSession, connection: SocketConnection) -> None:
    """Two requests at once."""
    for user in (ONE, FAR):
        await connection.send(ProbeRequest((user,), BOTH, named="get_weather"))
    answers = [await connection.receive(), await connection.receive()]
    failed = [answer for answer in answers if not answer.ok]
    if any(answer.status >= 400 for answer in failed):
        session.skip("socket.queue", describe_failure(failed[0]))
        return
    ids = [
        {as_text(as_object(each.fields.get("response")).get("id")) for each in answer.received} - {""}
        for answer in answers
    ]
    is_separate = not failed and all(len(each) == 1 for each in ids) and ids[0] != ids[1]
    outcomes = " and ".join(map(_outcome, answers))
    detail = f"The answers are {outcomes}, of the responses {quote([sorted(each) for each in ids])}."
    session.judge("socket.queue", is_separate, detail, (failed or answers)[0])
