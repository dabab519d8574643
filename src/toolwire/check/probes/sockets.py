"""Probes of Responses over a WebSocket."""

from toolwire.check.apis import ProbeRequest, ToolResult
from toolwire.check.exchange import Exchange
from toolwire.check.probes.fixtures import BOTH, FAR, HELLO, ONE, REMEMBER, SUNNY
from toolwire.check.probes.histories import remembers
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.sessions import BUSY, ProbeSession, failure_reason
from toolwire.check.socket import NoSocket, SocketConnection, connected
from toolwire.check.turns.loose import Json, as_number, as_object, as_text, shown

RULES = ("socket.turn", "socket.continued", "socket.unknown", "socket.fields", "socket.error", "socket.queue")


@probe("socket", *RULES, TURNS)
async def over_socket(session: ProbeSession) -> None:
    """A turn, its continuation, refused messages and two at once."""
    if session.api.name != "responses":
        return
    try:
        async with connected(session) as connection:
            if await _converse(session, connection):
                await _be_refused(session, connection)
                await _queue(session, connection)
            else:
                for rule in RULES[1:]:
                    session.not_observed(rule, "there was no turn over the WebSocket")
    except NoSocket as error:
        for rule in RULES:
            session.not_observed(rule, str(error))


async def _converse(session: ProbeSession, connection: SocketConnection) -> bool:
    """Whether a complete turn was received."""
    first = await connection.ask(ProbeRequest((REMEMBER,), BOTH, named="get_weather"))
    if first.status >= 400:
        session.not_observed("socket.turn", failure_reason(first))
    else:
        not_json = [each.data for each in first.received if not each.is_event]
        detail = f"A message is {shown(not_json[0])}." if not_json else f"The answer is {failure_reason(first)}."
        session.judge("socket.turn", first.ok and not not_json, detail, first)
    if not first.ok or not first.turn.calls:
        session.not_observed("socket.continued", "there is no call to answer")
        return first.ok
    results = tuple(ToolResult(call.id, SUNNY) for call in first.turn.calls)
    next = await connection.ask(ProbeRequest(results, BOTH, more={"previous_response_id": first.turn.id}))
    if next.status in BUSY:
        session.not_observed("socket.continued", failure_reason(next))
    elif next.ok:
        remembers(session, "socket.continued", first, next)
    else:
        session.judge("socket.continued", False, f"The answer is {failure_reason(next)}.", next)
    return True


async def _be_refused(session: ProbeSession, connection: SocketConnection) -> None:
    unknown = await connection.ask(ProbeRequest((ONE,), BOTH, more={"previous_response_id": "resp_no_such_response"}))
    _judge(session, "socket.unknown", unknown, _code(unknown) == "previous_response_not_found")
    background = await connection.ask(ProbeRequest((HELLO,), more={"background": True, "store": True}))
    _judge(session, "socket.fields", background, _is_refused(background))
    refused = [answer for answer in (unknown, background) if _is_refused(answer)]
    if not refused:
        session.not_observed("socket.error", "nothing was refused")
        return
    for answer in refused:
        sound = as_number(answer.received[0].fields.get("status")) is not None and as_text(
            _error(answer).get("message")
        )
        _judge(session, "socket.error", answer, bool(sound and _code(answer)))
    after = await connection.ask(ProbeRequest((HELLO,)))
    _judge(session, "socket.error", after, after.ok)


def _judge(session: ProbeSession, rule: str, answer: Exchange, holds: bool) -> None:
    """Record a verdict, unless the server was busy."""
    if answer.status in BUSY:
        session.not_observed(rule, failure_reason(answer))
        return
    detail = f"The answer is {shown(answer.received[0].fields) if _is_refused(answer) else _outcome(answer)}."
    session.judge(rule, holds, detail, answer)


def _is_refused(answer: Exchange) -> bool:
    return bool(answer.received) and answer.received[0].fields.get("type") == "error"


def _error(answer: Exchange) -> Json:
    return as_object(answer.received[0].fields.get("error")) if _is_refused(answer) else {}


def _code(answer: Exchange) -> str:
    return as_text(_error(answer).get("code"))


def _outcome(answer: Exchange) -> str:
    return "a turn" if answer.ok else failure_reason(answer)


async def _queue(session: ProbeSession, connection: SocketConnection) -> None:
    """Two requests at once."""
    for user in (ONE, FAR):
        await connection.send(ProbeRequest((user,), BOTH, named="get_weather"))
    answers = [await connection.receive(), await connection.receive()]
    failed = [answer for answer in answers if not answer.ok]
    if any(answer.status >= 400 for answer in failed):
        session.not_observed("socket.queue", failure_reason(failed[0]))
        return
    ids = [
        {as_text(as_object(each.fields.get("response")).get("id")) for each in answer.received} - {""}
        for answer in answers
    ]
    is_separate = not failed and all(len(each) == 1 for each in ids) and ids[0] != ids[1]
    outcomes = " and ".join(map(_outcome, answers))
    detail = f"The answers are {outcomes}, of the responses {shown([sorted(each) for each in ids])}."
    session.judge("socket.queue", is_separate, detail, (failed or answers)[0])
