"""Responses over a WebSocket."""

from toolwire.check.apis import Ask, Result
from toolwire.check.exchange import Exchange
from toolwire.check.probes.histories import remembers
from toolwire.check.probes.probe import TURNS, probe
from toolwire.check.probes.scene import BOTH, FAR, HELLO, ONE, REMEMBER, SUNNY
from toolwire.check.socket import Line, NoSocket
from toolwire.check.talks import BUSY, Talk, why_not
from toolwire.check.turns.loose import Json, as_number, as_object, as_text, shown

RULES = ("socket.turn", "socket.continued", "socket.unknown", "socket.fields", "socket.error", "socket.queue")


@probe("socket", *RULES, TURNS)
async def over_socket(talk: Talk) -> None:
    """A turn, its continuation, and what is refused."""
    if talk.api.name != "responses":
        return
    try:
        async with talk.connected() as line:
            if await _converse(talk, line):
                await _be_refused(talk, line)
                await _queue(talk, line)
            else:
                for rule in RULES[1:]:
                    talk.unseen(rule, "there was no turn over the WebSocket")
    except NoSocket as error:
        for rule in RULES:
            talk.unseen(rule, str(error))


async def _converse(talk: Talk, line: Line) -> bool:
    """Whether there was a turn."""
    first = await line.ask(Ask((REMEMBER,), BOTH, named="get_weather"))
    if first.status >= 400:
        talk.unseen("socket.turn", why_not(first))
    else:
        alien = [each.data for each in first.heard if not each.is_event]
        says = f"A message is {shown(alien[0])}." if alien else f"The answer is {why_not(first)}."
        talk.judge("socket.turn", first.ok and not alien, says, first)
    if not first.ok or not first.turn.calls:
        talk.unseen("socket.continued", "there is no call to answer")
        return first.ok
    results = tuple(Result(call.id, SUNNY) for call in first.turn.calls)
    next = await line.ask(Ask(results, BOTH, more={"previous_response_id": first.turn.id}))
    if next.status in BUSY:
        talk.unseen("socket.continued", why_not(next))
    elif next.ok:
        remembers(talk, "socket.continued", first, next)
    else:
        talk.judge("socket.continued", False, f"The answer is {why_not(next)}.", next)
    return True


async def _be_refused(talk: Talk, line: Line) -> None:
    unknown = await line.ask(Ask((ONE,), BOTH, more={"previous_response_id": "resp_no_such_response"}))
    _judge(talk, "socket.unknown", unknown, _code(unknown) == "previous_response_not_found")
    background = await line.ask(Ask((HELLO,), more={"background": True, "store": True}))
    _judge(talk, "socket.fields", background, _is_refused(background))
    refused = [got for got in (unknown, background) if _is_refused(got)]
    if not refused:
        talk.unseen("socket.error", "nothing was refused")
        return
    for got in refused:
        sound = as_number(got.heard[0].fields.get("status")) is not None and as_text(_error(got).get("message"))
        _judge(talk, "socket.error", got, bool(sound and _code(got)))
    after = await line.ask(Ask((HELLO,)))
    _judge(talk, "socket.error", after, after.ok)


def _judge(talk: Talk, rule: str, got: Exchange, holds: bool) -> None:
    """A server that is busy proves nothing."""
    if got.status in BUSY:
        talk.unseen(rule, why_not(got))
        return
    says = f"The answer is {shown(got.heard[0].fields) if _is_refused(got) else _outcome(got)}."
    talk.judge(rule, holds, says, got)


def _is_refused(got: Exchange) -> bool:
    return bool(got.heard) and got.heard[0].fields.get("type") == "error"


def _error(got: Exchange) -> Json:
    return as_object(got.heard[0].fields.get("error")) if _is_refused(got) else {}


def _code(got: Exchange) -> str:
    return as_text(_error(got).get("code"))


def _outcome(got: Exchange) -> str:
    return "a turn" if got.ok else why_not(got)


async def _queue(talk: Talk, line: Line) -> None:
    """Two requests at once."""
    for user in (ONE, FAR):
        await line.send(Ask((user,), BOTH, named="get_weather"))
    answers = [await line.hear(), await line.hear()]
    failed = [got for got in answers if not got.ok]
    if any(got.status >= 400 for got in failed):
        talk.unseen("socket.queue", why_not(failed[0]))
        return
    ids = [{as_text(as_object(each.fields.get("response")).get("id")) for each in got.heard} - {""} for got in answers]
    apart = not failed and all(len(each) == 1 for each in ids) and ids[0] != ids[1]
    outcomes = " and ".join(map(_outcome, answers))
    says = f"The answers are {outcomes}, of the responses {shown([sorted(each) for each in ids])}."
    talk.judge("socket.queue", apart, says, (failed or answers)[0])
