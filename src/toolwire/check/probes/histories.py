"""What comes back: results, histories with holes, responses that are continued."""

from collections.abc import Sequence

import msgspec

from toolwire.check.apis import Ask, Called, Result, User
from toolwire.check.exchange import Exchange
from toolwire.check.probes.probe import probe
from toolwire.check.probes.scene import BOTH, HELLO, ONE, REMEMBER, SUNNY, WEATHER, WORD
from toolwire.check.talks import BUSY, Talk, turn_in, why_not
from toolwire.check.turns.frames import FrameCheck
from toolwire.check.turns.loose import Json, as_number, as_object, as_text, shown
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
    first = await talk.ask(Ask((REMEMBER,), BOTH, named="get_weather", stream=False, more={"store": True}))
    if not talk.needs_call("state.previous", first):
        talk.unseen("state.submit", "there is no call to answer")
        return
    results = tuple(Result(call.id, SUNNY) for call in first.turn.calls)
    for stream in (True, False):
        next = await talk.ask(Ask(results, BOTH, stream=stream, more={"previous_response_id": first.turn.id}))
        if 400 <= next.status < 500:
            talk.unseen("state.previous", why_not(next))
        elif not next.ok:
            talk.answered("state.previous", next)
        else:
            remembers(talk, "state.previous", first, next)
    await _submit(talk, first, results)


def remembers(talk: Talk, rule: str, first: Exchange, next: Exchange) -> None:
    """Whether a response has read the one that it continues: it speaks of it, or counts its tokens again."""
    before, after = first.turn.usage, next.turn.usage
    if any(word in next.turn.text.lower() for word in ("paris", WEATHER.name, WORD)):
        talk.judge(rule, True, "", next)
    elif before is not None and after is not None and before.input > 0:
        says = f"It read {after.input} tokens, the response that it continues {before.input}: that was not read again."
        talk.judge(rule, after.input > before.input, says, next)
    elif _previous(next):
        talk.unseen(rule, "the answer does not show that it knows of the first response")
    else:
        talk.judge(rule, False, "The response knows nothing of the one that it continues.", next)


def _previous(got: Exchange) -> str:
    """What a response says that it continues."""
    told = [as_object(each.fields.get("response")) for each in got.heard if "response" in each.fields] or [got.fields]
    return as_text(told[-1].get("previous_response_id"))


@probe("resumed", "state.resume")
async def resumed(talk: Talk) -> None:
    """A stream that is read again from its middle."""
    if talk.api.name != "responses":
        return
    first = await talk.ask(Ask((ONE,), BOTH, named="get_weather", more={"store": True, "background": True}))
    wanted = [each.fields for each in first.heard if each.is_event]
    numbers = [as_number(each.get("sequence_number")) for each in wanted]
    if not first.ok or None in numbers or len(numbers) < 4:
        talk.unseen("state.resume", why_not(first) if not first.ok else "its events have no numbers")
        return
    middle = len(numbers) // 2
    again = await talk.get(f"/responses/{first.turn.id}?stream=true&starting_after={numbers[middle]}")
    if again.status != 200 or not again.streamed:
        talk.unseen("state.resume", why_not(again) if again.status != 200 else f"the answer is {again.content_type!r}")
        return
    told = [each.fields for each in FrameCheck().feed(again.body) if each.is_event]
    says = f"Behind {numbers[middle]} came {_places(told)}, and there were {_places(wanted[middle + 1 :])}."
    talk.judge("state.resume", told == wanted[middle + 1 :], says, again)


def _places(events: Sequence[Json]) -> str:
    return shown([each.get("sequence_number") for each in events])


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
