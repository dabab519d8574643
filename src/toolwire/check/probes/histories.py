"""What comes back: results, histories with holes, responses that are continued."""

from collections.abc import Sequence

import msgspec

from toolwire.check.apis import Ask, Called, Result, User
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import probe
from toolwire.check.probes.scene import BOTH, HELLO, ONE, SUNNY, WEATHER
from toolwire.check.talks import BUSY, Talk, turn_in, why_not
from toolwire.check.turns.loose import as_object, as_text
from toolwire.check.turns.turn import Call


@probe("failed-tool", "history.error-result")
async def failed_tool(talk: Talk) -> None:
    """A result that says that the tool has failed. Mistral takes ids of nine letters only."""
    calls = (Call("callcheck", "get_weather", '{"city":"Paris"}'),)
    results = (Result("callcheck", "Error: the weather service is down", failed=True),)
    talk.answered("history.error-result", await talk.ask(Ask((ONE, Called(calls), *results), BOTH)))


@probe("orphans", "history.orphan-call", "history.orphan-result", "errors.form", "errors.fields")
async def orphans(talk: Talk) -> None:
    """Histories that agents have after an interruption, or after they were shortened."""
    calls = (Call("callchec2", "get_weather", '{"city":"Paris"}'),)
    open_call = await talk.ask(Ask((ONE, Called(calls), User("Never mind. Say hello.")), (WEATHER,)))
    talk.refused_or_answered("history.orphan-call", open_call)
    alone = await talk.ask(Ask((ONE, Result("callchec3", SUNNY), HELLO), (WEATHER,)))
    talk.refused_or_answered("history.orphan-result", alone)


@probe("continued", "state.previous", "state.submit")
async def continued(talk: Talk) -> None:
    """A response that is continued by its id."""
    if talk.api.name != "responses":
        return
    first = await talk.ask(Ask((ONE,), BOTH, named="get_weather", stream=False, more={"store": True}))
    if not talk.needs_call("state.previous", first):
        talk.unseen("state.submit", "there is no call to answer")
        return
    results = tuple(Result(call.id, SUNNY) for call in first.turn.calls)
    for stream in (True, False):
        next = await talk.ask(Ask(results, BOTH, stream=stream, more={"previous_response_id": first.turn.id}))
        if 400 <= next.status < 500:
            talk.unseen("state.previous", why_not(next))
        elif not next.ok or _knows(next):
            talk.answered("state.previous", next)
        elif _previous(next):
            talk.unseen("state.previous", "the answer does not show that it knows of the first response")
        else:
            talk.judge("state.previous", False, "The response knows nothing of the one that it continues.", next)
    await _submit(talk, first, results)


def _knows(got: Exchange) -> bool:
    """Whether an answer speaks of something that only the first request held."""
    return any(word in got.turn.text.lower() for word in ("paris", WEATHER.name))


def _previous(got: Exchange) -> str:
    """What a response says that it continues."""
    told = [as_object(each.fields.get("response")) for each in got.heard if "response" in each.fields] or [got.fields]
    return as_text(told[-1].get("previous_response_id"))


async def _submit(talk: Talk, first: Exchange, results: Sequence[Result]) -> None:
    if not first.fields.get("required_action"):
        talk.unseen("state.submit", "the response has no `required_action`")
        return
    outputs = [{"tool_call_id": result.id, "output": result.text} for result in results]
    path = f"/responses/{first.turn.id}/submit_tool_outputs"
    got = await talk.post(msgspec.json.encode({"tool_outputs": outputs}), path)
    if got.status in BUSY:
        talk.unseen("state.submit", why_not(got))
    else:
        talk.judge("state.submit", turn_in(got).is_over, f"The answer is {why_not(got)}.", got)


@probe("unknown-response", "state.unknown", "errors.form", "errors.fields")
async def unknown_response(talk: Talk) -> None:
    """A response that continues nothing."""
    if talk.api.name != "responses":
        return
    ask = Ask((ONE,), BOTH, stream=False, more={"previous_response_id": "resp_no_such_response"})
    talk.refused("state.unknown", await talk.ask(ask), "The request")
