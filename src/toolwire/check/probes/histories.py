"""Probes of histories: results, histories with missing parts, continued responses."""

from collections.abc import Sequence

import msgspec

from toolwire.check.apis import AssistantCalls, ProbeRequest, ToolResult, UserMessage
from toolwire.check.exchange import Exchange
from toolwire.check.probes.fixtures import BOTH, HELLO, ONE, REMEMBER, SUNNY, WEATHER, WORD
from toolwire.check.probes.probe import probe
from toolwire.check.sessions import BUSY, ProbeSession, failure_reason, read_turn
from toolwire.check.turns.frames import FrameCheck
from toolwire.check.turns.loose import Json, as_number, as_object, as_text, shown
from toolwire.check.turns.turn import ObservedCall


@probe("failed-tool", "history.error-result")
async def failed_tool(session: ProbeSession) -> None:
    """A result that reports a failed tool. Mistral accepts only ids of nine characters."""
    calls = (ObservedCall("callcheck", "get_weather", '{"city":"Paris"}'),)
    results = (ToolResult("callcheck", "Error: the weather service is down", failed=True),)
    session.answered(
        "history.error-result", await session.ask(ProbeRequest((ONE, AssistantCalls(calls), *results), BOTH))
    )


@probe("orphans", "history.orphan-call", "history.orphan-result", "errors.form", "errors.fields")
async def orphans(session: ProbeSession) -> None:
    """Histories of agents that were interrupted, or that shortened them."""
    calls = (ObservedCall("callchec2", "get_weather", '{"city":"Paris"}'),)
    open_call = await session.ask(
        ProbeRequest((ONE, AssistantCalls(calls), UserMessage("Never mind. Say hello.")), (WEATHER,))
    )
    session.refused_or_answered("history.orphan-call", open_call)
    alone = await session.ask(ProbeRequest((ONE, ToolResult("callchec3", SUNNY), HELLO), (WEATHER,)))
    session.refused_or_answered("history.orphan-result", alone)


@probe("continued", "state.previous", "state.submit")
async def continued(session: ProbeSession) -> None:
    """A response that is continued by its id."""
    if session.api.name != "responses":
        return
    first = await session.ask(ProbeRequest((REMEMBER,), BOTH, named="get_weather", stream=False, more={"store": True}))
    if not session.needs_call("state.previous", first):
        session.not_observed("state.submit", "there is no call to answer")
        return
    results = tuple(ToolResult(call.id, SUNNY) for call in first.turn.calls)
    for stream in (True, False):
        next = await session.ask(
            ProbeRequest(results, BOTH, stream=stream, more={"previous_response_id": first.turn.id})
        )
        if 400 <= next.status < 500:
            session.not_observed("state.previous", failure_reason(next))
        elif not next.ok:
            session.answered("state.previous", next)
        else:
            remembers(session, "state.previous", first, next)
    await _submit(session, first, results)


def remembers(session: ProbeSession, rule: str, first: Exchange, next: Exchange) -> None:
    """Judge whether a response knows the one that it continues: by its text, or by its token counts.

    The name of the tool is no proof: its own request declares it."""
    before, after = first.turn.usage, next.turn.usage
    if any(word in next.turn.text.lower() for word in ("paris", WORD)):
        session.judge(rule, True, "", next)
    elif before is not None and after is not None and before.input > 0:
        detail = (
            f"It read {after.input} tokens, the response that it continues {before.input}: that was not read again."
        )
        session.judge(rule, after.input > before.input, detail, next)
    elif _previous(next):
        session.not_observed(rule, "the answer does not show that it knows of the first response")
    else:
        session.judge(rule, False, "The response knows nothing of the one that it continues.", next)


def _previous(answer: Exchange) -> str:
    """The `previous_response_id` in an answer."""
    responses = [as_object(each.fields.get("response")) for each in answer.received if "response" in each.fields]
    return as_text((responses or [answer.fields])[-1].get("previous_response_id"))


@probe("resumed", "state.resume")
async def resumed(session: ProbeSession) -> None:
    """A background response whose stream is resumed in its middle."""
    if session.api.name != "responses":
        return
    first = await session.ask(ProbeRequest((ONE,), BOTH, named="get_weather", more={"store": True, "background": True}))
    wanted = [each.fields for each in first.received if each.is_event]
    numbers = [as_number(each.get("sequence_number")) for each in wanted]
    if not first.ok or None in numbers or len(numbers) < 4:
        session.not_observed("state.resume", failure_reason(first) if not first.ok else "its events have no numbers")
        return
    middle = len(numbers) // 2
    again = await session.get(f"/responses/{first.turn.id}?stream=true&starting_after={numbers[middle]}")
    if again.status != 200 or not again.streamed:
        session.not_observed(
            "state.resume", failure_reason(again) if again.status != 200 else f"the answer is {again.content_type!r}"
        )
        return
    resumed_events = [each.fields for each in FrameCheck().feed(again.body) if each.is_event]
    detail = (
        f"Behind {numbers[middle]} came {_numbers(resumed_events)}, and there were {_numbers(wanted[middle + 1 :])}."
    )
    session.judge("state.resume", resumed_events == wanted[middle + 1 :], detail, again)


def _numbers(events: Sequence[Json]) -> str:
    return shown([each.get("sequence_number") for each in events])


async def _submit(session: ProbeSession, first: Exchange, results: Sequence[ToolResult]) -> None:
    if not first.fields.get("required_action"):
        session.not_observed("state.submit", "the response has no `required_action`")
        return
    outputs = [{"tool_call_id": result.id, "output": result.text} for result in results]
    path = f"/responses/{first.turn.id}/submit_tool_outputs"
    answer = await session.post(msgspec.json.encode({"tool_outputs": outputs}), path)
    if answer.status in BUSY:
        session.not_observed("state.submit", failure_reason(answer))
    else:
        session.judge("state.submit", read_turn(answer).is_over, f"The answer is {failure_reason(answer)}.", answer)


@probe("unknown-response", "state.unknown", "errors.form", "errors.fields")
async def unknown_response(session: ProbeSession) -> None:
    """A response that continues an unknown one."""
    if session.api.name != "responses":
        return
    request = ProbeRequest((ONE,), BOTH, stream=False, more={"previous_response_id": "resp_no_such_response"})
    session.refused("state.unknown", await session.ask(request), "The request")
